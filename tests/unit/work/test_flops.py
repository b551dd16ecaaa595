"""One set of formulas: what an operator's shapes give, what is counted on a graph's nodes, what torch's counter says.

``Counted`` hears every operator of a call and asks three for its FLOPs: ``op_cost`` (shapes in a trace), the table that
counts FX nodes, and ``torch.utils.flop_counter``. Where torch's own counter is otherwise, ``TORCH_DEVIATES`` says why.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

import torchledger
from torchledger._torch.flops import added_formulas, formulas
from torchledger.operators import find_operator
from torchledger.work.flops import convolution_flops
from torchledger.work.op_costs import op_cost
from torchledger.work.op_shapes import Argument, OpCall, Tensor
from torchledger.work.product_costs import overcounted_by_torch

aten = torch.ops.aten
_PLAIN = torch.nn.attention.SDPBackend.MATH
SIZE, SMALL = st.integers(1, 40), st.integers(1, 4)

TORCH_DEVIATES = {
    "aten.convolution_backward": "counts the weight's gradient of a grouped convolution as if it had one group",
    "aten.cudnn_convolution": "takes its flag for benchmarking for that of a transposed convolution",
    "aten._slow_conv2d_forward": "asks for a flag that this operator does not have, and raises",
}


def meta(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def argument(value: Any) -> tuple[Argument, str]:
    if isinstance(value, torch.Tensor):
        return Tensor(tuple(value.shape), str(value.dtype).removeprefix("torch."), tuple(value.stride())), ""
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, torch.Tensor) for item in value):
        return tuple(argument(item)[0] for item in value), ""  # type: ignore[misc]
    return None, "" if value is None else str(list(value) if isinstance(value, tuple) else value)


@dataclass
class Count:
    """FLOPs of one operator's call: by its shapes, as an FX node, by torch."""

    name: str
    by_shapes: int | None
    by_node: int | None
    by_torch: int | None
    overcounted: int = 0


@dataclass
class Counted(TorchDispatchMode):
    calls: list[Count] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func.overloadpacket
        ours, theirs = formulas().get(packet), flop_counter.flop_registry.get(packet)
        if ours is not None:
            places = [spec.name for spec in func._schema.arguments]
            given = [kwargs.get(name, args[at] if at < len(args) else None) for at, name in enumerate(places)]
            arguments, constants = zip(*map(argument, given), strict=True)
            shapes = OpCall(str(packet).replace(".", "::"), arguments, constants)
            try:
                by_torch = None if theirs is None else int(theirs(*args, **kwargs, out_val=out))
            except TypeError:
                by_torch = None
            by_node = int(ours(*args, **kwargs, out_val=out))
            by_shapes = op_cost(shapes).flops
            self.calls.append(Count(str(packet), by_shapes, by_node, by_torch, overcounted_by_torch(shapes)))
        return out


def check(function: Callable[[], Any], *names: str, reference: int | None = None) -> None:
    """All three say the same of every product in a call, and the operators named were among them."""
    with Counted() as counted:
        function()
    assert {call.name for call in counted.calls} >= set(names), counted.calls
    for call in counted.calls:
        assert call.by_shapes == call.by_node, call
        if call.by_torch is not None and call.name not in TORCH_DEVIATES:
            assert call.by_node == call.by_torch, call
        if reference is not None:
            assert call.by_node == reference, call


@given(SIZE, SIZE, SIZE, SMALL)
def test_matrix_products_have_the_flops_that_torch_counts(m: int, k: int, n: int, batch: int) -> None:
    flops = 2 * m * k * n
    check(lambda: aten.mm(meta(m, k), meta(k, n)), "aten.mm", reference=flops)
    check(lambda: aten.addmm(meta(n), meta(m, k), meta(k, n)), "aten.addmm", reference=flops)
    check(lambda: aten.bmm(meta(batch, m, k), meta(batch, k, n)), "aten.bmm", reference=batch * flops)
    check(
        lambda: aten.baddbmm(meta(batch, m, n), meta(batch, m, k), meta(batch, k, n)),
        "aten.baddbmm",
        reference=batch * flops,
    )
    linear = op_cost(OpCall("aten::linear", (Tensor((batch, m, k), "float32"), Tensor((n, k), "float32"), None)))
    assert linear.flops == batch * flops
    check(lambda: aten.linear(meta(batch, m, k), meta(n, k), meta(n)), reference=batch * flops)


