"""Launches of a dynamic graph at other sizes, and the expressions that say what they are there."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import CeilToInt, FloorDiv, IntTrueDiv, Max, Min, Mod, ModularIndexing

from factories import make_buffer, make_launch
from torchledger.nouns import Access, LoopNest
from torchledger.work.flex import PARTIAL, TOLD_BY, VISITED, told_blocks
from torchledger.work.size_expressions import size_at
from torchledger.work.sizes import sizes_at

_S, _T = sympy.symbols("s0 s1", integer=True, positive=True)
_PRINTED = [
    3 * FloorDiv(_S + 1, 4) * _T,
    Max(1, FloorDiv(_S, 2)) - Min(_S, _T),
    ModularIndexing(_S * _T, 3, 5) + Mod(_S, 4),
    CeilToInt(IntTrueDiv(_S, 3)) * _T**2,
    sympy.Rational(1, 2) * _S * (_S + 1),
]


@pytest.mark.parametrize("expression", _PRINTED, ids=str)
def test_what_sympy_prints_of_sizes_has_the_value_that_sympy_gives(expression: sympy.Expr) -> None:
    for first, second in ((5, 7), (8, 3), (13, 64)):
        value = expression.xreplace({_S: sympy.Integer(first), _T: sympy.Integer(second)})
        assert size_at(str(expression), {"s0": first, "s1": second}) == int(value)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "s0.real",
        "[s0 for s0 in (1,)]",
        "9**9**9",
        "s0**64**64",
        "(lambda: 1)()",
        "s9",
        "s0/2",
        "s0//0",
        "1.5",
        "True",
        "max(s0, key=s0)",
        "(" * 500 + ")" * 500,
        "",
    ],
)
def test_what_is_no_whole_number_of_known_symbols_has_no_value(text: str) -> None:
    assert size_at(text, {"s0": 5}) is None


def test_counts_without_an_expression_grow_with_the_elements_and_are_estimated() -> None:
    buffer = make_buffer(shape=(4, 8), shape_expr=("s0", "8"), stride_expr=("8", "1"), stride=(8, 1), bytes_written=128)
    launch = make_launch(buffers=(buffer,), flops=100, flops_by_op={"aten.mm": 100}, flops_by_op_expr={})
    (called,) = sizes_at([launch], {"s0": 12})
    assert (called.flops, called.flops_quality) == (300, "estimated")
    assert (called.bytes_written, called.bytes_quality) == (384, "estimated")
    assert called.buffers[0].shape == (12, 8)


def test_counts_at_sizes_that_are_not_given_are_unknown() -> None:
    buffer = make_buffer(shape_expr=("s0", "64"), bytes_read_expr="0", bytes_written_expr="256*s0")
    launch = make_launch(buffers=(buffer,), flops=64, flops_by_op={"aten.mm": 64}, flops_by_op_expr={"aten.mm": "2*s0"})
    (called,) = sizes_at([launch], {})
    assert (called.flops, called.bytes_moved) == (None, None)
    assert (called.flops_quality, called.bytes_quality) == ("unavailable", "unavailable")
    assert called.reason


def test_loops_go_over_the_buffers_as_they_are_then() -> None:
    whole = make_buffer(
        shape=(4, 8, 16), shape_expr=("s0", "8", "s1"), stride=(128, 16, 1), stride_expr=("8*s1", "s1", "1")
    )
    nest = LoopNest(
        extents=(32, 16),
        reduction_extents=(7,),
        accesses=(Access(buffer="buf0", kind="store", index="16*x + y", strides=(16, 1, None)),),
    )
    (called,) = sizes_at([make_launch(buffers=(whole,), loops=(nest,))], {"s0": 3, "s1": 10})
    (moved,) = called.loops
    assert (moved.extents, moved.reduction_extents) == ((3 * 8, 10), (7,))
    assert moved.accesses[0].strides == (10, 1, None)
    assert sizes_at([make_launch(buffers=(whole,), loops=(nest,))], {"s0": 4, "s1": 16})[0].loops == (nest,)


def test_a_bound_stays_a_bound_at_other_sizes() -> None:
    buffer = make_buffer(
        shape_expr=("s0", "64"), bytes_read_expr="0", bytes_written_expr="256*s0", bytes_quality="upper_bound"
    )
    (called,) = sizes_at([make_launch(buffers=(buffer,), flops=0, flops_by_op_expr={})], {"s0": 3})
    assert (called.bytes_written, called.bytes_quality) == (768, "upper_bound")


def test_a_launch_of_a_graph_of_one_size_is_the_same_at_any() -> None:
    launch = make_launch(flops=7, flops_by_op={"aten.mm": 7})
    assert sizes_at([launch], {"s0": 3}) == (launch,)


def test_bytes_that_were_not_known_at_compilation_are_estimated_where_their_expressions_say_them() -> None:
    buffer = make_buffer(
        shape=(8192, 8),
        stride=(8, 1),
        shape_expr=("u0", "8"),
        stride_expr=("8", "1"),
        bytes_read=None,
        bytes_written=None,
        bytes_quality="unavailable",
        bytes_read_expr="0",
        bytes_written_expr="32*u0",
    )
    launch = make_launch(buffers=(buffer,), vector_flops=None, vector_flops_expr="16*u0")
    (called,) = sizes_at([launch], {"u0": 3})
    assert (called.bytes_read, called.bytes_written, called.bytes_quality) == (0, 96, "estimated")
    assert called.vector_flops == 48


def test_a_launch_has_the_blocks_that_a_call_of_its_graph_tells() -> None:
    launch = make_launch(kwargs={TOLD_BY: "flex_attention_1"})
    told = told_blocks("flex_attention", 0.5, 0.5) | told_blocks("flex_attention_1", 0.046875, 0.03125)
    (known,), (unknown,) = sizes_at([launch], told), sizes_at([launch], {"s0": 8})
    assert (known.kwargs[VISITED], known.kwargs[PARTIAL]) == ("0.046875", "0.03125")
    assert unknown == launch
