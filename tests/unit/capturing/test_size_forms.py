"""What a dynamic graph's launches cost at the sizes of a later call is what they cost compiled at those sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from captured import Captured, capture_call, eager_flops
from torchledger.nouns import Graph, Launch
from torchledger.work.sizes import sizes_at


class Attention(nn.Module):
    """A norm, attention over a sequence of any length, and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inputs, self.output = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.inputs(self.norm(x)).view(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.output(attended.transpose(1, 2).reshape(batch, length, width))


def _padded_pool(x: Tensor) -> Tensor:
    whole = functional.avg_pool2d(torch.cat([x[1:], x]), 2) + 1
    return whole.sum(0) * x.new_ones(x.shape[-1] // 2)


@dataclass(frozen=True)
class Case:
    """A model, the sizes that it is first compiled at, and those of a later call.

    ``later_is_free`` says that the graph to compare with has free sizes as well: with fixed ones it has other kernels.
    """

    make: Callable[[], Callable[[Tensor], Tensor]]
    first: tuple[int, ...]
    later: tuple[int, ...]
    later_is_free: bool = False


_CASES = {
    "linear": Case(lambda: nn.Linear(32, 16), (5, 32), (256, 32)),
    "mlp": Case(lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), (5, 32), (256, 32)),
    "attention": Case(Attention, (5, 7, 32), (8, 12, 32), later_is_free=True),
    "odd sizes": Case(lambda: _padded_pool, (4, 3, 6, 10), (7, 3, 21, 33)),
}


@dataclass(frozen=True)
class Compiled:
    """A model compiled at its first sizes and, apart from that, at its later ones; ``eager_flops`` are the later's."""

    first: Captured
    later: Captured
    sizes: dict[str, int]
    eager_flops: int

    @property
    def called(self) -> list[Launch]:
        """The launches of the first compilation, at the later sizes."""
        return [launch for graph in self.first.graphs for launch in sizes_at(self.of(graph), self.sizes)]

    def of(self, graph: Graph) -> list[Launch]:
        return [launch for launch in self.first.calls if launch.graph == graph.name]


@pytest.fixture(scope="module", params=_CASES)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    case = _CASES[request.param]
    model = case.make()
    folder: Path = tmp_path_factory.mktemp("ledgers")

    def step(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
        function(torch.zeros(shape, requires_grad=True)).sum().backward()

    # The second compilation would get the first one's graph, which serves all sizes.
    with torch._inductor.config.patch(force_disable_caches=True):
        first = capture_call(folder / "first.ledger", lambda: step(torch.compile(model, dynamic=True), case.first))
        free = case.later_is_free
        later = capture_call(folder / "later.ledger", lambda: step(torch.compile(model, dynamic=free), case.later))
    known = dict(zip(case.first, case.later, strict=True))
    sizes = {symbol: known[size] for graph in first.graphs for symbol, size in graph.symbols.items() if size in known}
    return Compiled(first, later, sizes, eager_flops(lambda: step(model, case.later)))


def test_flops_at_the_sizes_of_a_call_are_those_of_the_eager_call(compiled: Compiled) -> None:
    assert sum(launch.flops or 0 for launch in compiled.called) == compiled.eager_flops
    assert {launch.flops_quality for launch in compiled.called} == {"exact"}


def test_bytes_at_the_sizes_of_a_call_are_those_of_a_graph_compiled_for_them(compiled: Compiled) -> None:
    called = compiled.called
    assert sorted(map(_work, called)) == sorted(map(_work, compiled.later.calls))
    assert {launch.bytes_quality for launch in called} == {"exact"}


def _work(launch: Launch) -> tuple[str, int, int, int]:
    counts = launch.bytes_read, launch.bytes_written, launch.vector_flops
    return launch.kernel_name, *(-1 if count is None else count for count in counts)


def test_at_the_sizes_of_compilation_the_launches_are_as_recorded(compiled: Compiled) -> None:
    for graph in compiled.first.graphs:
        recorded = compiled.of(graph)
        assert list(sizes_at(recorded, graph.symbols)) == recorded


def test_a_graph_says_where_its_calls_hold_each_size_that_its_counts_need(compiled: Compiled) -> None:
    for graph in compiled.first.graphs:
        at_first = {symbol: graph.symbols[symbol] for symbol in graph.symbol_inputs}
        assert list(sizes_at(compiled.of(graph), at_first)) == compiled.of(graph)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)  # type: ignore[untyped-decorator]
def test_flops_and_bytes_at_a_size_that_only_running_decides_are_those_of_that_many_rows(tmp_path: Path) -> None:
    weight = torch.zeros(32, 64)

    def chosen(x: Tensor, mask: Tensor) -> Tensor:
        return (x[mask] @ weight).exp() + 1

    rows = torch.zeros(100, 32)
    found = capture_call(tmp_path / "a.ledger", lambda: torch.compile(chosen)(rows, rows[:, 0] == 0))
    assert all(launch.bytes_moved is None for launch in found.calls if launch.category != "nop")
    called = {launch.category: launch for launch in sizes_at(found.calls, {"u0": 7})}
    assert sum(launch.flops or 0 for launch in called.values()) == 2 * 7 * 32 * 64
    loop = next(launch for launch in called.values() if launch.vector_flops)
    assert (loop.bytes_read, loop.bytes_written, loop.vector_flops) == (7 * 64 * 4, 7 * 64 * 4, 2 * 7 * 64)
