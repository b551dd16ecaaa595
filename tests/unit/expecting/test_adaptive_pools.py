"""Pooling to a number of cells: what it goes over, and that it is priced as what was learned of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import make_buffer, make_launch
from torchledger.expecting.adaptive_pools import ADAPTIVE_POOLS, pool_columns
from torchledger.nouns import Launch, StepCall, TensorArgument
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.step_calls import price_calls

MODEL = find_model("H100")
SIDES = st.integers(1, 40)


def pool(image: tuple[int, ...], cells: tuple[int, ...], *, is_gradient: bool = False) -> Launch:
    """An average over windows, or its gradient, in bfloat16."""
    shapes = (
        [(cells, "input"), (image, "input"), (image, "output")]
        if is_gradient
        else [(image, "input"), (cells, "output")]
    )
    buffers = []
    for place, (shape, role) in enumerate(shapes):
        size = 2 * math.prod(shape)
        moved = {"bytes_read": size if role == "input" else 0, "bytes_written": size if role == "output" else 0}
        stride = tuple(math.prod(shape[at + 1 :]) for at in range(4))
        buffers.append(make_buffer(name=f"b{place}", role=role, dtype="bfloat16", shape=shape, stride=stride, **moved))
    name = f"torch.ops.aten._adaptive_avg_pool2d{'_backward' if is_gradient else ''}.default"
    return make_launch(category="extern", kernel_name=name, call=name, buffers=tuple(buffers), flops=0, device="cuda:0")


@given(SIDES, SIDES)
def test_windows_hold_each_pixel_at_least_once_and_as_often_as_cells_divide_them(side: int, cells: int) -> None:
    found = pool_columns(pool((2, 3, side, side), (2, 3, cells, cells)))
    visits = math.exp(found["log visits of a plane"])
    assert visits >= max(side, cells) ** 2 - 0.5
    if side % cells == 0:
        assert visits == pytest.approx(side**2) and found["windows overlap"] == 0
    assert found == pool_columns(pool((2, 3, side, side), (2, 3, cells, cells), is_gradient=True))


def test_other_pools_have_no_such_columns() -> None:
    plain = pool((2, 3, 8, 8), (2, 3, 4, 4))
    assert not pool_columns(replace(plain, kernel_name="max_pool2d", call="torch.ops.aten.max_pool2d.default"))


def test_a_gradient_that_is_added_up_by_atomics_is_dearer_than_its_bytes() -> None:
    (said,) = predict_launches(MODEL, [pool((45, 512, 3, 3), (45, 512, 7, 7), is_gradient=True)])
    assert said.model == ADAPTIVE_POOLS
    assert said.roofline_us is not None and said.duration_us > 20 * said.roofline_us


def test_an_eager_call_is_priced_as_the_launch() -> None:
    image = TensorArgument((45, 512, 14, 14), "bfloat16", (512 * 196, 196, 14, 1))
    call = StepCall("s", 0, "operator", "aten::_adaptive_avg_pool2d", "forward", kernels=1, arguments=(image,))
    ((_, asked),) = price_calls(MODEL, [replace(call, settings=(("output_size", (7, 7)),))], ran_on_cpu=False)
    (launched,) = predict_launches(MODEL, [pool((45, 512, 14, 14), (45, 512, 7, 7))])
    assert asked.model == ADAPTIVE_POOLS
    assert asked.duration_us == pytest.approx(launched.duration_us, rel=0.2)
    ((_, unknown),) = price_calls(MODEL, [call], ran_on_cpu=False)
    assert unknown.model != ADAPTIVE_POOLS


def test_a_model_without_them_asks_what_it_learned_of_other_libraries() -> None:
    without = {key: entry for key, entry in MODEL.entries.items() if key != ADAPTIVE_POOLS}
    (said,) = predict_launches(replace(MODEL, entries=without), [pool((2, 64, 8, 8), (2, 64, 4, 4))])
    assert said.model == "launch:library/other"
