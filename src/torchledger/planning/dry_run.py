"""A program's step without its device: the script runs on fake tensors until one step is in a ledger."""

from __future__ import annotations

import contextlib
import logging
import runpy
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torchledger.capturing.session import Capture
from torchledger.errors import PlanError, UsageError
from torchledger.memory.record import Heard, record_memory
from torchledger.nouns import Device, Direction, DryRun
from torchledger.profiling.profile import StepProfiler, hear_steps
from torchledger.profiling.records import facts_of_recording
from torchledger.stepping.heard import record_heard_step
from torchledger.stepping.record import Ledgered
from torchledger.stepping.recorder import StepRecording, Tools
from torchledger.traces.graph_marks import parse_graph_mark

log = logging.getLogger(__name__)

_WARMUP = 1
"""Steps without compilation before the one that is recorded."""


class StepRecorded(BaseException):
    """Ends a program whose step is in the ledger; no handler of the program's own errors holds it."""


@dataclass(frozen=True)
class DryRunOutcome:
    """A ledger that was made without a device, and what its program was told."""

    path: Path
    dry_run: DryRun


class _StepHearer(StepProfiler):
    """Has one step of a program heard, writes it down, and ends the program."""

    def __init__(self, capture: Capture) -> None:
        self._marks: list[str] = []
        self.has_step = False
        self._is_running = True
        super().__init__(capture, warmup=_WARMUP, only_hears=True, tools=_tools(self._marks))

    def on_close(self) -> None:
        """The program has ended: nothing more is recorded."""
        self._is_running = False
        self._stop()

    def _hear_no_calls(self) -> None:
        super()._hear_no_calls()
        if not self._is_running:
            return
        recording = self._recorder.result()
        if recording.heard is not None and recording.memory is not None:
            self._capture.add(*self._records(recording))
            self.has_step = True
        raise StepRecorded

    def why_not(self) -> str:
        """Why there is no step."""
        recording = self._recorder.result()
        return recording.why_not or self._too_few_steps(recording)

    def _records(self, recording: StepRecording) -> list[Any]:
        facts = facts_of_recording(recording)
        assert facts is not None and recording.heard is not None and recording.memory is not None
        ledgered = Ledgered(
            {name: cast(Direction, name.rpartition("_")[0]) for name in self._launches}, dict(self._launches)
        )
        marked = [parse_graph_mark(mark) for mark in self._marks]
        record = record_heard_step(
            recording.memory.entries,
            recording.heard,
            facts,
            ledgered,
            sizes=dict(enumerate(mark[1] for mark in marked[-_graph_calls(recording) :] if mark is not None)),
        )
        memory = record_memory(
            Heard(recording.memory, recording.heard),
            record,
            ledgered.launches,
            devices=self._capture.run.devices,
        )
        return [record.step, *record.calls, *memory]


def _graph_calls(recording: StepRecording) -> int:
    assert recording.memory is not None
    return sum(isinstance(entry, str) for entry in recording.memory.entries)


def _tools(marks: list[str]) -> Tools:
    """What a recorder needs of torch, on a device that does nothing; marks of graph calls are kept in ``marks``."""
    from torchledger._torch import steps

    def mark(name: str) -> Any:
        marks.append(name)
        return contextlib.nullcontext()

    tools = types.SimpleNamespace(**vars(steps))
    tools.mark, tools.has_cuda, tools.synchronize = mark, lambda: False, lambda: None
    return cast(Tools, tools)


def run_without_device(
    program: Callable[[], Any],
    path: Path,
    device: Device,
    *,
    force: bool = False,
    argv: Sequence[str] = (),
    index: int = 0,
    count: int = 1,
) -> DryRunOutcome:
    """Run ``program`` without ``device`` until one of its steps is in the ledger at ``path``.

    ``count`` devices are there, of which the program's is number ``index``. Raises ``PlanError`` where that cannot be
    (no Triton, no compiler), where the program fails, and where it ends before a step was recorded; ``StoreError`` if
    the ledger cannot be written.
    """
    from torchledger._torch.fake_device import FakeDevice

    with FakeDevice(device, index=index, count=count) as fake:
        capture = Capture(path, force=force, argv=tuple(argv), devices=(device,))
        hearer = _StepHearer(capture)
        hear_steps(hearer)
        capture.watch(hearer)
        status = "failed"
        try:
            _run_to_its_step(program)
            status = "finished"
        finally:
            dry_run = DryRun(device.name, fake.tensors.stand_ins, dict(fake.decisions))
            capture.note(f"made without a device: the program ran on fake tensors for {device.name}")
            capture.add(dry_run)
            why_not = None if hearer.has_step else hearer.why_not()
            capture.close(status=status, exit_code=0 if status == "finished" else 1)
    if why_not is not None:
        raise PlanError(f"no step was recorded: {why_not}.")
    return DryRunOutcome(path, dry_run)


def _run_to_its_step(program: Callable[[], Any]) -> None:
    try:
        program()
    except StepRecorded:
        return
    except SystemExit as error:
        if error.code not in (None, 0):
            raise PlanError(f"the program ended with exit code {error.code} before a step was recorded.") from error
    except Exception as error:
        ours = _our_error(error)
        if ours is not None:
            raise ours from error
        traceback.print_exc()
        raise PlanError(_explain(error)) from error


def _our_error(error: BaseException) -> PlanError | None:
    """An error of ours that a compiler put into one of its own."""
    while True:
        if isinstance(error, PlanError):
            return error
        inner = error.__cause__ or error.__context__ or getattr(error, "inner_exception", None)
        if inner is None:
            return None
        error = inner


def _explain(error: Exception) -> str:
    """What failed, and where in the program."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return (
        f"the program failed without its device{where}: {type(error).__name__}: {first[:300]}. A value that was not "
        "computed, or an extension that wants a real device, cannot be stood in for there."
    )


def _is_library(file: str) -> bool:
    return file.startswith("<") or "/site-packages/" in file or str(Path(__file__).parent.parent) in file


def script_program(script: str, arguments: Sequence[str], *, is_module: bool = False) -> Callable[[], None]:
    """What runs a script, or a module, as ``python`` would; what it prints goes to stderr.

    Raises ``UsageError`` if there is no such file.
    """

    if not is_module and not Path(script).is_file():
        raise UsageError(f"{script} is not a file. Name a Python script, or use -m for a module.")

    def program() -> None:
        with _as_main(script, arguments, is_module=is_module), contextlib.redirect_stdout(sys.stderr):
            if is_module:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")

    return program


@contextlib.contextmanager
def _as_main(script: str, arguments: Sequence[str], *, is_module: bool) -> Iterator[None]:
    before = sys.argv, sys.path[:]
    sys.argv = [script, *arguments]
    sys.path.insert(0, "" if is_module else str(Path(script).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before
