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
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
from click.testing import CliRunner

from factories import make_activity, make_collective, make_run, make_step, make_step_call
from mutations import (
    mutate_bytes,
    mutate_export,
    mutate_json,
    mutate_ledger,
    mutate_lines,
    mutate_model,
    mutate_parquet,
    mutate_text,
    zipped,
)
from nsight_factory import report_of
from torchledger.calibrating.choosing import choose_points
from torchledger.calibrating.collecting import FUSED, OPERATORS, CollectPlan
from torchledger.cli import COMMANDS, cli
from torchledger.errors import TorchledgerError
from torchledger.fitting.learning import constant_blend
from torchledger.fitting.tables import LeftOut
from torchledger.fitting.time_model import Entry, TimeModel
from torchledger.fitting.transfer import transfer_model
from torchledger.nouns import (
    Ceilings,
    Device,
    DryRun,
    Graph,
    Host,
    Kernel,
    Launch,
    MadeGroup,
    TensorArgument,
    WorldSpec,
)
from torchledger.planning.dry_run import DryRunOutcome
from torchledger.planning.world import RecordedRank
from torchledger.predicting.model_file import SHIPPED, load_model, save_model
from torchledger.replaying.bench_worker import Job
from torchledger.sampling.points import Plan
from torchledger.store import LedgerWriter, open_ledger
from torchledger.store.codec import encode
from torchledger.store.job import write_head
from torchledger.store.seal import sealed_graph, sealed_kernel
from torchledger.traces.reading import read_trace

DATA = Path(__file__).parent / "data"
LEDGER = DATA / "old" / "mlp_torchledger0.1.0_torch2.13_cpu.ledger.sqlite"
PROFILED = DATA / "h200" / "gpt_block_torch2.11_cu130.ledger.sqlite"

TIME_LIMIT_S = 20
"""Processor time of a case; by the clock it may take ten times as long, for the machine is not its own."""

MEMORY_LIMIT_BYTES = 1 << 30
"""What a case may take beyond the interpreter with all commands imported."""

_LONGEST_MESSAGE = 2_000
_SAMPLES = "cpu_part_torchledger0.1.0.samples"
_ASK = ("linear", "m=64", "k=32", "n=8")
_PROGRAM = ("-m", "timeit")
"""A program that is there; what `plan` records of it is a stand-in."""


@dataclass(frozen=True)
class Kind:
    """A kind of file: its name, a maker of its original, how its content is changed, and the commands that read it.

    ``name`` is the file's name in the case's folder; in a command ``FILE`` stands for the changed file, ``FOLDER`` for
    the folder that it is in, ``COPY`` for a copy of it, ``OTHER`` for the other rank's trace, ``LAYOUTS`` for a sound
    file of them, ``OUT`` for a path where nothing is yet.
    """

    name: str
    original: Callable[[], bytes]
    mutate: Callable[[random.Random, bytes], bytes]
    commands: tuple[tuple[str, ...], ...]
    around: Callable[[Path], object] | None = None
    """Makes the folder in which other files stand beside it."""


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
            Path(named["LAYOUTS"]).write_bytes(_LAYOUTS)
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


