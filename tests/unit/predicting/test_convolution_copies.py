"""What an eager convolution copies into the layout in which it runs, and that its price has it."""

from __future__ import annotations

from dataclasses import replace

from factories import make_step_call
from torchledger.nouns import StepCall, TensorArgument
from torchledger.predicting.convolution_copies import laid_out
from torchledger.predicting.devices import find_model
from torchledger.predicting.step_calls import price_calls

COUNT, CHANNELS, SIDE = 96, 128, 128
MOVES = (
    ("stride", (1, 1)), ("padding", (1, 1)), ("dilation", (1, 1)), ("transposed", (0,)), ("output_padding", (0, 0)),
    ("groups", (1,)),
)  # fmt: skip
FIRST = TensorArgument((COUNT, CHANNELS, SIDE, SIDE), "bfloat16", (CHANNELS * SIDE**2, SIDE**2, SIDE, 1))
LAST = replace(FIRST, stride=(CHANNELS * SIDE**2, 1, SIDE * CHANNELS, CHANNELS))
WEIGHT = TensorArgument((CHANNELS, CHANNELS, 3, 3), "bfloat16", (CHANNELS * 9, 9, 3, 1))
WEIGHT_LAST = replace(WEIGHT, stride=(CHANNELS * 9, 1, CHANNELS * 3, CHANNELS))
FLOPS = 2 * COUNT * SIDE**2 * CHANNELS**2 * 9


def forward(*arguments: TensorArgument) -> StepCall:
    return make_step_call(
        name="aten::convolution", arguments=arguments, flops=FLOPS, kernels=2, settings=MOVES, device="cuda:0"
    )


def test_an_image_is_copied_for_the_sake_of_filters_with_channels_last() -> None:
    call, copies = laid_out(forward(FIRST, WEIGHT_LAST), "cuda:0")
    assert call.arguments == (LAST, WEIGHT_LAST)
    assert [(each.name, each.arguments, each.settings) for each in copies] == [
        ("aten::clone", (FIRST,), (("memory_format", (2,)),))
    ]
    assert copies[0].bytes_moved == 2 * 2 * COUNT * CHANNELS * SIDE**2


def test_filters_are_copied_for_the_sake_of_an_image_with_channels_last() -> None:
    call, copies = laid_out(forward(LAST, WEIGHT), "cuda:0")
    assert call.arguments == (LAST, WEIGHT_LAST)
    assert [each.arguments for each in copies] == [(WEIGHT,)]


def test_a_gradient_of_another_layout_is_copied_in_the_backward() -> None:
    settings = (*MOVES, ("bias_sizes", (0,)), ("output_mask", (1, 1, 0)))
    given = replace(
        forward(FIRST, LAST, WEIGHT_LAST), name="aten::convolution_backward", flops=2 * FLOPS, settings=settings
    )
    call, copies = laid_out(given, "cuda:0")
    assert call.arguments == (LAST, LAST, WEIGHT_LAST)
    assert [each.arguments for each in copies] == [(FIRST,)]


def test_tensors_of_one_layout_and_other_calls_are_left_as_they_are() -> None:
    for call in (
        forward(FIRST, WEIGHT),
        forward(LAST, WEIGHT_LAST),
        make_step_call(name="aten::mm", arguments=(FIRST, LAST)),
    ):
        assert laid_out(call, "cuda:0") == (call, ())


def test_the_price_of_a_convolution_has_what_it_copies_first() -> None:
    h200 = find_model("H200")
    copy = make_step_call(
        name="aten::clone", arguments=(FIRST,), flops=0, kernels=1, device="cuda:0",
        bytes_moved=4 * COUNT * CHANNELS * SIDE**2, settings=(("memory_format", (2,)),),
    )  # fmt: skip
    calls = [forward(FIRST, WEIGHT_LAST), forward(LAST, WEIGHT_LAST), copy]
    mixed, alike, copied = (said.duration_us for _, said in price_calls(h200, calls, ran_on_cpu=False))
    assert mixed == alike + copied
