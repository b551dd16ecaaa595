"""Costs from shapes agree with torch's own counter and with tensors that are really there."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from torchledger.work.op_costs import FORMULAS, op_cost
from torchledger.work.op_shapes import (
    UNRECORDED_DTYPE,
    Argument,
    OpCall,
    Tensor,
    broadcast_shape,
    dtype_name,
    parse_ints,
    promoted_dtype,
)


def as_argument(value):
    if isinstance(value, torch.Tensor):
        return Tensor(tuple(value.shape), str(value.dtype).removeprefix("torch."), tuple(value.stride())), ""
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, torch.Tensor) for item in value):
        return tuple(as_argument(item)[0] for item in value), ""
    return None, "" if value is None else str(value)


def call_of(name: str, *values) -> OpCall:
    arguments, constants = zip(*map(as_argument, values), strict=True)
    return OpCall(name, arguments, constants)


def distinct_bytes(*tensors: torch.Tensor) -> int:
    """Bytes at distinct addresses, found by looking at every element's address."""
    total = 0
    for tensor in tensors:
        offsets = torch.zeros(tensor.shape, dtype=torch.int64)
        for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            view = [1] * tensor.dim()
            view[axis] = size
            offsets += (torch.arange(size) * stride).view(view)
        total += offsets.unique().numel() * tensor.element_size()
    return total


