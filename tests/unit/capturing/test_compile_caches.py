"""Compile caches, as a user has them: one key for all recordings, and the kernels of whoever ran before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import torchledger
from captured import read
from command_line import run_cli
from torchledger._torch.kernel_marks import kernel_marks
from torchledger._torch.profiler import Recording
from torchledger.nouns import Graph, Measurement, Profile
from torchledger.store import open_ledger
from torchledger.traces.reading import read_trace
from torchledger.traces.trace import EventKind

SCRIPT = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
compiled = torch.compile(model)
for _ in range(10):
    compiled(torch.ones(4, 8)).sum().backward()
"""


@dataclass(frozen=True)
class Runs:
    """One script run plain, then recorded, then profiled, then with its values watched; all with the same caches.

    ``files`` are the sources and binaries of kernels and wrappers after each, with the time of their last change;
    ``said`` is what each wrote to standard error.
    """

    folder: Path
    files: tuple[dict[str, int], ...]
    said: tuple[str, ...]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("caches")
    (folder / "a.py").write_text(SCRIPT)
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    subprocess.run([sys.executable, "a.py"], cwd=folder, env=environment, check=True, timeout=200)
    files, said = [_generated(folder)], [""]
    for command in (
        ("run", "-o", "run.ledger"),
        ("run", "--profile", "-o", "profile.ledger"),
        ("values", "--level", "stats", "-o", "values.ledger"),
    ):
        done = run_cli(folder, *command, "a.py")
        assert done.returncode == 0, done.stderr
        files.append(_generated(folder))
        said.append(done.stderr)
    return Runs(folder, tuple(files), tuple(said))


def _generated(folder: Path) -> dict[str, int]:
    kept = (path for path in (folder / "cache").rglob("*") if path.suffix in (".py", ".cpp", ".so"))
    return {path.name: path.stat().st_mtime_ns for path in kept}


def _graphs(path: Path) -> list[Graph]:
    with open_ledger(path) as ledger:
        return ledger.read(Graph)


@pytest.mark.slow
def test_a_recording_takes_every_kernel_of_a_plain_run_as_it_is(runs: Runs) -> None:
    plain, recorded, profiled, watched = runs.files
    assert any(name.endswith(".so") for name in plain)
    assert plain == recorded == profiled == watched


@pytest.mark.slow
def test_a_profile_finds_every_graph_of_a_recording_without_in_the_cache(runs: Runs) -> None:
    first, second = _graphs(runs.folder / "run.ledger"), _graphs(runs.folder / "profile.ledger")
    assert [graph.cache_hit for graph in first] == [False, False]
    assert [graph.cache_hit for graph in second] == [True, True]
    assert [graph.cache_key for graph in first] == [graph.cache_key for graph in second]


@pytest.mark.slow
def test_a_recording_says_what_a_plain_run_had_done_already(runs: Runs) -> None:
    first, second = _graphs(runs.folder / "run.ledger"), _graphs(runs.folder / "profile.ledger")
    assert [graph.lowered_again for graph in first] == ["same_code", "same_code"]
    assert [graph.lowered_again for graph in second] == [None, None]
    assert "2 of 2 graphs were lowered again" in runs.said[1]
    assert not any("lowered again" in text for text in runs.said[2:])


@pytest.mark.slow
def test_watching_values_finds_every_graph_of_a_recording_in_the_cache(runs: Runs) -> None:
    assert all(graph.cache_hit for graph in _graphs(runs.folder / "values.ledger"))


@pytest.mark.slow
def test_kernels_that_a_plain_run_compiled_are_seen_in_a_profile(runs: Runs) -> None:
    path = runs.folder / "profile.ledger"
    captured = read(path)
    with open_ledger(path) as ledger:
        (profile,) = ledger.read(Profile)
        measured = {each.subject for each in ledger.read(Measurement)}
    assert profile.matched_share == 1
    assert captured.fused
    assert measured == {launch.launch_id for launch in captured.calls}


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sin() * 2, -1)


