"""Files from strangers: small real files of each kind, seeded mutations of them, and every command that reads them.

A case is a kind, a command and a number that seeds its mutation. Cases run in forked children, many in each, under a
limit of memory and of processor time; what a case may do is end well or with one error of ours. Cases that are kept
name a kind's command by its place, so that new commands stand at the end of each kind's.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import gzip
import hashlib
import importlib
import os
import random
import resource
import shutil
import signal
import tempfile
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from click.testing import CliRunner

from factories import make_collective, make_step, make_step_call
from fuzzed_kinds import KINDS
from mutations import (
    mutate_bytes,
)
from small_files import (
    CARD,
    DATA,
    LAYOUTS,
    PROFILED,
    kept_file,
    sealed_path,
)
from torchledger.calibrating.choosing import choose_points
from torchledger.calibrating.collecting import OPERATORS, CollectPlan
from torchledger.cli import COMMANDS, cli
from torchledger.errors import TorchledgerError
from torchledger.fitting.tables import LeftOut
from torchledger.fitting.time_model import Entry, TimeModel
from torchledger.nouns import (
    DryRun,
    Graph,
    Kernel,
    Launch,
    MadeGroup,
    TensorArgument,
    WorldSpec,
)
from torchledger.planning.dry_run import DryRunOutcome
from torchledger.planning.world import RecordedRank
from torchledger.replaying.bench_worker import Job
from torchledger.sampling.points import Plan
from torchledger.store import LedgerWriter, open_ledger

TIME_LIMIT_S = 20
"""Processor time of a case; by the clock it may take ten times as long, for the machine is not its own."""

MEMORY_LIMIT_BYTES = 1 << 30
"""What a case may take beyond the interpreter with all commands imported."""

_LONGEST_MESSAGE = 2_000


@dataclass(frozen=True)
class Case:
    """One file and one command."""

    kind: str
    command: int
    seed: int


@dataclass(frozen=True)
class Fault:
    """A case that did what none may do, and what that was."""

    case: Case
    what: str


def content_of(case: Case) -> bytes:
    """The changed file of a case; the same for the same case."""
    kind = KINDS[case.kind]
    source = random.Random(f"{case.kind} {case.seed}")
    content = kind.original()
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        change = kind.mutate if source.random() < 0.6 else mutate_bytes
        content = change(source, content)
    return content


def run_cases(
    cases: Iterable[Case], contents: Mapping[Case, bytes] | None = None, *, batch: int = 25, jobs: int = 1
) -> Iterator[Fault]:
    """Run cases, ``batch`` in each forked child, ``jobs`` children at a time; faults come as they are found.

    ``contents`` gives files that are not made by mutation.
    """
    _recorded_without_device()
    for module in ("torch", "pyarrow.parquet", *(module for module, _ in COMMANDS.values())):
        importlib.import_module(module)  # once, here, and not in every child
    waiting = deque(cases)
    for kind in {case.kind for case in waiting} if contents is None else ():
        KINDS[kind].original()
    children: dict[Connection, _Child] = {}
    while waiting or children:
        while waiting and len(children) < jobs:
            some = [waiting.popleft() for _ in range(min(batch, len(waiting)))]
            ours, theirs = Pipe(duplex=False)
            children[ours] = _Child(some, _fork(some, contents or {}, theirs))
        for pipe in wait(list(children)):
            assert isinstance(pipe, Connection)
            child = children[pipe]
            try:
                what = pipe.recv()
            except EOFError:
                status = os.waitpid(child.process, 0)[1]
                del children[pipe]
                if unfinished := child.cases[child.ended :]:
                    yield Fault(unfinished[0], f"the process died (status {status})")
                    waiting.extendleft(reversed(unfinished[1:]))
                continue
            if what:
                yield Fault(child.cases[child.ended], what)
            child.ended += 1


@dataclass
class _Child:
    """A process under way, and how many of its cases have ended."""

    cases: Sequence[Case]
    process: int
    ended: int = 0


def _fork(cases: Sequence[Case], contents: Mapping[Case, bytes], results: Connection) -> int:
    """A child that sends what became of each case, in their order; ``results`` is closed here."""
    child = os.fork()
    if child == 0:
        try:
            _limit_memory()
            for case in cases:
                results.send(run_case(case, contents[case] if case in contents else content_of(case))[:1_500])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    results.close()
    return child


def _limit_memory() -> None:
    """A wall behind the limit, so that a bomb ends its process and not the machine."""
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (taken + 4 * MEMORY_LIMIT_BYTES,) * 2)


def _forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _memory_bytes(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


class _TooLongError(BaseException):
    """The time of a case is up."""


def run_case(case: Case, content: bytes) -> str:
    """Run one case in this process; what it did that it may not, or nothing."""
    kind = KINDS[case.kind]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "in"
        if kind.around is not None:
            kind.around(folder)
        path = folder / kind.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        before = _digest(folder)
        named = {"FILE": str(path), "FOLDER": str(folder), "OTHER": str(folder / "trace_1.json")}
        named |= {word: f"{name}/{word.lower()}" for word in ("OUT", "OUT.html", "OUT.csv")}
        if "COPY" in kind.commands[case.command]:
            named["COPY"] = f"{name}/copy"
            shutil.copytree(folder, named["COPY"])
        if "LAYOUTS" in kind.commands[case.command]:
            named["LAYOUTS"] = f"{name}/layouts.yml"
            Path(named["LAYOUTS"]).write_bytes(LAYOUTS)
        _forget_peak()
        resident = _memory_bytes("VmRSS")
        signal.signal(signal.SIGPROF, _stop)
        signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT_S)
        signal.alarm(10 * TIME_LIMIT_S)
        os.chdir(name)
        try:
            what = _invoke([named.get(word, word) for word in kind.commands[case.command]])
        except _TooLongError:
            what = f"took more than {TIME_LIMIT_S} s"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            os.chdir("/")
        if not what and (taken := _memory_bytes("VmHWM") - resident) > MEMORY_LIMIT_BYTES:
            what = f"took {taken >> 20} MB"
        if not what and _digest(folder) != before:
            what = "changed what it read"
    return what


def _stop(number: int, frame: FrameType | None) -> None:
    raise _TooLongError


def _invoke(arguments: list[str]) -> str:
    error: BaseException | None
    if arguments[0] == "predict-launches":
        error = _predict_launches(arguments[1])
    elif arguments[0] == "fit":
        error = _fit(arguments)
    elif arguments[0] == "bench":
        error = _bench(arguments)
    elif arguments[0] == "plan":
        error = _plan(arguments)
    elif arguments[0] == "calibrate":
        error = _calibrate(arguments)
    else:
        error = CliRunner().invoke(cli, arguments).exception
    if isinstance(error, TorchledgerError):
        message = str(error)
        return (
            "" if 0 < len(message) <= _LONGEST_MESSAGE else f"a message of {len(message)} characters: {message[:200]}"
        )
    if error is None or isinstance(error, SystemExit):
        return ""
    if isinstance(error, _TooLongError):
        raise error
    last = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in last if "torchledger" in frame.filename] or last
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(ours[-4:]))
    return f"{type(error).__name__}: {str(error)[:160]} at {places}"


def _predict_launches(path: str) -> BaseException | None:
    """What `fit` does with launches before it learns: no command that reads them answers in less than minutes."""
    from torchledger.predicting import find_model
    from torchledger.predicting.launches import predict_launches
    from torchledger.store.launch_file import read_launches

    try:
        predict_launches(find_model("H200"), [item.launch for item in read_launches(path).launches])
    except Exception as error:
        return error
    return None


def _fit(arguments: list[str]) -> BaseException | None:
    """`fit` without the learning, which takes longer than a case may: what it reads, checks and puts into tables."""

    def learn_nothing(work: object, tables: Sequence[Any], jobs: object) -> Iterator[LeftOut]:
        del work, jobs
        return (LeftOut(type(table).__name__, "it is not learned here") for table in tables)

    with (
        _replaced("torchledger.fitting.fit", "in_processes", learn_nothing),
        _replaced("torchledger.fitting.fit_data", "in_processes", learn_nothing),
    ):
        return CliRunner().invoke(cli, arguments).exception


def _plan(arguments: list[str]) -> BaseException | None:
    """`plan` of a program whose step was recorded before: the program itself comes from no file of these kinds."""

    def recorded(program: object, path: Path, *_: object, **__: object) -> DryRunOutcome:
        shutil.copy(_recorded_without_device(), path)
        return DryRunOutcome(path, DryRun("NVIDIA H200"))

    def recorded_ranks(script: object, folder: object, device: object, world: int, **_: object) -> list[RecordedRank]:
        return [RecordedRank(0, _recorded_without_device(), tuple(range(world)))]

    with (
        _replaced("torchledger.planning.plan", "run_without_device", recorded),
        _replaced("torchledger.planning.plan", "record_ranks", recorded_ranks),
    ):
        return CliRunner().invoke(cli, arguments).exception


@cache
def _recorded_without_device() -> Path:
    """A rank's step of two graph calls, operators and an all_reduce, as a run without its device leaves it."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    matrix = TensorArgument((1024, 1024), "bfloat16", (1024, 1))
    work: dict[str, Any] = {"kernels": 1, "samples_us": (), "arguments": (matrix, matrix)}
    with open_ledger(PROFILED) as old, LedgerWriter(folder / "rank0.ledger") as new:
        new.add(dataclasses.replace(old.run(), host=None), *old.read(Graph), *old.read(Kernel), *old.read(Launch))
        new.add(
            DryRun("NVIDIA H200", world=WorldSpec(0, 2), groups=(MadeGroup("0", (0, 1)),)),
            make_step(clock="cupti", graph_calls={"forward_0": 1, "backward_0": 1}),
            make_step_call(order=0, kind="graph", name="forward_0", phase="forward", samples_us=()),
            make_step_call(order=1, name="aten::mm", flops=2**31, bytes_moved=6 * 2**20, **work),
            make_step_call(order=2, kind="graph", name="backward_0", phase="backward", samples_us=()),
            make_step_call(
                order=3, kind="collective", name="c10d::allreduce_", phase="backward", group="0", group_size=2,
                message_bytes=2**24, samples_us=(),
            ),
            make_step_call(order=4, name="aten::_foreach_add_", phase="optimizer", bytes_moved=2**22, **work),
            make_collective(group_size=2, ranks=(0, 1), call=3),
        )  # fmt: skip
    return folder / "rank0.ledger"


