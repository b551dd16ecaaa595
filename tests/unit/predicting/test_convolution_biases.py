"""What an eager convolution does for its bias, and that its price has it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import make_step_call
from torchledger.nouns import StepCall, TensorArgument
from torchledger.predicting.convolution_biases import bias_work
from torchledger.predicting.devices import find_model
from torchledger.predicting.step_calls import price_calls

COUNT, CHANNELS, SIDE = 8, 64, 56
MOVES = (
    ("stride", (1, 1)), ("padding", (1, 1)), ("dilation", (1, 1)), ("transposed", (0,)), ("output_padding", (0, 0)),
    ("groups", (1,)),
)  # fmt: skip
IMAGE = TensorArgument((COUNT, CHANNELS, SIDE, SIDE), "float32", (CHANNELS * SIDE**2, SIDE**2, SIDE, 1))
WEIGHT = TensorArgument((CHANNELS, CHANNELS, 3, 3), "float32", (CHANNELS * 9, 9, 3, 1))
BIAS = TensorArgument((CHANNELS,), "float32", (1,))
FLOPS = 2 * COUNT * SIDE**2 * CHANNELS**2 * 9
DENSE = 4 * COUNT * CHANNELS * SIDE**2
"""Bytes of the result."""


def forward(*arguments: TensorArgument, settings: tuple[tuple[str, tuple[int, ...]], ...] = MOVES) -> StepCall:
    return make_step_call(
        name="aten::convolution", arguments=arguments, flops=FLOPS, kernels=2, settings=settings, device="cuda:0"
    )


def backward(wants_bias: bool) -> StepCall:
    settings = (*MOVES, ("bias_sizes", (CHANNELS,)), ("output_mask", (1, 1, int(wants_bias))))
    call = forward(IMAGE, IMAGE, WEIGHT, settings=settings)
    return replace(call, name="aten::convolution_backward", flops=2 * FLOPS, phase="backward")


def test_a_bias_is_added_to_the_result_by_a_kernel_that_reads_and_writes_it() -> None:
    added = bias_work(forward(IMAGE, WEIGHT, BIAS), "cuda:0")
    assert added is not None
    assert (added.name, added.kernels, added.flops) == ("aten::add_", 1, 0)
    assert [each.shape for each in added.arguments] == [IMAGE.shape, (1, CHANNELS, 1, 1)]
    assert added.bytes_moved == 2 * DENSE + 4 * CHANNELS


def test_its_gradient_is_the_sum_of_the_results_gradient_if_it_is_wanted() -> None:
    summed = bias_work(backward(wants_bias=True), "cuda:0")
    assert summed is not None
    assert (summed.name, summed.settings) == ("aten::sum", (("dim", (0, 2, 3)),))
    assert summed.bytes_moved == DENSE + 4 * CHANNELS
    assert bias_work(backward(wants_bias=False), "cuda:0") is None


def test_without_a_bias_and_of_other_calls_there_is_nothing_to_do() -> None:
    assert bias_work(forward(IMAGE, WEIGHT), "cuda:0") is None
    assert bias_work(make_step_call(name="aten::mm", arguments=(IMAGE, WEIGHT)), "cuda:0") is None


@pytest.mark.parametrize(("stride", "adds_itself"), [(None, True), ((64 * 56**2, 1, 64 * 56, 64), False)])
def test_one_filter_a_channel_adds_it_itself_unless_channels_lie_last(
    stride: tuple[int, ...] | None, adds_itself: bool
) -> None:
    image = IMAGE if stride is None else replace(IMAGE, stride=stride)
    one_each = replace(WEIGHT, shape=(CHANNELS, 1, 3, 3), stride=(9, 9, 3, 1))
    settings = (*MOVES[:-1], ("groups", (CHANNELS,)))
    call = replace(forward(image, one_each, BIAS, settings=settings), flops=FLOPS // CHANNELS)
    assert (bias_work(call, "cuda:0") is None) is adds_itself


def test_the_price_of_a_convolution_has_what_its_bias_takes() -> None:
    h200 = find_model("H200")
    calls = [
        forward(IMAGE, WEIGHT),
        forward(IMAGE, WEIGHT, BIAS),
        backward(wants_bias=False),
        backward(wants_bias=True),
    ]
    plain, biased, without, summed = (said.duration_us for _, said in price_calls(h200, calls, ran_on_cpu=False))
    least_us = DENSE / h200.machine.bytes_per_us
    assert biased > plain + least_us
    assert summed > without + least_us / 2
