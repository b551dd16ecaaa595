from __future__ import annotations

import math
from unittest import mock

import pytest
import sympy
import torch
from schedules import CaughtKernel, examine_kernels, hint

from torchledger._torch import loops as adapter
from torchledger._torch.loops import Ref, Statement
from torchledger.capturing.loops import LoopFacts, describe_loops, library_traffic
from torchledger.nouns import Buffer

functional = torch.nn.functional


def describe(kernel: CaughtKernel) -> LoopFacts:
    return describe_loops(kernel.snodes, kernel.names, hint, shared=kernel.arguments)


def facts_of(function, *inputs, **settings) -> list[LoopFacts]:
    found = examine_kernels(function, *inputs, examine=describe, **settings)
    assert found, "nothing was lowered to a fused kernel"
    assert all(facts.reason is None for facts in found), [facts.reason for facts in found]
    return found


def totals(facts: LoopFacts) -> tuple[int, int]:
    return sum(read for read, _, _ in facts.traffic.values()), sum(written for _, written, _ in facts.traffic.values())


def qualities(facts: LoopFacts) -> set[str]:
    return {quality for _, _, quality in facts.traffic.values()}


ROWS = torch.randn(32, 16)

# Bytes read and written, worked out by hand.
CASES = {
    "relu": (torch.relu, (ROWS,), 2048, 2048),
    "a broadcast row": (torch.add, (torch.randn(32, 16), torch.randn(16)), 2048 + 64, 2048),
    "an expanded column": (lambda x: x.expand(32, 16) + 1, (torch.randn(32, 1),), 128, 2048),
    "a strided slice": (lambda x: x[::2, ::4].sin(), (ROWS,), 16 * 4 * 4, 16 * 4 * 4),
    "neighbours": (lambda x: x[1:] + x[:-1], (ROWS,), 2048, 31 * 64),
    "a transpose": (lambda x: x.t().contiguous(), (ROWS,), 2048, 2048),
    "in place, and used": (lambda x: (x.add_(1), x * 2)[1], (torch.randn(1000),), 4000, 8000),
    "a concatenation": (lambda x, y: torch.cat([x, y], 1).sin(), (ROWS, torch.randn(32, 8)), 3072, 2 * 3072),
    "a causal mask": (lambda x: x.masked_fill(torch.ones(32, 16).triu() > 0, 0.0), (ROWS,), 2048, 2048),
    "half precision": (lambda x: x * 2, (torch.randn(32, 16, dtype=torch.bfloat16),), 1024, 1024),
    "softmax with its row maxima and sums": (lambda x: x.softmax(-1), (ROWS,), 2048, 2048 + 256),
    "a padded constant": (lambda x: functional.pad(x, (1, 2, 3, 4)).exp(), (ROWS,), 2048, 39 * 19 * 4),
    "a flip": (lambda x: x.flip(0, 1) + 1, (ROWS,), 2048, 2048),
    "a diagonal": (lambda x: x.diagonal() + 1, (torch.randn(16, 16),), 64, 64),
    "windows of a pool": (lambda x: functional.max_pool2d(x, 3, 2, 1), (torch.randn(2, 3, 15, 17),), 6120, 6 * 72 * 4),
    "nearest upsampling": (
        lambda x: functional.interpolate(x, scale_factor=2) + 1,
        (torch.randn(1, 3, 5, 7),),
        420,
        1680,
    ),
    "an unfold": (lambda x: x.unfold(0, 4, 2).sum(1), (torch.randn(100),), 400, 49 * 4),
    "the unread half of a split": (lambda x: x.chunk(2, 1)[0].sin(), (ROWS,), 1024, 1024),
    "a view of heads": (lambda x: x.view(4, 8, 2, 8).permute(0, 2, 1, 3).reshape(-1) * 2, (ROWS,), 2048, 2048),
}


@pytest.mark.parametrize("case", CASES)
def test_minimum_traffic_of(case):
    function, inputs, read, written = CASES[case]
    (facts,) = facts_of(function, *(each.clone() for each in inputs))
    assert totals(facts) == (read, written)
    assert qualities(facts) == {"exact"}


