"""Eager convolutions and attention are priced as the launches that a compiled graph makes of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchledger.expecting.attention_times import AttentionCall
from torchledger.expecting.launch_attention import attention_call
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Prediction, StepCall, TensorArgument
from torchledger.predicting.devices import find_model
from torchledger.predicting.eager_launches import launch_of
from torchledger.predicting.step_calls import price_calls
from torchledger.work.settings import Settings


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


LED_BACK = (
    *(("stride", (1, 1)), ("padding", (1, 1)), ("dilation", (1, 1))),
    *(("transposed", (1,)), ("output_padding", (0, 0)), ("groups", (1,))),
)
"""Of a transposed convolution."""


def test_a_gradient_of_the_image_alone_is_the_forward_of_a_convolution_that_leads_the_other_way(
    h200: TimeModel,
) -> None:
    """Where filters are frozen, or a sample is what is learned."""
    image, weight, result = dense(32, 64, 56, 56), dense(128, 64, 3, 3), (32, 128, 56, 56)
    both = backward(image, weight, result, 2)
    alone, weights = (
        replace(both, flops=both.flops // 2, settings=(*(both.settings or ()), ("output_mask", mask)))
        for mask in ((1, 0, 0), (0, 1, 0))
    )
    back = replace(forward(dense(*result), dense(128, 64, 3, 3), image.shape), settings=LED_BACK)
    priced = [found for _, found in price_calls(h200, [alone, weights, back, both], ran_on_cpu=False)]
    assert [each.model.rpartition("/")[2] for each in priced] == ["forward", "weight", "forward", "backward"]
    assert priced[0].duration_us == pytest.approx(priced[2].duration_us, rel=0.05)
    assert priced[0].duration_us < priced[3].duration_us


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


BATCH, HEADS, LENGTH, WIDTH = 8, 16, 2048, 64
"""Of attention's calls, unless a test says otherwise."""


def attention(
    backend: str,
    dtype: str = "bfloat16",
    *,
    mask: tuple[int, ...] = (),
    sizes: tuple[int, int, int, int] = (BATCH, HEADS, LENGTH, WIDTH),
    **facts: Any,
) -> StepCall:
    """A forward; ``mask`` is the shape of one."""
    batch, heads, length, width = sizes
    arguments = tuple(replace(dense(*shape), dtype=dtype) for shape in [sizes] * 3 + [mask] * bool(mask))
    call = StepCall(
        "step_0",
        0,
        "operator",
        f"aten::_scaled_dot_product_{backend}_attention",
        "forward",
        kernels=1,
        arguments=arguments,
        flops=4 * batch * heads * length**2 * width,
        flops_quality="exact",
        settings=(),
    )
    return replace(call, **facts)


def attention_backward(
    backend: str,
    dtype: str = "bfloat16",
    *,
    mask: tuple[int, ...] = (),
    sizes: tuple[int, int, int, int] = (BATCH, HEADS, LENGTH, WIDTH),
    settings: Settings = (),
) -> StepCall:
    """A backward as it is recorded: with eight tensors, of which cuDNN's ninth is the mask."""
    forward_ = attention(backend, dtype, sizes=sizes)
    matrix, bias = forward_.arguments[0], replace(dense(*mask), dtype=dtype)
    sums = TensorArgument((*sizes[:3], 1) if backend == "cudnn" else sizes[:3], "float32")
    masks = [bias] * bool(mask)
    behind = [matrix, sums, *[TensorArgument((), "int64")] * 2]
    given_ = [*[matrix] * 4, *behind, *masks] if backend == "cudnn" else [*[matrix] * 4, *masks, *behind]
    size, count = 2 if dtype != "float32" else 4, math.prod(sizes)
    return replace(
        forward_,
        name=f"{forward_.name}_backward",
        phase="backward",
        arguments=tuple(given_[:8]),
        flops=round(2.5 * (forward_.flops or 0)),
        bytes_moved=size * (8 * count + math.prod(mask) * bool(mask)) + 4 * math.prod(sizes[:3]),
        settings=settings,
    )


