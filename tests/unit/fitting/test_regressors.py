"""The exported regressors: quick paths against slow ones, and against the library that made them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process.kernels import Matern

from torchledger.errors import FitError
from torchledger.fitting.learning import export_trees, fit_blend
from torchledger.fitting.regressors import Blend, GaussianProcess, from_arrays, matern, to_arrays


def _data(count: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    rows = generator.uniform(0, 8, (count, 4)).round(1)
    target = np.sin(rows[:, 0]) + 0.3 * (rows[:, 1] > 4) + 0.1 * rows[:, 2] + 0.01 * generator.standard_normal(count)
    return rows, target, np.arange(count)


@pytest.fixture(scope="module")
def blend() -> Blend:
    rows, target, groups = _data()
    return fit_blend(rows, target, groups, n_shape=4)


@given(seed=st.integers(0, 10_000), leaves=st.integers(2, 16), trees=st.integers(1, 40))
@settings(max_examples=15, deadline=None)
def test_trees_answer_as_the_library_does_by_either_route(seed: int, leaves: int, trees: int) -> None:
    rows, target, _ = _data(seed=seed)
    model = HistGradientBoostingRegressor(max_iter=trees, max_leaf_nodes=leaves, min_samples_leaf=3).fit(rows, target)
    exported = export_trees(model)
    asked = np.random.default_rng(seed).uniform(-2, 10, (200, 4))
    # Thresholds themselves are the hard cases: a row goes left where it is equal.
    asked[:50, 0] = np.resize(exported.threshold[exported.left >= 0], 50)
    np.testing.assert_allclose(exported.walk(asked), model.predict(asked), atol=1e-5)
    np.testing.assert_allclose(exported.predict(asked), exported.walk(asked), atol=1e-9)


def test_the_kernel_is_matern_five_halves() -> None:
    left, right = np.random.default_rng(0).normal(size=(2, 7, 3))
    np.testing.assert_allclose(matern(left, right), Matern(nu=2.5)(left, right), atol=1e-12)


def test_many_rows_have_the_kernel_that_the_formula_gives_at_once() -> None:
    generator = np.random.default_rng(0)
    left, right = (generator.normal(size=(rows, 7)).astype(np.float32) for rows in (1000, 99))
    squared = (left @ right.T) * np.float32(-10)
    squared += (np.float32(5) * np.einsum("ij,ij->i", left, left))[:, None]
    squared += np.float32(5) * np.einsum("ij,ij->i", right, right)
    squared = np.maximum(squared, 0)
    distance = np.sqrt(squared)
    plain = (squared * np.float32(1 / 3) + distance + np.float32(1)) * np.exp(-distance)
    np.testing.assert_array_equal(matern(left, right), plain)


def test_a_blend_comes_back_equal_from_its_arrays(blend: Blend) -> None:
    again = from_arrays(to_arrays(blend), features=int(blend.columns.max()) + 1)
    rows, _, _ = _data(seed=5)
    for mine, other in zip(blend.predict(rows), again.predict(rows), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_one_row_is_answered_as_in_a_table(blend: Blend) -> None:
    rows, _, _ = _data(seed=6)
    together = blend.predict(rows)[0]
    alone = np.array([blend.predict(row[None])[0][0] for row in rows[:20]])
    np.testing.assert_allclose(together[:20], alone, atol=1e-4)


def test_rows_inside_have_no_distance_and_rows_beyond_have_theirs(blend: Blend) -> None:
    rows, _, _ = _data()
    assert blend.distance(rows).max() == 0
    assert blend.distance(np.array([[11.0, 4, 4, 4]]))[0] == pytest.approx(11.0 - rows[:, 0].max(), abs=1e-6)


def test_a_feature_that_never_varied_in_the_fit_changes_nothing_when_it_does() -> None:
    process = GaussianProcess(
        center=np.zeros(2), scale=np.array([1.0, 1e-9]), inverse_lengths=np.ones(2),
        points=np.zeros((1, 2), np.float32), weights=np.ones(1, np.float32), slope=np.ones(2), offset=0.0,
    )  # fmt: skip
    assert process.predict(np.array([[0.5, 0.0]])) == process.predict(np.array([[0.5, 1.0]]))


def test_held_out_error_is_near_the_noise(blend: Blend) -> None:
    rows, target, _ = _data(seed=7)
    middle, width, _ = blend.predict(rows)
    assert np.mean(np.abs(middle - target)) < 0.06
    assert 0.8 < np.mean(np.abs(middle - target) <= width) <= 1.0


def test_too_few_shapes_are_refused() -> None:
    rows, target, _ = _data(40)
    with pytest.raises(FitError, match="5 distinct shapes are too few"):
        fit_blend(rows, target, np.arange(40) % 5, n_shape=4)
