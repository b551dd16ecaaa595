"""Replays of CUDA graphs, by classes of the test's own in torch's place, and what a captured one holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchledger._torch.captured_work import CapturedWork
from torchledger._torch.cuda_graphs import watch_replays


class Graph:
    """In the place of torch's."""

    replays = 0

    def replay(self) -> int:
        self.replays += 1
        return self.replays


def test_replays_that_a_program_asks_for_are_told_around_and_those_of_torch_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda.graphs, "CUDAGraph", Graph)
    told: list[int] = []

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        told.append(graph.replays)
        yield

    patches, graph = watch_replays(around), Graph()
    try:
        assert graph.replay() == 1
        asked_by_torch: dict[str, Any] = {"__name__": "torch._inductor.cudagraph_trees", "graph": graph}
        exec("made = graph.replay()", asked_by_torch)
        assert asked_by_torch["made"] == 2
    finally:
        patches.undo()
    assert graph.replay() == 3 and told == [0]


def noted(work: CapturedWork, call: Any, *args: Any) -> Any:
    """An operator that is called while something is captured."""
    result = call(*args)
    work.called(call, args, {}, result)
    return result


def test_what_is_captured_runs_again_on_what_is_there_then() -> None:
    work, ops = CapturedWork(lambda: False), torch.ops.aten
    given, total = torch.ones(4), torch.zeros(4)
    made = noted(work, ops.mul.Tensor, given, given)
    noted(work, ops.add_.Tensor, total, noted(work, ops.neg.default, made))
    work.close()
    assert total.tolist() == [-1.0] * 4
    given.fill_(3.0)
    work.run()
    work.run()
    assert total.tolist() == [-19.0] * 4 and made.tolist() == [1.0] * 4


def test_a_view_of_what_was_made_is_one_of_what_is_made_then() -> None:
    work, ops = CapturedWork(lambda: False), torch.ops.aten
    given, kept = torch.zeros(2, 3), torch.zeros(3, 2)
    view = noted(work, ops.t.default, noted(work, ops.add.Scalar, given, 1))
    noted(work, ops.copy_.default, kept, view)
    work.close()
    given.copy_(torch.arange(6.0).view(2, 3))
    work.run()
    assert kept.tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]


def test_operators_inside_of_a_compiled_graph_are_its_own_and_the_graph_is_called_again() -> None:
    is_inside, asked = [False], []

    def compiled(inputs: list[torch.Tensor]) -> torch.Tensor:
        asked.append(inputs[0].tolist())
        return inputs[0] + 1

    work, given = CapturedWork(lambda: is_inside[0]), torch.zeros(1)
    is_inside[0] = True
    noted(work, torch.ops.aten.add_.Scalar, given, 5)
    is_inside[0] = False
    work.graph_called(work.graph_begins(compiled, [given]), torch.zeros(1))
    work.stepped(lambda: asked.append([-1.0]))
    work.close()
    work.run()
    assert given.tolist() == [5.0] and asked == [[5.0], [-1.0]]


def test_parameters_are_updated_by_what_was_captured_though_they_want_gradients() -> None:
    work, weight = CapturedWork(lambda: False), torch.nn.Parameter(torch.ones(2))
    with torch.no_grad():
        noted(work, torch.ops.aten.sub_.Tensor, weight, torch.ones(2))
    work.close()
    work.run()
    assert weight.tolist() == [-1.0, -1.0]


def test_what_was_captured_in_inference_runs_outside_of_it() -> None:
    work, ops = CapturedWork(lambda: False), torch.ops.aten
    with torch.inference_mode():
        total = torch.zeros(2)
        noted(work, ops.add_.Scalar, total, 1)
    work.close()
    work.run()
    assert total.tolist() == [2.0, 2.0]
