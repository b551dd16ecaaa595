"""Gradients of a device that is not there are computed as those of plain tensors are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.autograd.profiler import profile

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


def _heard(loss: torch.Tensor) -> EagerCalls:
    heard = EagerCalls(lambda: None)
    assert heard.start()
    loss.backward()
    assert heard.stop() and not heard.faults
    return heard


def _names(heard: EagerCalls, *nodes: str) -> list[str]:
    """Operators, without views, that one of the ``nodes`` asked for; all of the backward where none is named."""
    calls = [call for call in heard.calls if not nodes or call.node in nodes]
    names = [call.call.name.removeprefix("aten::") for call in calls]
    return [name for name in names if name not in ("detach", "unsqueeze", "expand")]


def _rows(device: str = "cuda") -> torch.Tensor:
    return torch.rand(64, 32, device=device, requires_grad=True)


def _places() -> torch.Tensor:
    return torch.zeros(8, dtype=torch.long, device="cuda")


WRITTEN: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[str]]] = {
    "GatherBackward0": (lambda rows: rows.gather(0, _places()[:, None]), ["scatter_add_"]),
    "IndexBackward0": (lambda rows: rows[_places()], ["_index_put_impl_"]),
    "IndexSelectBackward0": (lambda rows: rows.index_select(0, _places()), ["index_add_"]),
    "MaskedSelectBackward0": (lambda rows: rows.masked_select(rows > 0.5), ["masked_scatter_"]),
    "TakeBackward0": (lambda rows: rows.take(_places()), ["put_"]),
    "MaxBackward0": (lambda rows: rows.max(1).values, ["scatter_"]),
    "MaxBackward1": (lambda rows: rows.max(), ["logical_and_", "logical_or_"]),
    "MedianBackward1": (lambda rows: rows.median(1).values, ["scatter_"]),
    "TopkBackward0": (lambda rows: rows.topk(3).values, ["scatter_"]),
    "SortBackward0": (lambda rows: rows.sort(1).values, ["scatter_"]),
    "KthvalueBackward0": (lambda rows: rows.kthvalue(3).values, ["scatter_"]),
    "CummaxBackward0": (lambda rows: rows.cummax(1).values, ["scatter_add_"]),
    "TraceBackward0": (lambda rows: rows.trace(), ["index_fill_"]),
    "BinaryCrossEntropyWithLogitsBackward0": (
        lambda rows: nn.functional.binary_cross_entropy_with_logits(rows, torch.zeros_like(rows)),
        ["sub_", "mul_", "div_"],
    ),
    "ClampBackward0": (lambda rows: rows.clamp(0.1, 0.5), ["logical_and_"]),
}


@pytest.mark.parametrize("node", WRITTEN)
def test_formulas_write_to_what_they_have_made(fake: FakeDevice, node: str) -> None:
    run, expected = WRITTEN[node]
    names = _names(_heard(run(_rows()).sum()), node, node.replace("Backward0", "Backward1"))
    assert [name for name in names if name.endswith("_")] == expected
    assert not {name.removesuffix("_") for name in expected} & set(names)


def test_a_weight_that_is_read_is_not_written_to(fake: FakeDevice) -> None:
    rows, weight = _rows(), torch.ones(32, device="cuda")
    loss = nn.functional.binary_cross_entropy_with_logits(rows, torch.zeros_like(rows), pos_weight=weight)
    assert "mul" in _names(_heard(loss), "BinaryCrossEntropyWithLogitsBackward0")


def test_a_gradient_in_place_has_one_storage(fake: FakeDevice) -> None:
    rows = _rows()
    heard = _heard(rows.gather(0, _places()[:, None]).sum())
    assert heard.memory is not None
    made = [life for life in heard.memory.lives if life.born is not None and life.shape == rows.shape]
    assert len(made) == 1


def _residual(rows: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        rows = rows + torch.sin(rows)
    return rows


SUMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "residuals": lambda rows: _residual(rows * 2).sum(),
    "three uses": lambda rows: rows.sin().sum() + rows.cos().sum() + rows.exp().sum(),
    "views": lambda rows: (rows * 2).view(-1).sin().sum() + rows.view(4, -1).cos().sum(),
    "parts": lambda rows: rows.chunk(2)[0].sin().sum() + rows.exp().sum(),
    "passed on": lambda rows: ((rows * 2 + rows.sin()) * 3).sum(),
    "squares": lambda rows: (rows * rows).sum(),
    "formulas with sums": lambda rows: torch.atan2(rows, rows * 2).sum(),
    "columns": lambda rows: (rows * 2).t().sin().sum() + rows.t().cos().sum(),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_gradients_are_in_place_where_those_of_a_cpu_are(name: str) -> None:
    loss = SUMS[name](_rows("cpu"))
    with profile() as profiled:
        loss.backward()
    events = [event.name.removeprefix("aten::") for event in profiled.function_events]
    with FakeDevice(HOPPER):
        names = _names(_heard(SUMS[name](_rows())))
    assert [each for each in names if each in ("add", "add_")] == [each for each in events if each in ("add", "add_")]


def test_a_gradient_that_a_hook_keeps_is_not_written_to(fake: FakeDevice) -> None:
    rows = _rows()
    kept: list[torch.Tensor] = []
    middle = rows.sin()
    middle.register_hook(kept.append)
    names = _names(_heard((middle + rows.cos()).exp().sum() + (middle * 2).sum()))
    assert kept and names.count("add_") == 2
    passed = rows * 2
    passed.register_hook(lambda gradient: gradient + gradient.sin())
    assert "add" in _names(_heard(passed.exp().sum()))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        return rows * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient + gradient.exp()


def test_what_a_program_adds_in_a_backward_of_its_own_is_a_new_tensor(fake: FakeDevice) -> None:
    doubled: Any = _Doubled.apply
    names = _names(_heard(doubled(_rows()).exp().sum()))
    assert "add" in names and "add_" not in names


def test_what_is_differentiated_again_makes_new_tensors(fake: FakeDevice) -> None:
    rows = _rows()
    loss = rows.gather(0, _places()[:, None]).square().sum()
    heard = EagerCalls(lambda: None)
    assert heard.start()
    (gradient,) = torch.autograd.grad(loss, rows, create_graph=True)
    assert heard.stop()
    assert "scatter_add" in _names(heard) and gradient.requires_grad
    gradient.sum().backward()
    assert rows.grad is not None


PRODUCTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[str]]] = {
    "CumprodBackward0": (
        lambda rows: rows.cumprod(1),
        ["mul", "eq", "any", "_local_scalar_dense", "flip", "cumsum", "flip", "div_"],
    ),
    "ProdBackward0": (lambda rows: rows.prod(), ["eq", "nonzero", "div", "mul"]),
    "ProdBackward1": (lambda rows: rows.prod(-1), ["eq", "sum", "sum", "_local_scalar_dense", "div", "mul"]),
}


@pytest.mark.parametrize("node", PRODUCTS)
def test_products_have_no_factor_of_zero(fake: FakeDevice, node: str) -> None:
    run, expected = PRODUCTS[node]
    rows = _rows()
    heard = _heard(run(rows).sum())
    assert _names(heard, node) == expected
    assert rows.grad is not None and rows.grad.shape == rows.shape
    assert {said.value for said in fake.tensors.stand_ins} <= {"False", "0"}


@pytest.mark.parametrize("dim", [0, -1])
def test_a_product_that_keeps_its_dimension_has_the_gradient_of_its_rows(fake: FakeDevice, dim: int) -> None:
    rows = _rows()
    rows.half().prod(dim, keepdim=True).sum().backward()
    assert rows.grad is not None and rows.grad.shape == rows.shape and rows.grad.dtype is torch.float32


def test_a_product_of_nothing_more_than_one_number_is_its_own_gradient(fake: FakeDevice) -> None:
    for run in (torch.prod, lambda number: torch.prod(number, 0), lambda number: torch.cumprod(number, 0)):
        number = torch.ones((), device="cuda", requires_grad=True)
        run(number).backward()
        assert number.grad is not None and number.grad.shape == ()


def test_what_is_compiled_keeps_the_formulas_that_torch_traces(fake: FakeDevice) -> None:
    traced: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        traced.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(
        lambda rows: rows.cumprod(1).sum() + rows.prod(1).sum(), backend=aot_autograd(fw_compiler=keep), fullgraph=True
    )
    rows = _rows()
    compiled(rows).backward()
    assert rows.grad is not None
    assert "aten.cumprod.default" in traced and not any("_local_scalar_dense" in target for target in traced)


def test_formulas_are_torchs_own_again_without_the_device() -> None:
    with FakeDevice(HOPPER):
        _rows().prod(1).sum().backward()
    rows = torch.tensor([[0.0, 2.0], [3.0, 4.0]], requires_grad=True)
    (rows.prod(1).sum() + rows.cumprod(1).sum()).backward()
    assert rows.grad is not None and rows.grad.tolist() == [[5.0, 0.0], [9.0, 6.0]]


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_sparse_gradient_that_nobody_else_holds_is_taken_as_it_is(fake: FakeDevice, is_kept: bool) -> None:
    kept: list[torch.Tensor] = []
    bag = nn.EmbeddingBag(100, 8, sparse=True).cuda()
    bag.weight.register_hook(lambda grad: kept.append(grad) if is_kept else None)
    heard = _heard(bag(torch.zeros(4, 5, dtype=torch.long, device="cuda")).sum())
    assert ("clone" in _names(heard, "torch::autograd::AccumulateGrad")) is is_kept
    assert bag.weight.grad is not None and bag.weight.grad._nnz() == 20


def test_a_sparse_gradient_whose_values_lie_apart_is_put_in_order(fake: FakeDevice) -> None:
    table = nn.Embedding(100, 8, sparse=True).cuda()
    rows = torch.cat([table(_places()), torch.rand(8, 4, device="cuda")], 1)
    heard = _heard((rows * torch.rand(8, 12, device="cuda")).sum())
    assert "clone" in _names(heard)