def test_gathered_rows_are_an_upper_bound():
    (facts,) = facts_of(lambda table, rows: table[rows].sin(), torch.randn(1000, 64), torch.randint(1000, (16,)))
    assert totals(facts) == (4096 + 128, 4096)
    assert facts.traffic["arg0_1"] == (4096, 0, "upper_bound")
    assert facts.traffic["arg1_1"] == (128, 0, "exact")


def test_an_atomic_update_reads_what_it_writes():
    settings = {"cpp.fallback_scatter_reduce_sum": False, "cpp.dynamic_threads": True}
    found = facts_of(
        lambda x, rows: torch.zeros(16).scatter_add(0, rows, x), torch.randn(32), torch.randint(16, (32,)), **settings
    )
    atomic = [access for facts in found for nest in facts.loops for access in nest.accesses if access.kind == "atomic"]
    assert [access.is_indirect for access in atomic] == [True]
    # Zeroed in the same kernel or before it: the update itself reads and writes 16 values at most.
    read = sum(totals(facts)[0] for facts in found)
    assert read <= 32 * 4 + 32 * 8 + 16 * 4


def test_a_normalization_reports_its_nests_operations_and_flops():
    (facts,) = facts_of(lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), torch.randn(32, 128))
    reduction, *others = facts.loops
    assert (reduction.extents, reduction.reduction_extents) == ((32,), (128,))
    assert reduction.reduction_type == "sum"
    assert facts.vector_flops == sum(
        math.prod(nest.extents) * math.prod(nest.reduction_extents) * count
        for nest in facts.loops
        for count in nest.ops.values()
    )
    assert others[-1].extents == (32, 128)
    assert totals(facts)[0] == 32 * 128 * 4


def test_accesses_name_their_stride_in_each_loop():
    (facts,) = facts_of(lambda x, row: x.t() + row, torch.randn(32, 16), torch.randn(32))
    (nest,) = facts.loops
    strides = {access.buffer: (access.kind, access.strides) for access in nest.accesses}
    by_extent = dict(zip(nest.extents, zip(*(s for _, s in strides.values()), strict=True), strict=True))
    assert {kind for kind, _ in strides.values()} == {"load", "store"}
    # In the loop over the 32 rows: x moves by a whole row, the added vector by one element.
    assert sorted(by_extent[32]) == [1, 1, 16] or sorted(by_extent[32]) == [1, 16, 16]


def test_forward_and_backward_of_a_small_network_are_known_completely():
    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(50, 32)
            self.norm = torch.nn.LayerNorm(32)
            self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 50)

        def forward(self, tokens):
            hidden = functional.gelu(self.first(self.norm(self.embedding(tokens))))
            logits = self.second(torch.cat([hidden[:, :32], hidden[:, 32:].tanh()], -1))
            return functional.cross_entropy(logits, tokens)

    found = facts_of(Network(), torch.randint(50, (24,)))
    assert len(found) >= 4
    assert all(facts.vector_flops is not None for facts in found)
    assert all(
        read is not None and written is not None for facts in found for read, written, _ in facts.traffic.values()
    )


def test_symbolic_sizes_are_counted_at_their_hints():
    (facts,) = facts_of(lambda x: x[1:] + x[:-1], torch.randn(40, 16), dynamic=True)
    assert totals(facts) == (40 * 64, 39 * 64)


@pytest.mark.slow
def test_a_product_template_moves_its_operands_and_those_of_its_epilogue():
    layer = torch.nn.Linear(256, 512).eval()
    settings = {"max_autotune": True, "max_autotune_gemm_backends": "CPP", "freezing": True}
    with torch.no_grad():
        (facts,) = facts_of(lambda x, m: layer(x).relu() * m, torch.randn(128, 256), torch.randn(128, 512), **settings)
    x, weight, bias, mask, out = 128 * 256 * 4, 256 * 512 * 4, 512 * 4, 128 * 512 * 4, 128 * 512 * 4
    assert totals(facts) == (x + weight + bias + mask, out)
    assert facts.vector_flops == 3 * 128 * 512  # bias, relu and product; the template's own FLOPs are no vector FLOPs


def test_what_cannot_be_read_is_unknown_with_a_reason():
    facts = describe_loops([object()], {"buf0"}, hint)
    assert facts.traffic == {"buf0": (None, None, "unavailable")}
    assert facts.vector_flops is None
    assert "loops" in facts.reason


