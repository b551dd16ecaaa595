"""Products over long sums are priced by these."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from factories import make_buffer, make_launch
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction
from torchledger.predicting import whole_sums
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.whole_sums import NOTE
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


def price(model: TimeModel, launch: Launch, *, allow_tf32: bool = True) -> Prediction:
    (said,) = predict_launches(model, [launch], allow_tf32=allow_tf32)
    return said


@pytest.fixture
def before(h200: TimeModel, monkeypatch: pytest.MonkeyPatch) -> Callable[[Launch], Prediction]:
    """Prices of a model that has no constants of sums."""

    def without(launch: Launch) -> Prediction:
        with monkeypatch.context() as patched:
            patched.setattr(whole_sums, "costs_of_sums", lambda machine: {})
            return price(h200, launch)

    return without


def test_a_sum_twice_as_long_takes_twice_as_long(h200: TimeModel) -> None:
    first, second = (price(h200, product(8, 64, depth, 32)) for depth in (200_000, 400_000))
    assert second.duration_us == pytest.approx(2 * first.duration_us, rel=0.01)
    assert NOTE in (first.note or "")
    assert first.low_us is not None and first.high_us is not None
    assert first.low_us < first.duration_us < first.high_us


@pytest.mark.parametrize(
    ("launch", "us"),
    [
        (product(4, 8, 148_703, 4), 4580.0),
        (product(3, 9, 62_001, 9), 1930.0),
    ],
)
def test_products_that_nobody_splits_are_near_what_was_measured(launch: Launch, us: float, h200: TimeModel) -> None:
    assert price(h200, launch, allow_tf32=us > 2000).duration_us == pytest.approx(us, rel=0.15)


def test_where_only_a_bound_is_known_a_longer_price_stays(
    h200: TimeModel, before: Callable[[Launch], Prediction]
) -> None:
    launch = product(500, 128, 4096, 128, dtype="float16")
    assert price(h200, launch) == before(launch)


@pytest.mark.parametrize(
    "launch",
    [
        product(8, 64, 512, 32),
        product(8, 512, 20_000, 512),
        product(8, 64, 20_000, 32, dtype="float64"),
    ],
)
def test_other_products_are_priced_as_before(
    launch: Launch, h200: TimeModel, before: Callable[[Launch], Prediction]
) -> None:
    assert price(h200, launch) == before(launch)


def test_another_generation_prices_as_before() -> None:
    a100 = find_model("A100")
    assert NOTE not in (price(a100, product(8, 64, 20_000, 32)).note or "")
