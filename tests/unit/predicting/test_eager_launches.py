"""Eager convolutions and attention are priced as the launches that a compiled graph makes of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Prediction, StepCall, TensorArgument
from torchledger.predicting.devices import find_model
from torchledger.predicting.eager_launches import launch_of
from torchledger.predicting.step_calls import price_calls


@pytest.fixture(scope="module")
def h200() -> TimeModel:
    return find_model("H200")


def dense(*shape: int, channels_last: bool = False) -> TensorArgument:
    stride = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    if channels_last:
        _, channels, height, width = shape
        stride = (channels * height * width, 1, width * channels, channels)
    return TensorArgument(shape, "bfloat16", stride)


def forward(image: TensorArgument, weight: TensorArgument, result: tuple[int, ...]) -> StepCall:
    flops = 2 * math.prod(result) * math.prod(weight.shape[1:])
    return StepCall(
        "step_0", 0, "operator", "aten::convolution", "forward", kernels=1, arguments=(image, weight), flops=flops
    )


def backward(image: TensorArgument, weight: TensorArgument, result: tuple[int, ...], products: int) -> StepCall:
    call = forward(image, weight, result)
    assert call.flops is not None
    given_ = (dense(*result), image, weight)
    return replace(call, name="aten::convolution_backward", arguments=given_, flops=products * call.flops)


@given(
    batch=st.integers(1, 64),
    groups=st.sampled_from([1, 1, 2, 8]),
    channels=st.integers(1, 64),
    out=st.integers(1, 64),
    side=st.integers(7, 224),
    kernel=st.sampled_from([1, 3, 5, 7]),
    stride=st.integers(1, 4),
)
def test_the_size_of_a_result_follows_from_the_flops(
    batch: int, groups: int, channels: int, out: int, side: int, kernel: int, stride: int
) -> None:
    made = (side + 2 * (kernel // 2) - kernel) // stride + 1
    image, weight = dense(batch, groups * channels, side, side), dense(groups * out, channels, kernel, kernel)
    launch = launch_of(forward(image, weight, (batch, groups * out, made, made)), "cuda:0")
    assert launch is not None and launch.buffers[-1].shape == (batch, groups * out, made, made)


def test_layouts_and_single_dimensions_are_kept() -> None:
    image, weight = dense(8, 64, 56, 56, channels_last=True), dense(128, 64, 3, 3)
    launch = launch_of(forward(image, weight, (8, 128, 28, 28)), "cuda:0")
    assert launch is not None and launch.buffers[-1].stride == (128 * 28 * 28, 1, 28 * 128, 128)
    launch = launch_of(forward(dense(4, 32, 1000), dense(64, 32, 5), (4, 64, 250)), "cuda:0")
    assert launch is not None and launch.buffers[-1].shape == (4, 64, 250)
    launch = launch_of(forward(dense(4, 16, 8, 9, 10), dense(32, 16, 3, 3, 3), (4, 32, 8, 9, 10)), "cuda:0")
    assert launch is not None and launch.buffers[-1].shape == (4, 32, 8, 9, 10)


@pytest.mark.parametrize(
    "call",
    [
        forward(dense(4, 16, 8, 8, 8), dense(16, 16, 3, 3, 3), (4, 16, 4, 4, 4)),
        forward(dense(4, 256, 64, 64), dense(256, 128, 4, 4), (4, 256, 64, 64)),
        replace(forward(dense(4, 16, 8, 8), dense(16, 16, 3, 3), (4, 16, 8, 8)), flops=None),
        replace(forward(dense(4, 16, 8, 8), dense(16, 16, 3, 3), (4, 16, 8, 8)), flops=1234567),
        replace(forward(dense(4, 16, 8, 8), dense(16, 16, 3, 3), (4, 16, 8, 8)), name="aten::max_pool2d"),
    ],
    ids=["three dimensions", "perhaps transposed", "unknown FLOPs", "other FLOPs", "no convolution"],
)
def test_what_is_not_certain_is_no_launch(call: StepCall) -> None:
    assert launch_of(call, "cuda:0") is None


def test_a_first_layers_backward_has_the_gradient_of_its_weight_alone() -> None:
    image, weight = dense(8, 64, 56, 56), dense(128, 64, 3, 3)
    for products, outputs in ((1, 1), (2, 2)):
        launch = launch_of(backward(image, weight, (8, 128, 56, 56), products), "cuda:0")
        assert launch is not None and sum(buffer.role == "output" for buffer in launch.buffers) == outputs
    transposed = backward(dense(8, 64, 28, 28), dense(64, 128, 4, 4), (8, 128, 56, 56), 1)
    transposed = replace(transposed, flops=2 * 2 * 8 * 28 * 28 * 64 * 128 * 16)
    launch = launch_of(transposed, "cuda:0")
    assert launch is not None and sum(buffer.role == "output" for buffer in launch.buffers) == 2


def test_a_grouped_weights_gradient_counts_as_in_a_graph() -> None:
    image, weight = dense(8, 64, 56, 56), dense(64, 1, 7, 7)
    one = 2 * 8 * 64 * 56 * 56 * 49
    for products in (1, 2):
        launch = launch_of(backward(image, weight, (8, 64, 56, 56), products), "cuda:0")
        assert launch is not None and launch.flops == (products - 1 + 64) * one


def test_a_learned_convolution_takes_longer_than_its_roofline_and_a_backward_than_its_forward(h200: TimeModel) -> None:
    image, weight, result = dense(32, 128, 56, 56), dense(128, 128, 3, 3), (32, 128, 56, 56)
    calls = [forward(image, weight, result), backward(image, weight, result, 1), backward(image, weight, result, 2)]
    (one, weights, both) = (priced for _, priced in price_calls(h200, calls, ran_on_cpu=False))
    assert [each.model for each in (one, weights, both)] == [
        "launch:convolution/forward",
        "launch:convolution/weight",
        "launch:convolution/backward",
    ]
    for each in (one, weights, both):
        assert each.roofline_us is not None and each.duration_us > each.roofline_us
    assert one.subject == "aten::convolution (32, 128, 56, 56) (128, 128, 3, 3)"
    assert both.duration_us > weights.duration_us and both.duration_us > one.duration_us


def attention(backend: str, dtype: str = "bfloat16", *, quality: str = "exact", mask: bool = False) -> StepCall:
    shapes = [(8, 16, 2048, 64)] * 3 + [(8, 16, 2048, 2048)] * mask
    arguments = tuple(replace(dense(*shape), dtype=dtype) for shape in shapes)
    name = f"aten::_scaled_dot_product_{backend}_attention"
    flops = 4 * 8 * 16 * 2048**2 * 64
    return StepCall(
        "step_0",
        0,
        "operator",
        name,
        "forward",
        kernels=1,
        arguments=arguments,
        flops=flops,
        flops_quality=cast(Any, quality),
    )


def test_attention_that_the_operator_was_not_measured_at_is_asked_for_as_a_launch(h200: TimeModel) -> None:
    def priced(call: StepCall) -> Prediction:
        ((_, found),) = price_calls(h200, [call], ran_on_cpu=False)
        return found

    plain, single = priced(attention("cudnn")), priced(attention("efficient", "float32"))
    assert plain.model.startswith("sdpa/forward") and single.model == "launch:attention/forward"
    assert single.range == "inside" and single.duration_us > 4 * plain.duration_us
    masked = priced(attention("cudnn", mask=True))
    assert masked.model == "launch:attention/forward" and masked.duration_us > plain.duration_us
    causal = priced(attention("efficient", quality="upper_bound"))
    assert causal.duration_us < 0.8 * priced(attention("efficient")).duration_us


@given(
    sides=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4]),
    kernel=st.integers(1, 4),
    moves=st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 2)),
    transposed=st.booleans(),
)
def test_the_size_of_a_result_is_what_the_filter_was_told_to_move(
    sides: int, groups: int, kernel: int, moves: tuple[int, int, int], transposed: bool
) -> None:
    stride, padding, dilation = moves
    image = torch.empty(2, 8, *(13, 17)[:sides], device="meta")
    weight = torch.empty(8, 8 // groups, *(kernel,) * sides, device="meta")
    numbers = [(each,) * sides for each in (stride, padding, dilation)]
    further = ((stride - 1 if transposed else 0),) * sides
    result = torch.ops.aten.convolution(image, weight, None, *numbers, transposed, further, groups)
    settings = (
        *zip(("stride", "padding", "dilation"), numbers, strict=True),
        *(("transposed", (int(transposed),)), ("output_padding", further), ("groups", (groups,))),
    )
    call = forward(dense(*image.shape), dense(*weight.shape), tuple(result.shape))
    launch = launch_of(replace(call, settings=settings), "cuda:0")
    assert launch is not None
    assert next(each.shape for each in launch.buffers if each.role == "output") == tuple(result.shape)
    assert launch.kwargs["transposed"] == str(transposed)


def test_the_gradients_that_were_asked_for_are_made() -> None:
    image, weight = dense(4, 16, 8, 8), dense(32, 16, 3, 3)
    call = backward(image, weight, (4, 32, 8, 8), 1)
    made = {}
    for mask in ((1, 0, 0), (0, 1, 0), (1, 1, 0)):
        launch = launch_of(replace(call, settings=(("output_mask", mask),)), "cuda:0")
        assert launch is not None
        made[mask] = [each.shape for each in launch.buffers if each.role == "output"]
    assert made == {(1, 0, 0): [image.shape], (0, 1, 0): [weight.shape], (1, 1, 0): [image.shape, weight.shape]}


def test_a_transposed_convolution_that_makes_a_smaller_image_is_told_by_its_weight() -> None:
    image, weight = dense(1, 187, 9, 9), dense(187, 80, 2, 2)
    one = 2 * math.prod(image.shape) * math.prod(weight.shape[1:])
    call = replace(backward(image, weight, (1, 80, 8, 8), 2), flops=2 * one)
    launch = launch_of(call, "cuda:0")
    assert launch is not None and launch.flops == 2 * one