def make_view(**changes) -> Buffer:
    fields = {"name": "x", "role": "input", "dtype": "float32", "shape": (32, 64), "stride": (64, 1), "device": "cpu"}
    return Buffer(**(fields | changes))


def test_a_library_call_reads_its_view_not_the_storage():
    # mm of a[:, :8] (32 x 64) with an 8 x 8 matrix: 1024 + 256 read, 1024 written.
    buffers = [
        make_view(name="a", shape=(32, 8)),
        make_view(name="b", shape=(8, 8), stride=(8, 1)),
        make_view(name="out", role="output", shape=(32, 8), stride=(8, 1)),
    ]
    assert library_traffic(buffers) == [(1024, 0, "exact"), (256, 0, "exact"), (0, 1024, "exact")]


def test_a_broadcast_view_of_a_library_call_counts_once():
    assert library_traffic([make_view(stride=(0, 1))]) == [(256, 0, "exact")]


def test_two_views_of_one_tensor_count_what_they_share_once():
    thirds = [make_view(shape=(32, 32), stride=(64, 1), offset=offset) for offset in (0, 0, 16, 32)]
    assert [read for read, _, _ in library_traffic(thirds)] == [4096, 0, 2048, 2048]


def test_a_mutated_tensor_is_read_and_written_at_most_whole():
    assert library_traffic([make_view(role="inout")]) == [(8192, 8192, "upper_bound")]


def test_a_library_call_that_only_makes_a_view_moves_nothing():
    assert library_traffic([make_view()], call="torch.ops.aten.permute.default") == [(0, 0, "exact")]


def test_a_library_call_whose_data_picks_elements_is_an_upper_bound():
    assert library_traffic([make_view()], call="torch.ops.aten.index.Tensor") == [(8192, 0, "upper_bound")]


def test_a_weight_that_a_library_gets_packed_too_is_read_once() -> None:
    packed = make_view(name="packed", shape=(1_459_233, 1), stride=(1, 0))
    weight = make_view(name="weight", shape=(10, 16), stride=(16, 1))
    given = [make_view(name="x"), packed, weight, make_view(name="out", role="output")]
    moved = library_traffic(given, call="torch.ops.mkl._mkl_linear.default")
    assert moved[1:3] == [(640, 0, "exact"), (0, 0, "exact")]
    assert library_traffic(given)[1] == (1_459_233 * 4, 0, "exact")


def test_an_unknown_dtype_is_unknown_traffic():
    assert library_traffic([make_view(dtype="float7")]) == [(None, None, "unavailable")]


# ---- loop bodies that only CUDA kernels have, written out as statements

i, j = sympy.symbols("i j", integer=True, nonnegative=True)


def describe_statements(statements, sizes, *, loops=((i, 8),), reduced=(), indirect=()) -> LoopFacts:
    """What is said of a body of ``statements`` that touches contiguous float32 buffers of ``sizes``."""
    program = adapter.LoopProgram(loops, reduced, tuple(statements), dict(indirect))

    def layout(name, hint):
        return adapter.TensorLayout(name, (sizes[name],), (1,), 0, 4, "float32")

    with (
        mock.patch.object(adapter, "has_loop_body", lambda snode: True),
        mock.patch.object(adapter, "loop_program", lambda snode, hint: program),
        mock.patch.object(adapter, "tensor_layout", layout),
        mock.patch.object(adapter, "argument_name", lambda name: name),
        mock.patch.object(adapter, "shared_memory", lambda name, hint: (name, 0)),
        mock.patch.object(adapter, "is_register_only", lambda name: False),
    ):
        return describe_loops(["a node"], sizes, hint)


def test_a_scan_counts_one_operation_per_value():
    statements = [
        Statement("load", ("x", 16 * i + j)),
        Statement("scan", (("float32",), (Ref(0),))),
        Statement("getitem", (Ref(1), 0)),
        Statement("store", ("out", 16 * i + j, Ref(2), None)),
    ]
    facts = describe_statements(statements, {"x": 128, "out": 128}, reduced=((j, 16),))
    assert facts.vector_flops == 128
    assert facts.loops[0].reduction_type == "scan"
    assert totals(facts) == (512, 512)