def _twice(x: torch.Tensor) -> torch.Tensor:
    for weight in (x.T @ x, x.T @ x + 1):
        x = torch.softmax(x @ weight, -1)
    return x


def _branches(x: torch.Tensor) -> torch.Tensor:
    chosen: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))
    return chosen


def _kernels(compiled: Callable[..., Any], tmp_path: Path, *inputs: torch.Tensor) -> tuple[set[str], list[str]]:
    """Names of the kernels in the ledger of a function, and the ranges of C++ kernels that one call leaves."""
    path = tmp_path / "a.ledger"
    with torch.no_grad(), torchledger.capture(path):
        compiled(*inputs)
        recording = Recording()
        recording.start()
        compiled(*inputs)
        recording.stop()
    trace = read_trace(recording.export())
    names = [trace.name(row) for row in trace.rows(EventKind.OP).tolist()]
    return {launch.kernel_name for launch in read(path).fused}, [name for name in names if name.startswith("cpp_")]


def test_each_call_of_a_kernel_is_a_range(tmp_path: Path) -> None:
    torch._dynamo.reset()
    known, seen = _kernels(torch.compile(_twice), tmp_path, torch.ones(8, 8))
    assert set(seen) == known
    assert len(seen) >= 2


def test_the_branch_of_a_condition_that_runs_is_seen(tmp_path: Path) -> None:
    torch._dynamo.reset()
    known, seen = _kernels(torch.compile(_branches), tmp_path, torch.ones(8, 8))
    assert seen
    assert set(seen) < known


def test_kernels_of_frozen_weights_are_seen(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).eval()
    known, seen = _kernels(torch.compile(model, options={"freezing": True}), tmp_path, torch.ones(4, 8))
    assert set(seen) == known


def _recorded_namespace(function: Any, tmp_path: Path) -> dict[str, Any]:
    """The globals of the wrapper that a function's only graph runs in."""
    from torch._inductor.codecache import PyCodeCache

    with torchledger.capture(tmp_path / "b.ledger", force=True):
        function(torch.ones(4, 8))
    return vars(PyCodeCache.modules[-1])


def test_outside_a_recording_a_wrapper_calls_its_kernels_themselves(tmp_path: Path) -> None:
    torch._dynamo.reset()
    namespace = _recorded_namespace(torch.compile(_scaled), tmp_path)
    before = {name: value for name, value in namespace.items() if name.startswith("cpp_")}
    marks = kernel_marks()
    assert all(namespace[name] is not kernel for name, kernel in before.items())
    marks.undo()
    assert before
    assert all(namespace[name] is kernel for name, kernel in before.items())


def test_a_graph_that_is_loaded_while_a_recording_runs_is_marked_until_the_last_recording_ends(tmp_path: Path) -> None:
    torch._dynamo.reset()
    outer, inner = kernel_marks(), kernel_marks()
    namespace = _recorded_namespace(torch.compile(lambda x: _scaled(x) + 3), tmp_path)
    (name,) = (name for name in namespace if name.startswith("cpp_"))
    marked = namespace[name]
    inner.undo()
    assert namespace[name] is marked
    outer.undo()
    assert namespace[name] is marked.kernel


def test_watched_kernels_are_seen_and_given_back(tmp_path: Path) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: _scaled(x) - 3)
    with torch.no_grad(), torchledger.values(tmp_path / "a.ledger", level="stats") as watch:
        compiled(torch.ones(4, 8))
        recording = Recording()
        recording.start()
        compiled(torch.ones(4, 8))
        recording.stop()
        compiled(torch.ones(4, 8))
    trace = read_trace(recording.export())
    seen = [trace.name(row) for row in trace.rows(EventKind.OP).tolist() if trace.name(row).startswith("cpp_")]
    assert set(seen) == {launch.kernel_name for launch in read(watch.path).fused}