_CARD = Device(
    name="Card",
    kind="cuda",
    compute_capability=(9, 0),
    num_multiprocessors=66,
    ceilings=Ceilings(copy_gb_per_s=2000.0, tflops_per_s={"bfloat16": 400.0, "float16": 400.0, "float32": 30.0}),
)


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
            _kept(folder)
        return ended

    def learn_nothing(learn: object, rows: Sequence[Any], jobs: object) -> Iterator[Entry]:
        del learn, jobs
        return (each.entry for each in rows)

    nothing_runs = partial(CollectPlan, processes=0, with_host=False)
    with (
        _replaced("torchledger.calibrating.collecting", "measure_ceilings", lambda *_, **__: _CARD.ceilings),
        _replaced("torchledger.calibrating.collecting", "describe_device", lambda _: _CARD),
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
            CliRunner().invoke(cli, [arguments[0], str(_sealed_path()), *arguments[2:]])
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


def _read(path: Path) -> Callable[[], bytes]:
    return path.read_bytes


def _small_trace() -> bytes:
    with gzip.open(DATA / "h200" / "gpt_block_torch2.11_cu130.trace.json.gz") as file:
        plain = json.load(file)
    events = plain["traceEvents"]
    plain["traceEvents"] = [event for event in events if event.get("ph") != "X"][:40] + [
        event for event in events if event.get("ph") == "X"
    ][:300]
    return json.dumps(plain).encode()


def _nsight_export() -> bytes:
    report = report_of(read_trace(DATA / "h200" / "gpt_block_torch2.11_cu130.trace.json.gz"))
    report.connection.commit()
    return report.connection.serialize()


def _guide_csv() -> bytes:
    rows = [f"1,{b},{n},64,{b * n / 10},{b * n / 4}" for b in (1, 2, 8) for n in (16, 128, 1024)]
    return "\n".join(["mp,b,l,dim,F_dur(us),B_dur(us)", *rows, ""]).encode()


_SWEEP = b"""dtypes: [fp32, bf16]
seed: 3
order: shuffle
budget: 10min
sweeps:
  - operator: linear
    group: train
    draws: 20
    parameters:
      m: {from: 16, to: 16384, draw: log, multiple_of: 8}
      k: {from: 64, to: 8192, factor: 2}
      n: [1024, 4096]
    where: ["m * k <= 2**26", "m divides k or m < 64"]
  - operator: gelu
    parameters: {numel: {from: 1024, to: 8192, step: 1024}}
"""


@cache
def _sealed_path() -> Path:
    """A copy of the ledger with this user's seals, in a folder that goes with this process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TORCHLEDGER_CACHE"] = str(folder / "cache")
    key = folder / "cache" / "seal" / "key"
    key.parent.mkdir(parents=True, mode=0o700)
    key.touch(mode=0o600)
    key.write_bytes(bytes(range(32)))
    with open_ledger(LEDGER) as old, LedgerWriter(folder / "sealed.ledger") as new:
        launches = old.read(Launch)
        new.add(old.run())
        for kernel in old.read(Kernel):
            new.add(sealed_kernel(kernel))
        for graph in old.read(Graph):
            of_graph = [launch for launch in launches if launch.graph == graph.name]
            for launch in of_graph:
                new.add(launch)
            new.add(sealed_graph(graph, of_graph))
    return folder / "sealed.ledger"


@cache
def _rank_ledger(rank: int) -> bytes:
    """One of two ranks that computed 2 ms and were in an all_reduce for 1 ms."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.ledger"
        with LedgerWriter(path) as writer:
            writer.add(make_run(rank=rank, world_size=2))
            writer.add(make_step())
            writer.add(make_activity((0, 2_000_000, "forward_0#0"), (1, 1_000_000, "all_reduce"), (2, 9_000, "waits")))
            writer.add(make_collective(issued_ns=2_000_000, ended_ns=3_000_000, group_size=2, ranks=(0, 1), sequence=1))
        return path.read_bytes()


def _job(folder: Path) -> None:
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.ledger").write_bytes(_rank_ledger(rank))
    write_head(folder, {"argv": ["train.py"], "exit_code": 0, "ledgers": ["rank0.ledger", "rank1.ledger"]})


def _rank_traces(folder: Path) -> None:
    folder.mkdir()
    (folder / "trace_1.json").write_bytes(_rank_trace(1))


def _rank_trace(rank: int) -> bytes:
    plain = json.loads(_small_trace())
    return json.dumps(plain | {"distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"}}).encode()


def _journal_file() -> Path:
    return next((DATA / "old" / _SAMPLES / "journal").glob("*.jsonl"))