@given(SMALL, SMALL, SMALL, SMALL)
def test_products_of_eight_bit_elements_and_of_groups_have_the_flops_of_their_parts(
    m: int, k: int, n: int, groups: int
) -> None:
    m, k, n = 16 * m, 16 * k, 16 * n
    half, eight = torch.bfloat16, torch.float8_e4m3fn
    left, right = meta(m, k, dtype=eight), meta(n, k, dtype=eight).t()
    one = meta(1)
    check(lambda: aten._scaled_mm(left, right, one, one, out_dtype=half), "aten._scaled_mm", reference=2 * m * k * n)
    whole = meta(m, k, dtype=torch.int8), meta(k, n, dtype=torch.int8)
    check(lambda: aten._int_mm(*whole), "aten._int_mm", reference=2 * m * k * n)
    ends = meta(groups, dtype=torch.int32)
    by_rows = meta(m, k, dtype=half), meta(groups, n, k, dtype=half).transpose(1, 2)
    check(lambda: aten._grouped_mm(*by_rows, ends), "aten._grouped_mm", reference=2 * m * k * n)
    by_inner = meta(m, k, dtype=half), meta(n, k, dtype=half).t()
    check(lambda: aten._grouped_mm(*by_inner, ends), "aten._grouped_mm", reference=2 * m * k * n)
    by_columns = meta(groups, m, k, dtype=half), meta(n, k, dtype=half).t()
    check(lambda: aten._grouped_mm(*by_columns, ends), "aten._grouped_mm", reference=2 * m * k * n)
    batch = meta(groups, m, k, dtype=half), meta(groups, n, k, dtype=half).transpose(1, 2)
    check(lambda: aten._grouped_mm(*batch), "aten._grouped_mm", reference=2 * groups * m * k * n)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments of ``aten.convolution`` for one to three dimensions, with groups, transposed or not."""
    rank, groups = draw(st.integers(1, 3)), draw(SMALL)
    transposed = draw(st.booleans())
    inputs, outputs = groups * draw(SMALL), groups * draw(SMALL)
    kernel = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    sizes = draw(st.lists(st.integers(7, 12), min_size=rank, max_size=rank))
    ways = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    stride = draw(st.integers(1, 3))
    return {
        "x": (draw(SMALL), inputs, *sizes),
        "weight": (*ways, *kernel),
        "bias": (outputs,),
        "stride": [stride] * rank,
        "padding": [draw(st.integers(0, 1))] * rank,
        "dilation": [draw(st.integers(1, 2))] * rank,
        "transposed": transposed,
        "extra": [draw(st.integers(0, stride - 1)) if transposed else 0] * rank,
        "groups": groups,
    }


@given(convolutions(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
@settings(max_examples=60, deadline=None)
def test_convolutions_have_the_flops_that_torch_counts(c: dict[str, Any], mask: tuple[bool, bool, bool]) -> None:
    x, weight = meta(*c["x"]), meta(*c["weight"])
    rest = (c["stride"], c["padding"], c["dilation"], c["transposed"], c["extra"], c["groups"])
    out = aten.convolution(x, weight, None, *rest)
    forward = convolution_flops(c["x"], c["weight"], tuple(out.shape), transposed=c["transposed"])
    check(lambda: aten.convolution(x, weight, meta(*c["bias"]), *rest), "aten.convolution", reference=forward)

    with Counted() as counted:
        aten.convolution_backward(meta(*out.shape), x, weight, list(c["bias"]), *rest, list(mask))
    (call,) = counted.calls
    assert call.by_shapes == forward * (mask[0] + mask[1])
    assert call.by_node == call.by_torch == forward * (mask[0] + mask[1] * c["groups"])
    assert call.by_torch == call.by_shapes + call.overcounted


@given(convolutions(), st.booleans())
@settings(max_examples=30, deadline=None)
def test_library_entry_points_of_convolutions_count_like_the_convolution(c: dict[str, Any], benchmark: bool) -> None:
    shapes = OpCall("", (Tensor(c["x"], "float32"), Tensor(c["weight"], "float32")))
    rest = (c["stride"], c["padding"], c["dilation"], c["transposed"], c["extra"], c["groups"])
    x, weight = meta(*c["x"]), meta(*c["weight"])
    out = aten.convolution(x, weight, None, *rest)
    forward = convolution_flops(c["x"], c["weight"], tuple(out.shape), transposed=c["transposed"])
    texts = {name: str(value) for name, value in c.items()}
    order = ("padding", "stride", "dilation", "groups")
    if c["transposed"]:
        name, order = "cudnn_convolution_transpose", ("padding", "extra", *order[1:])
    else:
        name = "cudnn_convolution"
    call = OpCall(f"aten::{name}", (*shapes.arguments, *[None] * len(order)), ("", "", *(texts[key] for key in order)))
    assert op_cost(call).flops == forward
    count = formulas()[getattr(aten, name)]
    assert count(x, weight, *(c[key] for key in order), benchmark, False, True, out_val=out) == forward


@given(SMALL, SMALL, SMALL, SIZE, SIZE, SMALL, st.booleans())
@settings(max_examples=40, deadline=None)
def test_attention_has_the_flops_that_torch_counts(
    batch: int, heads: int, share: int, queries: int, keys: int, eighths: int, causal: bool
) -> None:
    size = 8 * eighths
    query = meta(batch, heads * share, queries, size)
    key = value = meta(batch, heads * share, keys, size)
    forward = 2 * batch * heads * share * queries * keys * 2 * size
    seed = torch.zeros((), dtype=torch.int64)
    half = [tensor.to(torch.bfloat16) for tensor in (query, key, value)]
    calls: dict[str, Callable[[], Any]] = {
        "flash_attention": lambda: aten._scaled_dot_product_flash_attention(*half, 0.0, causal),
        "efficient_attention": lambda: aten._scaled_dot_product_efficient_attention(*half, None, True, 0.0, causal),
        "cudnn_attention": lambda: aten._scaled_dot_product_cudnn_attention(*half, None, True, 0.0, causal),
        "flash_attention_for_cpu": lambda: aten._scaled_dot_product_flash_attention_for_cpu(query, key, value),
    }
    for name, function in calls.items():
        check(function, f"aten._scaled_dot_product_{name}", reference=forward)
    out, rows = half[0], meta(batch, heads * share, queries)
    ends = (None, None, queries, keys)
    backward: dict[str, Callable[[], Any]] = {
        "flash_attention_backward": lambda: aten._scaled_dot_product_flash_attention_backward(
            out, *half, out, rows, *ends, 0.0, causal, seed, seed
        ),
        "efficient_attention_backward": lambda: aten._scaled_dot_product_efficient_attention_backward(
            out, *half, None, out, rows, seed, seed, 0.0, [True, True, True, False], causal
        ),
        "cudnn_attention_backward": lambda: aten._scaled_dot_product_cudnn_attention_backward(
            out, *half, out, rows, seed, seed, None, *ends, 0.0, causal
        ),
        "flash_attention_for_cpu_backward": lambda: aten._scaled_dot_product_flash_attention_for_cpu_backward(
            query, query, key, value, query, rows, 0.0, causal
        ),
    }
    for name, function in backward.items():
        check(function, f"aten._scaled_dot_product_{name}", reference=forward // 2 * 5)


def test_key_and_value_heads_may_be_fewer_than_query_heads() -> None:
    query, key = meta(2, 8, 16, 32), meta(2, 2, 24, 32)
    check(
        lambda: aten._scaled_dot_product_flash_attention_for_cpu(query, key, key),
        reference=2 * 2 * 8 * 16 * 24 * 2 * 32,
    )


def test_products_with_vectors_sums_of_products_and_bilinear_layers_count_every_multiply_add() -> None:
    matrix, vector = meta(5, 7), meta(7)
    check(lambda: aten.mv(matrix, vector), "aten.mv", reference=2 * 5 * 7)
    check(lambda: aten.addmv(meta(5), matrix, vector), "aten.addmv", reference=2 * 5 * 7)
    check(lambda: aten.dot(vector, vector), "aten.dot", reference=2 * 7)
    check(lambda: aten.addbmm(meta(5, 3), meta(2, 5, 7), meta(2, 7, 3)), "aten.addbmm", reference=2 * 2 * 5 * 7 * 3)
    layer = torch.nn.Bilinear(10, 12, 7)
    rows, others = torch.randn(6, 10, requires_grad=True), torch.randn(6, 12)
    check(lambda: layer(rows, others).sum().backward(), "aten._trilinear", reference=2 * 6 * 7 * 10 * 12)


def test_an_encoder_layer_that_infers_by_one_operator_counts_what_its_parts_do() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    rows = torch.randn(2, 6, 16)
    products, scores = 2 * 12 * (48 * 16 + 16 * 16), 2 * 2 * 2 * 6 * 6 * 16
    by_parts = products + 2 * 12 * 2 * 16 * 32 + scores
    with flop_counter.FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(_PLAIN):
        layer(rows)
    assert counter.get_total_flops() == by_parts
    layer.eval()
    with torch.inference_mode():
        check(lambda: layer(rows), "aten._transformer_encoder_layer_fwd", reference=by_parts)
        attention = layer.self_attn
        check(lambda: attention(rows, rows, rows), "aten._native_multi_head_attention", reference=products + scores)


def test_a_nested_batch_counts_each_of_its_rows() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    parts = [torch.randn(length, 16) for length in (3, 5)]
    with torch.inference_mode():
        one_by_one = sum(_total(lambda part=part: layer(part[None])) for part in parts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, that nested tensors are a prototype
            nested = torch.nested.nested_tensor(parts)
        assert _total(lambda: layer(nested)) == one_by_one > 0


def _total(call: Callable[[], object]) -> int:
    with flop_counter.FlopCounterMode(display=False, custom_mapping=added_formulas()) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_recurrent_layer_multiplies_its_weights_and_no_states(bidirectional: bool) -> None:
    layer = torch.nn.LSTM(8, 12, bidirectional=bidirectional)
    with Counted() as counted:
        layer(torch.randn(5, 2, 8, requires_grad=True))[0].sum().backward()
    forward = 2 * 10 * (48 * 8 + 48 * 12)
    found = [(call.name, call.by_shapes, call.by_node) for call in counted.calls if "mkldnn" in call.name]
    directions = 2 if bidirectional else 1
    assert found == [
        *[("aten.mkldnn_rnn_layer", forward, forward)] * directions,
        *[("aten.mkldnn_rnn_layer_backward", 2 * forward, 2 * forward)] * directions,
    ]


def test_the_weights_of_a_cudnn_layer_come_in_a_list() -> None:
    weights = [meta(256, 32), meta(256, 64), meta(256), meta(256)]
    forward = 2 * 20 * 8 * 256 * (32 + 64)
    for packet, expected in ((aten._cudnn_rnn, forward), (aten._cudnn_rnn_backward, 2 * forward)):
        arguments, constants = zip(*map(argument, (meta(20, 8, 32), weights, 4, meta(1, 8, 64))), strict=True)
        assert formulas()[packet](meta(20, 8, 32), weights, 4, meta(1, 8, 64)) == expected
        assert op_cost(OpCall(str(packet).replace(".", "::"), arguments, constants)).flops == expected


@given(SMALL, SMALL, SIZE, SIZE, SMALL, SMALL)
@settings(max_examples=30, deadline=None)
def test_the_catalogue_counts_as_the_operators_do(
    n: int, groups: int, side: int, k: int, c_in: int, c_out: int
) -> None:
    linear = find_operator("linear")
    (work,) = linear.work(linear.resolve({"m": side, "k": k, "n": n}), "forward", 2)
    assert work.flops == op_cost(OpCall("aten::mm", (Tensor((side, k), "float16"), Tensor((k, n), "float16")))).flops
    conv = find_operator("conv2d")
    p = {
        "n": n, "c_in": groups * c_in, "height": side + 3, "width": side + 4, "c_out": groups * c_out, "kernel": 3,
        "groups": groups,
    }  # fmt: skip
    (work,) = conv.work(conv.resolve(p), "forward", 2)
    x, weight = meta(n, p["c_in"], side + 3, side + 4), meta(p["c_out"], c_in, 3, 3)
    out = aten.convolution(x, weight, None, [1, 1], [conv.resolve(p).padding] * 2, [1, 1], False, [0, 0], groups)
    assert work.flops == convolution_flops(tuple(x.shape), tuple(weight.shape), tuple(out.shape))
    many = conv.work(conv.resolve({name: np.array([value, value]) for name, value in p.items()}), "forward", 2)
    assert [int(flops) for flops in many[0].flops] == [work.flops] * 2


SIDES = ({"m", "n", "k"}, {"rows", "inner", "columns"})


def _factors(node: ast.AST) -> set[object]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _factors(node.left) | _factors(node.right)
    if isinstance(node, ast.Constant):
        return {node.value}
    return {getattr(node, "id", getattr(node, "attr", None))}


def test_the_flops_of_a_product_are_counted_in_one_place() -> None:
    house = Path(torchledger.__file__).parent
    found = [
        f"{path.relative_to(house)}:{node.lineno}"
        for path in house.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.BinOp) and 2 in (factors := _factors(node)) and any(each <= factors for each in SIDES)
    ]
    assert {each.partition(":")[0] for each in found} == {"work/flops.py"}
