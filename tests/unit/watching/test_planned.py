"""Later calls of a graph follow the plan of the first, and tell the same."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import model_zoo
import torchledger
from torchledger.nouns import Gap, ValueCall, ValueStats, WatchedGraph
from torchledger.store import open_ledger
from torchledger.store.value_stats import count_value_stats, iterate_value_stats
from torchledger.watching import device_reductions, graph_watch, planned, reductions
from torchledger.watching.device_reductions import COLUMNS, plain_row
from torchledger.watching.session import Watch


class PlainKernel:
    """What the Triton kernel does, by plain operators and on the CPU: two rows of a slab for each tensor."""

    def __init__(self) -> None:
        self.n_quick = self.n_batched = 0

    def programs(self, numel: int) -> int:
        return 2

    def launch(self, flat: Tensor, slab: Tensor, start_row: int, programs: int, *, is_full: bool = True) -> object:
        middle = flat.numel() // 2
        rows = [plain_row(part) if part.numel() else _empty_row() for part in (flat[:middle], flat[middle:])]
        for place, row in enumerate(rows):
            if middle and place and row[8] < 2.0**62:
                row[8:10] += middle
            slab[start_row + place] = row
        return self

    def quick(self, compiled: object, flat: Tensor, programs: int, columns: int, *, is_full: bool) -> Any:
        dtype, numel, size = flat.dtype, flat.numel(), flat.element_size()

        def launch(address: int, slab_address: int, start_row: int, stream: int) -> None:
            self.n_quick += 1
            values = torch.frombuffer(_memory(address, numel * size), dtype=dtype)
            rows = torch.frombuffer(
                _memory(slab_address, (start_row + programs) * columns * 8), dtype=torch.float64
            ).view(-1, columns)
            self.launch(values, rows, start_row, programs, is_full=is_full)

        return launch

    def batch(self, dtype: torch.dtype, items: Any, columns: int, *, is_full: bool) -> Any:
        if dtype == torch.float64:
            return None

        def launch(addresses: list[int], slab: Tensor, stream: int) -> None:
            self.n_batched += len(addresses)
            for address, (numel, start_row, programs) in zip(addresses, items, strict=True):
                values = torch.frombuffer(_memory(address, numel * dtype.itemsize), dtype=dtype)
                self.launch(values, slab, start_row, programs, is_full=is_full)

        return launch

    def fold(self, slab: Tensor, starts: Tensor, counts: Tensor) -> Tensor:
        folded = []
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            part = slab[start : start + count]
            row = part.sum(0)
            row[2], row[8] = part[:, 2].min(), part[:, 8].min()
            row[3], row[9] = part[:, 3].max(), part[:, 9].max()
            folded.append(row)
        return torch.stack(folded)


def _memory(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


def _empty_row() -> Tensor:
    row = torch.zeros(len(COLUMNS), dtype=torch.float64)
    row[2], row[3], row[8], row[9] = math.inf, -math.inf, 2.0**62, -1.0
    return row


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlainKernel]:
    """The CPU taken for a device: tensors on it are reduced by a kernel and waited for."""
    plain = PlainKernel()

    def is_reduced(tensor: Tensor) -> bool:
        return bool(tensor.numel()) and not tensor.is_complex()

    monkeypatch.setattr(reductions, "is_reduced_on_device", is_reduced)
    monkeypatch.setattr(device_reductions, "_checked_kernel", lambda device: plain)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=0))
    yield plain


def train(name: str, steps: int, **options: Any) -> Watch:
    torch._dynamo.reset()
    case = model_zoo.make(name)
    compiled = torch.compile(case.module)
    with torchledger.values(**options) as watch:
        for _ in range(steps):
            case.loss(compiled, *case.inputs).backward()
    return watch


def key(stats: ValueStats) -> tuple[Any, ...]:
    return stats.subject, stats.call_index, stats.moment, stats.buffer, stats.dtype, stats.shape, stats.fx_node


@functools.cache
def train_without_plans(name: str) -> Watch:
    """What every call tells that is watched anew."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(graph_watch.GraphWatch, "_plan_key", lambda self, args: None)
        return train(name, 3, level="stats", find="nan")