def price(model: TimeModel, call: StepCall) -> Prediction:
    ((_, found),) = price_calls(model, [call], ran_on_cpu=False)
    return found


def known(call: StepCall) -> AttentionCall:
    launch = launch_of(call, "cuda:0")
    assert launch is not None
    found = attention_call(launch)
    assert found is not None
    return found


@pytest.mark.parametrize("device", ["H200", "H100"])
@pytest.mark.parametrize("backend", ["cudnn", "flash", "efficient"])
def test_attention_is_priced_as_the_launch_that_a_graph_makes_of_it(device: str, backend: str) -> None:
    model = find_model(device)
    for call, direction in ((attention(backend), "forward"), (attention_backward(backend), "backward")):
        found = price(model, call)
        assert found.model == f"launch:attention/{direction}" and found.range == "inside"
        assert found.subject == " ".join([call.name, *(str(each.shape) for each in call.arguments)])


def test_a_library_that_is_further_from_its_peak_takes_longer(h200: TimeModel) -> None:
    for call in (attention, attention_backward):
        cudnn, flash, single = (
            price(h200, call(*each)).duration_us for each in (("cudnn",), ("flash",), ("efficient", "float32"))
        )
        assert cudnn < flash < single


def test_without_its_launches_attention_is_the_catalogues_operator(h200: TimeModel) -> None:
    entries = {name: entry for name, entry in h200.entries.items() if not name.startswith("launch:attention")}
    unlearned = replace(h200, entries=entries)
    assert price(unlearned, attention("flash")).model.startswith("sdpa/forward")
    assert price(unlearned, attention_backward("cudnn")).model.startswith("sdpa/backward")


def test_another_generations_attention_is_a_launch_where_the_operator_is_another() -> None:
    model = find_model("A100")
    assert price(model, attention("flash")).model.startswith("sdpa/forward")
    assert price(model, attention_backward("flash")).model.startswith("sdpa/backward")
    others = [attention("efficient"), attention("efficient", "float32"), attention("cudnn", mask=(LENGTH, LENGTH))]
    assert {price(model, each).model for each in others} == {"launch:attention/forward"}


@pytest.mark.parametrize(
    "shape", [(77, 77), (1, 77, 77), (64, 77, 77), (1, 1, 77, 77), (64, 1, 77, 77), (64, 8, 77, 77)]
)
def test_a_mask_is_read_whatever_dimensions_it_has(shape: tuple[int, ...]) -> None:
    sizes = (64, 8, 77, 64)
    found = known(attention("cudnn", "float16", mask=shape, sizes=sizes))
    assert found.has_bias and found.is_bias_odd and found.bias_elements == math.prod(shape)
    assert not known(attention("cudnn", "float16", sizes=sizes)).has_bias


def test_masks_that_say_the_same_cost_the_same_and_more_than_none(h200: TimeModel) -> None:
    sizes = (64, 8, 77, 64)
    flat, square = (
        price(h200, attention("cudnn", "float16", mask=shape, sizes=sizes)).duration_us
        for shape in ((77, 77), (1, 1, 77, 77))
    )
    assert flat == pytest.approx(square, rel=1e-3)
    # open_clip's text encoder on an H200: 32.1 us, 12.0 by the operator that knows no mask.
    assert flat == pytest.approx(32.1, rel=0.1)
    assert flat > 1.5 * price(h200, attention("cudnn", "float16", sizes=sizes)).duration_us


@pytest.mark.parametrize("shape", [(77, 77), (1, 1, 77, 77), (64, 1, 77, 77), (64, 8, 77, 77)])
def test_a_mask_that_a_backward_does_not_keep_follows_from_its_bytes(shape: tuple[int, ...], h200: TimeModel) -> None:
    sizes = (64, 8, 77, 64)
    call = attention_backward("cudnn", "float16", mask=shape, sizes=sizes)
    assert len(call.arguments) == 8
    of_forward = known(attention("cudnn", "float16", mask=shape, sizes=sizes))
    assert known(call) == replace(of_forward, is_backward=True, is_strided=True)
    plain = attention_backward("cudnn", "float16", sizes=sizes)
    assert not known(plain).has_bias and not known(replace(call, bytes_moved=None)).has_bias
    assert price(h200, call).duration_us > 1.1 * price(h200, plain).duration_us


