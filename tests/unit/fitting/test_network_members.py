"""Networks as members of a blend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from torchledger.fitting.learning import Options, fit_blend
from torchledger.fitting.network_members import fit_networks
from torchledger.fitting.regressors import Blend, disagreement, from_arrays, to_arrays


def _curve(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(seed).normal(size=(count, 5))
    rows[:, 4] = 3.0
    return rows, np.sin(2 * rows[:, 0]) * rows[:, 1] + 0.5 * rows[:, 2]


@pytest.fixture(scope="module")
def blend() -> Blend:
    rows, target = _curve(600)
    options = Options(members=("trees", "networks"), trees=2)
    return fit_blend(rows, target, np.arange(len(rows)), n_shape=4, options=options)


def test_networks_learn_a_curve_and_say_the_same_for_the_same_seed() -> None:
    rows, target = _curve(2000)
    asked, true = _curve(500, seed=1)
    first, again = (fit_networks(rows, target, count=2, passes=30, seed=7) for _ in range(2))
    error = np.abs(first.predict(asked) - true).mean()
    assert error < 0.3 * np.abs(true - np.median(target)).mean()
    assert np.array_equal(first.predict(asked), again.predict(asked))


def test_learning_leaves_the_random_numbers_of_torch_as_they_are() -> None:
    rows, target = _curve(100)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    fit_networks(rows, target, count=1, passes=1)
    assert torch.equal(torch.rand(3), expected)


def test_a_feature_that_never_varied_changes_nothing() -> None:
    rows, target = _curve(200)
    networks = fit_networks(rows, target, count=1, passes=2)
    moved = rows.copy()
    moved[:, 4] = 100.0
    assert np.array_equal(networks.predict(rows), networks.predict(moved))


def test_many_rows_are_asked_as_few_are() -> None:
    rows, target = _curve(3000)
    networks = fit_networks(rows, target, count=2, passes=1)
    apart = np.concatenate([networks.predict(rows[start : start + 100]) for start in range(0, 3000, 100)])
    assert networks.predict(rows) == pytest.approx(apart, abs=1e-5)


def test_a_blend_with_networks_is_kept_whole(blend: Blend) -> None:
    assert blend.networks is not None and blend.networks_inside > 0
    kept = from_arrays(to_arrays(blend), features=5)
    asked, _ = _curve(50, seed=2)
    for said, expected in zip(kept.predict(asked), blend.predict(asked), strict=True):
        assert np.array_equal(said, expected)


def test_a_blend_says_what_its_members_say_by_their_weights(blend: Blend) -> None:
    asked, _ = _curve(50, seed=2)
    assert blend.networks is not None
    only = replace(blend, networks_inside=1.0, networks_outside=1.0)
    rows = np.clip(asked.T[blend.columns].T, blend.low, blend.high)
    assert only.predict(asked)[0] == pytest.approx(blend.networks.predict(rows), abs=1e-6)
    without = replace(blend, networks=None)
    none = replace(blend, networks_inside=0.0, networks_outside=0.0)
    assert np.array_equal(none.predict(asked)[0], without.predict(asked)[0])


def test_a_blend_without_networks_keeps_no_arrays_of_theirs(blend: Blend) -> None:
    arrays = to_arrays(replace(blend, networks=None))
    assert not any(name.startswith("networks") for name in arrays)
    assert from_arrays(arrays, features=5).networks is None


@pytest.mark.parametrize("name", ["networks.second", "networks.last_bias", "networks.center"])
def test_networks_whose_arrays_do_not_fit_are_refused(blend: Blend, name: str) -> None:
    arrays = to_arrays(blend)
    arrays[name] = arrays[name][..., :-1]
    with pytest.raises(ValueError, match="do not fit"):
        from_arrays(arrays, features=5)


def test_networks_without_their_weight_are_refused(blend: Blend) -> None:
    arrays = to_arrays(blend)
    del arrays["networks_inside"]
    with pytest.raises(KeyError):
        from_arrays(arrays, features=5)


def test_networks_that_are_not_believed_are_not_kept() -> None:
    rows, _ = _curve(200)
    options = Options(members=("trees", "process", "networks"), trees=20, hyper_rows=60, inducing=64)
    blend = fit_blend(rows, 2.0 * rows[:, 0], np.arange(len(rows)), n_shape=4, options=options)
    assert blend.networks is None and blend.networks_inside == 0.0


def test_members_disagree_by_what_lies_between_the_farthest() -> None:
    low, middle, high = np.array([0.0]), np.array([1.0]), np.array([4.0])
    assert disagreement(middle, low) == pytest.approx([1.0])
    assert disagreement(middle, low, high) == pytest.approx([4.0])
