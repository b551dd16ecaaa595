"""Products whose factors a library cannot read as they lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import make_buffer, make_launch
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.operand_copies import is_copied, with_copied_operands
from torchledger.work.tensor_layouts import row_major

SHAPE = (128, 192, 192)
CHANNELS_INNERMOST = (1, 24576, 128)


@pytest.fixture(scope="module")
def h200() -> TimeModel:
    return find_model("H200")


def product(*strides: tuple[int, ...], name: str = "bmm") -> Launch:
    factors = [
        make_buffer(name=f"buf{place}", dtype="bfloat16", shape=SHAPE, stride=stride, role="input")
        for place, stride in enumerate(strides)
    ]
    made = make_buffer(name="made", dtype="bfloat16", shape=SHAPE, stride=row_major(SHAPE), role="output")
    return make_launch(
        category="extern", kernel_name=f"extern_kernels.{name}", buffers=(*factors, made), flops=2 * 128 * 192**3,
        device="cuda:0",
    )  # fmt: skip


@given(st.permutations((0, 1, 2)))
def test_a_factor_is_copied_where_its_channels_lie_innermost_and_nowhere_else(order: list[int]) -> None:
    stride, step = [0, 0, 0], 1
    for dim in order:
        stride[dim], step = step, step * SHAPE[dim]
    factor = make_buffer(shape=SHAPE, stride=tuple(stride), dtype="bfloat16")
    assert is_copied(factor) == (order[0] == 0)


def test_repeated_rows_are_copied_and_single_rows_or_columns_are_not() -> None:
    assert is_copied(make_buffer(shape=(64, 32), stride=(0, 1)))
    assert not is_copied(make_buffer(shape=(64, 1), stride=(7, 3)))
    assert not is_copied(make_buffer(shape=(64,), stride=(3,)))


def test_a_product_takes_longer_by_each_copy_and_says_so(h200: TimeModel) -> None:
    dense = row_major(SHAPE)
    none, one, both = (
        predict_launches(h200, [product(*strides)])[0]
        for strides in ((dense, dense), (CHANNELS_INNERMOST, dense), (CHANNELS_INNERMOST, CHANNELS_INNERMOST))
    )
    assert none.duration_us is not None and one.duration_us is not None and both.duration_us is not None
    assert both.duration_us - one.duration_us == pytest.approx(one.duration_us - none.duration_us, rel=0.1)
    assert one.duration_us > 3 * none.duration_us
    assert "copies of factors" in str(both.note) and "copies of factors" not in str(none.note)
    assert both.low_us is not None and both.low_us < both.duration_us < (both.high_us or 0.0)


def test_what_is_no_product_stays_as_it_was(h200: TimeModel) -> None:
    launch = product(CHANNELS_INNERMOST, CHANNELS_INNERMOST, name="_fft_c2c")
    (said,) = predict_launches(h200, [launch])
    assert with_copied_operands(h200, launch, said) == said