@pytest.mark.parametrize("held_bytes", [0, 100_000, planned.HELD_BYTES])
@pytest.mark.parametrize("name", ["mixer", "conv_net", pytest.param("gpt_block", marks=pytest.mark.slow)])
def test_a_planned_call_tells_what_a_call_that_is_watched_anew_tells(
    name: str, held_bytes: int, kernel: PlainKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned, "HELD_BYTES", held_bytes)
    followed = train(name, 3, level="stats", find="nan", print_to=[].append)
    assert kernel.n_batched > 0
    assert kernel.n_quick > 0 or held_bytes
    anew = train_without_plans(name)
    assert followed.findings == anew.findings == []
    assert [key(stats) for stats in followed.stats] == [key(stats) for stats in anew.stats]
    for one, other in zip(followed.stats, anew.stats, strict=True):
        for field in ("n_nan", "n_inf", "n_zero", "n_subnormal", "minimum", "maximum", "mean", "std"):
            found, expected = getattr(one, field), getattr(other, field)
            if expected is not None:
                expected = pytest.approx(expected, rel=1e-6, abs=1e-9)
            assert found == expected, (key(one), field)
    sequences = [stats.sequence for stats in followed.stats if stats.sequence is not None]
    assert sequences == sorted(sequences)


def test_the_ledger_holds_a_call_as_numbers_and_gives_back_its_statistics(kernel: PlainKernel, tmp_path: Path) -> None:
    watch = train("mixer", 3, level="stats", path=tmp_path / "a.ledger")
    with open_ledger(watch.path) as reader:
        stats = list(iterate_value_stats(reader))
        assert reader.count(ValueCall) == 4  # forward and backward, twice after the first
        assert count_value_stats(reader) == len(stats) == len(watch.stats)
        assert sorted(map(repr, stats)) == sorted(map(repr, watch.stats))
        chosen = list(iterate_value_stats(reader, moment="after", call_index=2))
        assert chosen and all(item.moment == "after" and item.call_index == 2 for item in chosen)
        assert [gap for gap in reader.read(Gap) if gap.account == "values"] == []
        assert all(graph.calls == 3 and graph.seen == graph.watched for graph in reader.read(WatchedGraph))


def test_what_waits_for_others_is_looked_at_before_it_is_written_over(kernel: PlainKernel) -> None:
    torch._dynamo.reset()
    cache, weight = torch.zeros(8, 8), torch.randn(8, 8)

    def model(x: Tensor) -> Tensor:
        cache.copy_(x @ weight)
        y = cache @ weight
        cache.add_(1.0)
        z = cache @ y
        cache.mul_(2.0)
        return z

    compiled = torch.compile(model)
    with torch.no_grad(), torchledger.values(level="stats") as watch:
        for step in range(3):
            compiled(torch.full((8, 8), 1.0 + step))
    written = [
        [stats.mean for stats in watch.stats if stats.call_index == call and stats.moment == "after"]
        for call in (0, 1, 2)
    ]
    assert kernel.n_batched > 0 and len(written[0]) > 3
    for call, factor in ((1, 2.0), (2, 3.0)):
        product = weight.sum() * factor / 8
        assert any(mean == pytest.approx(float(product), rel=1e-4) for mean in written[call])
        assert any(mean == pytest.approx(float(product) + 1, rel=1e-4) for mean in written[call])
        assert any(mean == pytest.approx(2 * float(product) + 2, rel=1e-4) for mean in written[call])


