"""A ledger of this user that somebody changed: whichever field it is, nothing of it runs without ``--trust``."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captured import Captured, capture_call
from factories import make_step
from torchledger.errors import MeasureError
from torchledger.nouns import Graph, Kernel, Launch, Measurement, Run, Step, ValueStats
from torchledger.replaying.bench import bench
from torchledger.replaying.bench_process import run_tasks
from torchledger.replaying.bench_timing import Budget
from torchledger.replaying.bench_worker import Job, Task
from torchledger.replaying.extract import extract_graph, extract_kernel
from torchledger.replaying.sizes import CannotReplay, check_dtype, sizes
from torchledger.store import LedgerWriter
from torchledger.store.schema import TABLES

QUICK = Budget(seconds=0.01, min_repeats=6, max_repeats=6)
SEALED = (Graph, Kernel, Launch)


class Looked(nn.Module):
    """An index, symbolic sizes, a library call and fused kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.up = nn.Linear(16, 24)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.nn.functional.gelu(self.up(self.table(tokens))).sum(-1)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    model = torch.compile(Looked().requires_grad_(False), dynamic=True)
    path = tmp_path_factory.mktemp("forged") / "mine.ledger"
    found = capture_call(path, lambda: model(torch.randint(0, 50, (3, 8))))
    with LedgerWriter(path, append=True) as writer:
        first = found.calls[0].launch_id
        writer.add(Measurement(first, "profile", "cpu_profiler", (5.0,)))
        writer.add(make_step(graph_calls={found.graphs[0].name: 1}))
        writer.add(ValueStats(first, 0, "buf0", "before", "float32", (2,), n_nan=0, n_inf=0, path="gone.safetensors"))
    return found


@pytest.fixture
def ledger(captured: Captured, tmp_path: Path) -> Path:
    return Path(shutil.copy(captured.path, tmp_path / "mine.ledger"))


@pytest.fixture
def sentinel(tmp_path: Path) -> Path:
    return tmp_path / "it_ran"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """What the worker would have been given."""
    found: list[Job] = []

    def keep(job: Job, **limits: object) -> dict[str, Any]:
        found.append(job)
        return {}

    monkeypatch.setattr("torchledger.replaying.bench.run_tasks", keep)
    return found


def code_that_runs(sentinel: Path) -> str:
    return f"__import__('pathlib').Path({str(sentinel)!r}).touch()"


