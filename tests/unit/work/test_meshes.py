"""Meshes of ranks: sizes by name, and worlds that they divide."""

from __future__ import annotations

import re

import pytest

from torchledger.errors import UsageError
from torchledger.work.meshes import check_mesh, check_nodes, parse_mesh, uneven_view, unlike_mesh


@pytest.mark.parametrize("text", ["dp=", "dp=0", "8", "dp=2,dp=4"])
def test_a_mesh_that_cannot_be_read_is_told_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="Write it as dp=8,tp=4"):
        parse_mesh(text)


def test_a_mesh_larger_than_the_world_is_told_the_smallest_that_holds_it() -> None:
    with pytest.raises(UsageError, match=r"The nearest that works is --world 16\.$"):
        check_mesh("the mesh", (4, 4), 8)
    check_mesh("the mesh", (4, 4), 48)


def test_nodes_that_a_world_does_not_fill_are_told_with_the_nearest_that_it_does() -> None:
    with pytest.raises(
        UsageError, match=r"a world of 8 ranks does not fill nodes of 3\. The nearest that works is --node 2"
    ):
        check_nodes(3, 8)
    with pytest.raises(UsageError, match="--node 6"):
        check_nodes(8, 12)
    for ranks_per_node, world in ((8, 4), (8, 64), (1, 3)):
        check_nodes(ranks_per_node, world)


def test_a_mesh_whose_axes_have_other_sizes_in_the_script_is_told_both() -> None:
    groups = {"": {64}, "mesh_replicate": {8}, "mesh_shard": {8}}
    said = unlike_mesh("replicate=4,shard=16", groups)
    assert said is not None and "replicate=8, shard=8 where --mesh says replicate=4, shard=16" in said
    assert unlike_mesh("replicate=8,shard=8", groups) is None


def test_a_mesh_with_an_axis_of_which_the_script_has_no_group_is_told_so() -> None:
    by_hand = {"": {64}, "undefined": {8}}
    said = unlike_mesh("dp=4,tp=16", by_hand)
    assert said is not None and "no group of the script has the ranks of dp=4, tp=16" in said
    assert unlike_mesh("dp=8,tp=8,cp=1", by_hand) is None


@pytest.mark.parametrize(
    ("shape", "numel", "reason"),
    [
        ("[4, 2048, -1, 128]", 4 * 2048 * 320, "20 heads of 128, which do not divide over 8 ranks: .* works is 4$"),
        ("[2, -1, 4, 64]", 2 * 3 * 4 * 8, "3 parts of 256, which do not divide over 8 ranks: .* works is 1$"),
        (
            "[4, 2048, 24, 128]",
            4 * 2048 * 384,
            "has the size of what all 8 ranks of a mesh hold, .* of one rank, or -1",
        ),
    ],
)
def test_a_view_that_fits_what_all_ranks_hold_and_not_one_of_them_says_why(shape: str, numel: int, reason: str) -> None:
    said = uneven_view(f"shape '{shape}' is invalid for input of size {numel}", [8, 32], 64)
    assert said is not None and re.search(reason, said)


@pytest.mark.parametrize("said", ["shape '[4, -1, 96]' is invalid for input of size 2621441", "no such key"])
def test_a_view_that_would_not_fit_on_one_rank_either_is_not_put_down_to_ranks(said: str) -> None:
    assert uneven_view(said, [8], 16) is None