def test_what_follows_a_reduction_runs_once_per_row():
    statements = [
        Statement("load", ("x", 16 * i + j)),
        Statement("exp", (Ref(0),)),
        Statement("reduction", ("float32", "float32", "sum", Ref(1))),
        Statement("log", (Ref(2),)),
        Statement("store_reduction", ("out", i, Ref(3))),
    ]
    facts = describe_statements(statements, {"x": 128, "out": 8}, reduced=((j, 16),))
    assert facts.vector_flops == 128 + 128 + 8
    assert facts.loops[0].ops == {"exp": 1, "log": 1, "sum": 1}


def test_what_a_body_says_twice_is_computed_once():
    first, second = sympy.symbols("indirect0 indirect1", integer=True, nonnegative=True)
    statements = [
        Statement("load", ("rows", i)),
        Statement("set_indirect", (Ref(0), "indirect0")),
        Statement("load", ("x", first)),
        Statement("exp", (Ref(2),)),
        Statement("load", ("rows", i)),
        Statement("set_indirect", (Ref(4), "indirect1")),
        Statement("load", ("x", second)),
        Statement("exp", (Ref(6),)),
        Statement("mul", (Ref(3), Ref(7))),
        Statement("store", ("out", i, Ref(8), None)),
    ]
    sizes = {"rows": 8, "x": 100, "out": 8}
    facts = describe_statements(statements, sizes, indirect={"indirect0": 100, "indirect1": 100})
    assert facts.loops[0].ops == {"exp": 1, "mul": 1}
    assert facts.vector_flops == 2 * 8
    assert facts.traffic["x"] == (32, 0, "upper_bound")
    assert len(facts.loops[0].accesses) == 3


def test_a_load_that_nothing_uses_is_no_traffic():
    statements = [
        Statement("load", ("x", i)),
        Statement("load", ("y", i)),
        Statement("store", ("out", i, Ref(1), None)),
    ]
    facts = describe_statements(statements, {"x": 8, "y": 8, "out": 8})
    assert facts.traffic["x"] == (0, 0, "exact")
    assert facts.traffic["y"] == (32, 0, "exact")


def test_a_binary_search_reads_at_most_one_boundary_per_halving():
    statements = [
        Statement("load", ("x", i)),
        Statement("bucketize", (Ref(0), ("edges", 1000, 0, 1), 0, "int64", False, ("order", 0), 0)),
        Statement("store", ("out", i, Ref(1), None)),
    ]
    facts = describe_statements(statements, {"x": 8, "edges": 1000, "order": 1000, "out": 8})
    assert facts.traffic["edges"] == facts.traffic["order"] == (8 * 11 * 4, 0, "upper_bound")
    assert facts.vector_flops == 0


def masked_load(condition):
    return [
        Statement("index_expr", (i, "int64")),
        Statement("constant", (5, "int64")),
        Statement("lt", (Ref(0), Ref(1))),
        *condition,
        Statement("load", ("x", i), (Ref(2 + len(condition)),)),
        Statement("masked", (Ref(2 + len(condition)), Ref(3 + len(condition)), 0.0)),
        Statement("store", ("out", i, Ref(4 + len(condition)), None)),
    ]


def test_a_masked_load_reads_what_its_mask_lets_through():
    sizes = {"x": 8, "out": 8}
    assert describe_statements(masked_load([]), sizes).traffic["x"] == (20, 0, "exact")
    negated = [Statement("logical_not", (Ref(2),))]
    assert describe_statements(masked_load(negated), sizes).traffic["x"] == (12, 0, "exact")


def test_a_mask_made_of_alternatives_or_of_data_gives_an_upper_bound():
    sizes = {"x": 8, "out": 8}
    either = [Statement("or_", (Ref(2), Ref(2)))]
    assert describe_statements(masked_load(either), sizes).traffic["x"] == (32, 0, "upper_bound")


def test_partial_results_are_marked_for_the_line_that_adds_them_up():
    statements = [
        Statement("load", ("x", 16 * i + j)),
        Statement("partial_accumulate", ("sums", "sum", Ref(0), ())),
    ]
    facts = describe_statements(statements, {"x": 128}, loops=((i, 8), (j, 16)))
    assert facts.holds_partial_results
    assert facts.vector_flops == 128
    assert totals(facts) == (512, 0)
