"""Trees that say what the networks of passes miss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from factories import make_h200
from torchledger.expecting.convolution_times import PASSES, SIZES
from torchledger.expecting.generations import GENERATIONS
from torchledger.expecting.machine import LATEST_NETWORKS
from torchledger.expecting.pass_networks import Elements, time_passes
from torchledger.expecting.pass_trees import KINDS, beside_networks, from_file, kinds_of, to_file, tree_features
from torchledger.expecting.trees import MAX_LEAVES, TreeEnsemble

H200 = replace(make_h200(), networks=LATEST_NETWORKS)
BEFORE_TREES = 12
FILE = next(each for each in GENERATIONS if each.name == "Hopper").networks[LATEST_NETWORKS - 1].trees or ""
COUNT = 40
RNG = np.random.default_rng(7)
GROUPS = np.array([1, 4, 64])[RNG.integers(0, 3, COUNT)].astype(np.float64)
P = {
    "n": RNG.integers(1, 64, COUNT).astype(np.float64),
    "c_in": np.full(COUNT, 64.0),
    "c_out": np.where(GROUPS == 64, 64.0, 128.0),
    "height": (side := RNG.integers(7, 112, COUNT).astype(np.float64)),
    "width": side,
    "kernel": np.full(COUNT, 3.0),
    "stride": np.ones(COUNT),
    "padding": np.ones(COUNT),
    "groups": GROUPS,
    "channels_last": RNG.integers(0, 2, COUNT).astype(np.float64),
}
OTHER, HALF = np.zeros(COUNT, np.bool_), np.full(COUNT, 2.0)


def one_tree(value: float) -> TreeEnsemble:
    """Says a value where the first feature is above 2, and nothing below."""
    return TreeEnsemble(
        0.0,
        np.array([[0, 0, 0]], np.int16),
        np.array([[2.0, 0.0, 0.0]]),
        np.array([[1, -1, -1]], np.int16),
        np.array([[2, -1, -1]], np.int16),
        np.array([[0.0, 0.0, value]], np.float32),
    )


def test_a_pass_is_of_all_channels_together_of_groups_or_of_one_filter_each() -> None:
    assert [KINDS[each] for each in kinds_of({"groups": np.array([1, 4, 64]), "c_in": np.array([64, 64, 64])})] == [
        "together", "grouped", "one each",
    ]  # fmt: skip


def test_features_are_numbers_and_of_the_time_that_networks_say() -> None:
    first, longer = (tree_features(P, OTHER, np.full(COUNT, us)) for us in (10.0, 20.0))
    assert np.isfinite(first).all()
    assert (np.abs(longer - first).sum(axis=1) == pytest.approx(np.ones(COUNT))) and first.shape[0] == COUNT


def test_trees_are_the_same_again_out_of_their_file() -> None:
    seen = tree_features(P, OTHER, np.full(COUNT, 10.0)).astype(np.float64)
    given = {"forward half together": one_tree(0.5), "image half grouped": one_tree(-0.25)}
    read = from_file(to_file(given))
    assert read.keys() == given.keys()
    for name, trees in given.items():
        assert read[name].predict(seen) == pytest.approx(trees.predict(seen))


def test_a_file_has_trees_for_every_pass_size_and_kind_and_for_conv2d() -> None:
    for one, size in [*((one, size) for one in PASSES for size in SIZES), ("conv2d forward", 2.0),
                      ("conv2d backward", 2.0)]:  # fmt: skip
        factors = beside_networks(P, one, np.full(COUNT, size), OTHER, np.full(COUNT, 50.0), FILE)
        assert (factors > 0).all() and all((factors[kinds_of(P) == place] != 1).any() for place in range(len(KINDS)))


def test_what_trees_say_of_a_pass_does_not_depend_on_what_is_asked_beside_it() -> None:
    mixed = np.where(np.arange(COUNT) % 2, 4.0, 2.0)
    together = beside_networks(P, "conv2d forward", mixed, OTHER, np.full(COUNT, 50.0), FILE)
    alone = beside_networks(P, "conv2d forward", HALF, OTHER, np.full(COUNT, 50.0), FILE)
    assert together == pytest.approx(np.where(mixed == HALF, alone, 1.0))


def test_what_no_tree_knows_stays_as_it_was() -> None:
    assert (beside_networks(P, "unheard of", HALF, OTHER, np.full(COUNT, 50.0), FILE) == 1).all()


def test_passes_take_what_networks_say_times_what_trees_do_since_the_thirteenth() -> None:
    elements = Elements(np.full(COUNT, 2.0), OTHER, np.full(COUNT, H200.peak("bfloat16")))
    before = time_passes(P, ("forward",), elements, replace(H200, networks=BEFORE_TREES))
    now = time_passes(P, ("forward",), elements, H200)
    assert before is not None and now is not None
    assert now == pytest.approx(before * beside_networks(P, "forward", HALF, OTHER, before, FILE))
    assert (now != before).any()


def test_no_tree_has_more_leaves_than_a_word_has_bits() -> None:
    trees = from_file(to_file({"a": one_tree(1.0)}))["a"]
    assert (trees.left < 0).sum() <= MAX_LEAVES