_LAYOUTS = b"""model: {layers: 4, hidden: 1024, heads: 8, ffn: 4096, vocabulary: 32000, length: 2048, batch: 16}
micro_batches: [1, 2]
recomputations: [none, full]
zeros: [0, 1]
schedules: [1F1B, GPipe]
"""

_GIVEN_LAYOUTS = b"""model:
  layers: 4
  hidden: 1024
  heads: 8
  ffn: 4096
  vocabulary: 32000
  length: 2048
  batch: 16
  norm: layer
  attention: unfused
  gated: no
  bias: yes
  dtype: float16
  head_layers: 0.5
layouts:
- {dp: 2, tp: 2, micro_batch: 2, fsdp: 2, zero: 1}
- {pp: 4, schedule: GPipe}
- {pp: 2, cp: 2, schedule: Interleaved1F1B, stages_per_rank: 2, recomputation: attention, sequence_parallel: no}
"""

_DATA_SHEET = b"""names: [NVIDIA H300 SXM, H300]
num_multiprocessors: 160
compute_capability: [9, 0]
copy_gb_per_s: 6000.0
tflops: {float64: 80, float32: 80, tensorfloat32: 600, float16: 1200.0, bfloat16: 1200.0}
total_memory_bytes: 206158430208
l2_cache_bytes: 67108864
clock_rate_mhz: 1980.0
memory_clock_rate_mhz: 3201.0
memory_bus_width_bits: 6144
power_limit_w: 800.0
source: a vendor's page
"""


def _host() -> bytes:
    costs = {field.name: 3.5 for field in dataclasses.fields(Host) if field.name.endswith("_us")}
    return encode(Host("a host", "NVIDIA H200", 64, **costs, measured_utc="2026-11-21T00:00:00Z", method="by hand"))


def _nccl_log(nodes: int) -> bytes:
    ranks = [f"#  Rank {n} Group  0 Pid {300 + n} on node{n % nodes} device {n} [01:00] NVIDIA H200" for n in range(4)]
    columns = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong"
    rows = [
        f"{2**n}  {2**n // 4}  float  sum  -1  {5 + 2**n / 1e5}  1.0  1.5  0  6.5  1.0  1.5  0" for n in (10, 16, 28)
    ]
    return "\n".join(["# nccl-tests all_reduce_perf", "# Using devices", *ranks, columns, *rows, ""]).encode()


def _collective_csv() -> bytes:
    sizes, groups = [2**n for n in range(12, 28, 5)], ((2, 1), (4, 1), (8, 2))
    rows = [
        f"{kind},{gpus},{nodes},{size},float,{10 + size / 1e5}"
        for kind in ("all_reduce", "all_gather")
        for gpus, nodes in groups
        for size in sizes
    ]
    return "\n".join(["collective,gpus,nodes,bytes,nccl_dtype,time_us", *rows, ""]).encode()


@cache
def _calibrated_model() -> bytes:
    """A model as `calibrate` leaves it: beside a shipped one, its operators carried from there and corrected."""
    model = transfer_model(load_model(SHIPPED / "NVIDIA_H200.tlmodel"), _CARD)
    rows, target = np.full((4, 40), 2.0), np.array([0.1, 0.2, 0.15, 0.1])

    def corrected(entry: Entry) -> Entry:
        found = constant_blend(rows[:, : len(entry.feature_names) + 1], target, 0.1, n_shape=1, coverage=0.9)
        return dataclasses.replace(entry, corrections=(found,))

    entries = {key: corrected(entry) if key.startswith("linear") else entry for key, entry in model.entries.items()}
    with tempfile.TemporaryDirectory() as folder:
        save_model(dataclasses.replace(model, entries=entries), Path(folder) / "m.tlmodel", beside="NVIDIA_H200")
        return (Path(folder) / "m.tlmodel").read_bytes()