def places(record_type: type, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every field of a record, and of the records in it."""
    hints = typing.get_type_hints(record_type)
    for field in dataclasses.fields(record_type):
        yield (*prefix, field.name)
        parts = [hints[field.name], *typing.get_args(hints[field.name])]
        inner = next((part for part in parts if isinstance(part, type) and dataclasses.is_dataclass(part)), None)
        if inner is not None:
            yield from places(inner, (*prefix, field.name))


def forge(value: Any, place: tuple[str, ...], code: str) -> Any:
    """A plain record with code at one place, whatever stood there."""
    if not place:
        if value == []:
            return [code]
        if isinstance(value, dict):
            return dict.fromkeys(value, code) | {"s0": code}
        return [code] * len(value) if isinstance(value, list) else code
    if isinstance(value, list):
        return [forge(item, place, code) for item in value]
    value = value if isinstance(value, dict) else {}
    return value | {place[0]: forge(value.get(place[0]), place[1:], code)}


def forge_ledger(ledger: Path, record_type: type, place: tuple[str, ...], code: str) -> None:
    table = TABLES[record_type].name
    with sqlite3.connect(ledger) as connection:
        for number, body in connection.execute(f'SELECT rowid, body FROM "{table}"').fetchall():
            changed = json.dumps(forge(json.loads(body), place, code))
            connection.execute(f'UPDATE "{table}" SET body = ? WHERE rowid = ?', (changed, number))
    connection.close()


def texts(job: Job) -> list[Any]:
    """All of a job that is executed."""
    return [sorted(job.kernels.items()), [(task.preamble, task.body) for task in job.tasks]]


def is_refused(attempt: Callable[[], object]) -> bool:
    """True if it raised; what exactly is the business of whoever decodes and checks records."""
    try:
        attempt()
    except Exception:
        return True
    return False


SEALED_PLACES = [(kind, place) for kind in SEALED for place in places(kind)]
OTHER_PLACES = [(kind, place) for kind in (Run, Measurement, ValueStats, Step) for place in places(kind)]


def named(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else ".".join(value)


def test_the_records_that_code_is_made_of_have_all_their_fields_tried() -> None:
    tried = {(kind.__name__, place[0]) for kind, place in SEALED_PLACES}
    assert tried == {(kind.__name__, field.name) for kind in SEALED for field in dataclasses.fields(kind)}
    assert (Launch, ("loops", "accesses", "index")) in SEALED_PLACES and (Launch, ("buffers", "dtype")) in SEALED_PLACES


@pytest.mark.parametrize(("record_type", "place"), SEALED_PLACES, ids=named)
def test_code_in_a_field_under_the_seal_is_refused(
    ledger: Path, sentinel: Path, jobs: list[Job], captured: Captured, record_type: type, place: tuple[str, ...]
) -> None:
    forge_ledger(ledger, record_type, place, code_that_runs(sentinel))
    written = ledger.with_name("written.py")
    assert is_refused(lambda: bench(ledger, all_kernels=True, budget=QUICK))
    assert is_refused(lambda: extract_kernel(ledger, captured.calls[0].launch_id, written))
    assert is_refused(lambda: extract_graph(ledger, captured.graphs[0].name, written))
    assert not jobs and not written.exists() and not sentinel.exists()


@pytest.mark.parametrize(("record_type", "place"), OTHER_PLACES, ids=named)
def test_code_in_any_other_field_is_in_nothing_that_runs(
    ledger: Path, sentinel: Path, jobs: list[Job], record_type: type, place: tuple[str, ...]
) -> None:
    bench(ledger, all_kernels=True, budget=QUICK, save=False)
    expected = texts(jobs.pop())
    forge_ledger(ledger, record_type, place, code_that_runs(sentinel))
    is_refused(lambda: bench(ledger, all_kernels=True, budget=QUICK, save=False))
    assert all(texts(job) == expected for job in jobs) and not sentinel.exists()


@pytest.mark.parametrize(
    ("record_type", "place"),
    [(Graph, ("symbols",)), (Launch, ("buffers", "dtype")), (Launch, ("buffers", "name")), (Launch, ("device",)),
     (Launch, ("kwargs",)), (Launch, ("buffers", "device")), (Launch, ("fx_nodes",)), (Kernel, ("source",))],
    ids=named,
)  # fmt: skip
def test_even_with_trust_only_code_fields_are_code(
    ledger: Path, sentinel: Path, jobs: list[Job], record_type: type, place: tuple[str, ...]
) -> None:
    forge_ledger(ledger, record_type, place, code_that_runs(sentinel))
    is_refused(lambda: bench(ledger, all_kernels=True, budget=QUICK, save=False, trust=True))
    assert "it_ran" not in json.dumps([texts(job)[1] for job in jobs])


def test_trust_is_what_lets_a_forged_wrapper_run(ledger: Path, sentinel: Path, captured: Captured) -> None:
    launch = next(launch for launch in captured.calls if launch.category == "extern")
    with sqlite3.connect(ledger) as connection:
        ((body,),) = connection.execute("SELECT body FROM graphs").fetchall()
        graph = json.loads(body)
        graph["wrapper_source"] = graph["wrapper_source"].replace(
            "import torch\n", f"import torch; {code_that_runs(sentinel)}\n", 1
        )
        connection.execute("UPDATE graphs SET body = ?", (json.dumps(graph),))
    connection.close()
    with pytest.raises(MeasureError, match="no valid seal"):
        bench(ledger, [launch.launch_id], budget=QUICK, states=("warm",), save=False)
    assert not sentinel.exists()
    bench(ledger, [launch.launch_id], budget=QUICK, states=("warm",), save=False, trust=True)
    assert sentinel.exists()


def test_a_launch_that_a_table_gives_to_another_graph_is_not_taken(ledger: Path, jobs: list[Job]) -> None:
    with sqlite3.connect(ledger) as connection:
        connection.execute('DROP INDEX "launches_key"')
        connection.execute("UPDATE launches SET \"graph\" = 'elsewhere' WHERE rowid = 1")
    connection.close()
    with pytest.raises(MeasureError):
        bench(ledger, all_kernels=True, budget=QUICK)
    assert not jobs


def test_a_job_without_a_seal_runs_nothing(sentinel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task("forward_0#0", "cpu", f"import torch\n{code_that_runs(sentinel)}", "")
    monkeypatch.setattr("torchledger.replaying.bench_process.seal", lambda kind, text: "2:forged")
    answers = run_tasks(Job((task,), QUICK), timeout_s=60)
    assert "no valid seal" in answers["forward_0#0"]["reason"]
    assert not sentinel.exists()


@pytest.mark.parametrize(
    "text",
    ["(open('x'),)", "(s0.real,)", "(s0 if s0 else 1,)", "([1][0],)", "(lambda: 1,)", "4", "(2**9999999,)", "(1//0,)",
     "('a',)", "(" * 500, "(s0 := 4,)", "(f'{1}',)", "(print,)()"],
)  # fmt: skip
def test_what_is_no_integer_expression_is_no_size(text: str) -> None:
    with pytest.raises(CannotReplay):
        sizes(text, {"s0": 8})


def test_sizes_have_the_values_of_their_expressions() -> None:
    assert sizes("(s0, (s0 + 7) // 8, max(1, 4), 2**3 - -1, math.ceil(s0 / 3))", {"s0": 20}) == (20, 3, 4, 9, 7)
    assert sizes("(s0, u1)", {"s0": 20}) is None
    assert sizes("()", {}) == ()


@pytest.mark.parametrize("name", ["torch.load", "float32", "torch.float32)", "torch.os", "", None, 5])
def test_only_element_types_are_element_types(name: Any) -> None:
    check_dtype("torch.float8_e4m3fn")
    with pytest.raises(CannotReplay):
        check_dtype(name)