def counted(function) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def meta(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


aten = torch.ops.aten

FLOP_CASES = {
    "mm": (aten.mm, (meta(5, 7), meta(7, 3))),
    "bmm": (aten.bmm, (meta(2, 5, 7), meta(2, 7, 3))),
    "addmm": (aten.addmm, (meta(3), meta(5, 7), meta(7, 3))),
    "baddbmm": (aten.baddbmm, (meta(2, 5, 3), meta(2, 5, 7), meta(2, 7, 3))),
    "linear": (aten.linear, (meta(2, 5, 7), meta(3, 7), meta(3))),
    "matmul": (aten.matmul, (meta(2, 1, 5, 7), meta(4, 7, 3))),
    "convolution": (
        aten.convolution,
        (meta(2, 6, 9, 8), meta(4, 3, 3, 2), None, [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
    ),
    "transposed convolution": (
        aten.convolution,
        (meta(2, 4, 5, 5), meta(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
    ),
    "convolution in 1 dimension": (
        aten.convolution,
        (meta(2, 4, 50), meta(8, 4, 5), None, [1], [2], [1], False, [0], 1),
    ),
    "convolution backward": (
        aten.convolution_backward,
        (
            *(meta(2, 8, 6, 6), meta(2, 4, 8, 8), meta(8, 4, 3, 3), None),
            *([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]),
        ),
    ),
    "attention": (
        aten._scaled_dot_product_efficient_attention,
        (meta(2, 3, 16, 8), meta(2, 3, 24, 8), meta(2, 3, 24, 8), None, True, 0.0, False),
    ),
}


@pytest.mark.parametrize("case", FLOP_CASES)
def test_flops_are_those_of_torchs_counter(case: str) -> None:
    operator, arguments = FLOP_CASES[case]
    cost = op_cost(call_of(f"aten::{operator.__name__}", *arguments))
    assert cost.flops == counted(lambda: operator(*arguments))
    assert cost.flops_quality == "exact"


def test_attention_backward_counts_what_torchs_counter_counts() -> None:
    from torch.utils.flop_counter import sdpa_backward_flop_count

    shapes = (2, 3, 16, 8), (2, 3, 24, 8), (2, 3, 24, 8)
    gradient = (2, 3, 16, 8)
    tensors = tuple(Tensor(shape, "bfloat16") for shape in (gradient, *shapes))
    cost = op_cost(OpCall("aten::_scaled_dot_product_flash_attention_backward", tensors))
    assert cost.flops == sdpa_backward_flop_count(gradient, *shapes)


def test_flash_attention_keeps_heads_third() -> None:
    inner = tuple(Tensor((2, 16, 3, 8), "bfloat16") for _ in range(3))
    outer = tuple(Tensor((2, 3, 16, 8), "bfloat16") for _ in range(3))
    assert (
        op_cost(OpCall("aten::_flash_attention_forward", inner)).flops
        == op_cost(OpCall("aten::_scaled_dot_product_flash_attention", outer)).flops
        == 4 * 2 * 3 * 16 * 16 * 8
    )


def test_a_causal_mask_makes_attention_an_upper_bound() -> None:
    query = Tensor((2, 3, 16, 8), "bfloat16")
    constants = ("", "", "", "0.", "True", "False")
    cost = op_cost(OpCall("aten::_scaled_dot_product_flash_attention", (query,) * 3 + (None,) * 3, constants))
    assert cost.flops_quality == "upper_bound"
    assert cost.bytes_quality == "exact"


BYTE_CASES = {
    "add of a row": (torch.add, "add", (torch.randn(4, 8), torch.randn(8))),
    "add of an expanded row": (torch.add, "add", (torch.randn(4, 8), torch.randn(1, 8).expand(4, 8))),
    "comparison": (torch.gt, "gt", (torch.randn(4, 8), torch.randn(4, 8))),
    "mixed dtypes": (torch.mul, "mul", (torch.randn(4, 8, dtype=torch.bfloat16), torch.randn(4, 8))),
    "where": (torch.where, "where", (torch.randn(4, 8) > 0, torch.randn(4, 8), torch.randn(4, 8))),
    "gelu": (torch.nn.functional.gelu, "gelu", (torch.randn(3, 5),)),
    "sum over one": (lambda x, _: x.sum(1), "sum", (torch.randn(3, 5, 2), [1])),
    "sum over all": (lambda x: x.sum(), "sum", (torch.randn(3, 5, 2),)),
    "sum of integers": (lambda x: x.sum(), "sum", (torch.ones(3, 5, dtype=torch.int32),)),
    "all": (lambda x: x.all(), "all", (torch.ones(3, 5, dtype=torch.bool),)),
    "argmax": (lambda x, _: x.argmax(1), "argmax", (torch.randn(3, 5), 1)),
    "max with indices": (lambda x, _: x.max(1), "max", (torch.randn(3, 5), 1)),
    "softmax": (lambda x, d, _: torch.softmax(x, d), "_softmax", (torch.randn(3, 5), -1, False)),
    "cat": (lambda xs, d: torch.cat(xs, d), "cat", ((torch.randn(3, 5), torch.randn(3, 2)), 1)),
    "stack": (lambda xs, d: torch.stack(xs, d), "stack", ((torch.randn(3, 5), torch.randn(3, 5)), 0)),
    "layer norm": (
        aten.native_layer_norm,
        "native_layer_norm",
        (torch.randn(3, 4, 5), [5], torch.randn(5), torch.randn(5), 1e-5),
    ),
    "max pool": (
        aten.max_pool2d_with_indices,
        "max_pool2d_with_indices",
        (torch.randn(2, 3, 9, 9), [3, 3], [2, 2], [1, 1], [1, 1], True),
    ),
    "average pool": (aten.avg_pool2d, "avg_pool2d", (torch.randn(2, 3, 9, 9), [2, 2], [2, 2], [0, 0], True)),
    "adaptive pool": (aten._adaptive_avg_pool2d, "_adaptive_avg_pool2d", (torch.randn(2, 3, 9, 9), [6, 6])),
    "upsample": (aten.upsample_nearest2d, "upsample_nearest2d", (torch.randn(2, 3, 4, 4), [8, 8], None, None)),
    "top k": (torch.topk, "topk", (torch.randn(3, 9), 4, 1)),
    "glu": (torch.nn.functional.glu, "glu", (torch.randn(3, 8), 1)),
    "pad": (aten.constant_pad_nd, "constant_pad_nd", (torch.randn(3, 8), [1, 2], 0.0)),
    "cast": (lambda x, _: x.to(torch.bfloat16), "_to_copy", (torch.randn(3, 8), 15)),
    "dropout": (aten.native_dropout, "native_dropout", (torch.randn(3, 8), 0.5, True)),
    "foreach add": (torch._foreach_add, "_foreach_add", ([torch.randn(3), torch.randn(2)], [torch.randn(3)] * 2)),
    "matrix product": (torch.mm, "mm", (torch.randn(3, 8), torch.randn(8, 2))),
    "repeat": (lambda x, r: x.repeat(r), "repeat", (torch.randn(3, 8), [2, 1, 2])),
    "gradient of a row": (aten.select_backward, "select_backward", (torch.randn(8), [3, 8], 0, 1)),
    "gradient of a slice": (aten.slice_backward, "slice_backward", (torch.randn(2, 8), [3, 8], 0, 0, 2, 1)),
    "gradient of a gate": (aten.glu_backward, "glu_backward", (torch.randn(3, 4), torch.randn(3, 8), 1)),
    "buckets": (torch.bucketize, "bucketize", (torch.randn(3, 8), torch.arange(4.0))),
    "places": (torch.searchsorted, "searchsorted", (torch.arange(4.0), torch.randn(3, 8))),
    "places of elements": (torch.isin, "isin", (torch.arange(8).view(2, 4), torch.arange(3))),
    "gradient with nothing kept for it": (
        lambda gradient, x, _: aten.log_sigmoid_backward(gradient, x, torch.zeros_like(x)),
        "log_sigmoid_backward",
        (torch.randn(3, 8), torch.randn(3, 8), torch.randn(0)),
    ),
    "distances": (aten._cdist_forward, "_cdist_forward", (torch.randn(2, 3, 8), torch.randn(5, 8), 2.0, None)),
    "real transform": (aten._fft_r2c, "_fft_r2c", (torch.randn(3, 9), [1], 0, True)),
    "complex transform": (aten._fft_c2c, "_fft_c2c", (torch.randn(3, 9).to(torch.complex64), [1], 0, True)),
    "columns": (aten.im2col, "im2col", (torch.randn(2, 3, 9, 8), [3, 2], [1, 2], [1, 0], [2, 1])),
    "image": (aten.col2im, "col2im", (torch.randn(2, 12, 64), [9, 9], [2, 2], [1, 1], [0, 0], [1, 1])),
    "drawn places": (aten.multinomial, "multinomial", (torch.rand(3, 8), 5, True)),
    "mean loss": (aten.binary_cross_entropy, "binary_cross_entropy", (torch.rand(3, 8), torch.rand(3, 8), None, 1)),
    "single losses": (aten.mse_loss, "mse_loss", (torch.rand(3, 8), torch.rand(3, 8), 0)),
    "norm of a weight": (
        lambda v, g, d: (v * g, torch.ones(3, 1)),
        "_weight_norm_interface",
        (torch.randn(3, 8), torch.randn(3, 1), 0),
    ),
    "split into copies": (aten.split_with_sizes_copy, "split_with_sizes_copy", (torch.randn(8, 3), [3, 5])),
    "upsample by factors": (
        lambda x, *_: torch.nn.functional.interpolate(x, scale_factor=(2.0, 1.5)),
        "upsample_nearest2d",
        (torch.randn(2, 3, 4, 5), None, [2.0, 1.5]),
    ),
    "embedding of distinct rows": (aten.embedding, "embedding", (torch.randn(4, 8), torch.arange(4))),
}


@pytest.mark.parametrize("case", BYTE_CASES)
def test_bytes_are_inputs_once_and_outputs_once(case: str) -> None:
    function, name, values = BYTE_CASES[case]
    outputs = function(*[list(v) if isinstance(v, tuple) else v for v in values]) if "foreach" not in case else None
    if outputs is None:
        outputs = torch._foreach_add(values[0], [torch.randn(3), torch.randn(2)])
        values = (values[0], [torch.randn(3), torch.randn(2)])
    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
    inputs = [t for v in values for t in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(t, torch.Tensor)]
    cost = op_cost(call_of(f"aten::{name}", *values))
    assert cost.bytes_moved == distinct_bytes(*inputs, *outputs)
    assert cost.flops == (96 if case == "matrix product" else 0)


def test_an_in_place_operator_writes_its_first_argument() -> None:
    assert op_cost(call_of("aten::add_", torch.randn(4, 8), torch.randn(4, 8))).bytes_moved == 3 * 128
    assert op_cost(call_of("aten::copy_", torch.randn(4, 8), torch.randn(4, 8).half())).bytes_moved == 128 + 64
    assert op_cost(call_of("aten::zero_", torch.randn(4, 8))).bytes_moved == 128


def test_a_given_output_is_written_and_not_read() -> None:
    call = call_of("aten::add", torch.randn(4, 8), torch.randn(4, 8), 1, torch.empty(4, 8))
    assert op_cost(call).bytes_moved == 3 * 128


def test_a_softmax_that_is_safe_moves_what_its_four_kernels_do() -> None:
    scores = torch.randn(2, 3, 5)
    made, hidden = torch.softmax(scores, -1), scores == -torch.inf
    rows = hidden.all(-1, keepdim=True)
    kernels = ([scores, made], [scores, hidden], [hidden, rows], [rows, made, torch.where(rows, 0.0, made)])
    cost = op_cost(call_of("aten::_safe_softmax", scores, -1, None))
    assert cost.bytes_moved == sum(distinct_bytes(*each) for each in kernels)


def test_a_gather_is_bounded_by_its_table() -> None:
    cost = op_cost(call_of("aten::embedding", torch.randn(2, 8), torch.zeros(100, dtype=torch.int64)))
    assert cost.bytes_moved == 2 * 8 * 4 + 100 * 8 + 100 * 8 * 4
    assert cost.bytes_quality == "upper_bound"


def test_a_fused_optimizer_reads_all_and_writes_parameters_and_states() -> None:
    lists = tuple((Tensor((4, 4), "float32"),) * 3 for _ in range(4))
    cost = op_cost(OpCall("aten::_fused_adamw_", lists))
    assert cost.bytes_moved == 3 * 64 * (4 + 3)


@pytest.mark.parametrize(
    ("name", "lists", "empty", "numbers", "moved"), [("_fused_adamw_", 4, 2, 7, 7), ("_fused_sgd_", 2, 1, 7, 3)]
)
def test_a_fused_optimizer_that_is_given_a_scale_writes_the_gradients_too(
    name: str, lists: int, empty: int, numbers: int, moved: int
) -> None:
    some = (Tensor((4, 4), "float32"), Tensor((8,), "float32"))
    plain = OpCall(f"aten::{name}", (*((some,) * lists), *(((),) * empty), *((None,) * numbers)))
    scale = Tensor((), "float32")
    scaled = OpCall(plain.name, (*plain.arguments, scale, scale))
    assert op_cost(plain).bytes_moved == moved * 96
    assert op_cost(scaled).bytes_moved == (moved + 1) * 96 + 2 * 4


@pytest.mark.parametrize(
    ("name", "lists", "moved"),
    [
        ("_foreach_sqrt_", 1, 2),
        ("_foreach_add_", 2, 3),
        ("_foreach_addcdiv_", 3, 4),
        ("_foreach_lerp_", 3, 4),
        ("_foreach_zero_", 1, 1),
        ("_foreach_copy_", 2, 2),
        ("_foreach_mul", 1, 2),
        ("_fused_sgd_", 3, 5),
        ("_amp_foreach_non_finite_check_and_unscale_", 1, 2),
    ],
)
def test_operators_on_lists_move_each_list_once_for_reading_and_once_for_writing(
    name: str, lists: int, moved: int
) -> None:
    some = (Tensor((4, 4), "float32"), Tensor((8,), "float32"))
    cost = op_cost(OpCall(f"aten::{name}", (some,) * lists))
    assert (cost.flops, cost.bytes_moved, cost.bytes_quality) == (0, moved * 96, "exact")
    unrecorded = tuple(Tensor(tensor.shape, UNRECORDED_DTYPE) for tensor in some)
    cost = op_cost(OpCall(f"aten::{name}", (unrecorded,) * lists))
    assert (cost.bytes_moved, cost.bytes_quality) == (moved * 96, "estimated")
    assert "float32" in (cost.basis or "")


def test_a_list_of_norms_writes_a_number_each_and_a_power_of_one_number_reads_the_exponents() -> None:
    some = (Tensor((4, 4), "float32"), Tensor((8,), "float32"))
    assert op_cost(OpCall("aten::_foreach_norm", (some,))).bytes_moved == 96 + 8
    assert op_cost(OpCall("aten::_foreach_pow", (None, some), ("2.", ""))).bytes_moved == 2 * 96


@pytest.mark.parametrize("name", ["view", "select", "slice", "unbind", "split", "squeeze_", "_unsafe_view", "set_"])
def test_a_view_moves_nothing(name: str) -> None:
    cost = op_cost(OpCall(f"aten::{name}", (Tensor((4, 4), "float32"),)))
    assert (cost.flops, cost.bytes_moved, cost.bytes_quality) == (0, 0, "exact")


def test_a_question_which_library_to_take_moves_nothing() -> None:
    scores = Tensor((40, 4, 16), "float32")
    for name in ("aten::_use_cudnn_ctc_loss", "aten::_use_miopen_ctc_loss", "aten::cudnn_is_acceptable"):
        assert op_cost(OpCall(name, (scores,))).bytes_moved == 0


@pytest.mark.parametrize(
    ("name", "constants", "moved"),
    [
        ("_c10d_functional::all_reduce", ("", "sum", "0"), 2 * 64),
        ("_c10d_functional::all_gather_into_tensor", ("", "4", "0"), 64 + 4 * 64),
        ("_c10d_functional::reduce_scatter_tensor", ("", "sum", "4", "0"), 64 + 16),
        ("_c10d_functional::wait_tensor", ("",), 0),
        ("c10d::allreduce_", ("",), 2 * 64),
    ],
)
def test_a_collective_moves_its_message_and_its_result(name: str, constants: tuple[str, ...], moved: int) -> None:
    message: Argument = Tensor((4, 4), "float32")
    arguments = (message if "functional" in name else (message,), *[None] * (len(constants) - 1))
    assert op_cost(OpCall(name, arguments, constants)).bytes_moved == moved


def test_what_the_data_decide_is_bounded_or_estimated() -> None:
    source, mask = torch.randn(4, 8), torch.ones(4, 8, dtype=torch.bool)
    found = {
        "nonzero": call_of("aten::nonzero", mask),
        "masked_select": call_of("aten::masked_select", source, mask),
        "index": call_of("aten::index", source, (mask,)),
        "index_put_": call_of("aten::index_put_", source, (mask,), torch.zeros(())),
        "_embedding_bag": call_of("aten::_embedding_bag", source, torch.zeros(6, dtype=torch.int64), torch.arange(2)),
    }
    for name, call in found.items():
        cost = op_cost(call)
        assert cost.bytes_moved is not None and cost.bytes_quality in ("estimated", "upper_bound"), name


def test_rows_that_a_mask_takes_are_moved_alone_where_it_is_known_how_many() -> None:
    table, mask = Tensor((64, 512, 32000), "bfloat16"), Tensor((64, 512), "bool")
    taken = op_cost(OpCall("aten::index", (table, (mask,)), taken=4916))
    rows, places = 4916 * 32000 * 2, 4916 * 2 * 8
    assert taken.bytes_moved == 2 * rows + 2 * places + 64 * 512


def test_the_gradients_of_a_recurrent_layer_are_two_products_for_each_of_the_forward() -> None:
    source, state = Tensor((20, 8, 32), "float32"), Tensor((1, 8, 64), "float32")
    weights = (Tensor((256, 32), "float32"), Tensor((256, 64), "float32"), *[Tensor((256,), "float32")] * 2)
    forward = op_cost(OpCall("aten::mkldnn_rnn_layer", (source, *weights, state, state)))
    backward = op_cost(OpCall("aten::mkldnn_rnn_layer_backward", (source, *weights, state, state)))
    assert forward.flops == 2 * 20 * 8 * 256 * (32 + 64)
    assert backward.flops == 2 * (forward.flops or 0)


def test_an_operator_without_formula_has_no_flops_and_says_so() -> None:
    cost = op_cost(OpCall("mylib::strange", (Tensor((4,), "float32"),)))
    assert cost.flops is None
    assert cost.bytes_moved == 32
    assert cost.bytes_quality == "estimated"
    assert "mylib::strange" in (cost.reason or "")


def test_a_call_without_shapes_is_unknown_not_zero() -> None:
    cost = op_cost(OpCall("aten::mm", (None, None)))
    assert (cost.flops, cost.bytes_moved) == (None, None)
    assert "shapes" in (cost.reason or "")


def test_an_unknown_dtype_leaves_bytes_unknown() -> None:
    cost = op_cost(OpCall("aten::mm", (Tensor((2, 2), "c10::Odd"), Tensor((2, 2), "c10::Odd"))))
    assert cost.flops == 16
    assert cost.bytes_moved is None
    assert "c10::Odd" in (cost.reason or "")


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
tensors = st.builds(Tensor, shapes, st.sampled_from(["float32", "bfloat16", "int64", "bool", "odd"]))
arguments = st.lists(st.one_of(st.none(), tensors, st.lists(tensors, max_size=3).map(tuple)), max_size=6).map(tuple)
constants = st.lists(st.sampled_from(["", "1", "-1", "[1, 2]", "[]", "True", "0.5", "9"]), max_size=9).map(tuple)


@given(name=st.sampled_from(sorted(FORMULAS)), arguments=arguments, constants=constants)
def test_no_recorded_nonsense_breaks_a_formula_or_makes_a_silent_unknown(name, arguments, constants) -> None:
    cost = op_cost(OpCall(f"aten::{name}", arguments, constants))
    assert (cost.flops is None) == (cost.flops_quality == "unavailable")
    assert (cost.bytes_moved is None) == (cost.bytes_quality == "unavailable")
    assert cost.reason or (cost.flops is not None and cost.bytes_moved is not None)


@given(st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), max_size=3))
def test_broadcasting_is_torchs(some: list[tuple[int, ...]]) -> None:
    try:
        expected = tuple(torch.broadcast_shapes(*some)) if some else ()
    except RuntimeError:
        expected = None
    assert broadcast_shape(some) == expected


dtypes = st.sampled_from(["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"])


@given(st.lists(dtypes, min_size=1, max_size=2), st.lists(dtypes, max_size=1))
def test_promotion_is_torchs(with_dimensions: list[str], scalars: list[str]) -> None:
    made = [Tensor((2,), dtype) for dtype in with_dimensions]
    expected = torch.zeros(2, dtype=getattr(torch, with_dimensions[0]))
    for dtype in with_dimensions[1:]:
        expected = expected * torch.zeros(2, dtype=getattr(torch, dtype))
    made += [Tensor((), dtype) for dtype in scalars]
    for dtype in scalars:
        if dtype in ("float64", "int64", "bool"):
            expected = expected * {"float64": 1.0, "int64": 1, "bool": True}[dtype]
        else:
            return
    if {"uint8"} & set(with_dimensions) and len(set(with_dimensions)) > 1:
        return
    assert promoted_dtype(made) == str(expected.dtype).removeprefix("torch.")


def test_names_and_numbers_as_the_profiler_writes_them() -> None:
    assert dtype_name("c10::BFloat16") == "bfloat16"
    assert dtype_name("long int") == "int64"
    assert parse_ints("[1, -2]") == (1, -2)
    assert parse_ints("[]") == ()
    assert parse_ints("0.5") is None


def test_what_forward_derivatives_ask_of_storages_and_their_zeros_launch_nothing() -> None:
    rows = Tensor((4, 8), "float32")
    for name in ("aten::_has_same_storage_numel", "aten::_efficientzerotensor"):
        cost = op_cost(OpCall(name, (rows,), ("",)))
        assert (cost.flops, cost.bytes_moved) == (0, 0)


def test_how_many_dimensions_of_a_tensor_are_sparse_is_asked_without_a_launch() -> None:
    held = Tensor((4, 8), "float32", None, 400, 80)
    for name in ("aten::sparse_dim", "aten::dense_dim"):
        assert op_cost(OpCall(name, (held,))).bytes_moved == 0


def test_sums_that_ranks_put_together_read_none_of_the_image_that_tells_their_dtype() -> None:
    image, sums, channels = (
        Tensor((192, 256, 56, 56), "bfloat16"),
        Tensor((2, 256), "float32"),
        Tensor((256,), "float32"),
    )
    cost = op_cost(OpCall("aten::batch_norm_gather_stats_with_counts", (image, sums, sums, channels, channels)))
    assert cost.bytes_moved == 4 * (2 * 2 * 256 + 2 * 256 + 2 * 256)
