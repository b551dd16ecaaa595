"""Networks that know which kernels a library takes for matrix products."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factories import make_h200
from torchledger.device.datasheets import device_of_name
from torchledger.expecting import operator_features as features_module
from torchledger.expecting.machine import FIRST_NETWORKS, LATEST_NETWORKS, Machine
from torchledger.expecting.operator_features import operator_features
from torchledger.expecting.product_network import LAYOUTS, learned_times, product_class
from torchledger.expecting.product_times import product_times, tiles_apart
from torchledger.operators import find_operator

H200 = make_h200()


def sides_of(*rows: tuple[int, int, int, int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))


SHAPES = sides_of((1, 4096, 4096, 4096), (1, 1, 50, 768), (64, 128, 128, 64), (1, 333, 777, 1111), (512, 16, 24, 8))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("item_size", [2.0, 4.0])
def test_a_learned_time_is_of_the_order_of_the_tiles_time(layout: str, item_size: float) -> None:
    size = np.full(5, item_size)
    peak = np.full(5, H200.peak("float32" if item_size == 4 else "bfloat16"))
    learned = learned_times(layout, SHAPES, size, peak, H200)  # type: ignore[arg-type]
    row_bytes = product_class(layout, SHAPES, size).astype(np.float64)  # type: ignore[arg-type]
    by_tiles = np.minimum(*product_times(SHAPES, row_bytes, size, peak, H200))  # type: ignore[arg-type]
    assert np.all(learned > 1.0)
    assert np.all(np.abs(np.log(learned / by_tiles)) < np.log(6))


def test_a_product_costs_the_same_alone_as_among_others() -> None:
    size, peak = np.full(5, 2.0), np.full(5, H200.peak("bfloat16"))
    together = learned_times("nn", SHAPES, size, peak, H200)  # type: ignore[arg-type]
    for row in range(5):
        one = tuple(side[row : row + 1] for side in SHAPES)
        alone = learned_times("nn", one, size[:1], peak[:1], H200)  # type: ignore[arg-type]
        assert alone[0] == pytest.approx(together[row], rel=1e-6)


@pytest.mark.parametrize(("name", "direction"), list(itertools.product(("linear", "bmm"), ("forward", "backward"))))
def test_times_of_tiles_that_are_known_are_those_that_the_networks_would_ask_for(
    name: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = find_operator(name)
    generator = np.random.default_rng(0)
    shapes = {side: generator.integers(1, 300, 400) * generator.choice([1, 2, 4, 8], 400) for side in ("m", "n", "k")}
    given = shapes | {each: generator.integers(1, 9, 400) for each in operator.parameters if each not in shapes}
    dtypes = generator.choice(["bfloat16", "float16", "float32"], 400)
    known = operator_features(operator, given, direction, dtypes, H200)

    def without_known(*given: Any, is_float16: Any, known: Any) -> Any:
        return learned_times(*given, is_float16=is_float16)

    monkeypatch.setattr(features_module, "learned_times", without_known)
    asked = operator_features(operator, given, direction, dtypes, H200)
    np.testing.assert_array_equal(known.values, asked.values)


def test_a_product_among_those_of_other_peaks_takes_what_it_takes_among_its_own() -> None:
    row_bytes, size = np.full(5, 16.0), np.full(5, 2.0)
    peaks = np.array([1.0, 0.5, 1.0, 0.5, 1.0]) * H200.peak("bfloat16")
    mixed = product_times(SHAPES, row_bytes, size, peaks, H200)  # type: ignore[arg-type]
    for peak in set(peaks):
        own = product_times(SHAPES, row_bytes, size, np.full(5, peak), H200)  # type: ignore[arg-type]
        for one, other in zip(mixed, own, strict=True):
            np.testing.assert_array_equal(one[peaks == peak], other[peaks == peak])


def test_float16_has_kernels_of_its_own_where_rows_are_not_aligned() -> None:
    sides = sides_of((1, 4096, 4096, 4096), (1, 1001, 1001, 1001), (64, 130, 130, 130))
    size, peak = np.full(3, 2.0), np.full(3, H200.peak("bfloat16"))
    usual, float16 = (
        learned_times("nn", sides, size, peak, H200, np.full(3, is_float16))  # type: ignore[arg-type]
        for is_float16 in (False, True)
    )
    unsaid = learned_times("nn", sides, size, peak, H200)  # type: ignore[arg-type]
    assert (usual == unsaid).all()
    assert float16[0] == pytest.approx(usual[0], rel=0.05)
    assert (np.abs(np.log(float16[1:] / usual[1:])) > 0.005).all()
    older = replace(H200, networks=3)
    alike = [learned_times("nn", sides, size, peak, older, np.full(3, own))[0] for own in (False, True)]  # type: ignore[arg-type]
    assert alike[0] == alike[1]
    mixed = learned_times("nn", sides, size, peak, H200, np.array([False, True, False]))  # type: ignore[arg-type]
    assert mixed == pytest.approx([usual[0], float16[1], usual[2]])


def test_the_class_follows_the_rows_that_the_layout_stores() -> None:
    sides = sides_of((1, 3, 64, 64), (1, 64, 64, 3), (1, 64, 66, 64))
    size = np.full(3, 2.0)
    assert product_class("tn", sides, size).tolist() == [16, 2, 4]  # type: ignore[arg-type]
    assert product_class("nn", sides, size).tolist() == [16, 2, 4]  # type: ignore[arg-type]
    assert product_class("nt", sides, size).tolist() == [2, 16, 4]  # type: ignore[arg-type]
    assert product_class("nt", sides, np.full(3, 4.0)).tolist() == [0, 0, 0]  # type: ignore[arg-type]


def test_the_best_tile_apart_is_no_quicker_than_the_least_over_all_tiles() -> None:
    size, peak, row_bytes = np.full(5, 2.0), np.full(5, H200.peak("bfloat16")), np.full(5, 16.0)
    whole, split = tiles_apart(((64, 64), (128, 128), (256, 128)), SHAPES, row_bytes, size, peak, H200)  # type: ignore[arg-type]
    least = np.minimum(*product_times(SHAPES, row_bytes, size, peak, H200))  # type: ignore[arg-type]
    assert np.all(np.minimum(whole, split).min(axis=1) >= 0.8 * least)


def test_only_the_generation_that_was_measured_uses_the_networks() -> None:
    operator = find_operator("linear")
    shape = {"m": np.array([333]), "k": np.array([1111]), "n": np.array([777])}
    for name, uses in (("NVIDIA H200", True), ("NVIDIA A100-SXM4-40GB", False)):
        machine = Machine(device_of_name(name), {"bfloat16": 7.93e8}, 4.32e6, 2.0)
        table = operator_features(operator, shape, "forward", np.array(["bfloat16"]), machine)
        beside = table.values[0, table.names.index("gemm 0 log tiles beside")]
        assert (beside != 0) == uses


@pytest.mark.parametrize("name", ["linear", "conv2d"])
def test_a_model_keeps_the_networks_that_it_learned_beside(name: str) -> None:
    operator = find_operator(name)
    sizes = {"linear": {"m": [1001], "n": [1001], "k": [1001]}, "conv2d": _IMAGES}[name]
    given = {side: np.array(values) for side, values in sizes.items()}
    first, second, third, fourth, latest = (
        replace(H200, networks=networks) for networks in (FIRST_NETWORKS, 2, 3, 4, LATEST_NETWORKS)
    )

    def baseline(machine: Machine, dtype: str, direction: str) -> float:
        found = operator_features(operator, given, direction, np.array([dtype]), machine)
        return float(found.log_baseline[0])

    dtype = "float16" if name == "linear" else "bfloat16"
    assert baseline(first, dtype, "forward") != baseline(latest, dtype, "forward")
    other = ("bfloat16", "forward") if name == "linear" else (dtype, "backward")
    assert baseline(first, *other) == baseline(second, *other)
    assert (baseline(second, *other) != baseline(third, *other)) == (name == "conv2d")
    assert (baseline(third, *other) != baseline(fourth, *other)) == (name == "linear")
    assert baseline(fourth, *other) != baseline(latest, *other)


_IMAGES = {
    "n": [8],
    "c_in": [64],
    "height": [56],
    "width": [56],
    "c_out": [128],
    "kernel": [3],
    "padding": [1],
    "stride": [1],
    "groups": [1],
    "channels_last": [1],
}