def _kept(folder: Path) -> None:
    """What a calibration left: samples in a journal beside their plan, and launches of compiled programs."""
    shutil.copytree(DATA / "old" / _SAMPLES, folder / OPERATORS, dirs_exist_ok=True)
    (folder / FUSED).mkdir(exist_ok=True)
    shutil.copy(DATA / "old" / "h200_torchledger0.1.0.launches", folder / FUSED / "part-0-0.launches")


_CALIBRATE = ("calibrate", "-o", "OUT", "--budget", "4s", "--device", "cuda:0")

_OF_MODELS = (
    ("predict", *_ASK, "--dtype", "fp32", "--device", "FILE", "--json"),
    ("predict-step", str(LEDGER), "--device", "FILE"),
    ("plan", "--device", "FILE", *_PROGRAM),
    ("plan", "--layouts", "LAYOUTS", "--device", "FILE"),
    ("plan", "--world", "2", "--device", "FILE", "--fabric", "h200", "--json", *_PROGRAM),
    (*_CALIBRATE, "--base", "FILE"),
)
_SMALL_MODEL = str(DATA / "old" / "h200_torchledger0.1.0.tlmodel")
_CPU_MODEL = str(DATA / "old" / "cpu_torchledger0.1.0.tlmodel")

_OF_FABRICS = (
    ("plan", "--layouts", "LAYOUTS", "--world", "4", "--fabric", "FILE"),
    ("plan", "--world", "2", "--fabric", "FILE", *_PROGRAM),
    ("plan", "--world", "16", "--node", "4", "--fabric", "FILE", "--json", *_PROGRAM),
)
_OF_CALIBRATIONS = ((*_CALIBRATE, "--keep", "COPY", "--base", _SMALL_MODEL),)

_OF_SAMPLES = (
    ("samples", "show", "FOLDER"),
    ("samples", "check", "FOLDER"),
    ("samples", "merge", "FOLDER", "-o", "OUT"),
    ("fit", "FOLDER", "-o", "OUT"),
    ("samples", "export", "FOLDER", "-o", "OUT"),
    ("evaluate", "FOLDER", "--model", _CPU_MODEL, "--no-forest"),
    ("samples", "compact", "COPY"),
)
_OF_JOBS = (
    ("show", "FOLDER"),
    ("show", "FOLDER", "--json"),
    ("report", "FOLDER", "-o", "OUT.html"),
    ("diff", "FOLDER", "COPY"),
    ("diff", "COPY", "FOLDER", "--values", "--json"),
)


def _samples_around(folder: Path) -> None:
    shutil.copytree(DATA / "old" / _SAMPLES, folder)


