"""Meshes of ranks: sizes by name, and worlds that they divide."""

from __future__ import annotations

import pytest

from torchledger.errors import UsageError
from torchledger.work.meshes import check_mesh, parse_mesh


@pytest.mark.parametrize("text", ["dp=", "dp=0", "8", "dp=2,dp=4"])
def test_a_mesh_that_cannot_be_read_is_told_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="Write it as dp=8,tp=4"):
        parse_mesh(text)


def test_a_mesh_larger_than_the_world_is_told_the_smallest_that_holds_it() -> None:
    with pytest.raises(UsageError, match=r"The nearest that works is --world 16\.$"):
        check_mesh("the mesh", (4, 4), 8)
    check_mesh("the mesh", (4, 4), 48)
