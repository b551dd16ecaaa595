"""The times of matrix products and convolutions by their tiles."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from factories import make_h200
from torchledger.device.datasheets import device_of_name
from torchledger.expecting.convolution_times import convolution_times
from torchledger.expecting.product_times import product_times
from torchledger.fitting.baselines import inductor_rates

H200 = make_h200(floor_us=1.06)
SIDE = st.integers(1, 8192)


def best(b: float, m: float, n: float, k: float, row_bytes: float = 16.0, item_size: float = 2.0) -> float:
    peak = np.array([H200.peak("bfloat16" if item_size < 4 else "float32")])
    sides = tuple(np.array([float(side)]) for side in (b, m, n, k))
    found = product_times(sides, np.array([row_bytes]), np.array([item_size]), peak, H200)  # type: ignore[arg-type]
    return float(np.minimum(*found)[0])


@given(SIDE, SIDE, SIDE)
def test_a_product_takes_no_less_time_than_its_flops_at_the_peak_need(m: int, n: int, k: int) -> None:
    assert best(1, m, n, k) > 0.8 * 2.0 * m * n * k / 9.9e8


@given(SIDE, SIDE, SIDE)
def test_more_to_sum_takes_no_less_time(m: int, n: int, k: int) -> None:
    assert best(1, m, n, 2 * k) >= 0.999 * best(1, m, n, k)


def test_odd_rows_cost_several_times_as_much() -> None:
    assert best(1, 4096, 4096, 4096, row_bytes=2) > 3 * best(1, 4096, 4096, 4096)


def test_one_tile_more_than_a_wave_costs_a_second_wave() -> None:
    assert best(1, 128 * 132, 128, 8192) * 1.15 < best(1, 128 * 160, 128, 8192)


def test_a_table_of_products_has_the_times_of_each_alone() -> None:
    generator = np.random.default_rng(0)
    sides = [np.floor(np.exp(generator.uniform(0, 9, 40))) for _ in range(4)]
    row_bytes, item_size = generator.choice([2.0, 4.0, 8.0, 16.0], 40), generator.choice([2.0, 4.0], 40)
    peak = np.where(item_size < 4, H200.peak("bfloat16"), H200.peak("float32"))
    together = np.minimum(*product_times(tuple(sides), row_bytes, item_size, peak, H200))  # type: ignore[arg-type]
    alone = [best(*(side[i] for side in sides), row_bytes[i], item_size[i]) for i in range(40)]  # type: ignore[arg-type]
    np.testing.assert_allclose(together, alone, rtol=1e-5)


SHAPE = {
    "n": 32,
    "c_in": 64,
    "height": 56,
    "width": 56,
    "c_out": 128,
    "kernel": 3,
    "stride": 1,
    "padding": 1,
    "groups": 1,
}


def expected(direction: str = "forward", **changed: int) -> float:
    given_shape = {**SHAPE, "channels_last": 1, **changed}
    item_size, peak = np.array([2.0]), np.array([H200.peak("bfloat16")])
    return float(convolution_times(given_shape, direction, item_size, peak, H200)["expected"][0])


def test_a_one_by_one_convolution_is_a_product() -> None:
    assert expected(kernel=1, padding=0) == best(1, 32 * 56 * 56, 128, 64)


def test_another_layout_costs_its_change() -> None:
    assert expected(channels_last=0) > expected()


def test_the_gradient_of_the_weight_is_part_of_the_backward() -> None:
    assert 0 < expected("weight") < expected("backward")


def test_inductors_rates_follow_from_clocks_and_are_unknown_without() -> None:
    assert inductor_rates(device_of_name("NVIDIA GH200 120GB")) != inductor_rates(device_of_name("NVIDIA H200"))
    assert inductor_rates(device_of_name("AMD EPYC")) is None