def test_nothing_waits_where_storage_may_be_freed_between_launches(
    kernel: PlainKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = graph_watch.GraphWatch.__init__

    def frees(self: Any, sink: Any, module: Any, source: str, rewritten: Any) -> None:
        original(self, sink, module, source + "\n# inductor_ops.resize_storage_bytes_(buf0, 0)", rewritten)

    monkeypatch.setattr(graph_watch.GraphWatch, "__init__", frees)
    train("mlp", 3, level="off", find="nan")
    assert kernel.n_quick > 0


@pytest.mark.parametrize("find", ["nan", "inf"])
def test_an_input_that_a_launch_takes_in_another_shape_stays_in_the_plan(
    find: str, kernel: PlainKernel, tmp_path: Path
) -> None:
    torch._dynamo.reset()
    weight = torch.randn(4, 8, 8)
    compiled = torch.compile(lambda x: torch.bmm(x.view(4, 2, 8), weight).view(8, 8).exp())
    with torch.no_grad(), torchledger.values(tmp_path / "a.ledger", find=find, level="off") as watch:
        for step in range(3):
            compiled(torch.full((8, 8), math.inf if step == 1 else 0.0))
    with open_ledger(watch.path) as reader:
        assert reader.read(Gap) == []
    assert {finding.call_index for finding in watch.findings} == {1}


@pytest.mark.parametrize("level", ["off", "stats"])
def test_nan_that_comes_with_a_later_call_is_found_where_it_is_made(kernel: PlainKernel, level: str) -> None:
    torch._dynamo.reset()
    weight = torch.ones(8, 8)

    def model(x: Tensor) -> Tensor:
        y = torch.log((x @ weight).relu() + x) @ weight
        return torch.where(y.isnan(), 0.0, y)

    compiled = torch.compile(model)
    with torch.no_grad(), torchledger.values(find="nan", level=level) as watch:
        for step in range(4):
            compiled(torch.full((4, 8), -100.0 if step == 2 else 1.0))
    assert {finding.call_index for finding in watch.findings} == {2}
    first = watch.first_bad
    assert first is not None and first.verdict == "created here" and first.count == 32
    launch = watch.launch(first.subject)
    assert launch is not None and "aten.log" in launch.aten_ops
    assert any(finding.verdict == "stopped here" for finding in watch.findings)
    assert all(finding.reaches_output is False for finding in watch.findings)


def test_other_shapes_get_a_plan_of_their_own(kernel: PlainKernel) -> None:
    torch._dynamo.reset()
    weight = torch.randn(8, 8)
    compiled = torch.compile(lambda x: (x @ weight).sin() @ weight, dynamic=True)
    with torch.no_grad(), torchledger.values(level="stats") as watch:
        for rows in (4, 6, 4, 6, 4):
            compiled(torch.randn(rows, 8))
    shapes = {stats.call_index: stats.shape[0] for stats in watch.stats if stats.buffer == "buf0"}
    assert shapes == {0: 4, 1: 6, 2: 4, 3: 6, 4: 4}


def test_questions_asked_later_are_not_answered_from_an_older_plan(kernel: PlainKernel) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.sin(x) @ x)
    with torch.no_grad(), torchledger.values(level="off", find="nan") as watch:
        for options in ({}, {}, {"level": "stats"}, {}, {"level": "off"}):
            watch.change(**options)
            compiled(torch.randn(8, 8))
    assert {stats.call_index for stats in watch.stats} == {2, 3}
    assert all(stats.mean is not None for stats in watch.stats)


def test_a_call_that_leaves_its_plan_is_told_and_the_program_goes_on(
    kernel: PlainKernel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.sin(x) @ x)
    x = torch.randn(8, 8)
    with torch.no_grad(), torchledger.values(tmp_path / "a.ledger", level="stats") as watch:
        compiled(x)
        with monkeypatch.context() as other:
            other.setattr(planned.PlannedCall, "look", _fail)
            assert torch.allclose(compiled(x), torch.sin(x) @ x, atol=1e-5)
        compiled(x)
    with open_ledger(watch.path) as reader:
        assert any("it left the plan" in gap.reason for gap in reader.read(Gap))
    assert {stats.call_index for stats in watch.stats} == {0, 2}


def _fail(self: object, reduction: object, tensor: object) -> None:
    raise ValueError("it left the plan")
