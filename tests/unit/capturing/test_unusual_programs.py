"""Programs that people write and that are no plain model: their books balance too, and every difference is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.utils
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import flop_registry, register_flop_formula

from captured import capture_call
from torchledger.capturing import flops
from torchledger.reporting.remarks import remarks
from torchledger.reporting.summary import summarize_ledger
from torchledger.store import open_ledger


class ScaledProduct(torch.autograd.Function):
    """A product whose backward the user wrote."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].T @ x


def test_the_backward_of_a_users_function_is_asked_for_in_the_backward(tmp_path: Path) -> None:
    x, weight = torch.randn(5, 8), torch.randn(8, 8, requires_grad=True)
    x.requires_grad_()
    captured = capture_call(
        tmp_path / "a.ledger",
        lambda: torch.compile(lambda x, weight: ScaledProduct.apply(x.sin(), weight))(x, weight).sum().backward(),
    )
    asked = {graph.direction: sum(part.flops for part in graph.flop_references) for graph in captured.graphs}
    assert asked == {"forward": 640, "backward": 1280}
    assert captured.differences == []


def test_what_nothing_reads_is_a_named_difference_from_an_eager_step(tmp_path: Path) -> None:
    weight = torch.randn(8, 8, requires_grad=True)

    def model(x: Tensor, weight: Tensor) -> Tensor:
        x @ x.T  # thrown away
        return ScaledProduct.apply(x, weight)  # whose gradient of x nobody asks for

    captured = capture_call(
        tmp_path / "a.ledger", lambda: torch.compile(model)(torch.randn(5, 8), weight).sum().backward()
    )
    assert captured.flops == captured.reference_flops == 1280
    found = {each.where.partition(":")[0]: each for each in captured.differences}
    assert {where: each.amount for where, each in found.items()} == {"forward_0": -400, "backward_0": -640}
    assert {each.account for each in found.values()} == {"step_flops"}


def notes_of(path: Path) -> tuple[str, ...]:
    with open_ledger(path) as reader:
        return reader.run().notes


def test_code_that_dynamo_left_to_run_eagerly_is_named_with_the_reason(tmp_path: Path) -> None:
    def broken(x: Tensor) -> Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    capture_call(tmp_path / "a.ledger", lambda: torch.compile(broken)(torch.ones(3)))
    (note,) = notes_of(tmp_path / "a.ledger")
    assert re.fullmatch(
        r"torch\.compile compiled 2 of 2 frames; .* only in a recorded step: .*graph_break.* \(once\)", note
    )


def test_a_model_that_dynamo_refuses_whole_is_not_called_uncompiled_by_its_user(tmp_path: Path) -> None:
    recurrent = torch.compile(torch.nn.GRU(4, 4))
    captured = capture_call(tmp_path / "a.ledger", lambda: recurrent(torch.ones(2, 3, 4)))
    assert captured.graphs == []
    (note,) = notes_of(tmp_path / "a.ledger")
    assert note.startswith("torch.compile gave Inductor no graph of 1 frame; what it left to run eagerly is only in")
    with open_ledger(tmp_path / "a.ledger") as reader:
        assert not any("is torch.compile called?" in text for text in remarks(summarize_ledger(reader)))


def test_a_program_without_graph_breaks_has_no_note_about_them(tmp_path: Path) -> None:
    capture_call(tmp_path / "a.ledger", lambda: torch.compile(torch.sin)(torch.ones(3)))
    assert notes_of(tmp_path / "a.ledger") == ()


@torch.library.custom_op("torchledger_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x + x


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_a_formula_that_the_program_registers_counts_from_then_on(tmp_path: Path) -> None:
    compiled = torch.compile(lambda x: twice(x.sin()).cos())
    unknown = capture_call(tmp_path / "a.ledger", lambda: compiled(torch.ones(4, 4)))
    assert [launch.flops for launch in unknown.calls if launch.category == "extern"] == [None]
    register_flop_formula(torch.ops.torchledger_test.twice)(lambda x, *args, out_shape=None, **kwargs: 2 * x[0] * x[1])
    try:
        with torch._inductor.utils.fresh_inductor_cache():
            known = capture_call(tmp_path / "b.ledger", lambda: compiled(torch.ones(4, 4)))
        assert known.gaps == []
        assert known.flops == known.reference_flops == 32
    finally:
        del flop_registry[torch.ops.torchledger_test.twice]


def test_the_expert_products_of_transformers_are_counted(tmp_path: Path) -> None:
    from transformers.integrations import moe  # noqa: F401, registers the operators

    x, weight = torch.randn(6, 8, requires_grad=True), torch.randn(3, 8, 5, requires_grad=True)
    ends = torch.tensor([2, 3, 6], dtype=torch.int32)
    product = torch.compile(lambda x, weight: torch.ops.transformers.grouped_mm_fallback(x.sin(), weight, ends).cos())
    captured = capture_call(tmp_path / "a.ledger", lambda: product(x, weight).sum().backward())
    assert captured.gaps == []
    assert captured.flops == captured.reference_flops == 3 * 2 * 6 * 8 * 5


def test_a_symbolic_graph_from_the_cache_says_that_its_sizes_are_those_of_another_call(tmp_path: Path) -> None:
    weight = torch.randn(16, 16)

    def product(x: Tensor) -> Tensor:
        return x @ weight

    with torch._inductor.utils.fresh_inductor_cache(), torch._functorch.config.patch(enable_autograd_cache=False):
        for number, rows in enumerate((8, 24)):
            compiled = torch.compile(product, dynamic=True)
            captured = capture_call(tmp_path / f"{number}.ledger", lambda: compiled(torch.randn(rows, 16)))  # noqa: B023
            assert captured.flops == captured.reference_flops + captured.named_differences == 2 * 8 * 16 * 16
    assert [graph.cache_hit for graph in captured.graphs] == [True]
    (difference,) = captured.differences
    assert "=8" in difference.reason
    assert difference.amount == -2 * 16 * 16 * 16


def test_an_operator_without_formula_is_missing_only_where_it_runs(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    compiled = torch.compile(lambda x: (x * twice(x.detach())).sin())
    captured = capture_call(tmp_path / "a.ledger", lambda: compiled(x).sum().backward())
    uncounted = {
        graph.direction: [op for part in graph.flop_references for op in part.uncounted_ops]
        for graph in captured.graphs
    }
    assert uncounted == {"forward": ["torchledger_test.twice"], "backward": []}


def test_a_product_that_was_not_counted_is_named_and_one_of_nothing_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    product = make_fx(torch.mm)(torch.ones(2, 3), torch.ones(3, 2))
    empty = make_fx(torch.mm)(torch.ones(0, 3), torch.ones(3, 2))
    assert flops.count_graph(product).by_op() == {"aten.mm": 24}
    assert flops.count_graph(empty) == flops.GraphFlops()
    monkeypatch.setattr(flops, "node_flops", lambda node, graph=None: None)
    assert dict(flops.count_graph(product).uncounted) == {"aten.mm": 1}