def _calibrate(arguments: list[str]) -> BaseException | None:
    """`calibrate` of a device on which nothing is measured and nothing learned: what it reads, checks and chooses.

    Its worker leaves the samples and launches of the folder that is kept, or others where none is.
    """
    ended = mock.Mock(returncode=0, **{"poll.return_value": 0, "wait.return_value": 0})

    def few_points(model: TimeModel | None, **_: object) -> Plan:
        found: Plan = choose_points(model, count=8, sweep=DATA / "old" / "sweep.yml")
        return found

    def work(plan: object, folder: Path, *_: object) -> mock.Mock:
        if not (folder / OPERATORS / "journal").exists():
            kept_file(folder)
        return ended

    def learn_nothing(learn: object, rows: Sequence[Any], jobs: object) -> Iterator[Entry]:
        del learn, jobs
        return (each.entry for each in rows)

    nothing_runs = partial(CollectPlan, processes=0, with_host=False)
    with (
        _replaced("torchledger.calibrating.collecting", "measure_ceilings", lambda *_, **__: CARD.ceilings),
        _replaced("torchledger.calibrating.collecting", "describe_device", lambda _: CARD),
        _replaced("torchledger.calibrating.collecting", "choose_points", few_points),
        _replaced("torchledger.calibrating.collecting", "_start_operators", work),
        _replaced("torchledger.calibrating.calibrate", "store_ceilings", lambda *_: None),
        _replaced("torchledger.calibrating.calibrate", "CollectPlan", nothing_runs),
        _replaced("torchledger.fitting.correcting", "in_processes", learn_nothing),
    ):
        return CliRunner().invoke(cli, arguments).exception