KINDS: Mapping[str, Kind] = {
    "ledger": Kind(
        "a.ledger",
        _read(LEDGER),
        mutate_ledger,
        (
            ("show", "FILE"),
            ("show", "FILE", "--json"),
            ("show", "FILE", "forward_0#0"),
            ("show", "FILE", "--wrapper", "forward_0"),
            ("report", "FILE", "-o", "OUT.html"),
            ("export", "FILE", "--format", "inductor-json", "-o", "OUT"),
            ("export", "FILE", "--format", "parquet", "-o", "OUT"),
            ("diff", "FILE", str(LEDGER)),
            ("diff", "FILE", str(LEDGER), "--values"),
            ("predict-step", "FILE", "--device", "H200"),
            ("diff", "FILE", str(LEDGER), "--json"),
            ("diff", str(LEDGER), "FILE", "--fail-if", "launches > +0", "--markdown"),
            ("bench", "FILE", "--all", "--json", "--no-save"),
            ("extract", "FILE", "forward_0#0", "-o", "OUT"),
            ("extract", "FILE", "forward_0#0", "--trust", "-o", "OUT"),
            ("extract", "FILE", "--graph", "forward_0", "--trust", "-o", "OUT"),
            ("values", "FILE"),
            ("values", "FILE", "--json"),
        ),
    ),
    "profiled ledger": Kind(
        "b.ledger",
        _read(PROFILED),
        mutate_ledger,
        (
            ("show", "FILE"),
            ("report", "FILE", "-o", "OUT.html"),
            ("diff", str(LEDGER), "FILE"),
            ("export", "FILE", "--format", "chrome", "-o", "OUT"),
            ("predict-step", "FILE", "--device", "H200", "--graphs"),
            ("export", "FILE", "--format", "step", "-o", "OUT.csv"),
            ("extract", "FILE", "--graph", "forward_0", "--trust", "-o", "OUT"),
            ("diff", "FILE", str(PROFILED), "--json"),
            ("fit", "FILE", "-o", "OUT"),
        ),
    ),
    "trace": Kind(
        "t.json",
        _small_trace,
        mutate_json,
        (("import", "FILE"), ("import", "FILE", "--json"), ("import", "FILE", "-o", "OUT", "--chrome", "OUT.html")),
    ),
    "compressed trace": Kind(
        "t.json.gz",
        lambda: gzip.compress(_small_trace(), mtime=0),
        zipped(mutate_json),
        (("import", "FILE"), ("import", "FILE", "-o", "OUT")),
    ),
    "Nsight export": Kind(
        "n.sqlite",
        _nsight_export,
        mutate_export,
        (("import", "FILE"), ("import", "FILE", "--json"), ("import", "FILE", "-o", "OUT")),
    ),
    "rows of power": Kind(
        "p.json",
        _read(DATA.parent.parent / "data" / "h200" / "power_torch2.11.json"),
        mutate_json,
        (("fit-constants", "FILE", "-o", "OUT"), ("fit-constants", "FILE", "-o", "OUT", "--json")),
    ),
    "launches": Kind(
        "l.launches",
        _read(DATA / "old" / "h200_torchledger0.1.0.launches"),
        zipped(mutate_lines),
        (("predict-launches", "FILE"), ("fit", "FILE", "-o", "OUT"), ("fit-constants", "FILE", "-o", "OUT")),
    ),
    "samples": Kind(
        "s.parquet",
        _read(DATA / "old" / "cpu_torchledger0.1.0.samples" / "samples.parquet"),
        mutate_parquet,
        (
            ("samples", "show", "FILE"),
            ("samples", "check", "FILE"),
            ("samples", "export", "FILE", "-o", "OUT"),
            ("report", "FILE", "-o", "OUT.html"),
            ("fit", "FILE", "-o", "OUT"),
            ("fit-constants", "FILE", "-o", "OUT"),
            ("evaluate", "FILE", "--model", _CPU_MODEL, "--no-forest"),
        ),
    ),
    "model": Kind(
        "m.tlmodel",
        _read(DATA / "old" / "cpu_torchledger0.1.0.tlmodel"),
        mutate_model,
        (
            ("predict", *_ASK, "--device", "FILE"),
            ("predict", *_ASK, "--dtype", "fp32", "--device", "FILE", "--json"),
            ("predict-step", str(LEDGER), "--device", "FILE"),
            ("report", str(LEDGER), "--predict", "FILE", "-o", "OUT.html"),
            (
                "evaluate",
                str(DATA / "old" / "cpu_torchledger0.1.0.samples"),
                "--model",
                "FILE",
                "--no-forest",
                "--json",
            ),
        ),
    ),
    "sweep": Kind("sweep.yml", lambda: _SWEEP, mutate_text, (("sample", "FILE", "--plan-only", "-o", "OUT"),)),
    "guide CSV": Kind(
        "NVIDIAA100_gelu_fp16.csv",
        _guide_csv,
        mutate_text,
        (
            ("samples", "show", "FILE"),
            ("samples", "check", "FILE"),
            ("samples", "merge", "FILE", "-o", "OUT"),
            ("fit", "FILE", "-o", "OUT"),
            ("samples", "export", "FILE", "-o", "OUT"),
            ("evaluate", "FILE", "--model", _SMALL_MODEL, "--no-forest", "--json"),
        ),
    ),
    "journal": Kind(
        "journal/host-1-1.jsonl", lambda: _journal_file().read_bytes(), mutate_lines, _OF_SAMPLES, _samples_around
    ),
    "plan": Kind(
        "plan.jsonl", _read(DATA / "old" / _SAMPLES / "plan.jsonl"), mutate_lines, _OF_SAMPLES, _samples_around
    ),
    "sealed ledger": Kind(
        "a.ledger",
        lambda: _sealed_path().read_bytes(),
        mutate_ledger,
        (
            ("bench", "FILE", "--all", "--json", "--no-save"),
            ("extract", "FILE", "forward_0#0", "-o", "OUT"),
            ("extract", "FILE", "--graph", "forward_0", "-o", "OUT"),
        ),
    ),
    "rank of a job": Kind("rank0.ledger", lambda: _rank_ledger(0), mutate_ledger, _OF_JOBS, _job),
    "trace of a rank": Kind(
        "trace_0.json",
        lambda: _rank_trace(0),
        mutate_json,
        (("show", "FOLDER"), ("show", "FOLDER", "--json"), ("import", "FILE", "OTHER")),
        _rank_traces,
    ),
    "calibrated model": Kind("m.tlmodel", _calibrated_model, mutate_model, _OF_MODELS),
    "data sheet": Kind("card.yml", lambda: _DATA_SHEET, mutate_text, _OF_MODELS),
    "layouts": Kind(
        "model.yml",
        lambda: _LAYOUTS,
        mutate_text,
        (
            ("plan", "--layouts", "FILE", "--world", "4"),
            ("plan", "--layouts", "FILE", "--world", "16", "--fabric", "h200+800gb", "--node", "4", "--json"),
            ("plan", "--layouts", "FILE"),
        ),
    ),
    "given layouts": Kind(
        "model.yml",
        lambda: _GIVEN_LAYOUTS,
        mutate_text,
        (("plan", "--layouts", "FILE", "--world", "4"), ("plan", "--layouts", "FILE", "--world", "4", "--json")),
    ),
    "host": Kind(
        "host.json",
        _host,
        mutate_json,
        (
            ("plan", "--host", "FILE", *_PROGRAM),
            ("plan", "--world", "2", "--host", "FILE", "--graphs", "--json", *_PROGRAM),
            ("predict-step", str(LEDGER), "--device", "H200", "--host", "FILE"),
            ("predict-step", str(PROFILED), "--device", "H200", "--host", "FILE", "--graphs"),
        ),
    ),
    "nccl-tests": Kind("all_reduce.txt", lambda: _nccl_log(1), mutate_text, _OF_FABRICS),
    "nccl-tests of nodes": Kind("all_reduce.txt", lambda: _nccl_log(2), mutate_text, _OF_FABRICS),
    "table of collectives": Kind(
        "collectives.csv", _collective_csv, mutate_text, (*_OF_FABRICS, ("samples", "show", "FILE"))
    ),
    "kept journal": Kind(
        f"{OPERATORS}/journal/host-1-1.jsonl",
        lambda: _journal_file().read_bytes(),
        mutate_lines,
        _OF_CALIBRATIONS,
        _kept,
    ),
    "kept plan": Kind(
        f"{OPERATORS}/plan.jsonl", _read(DATA / "old" / _SAMPLES / "plan.jsonl"), mutate_lines, _OF_CALIBRATIONS, _kept
    ),
    "kept launches": Kind(
        f"{FUSED}/part-0-0.launches",
        _read(DATA / "old" / "h200_torchledger0.1.0.launches"),
        zipped(mutate_lines),
        _OF_CALIBRATIONS,
        _kept,
    ),
}


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
