"""Batched products over long sums that nobody splits."""

from __future__ import annotations

import pytest

from factories import make_buffer, make_launch
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.whole_sums import NOTE, sum_us
from torchledger.work.tensor_layouts import row_major


@pytest.fixture(scope="module")
def h200() -> TimeModel:
    return find_model("H200")


def product(batch: int, rows: int, depth: int, columns: int, dtype: str = "float32", name: str = "bmm") -> Launch:
    shapes = ((batch, rows, depth), (batch, depth, columns), (batch, rows, columns))
    buffers = tuple(
        make_buffer(name=f"buf{place}", dtype=dtype, shape=shape, stride=row_major(shape), role=role)
        for place, (shape, role) in enumerate(zip(shapes, ("input", "input", "output"), strict=True))
    )
    return make_launch(
        category="extern", kernel_name=f"extern_kernels.{name}", buffers=buffers,
        flops=2 * batch * rows * depth * columns, device="cuda:0",
    )  # fmt: skip


def test_a_long_sum_takes_as_long_as_it_is_long_and_no_less_than_the_price_says(h200: TimeModel) -> None:
    long, longer = product(8, 64, 20_000, 32), product(8, 64, 40_000, 32)
    first, second = (sum_us(h200, each, allow_tf32=True) for each in (long, longer))
    assert first is not None and second == pytest.approx(2 * first)
    (price,) = predict_launches(h200, [longer], allow_tf32=True)
    assert second is not None and price.duration_us >= second and NOTE in (price.note or "")
    assert price.low_us is not None and price.high_us is not None and price.low_us <= second <= price.high_us


def test_more_products_than_multiprocessors_follow_in_waves(h200: TimeModel) -> None:
    one, two = (sum_us(h200, product(batch, 64, 4096, 64), allow_tf32=False) for batch in (132, 133))
    assert one is not None and two == pytest.approx(2 * one)


@pytest.mark.parametrize(
    "launch",
    [
        product(1, 64, 20_000, 32),
        product(8, 64, 512, 32),
        product(8, 512, 20_000, 512),
        product(8, 1, 20_000, 64),
        product(8, 64, 20_000, 32, dtype="float64"),
        product(8, 64, 20_000, 32, name="mm"),
    ],
)
def test_other_products_are_priced_as_before(launch: Launch, h200: TimeModel) -> None:
    assert sum_us(h200, launch, allow_tf32=True) is None


def test_another_generation_says_nothing_of_its_sums() -> None:
    assert sum_us(find_model("A100"), product(8, 64, 20_000, 32), allow_tf32=True) is None