def _replaced(module: str, name: str, value: object) -> contextlib.AbstractContextManager[object]:
    return mock.patch.object(importlib.import_module(module), name, value)


class _RunsTheChangedError(Exception):
    """Code was about to run that nobody sealed."""


def _bench(arguments: list[str]) -> BaseException | None:
    """`bench` up to the point where it starts a worker: what it would run must be what was sealed."""
    jobs: list[Job] = []

    def keep_job(job: Job, **_: object) -> dict[str, dict[str, Any]]:
        jobs.append(job)
        return {}

    with _replaced("torchledger.replaying.bench", "run_tasks", keep_job):
        error = CliRunner().invoke(cli, arguments).exception
        if error is None or isinstance(error, SystemExit):
            found = _code_of(jobs)
            jobs.clear()
            CliRunner().invoke(cli, [arguments[0], str(sealed_path()), *arguments[2:]])
            if not found <= _code_of(jobs):
                return _RunsTheChangedError(*sorted(found - _code_of(jobs))[:1])
    return error


def _code_of(jobs: Iterable[Job]) -> set[str]:
    return {text for job in jobs for task in job.tasks for text in (task.preamble, task.body, *job.kernels.values())}


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}".encode() + path.read_bytes())
    return digest.hexdigest()


# --- mutations ------------------------------------------------------------------------------------------------------


# --- originals ------------------------------------------------------------------------------------------------------


def make_cases(count: int, seed: int, kinds: Sequence[str] = tuple(KINDS)) -> list[Case]:
    """Cases that go round the kinds and their commands."""
    names = list(kinds)
    return [
        Case(names[n % len(names)], (n // len(names)) % len(KINDS[names[n % len(names)]].commands), seed + n)
        for n in range(count)
    ]


# --- what once failed -----------------------------------------------------------------------------------------------

CORPUS = DATA / "fuzz"
_LARGEST_KEPT_BYTES = 64 << 10


def load_corpus() -> dict[Case, bytes]:
    """Every case that is kept, with its file."""
    found = {}
    for path in sorted(CORPUS.glob("*.gz")):
        kind, command, seed = path.name.removesuffix(".gz").split(".")
        found[Case(kind.replace("_", " "), int(command), int(seed))] = gzip.decompress(path.read_bytes())
    return found


def keep(case: Case) -> bool:
    """Put a case's file into the corpus; False if it is too large."""
    content = gzip.compress(content_of(case), mtime=0)
    if len(content) > _LARGEST_KEPT_BYTES:
        return False
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{case.kind.replace(' ', '_')}.{case.command}.{case.seed}.gz").write_bytes(content)
    return True