def test_a_mask_of_one_row_follows_from_its_bytes() -> None:
    found = known(attention_backward("cudnn", mask=(BATCH, 1, 1, LENGTH)))
    assert found.has_bias and found.bias_elements == BATCH * LENGTH


def test_the_gradient_of_a_mask_is_made_where_it_is_asked_for() -> None:
    made = {}
    for asked in (0, 1):
        settings = (("grad_input_mask", (1, 1, 1, asked)),)
        call = attention_backward("efficient", mask=(BATCH, HEADS, LENGTH, LENGTH), settings=settings)
        launch = launch_of(call, "cuda:0")
        assert launch is not None and known(call).has_bias
        made[asked] = [each.shape for each in launch.buffers if each.role == "output"]
    assert made[1] == [*made[0], (BATCH, HEADS, LENGTH, LENGTH)]


@pytest.mark.parametrize("call", [attention("flash"), attention_backward("flash")])
def test_attention_is_causal_as_its_settings_say(call: StepCall, h200: TimeModel) -> None:
    causal = replace(call, settings=(("is_causal", (1,)),))
    assert known(causal).is_causal and not known(call).is_causal
    assert price(h200, causal).duration_us < 0.8 * price(h200, call).duration_us


def test_without_settings_flops_that_are_a_bound_say_that_attention_is_causal() -> None:
    assert known(attention("efficient", settings=None, flops_quality="upper_bound")).is_causal
    assert not known(attention("efficient", settings=None)).is_causal


@pytest.mark.parametrize("backend", ["cudnn", "flash", "efficient"])
def test_attention_that_drops_weights_takes_longer(backend: str, h200: TimeModel) -> None:
    for call in (attention(backend), attention_backward(backend)):
        drops = replace(call, settings=(("dropout", (1,)),))
        assert known(drops).has_dropout and not known(call).has_dropout
        assert price(h200, drops).duration_us > 1.05 * price(h200, call).duration_us


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


@pytest.mark.parametrize(
    ("name", "given_", "out"),
    [
        ("aten::mm", (dense(256, 1024), dense(1024, 32000)), dense(256, 32000)),
        ("aten::mm", (dense(512, 512), dense(512, 512)), dense(512, 512)),
        ("aten::addmm", (dense(32000, 1024), dense(32000, 256), dense(256, 1024)), dense(32000, 1024)),
        ("aten::addmm", (dense(1024), dense(4096, 256), dense(256, 1024)), dense(4096, 1024)),
        ("aten::bmm", (dense(8, 64, 96), dense(8, 96, 64)), dense(8, 64, 64)),
        ("aten::baddbmm", (dense(8, 64, 64), dense(8, 64, 64), dense(8, 64, 64)), dense(8, 64, 64)),
    ],
)
def test_a_product_into_a_given_tensor_is_the_product_that_it_is_without(
    h200: TimeModel, name: str, given_: tuple[TensorArgument, ...], out: TensorArgument
) -> None:
    flops = 2 * math.prod(out.shape) * given_[-1].shape[-2]
    call = StepCall("step_0", 0, "operator", name, "forward", kernels=1, arguments=given_, flops=flops)
    into = replace(call, arguments=(*given_, out))
    assert launch_of(into, "cuda:0") == launch_of(call, "cuda:0")
    ((_, plain),), ((_, told),) = (price_calls(h200, [each], ran_on_cpu=False) for each in (call, into))
    assert told.duration_us == plain.duration_us
    assert told.roofline_us is not None
    assert told.duration_us < 20 + 5 * told.roofline_us
