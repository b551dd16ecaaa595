"""Measuring the kernels that Inductor makes of random programs: thousands in a few minutes.

Compiling takes seconds and the host, running takes microseconds and the GPU. So several processes compile at once, then
stand still while one after the other runs what it compiled: nothing else is on the GPU while a kernel is timed. Before
each forward and each backward the L2 cache is swept, so that a kernel finds in it what kernels before it in the same
graph left there, as in a training step.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torchledger._torch.dynamo import allow_recompilations
from torchledger.capturing.session import Capture
from torchledger.capturing.watcher import Watcher
from torchledger.errors import SampleError
from torchledger.nouns import Launch, Measurement
from torchledger.sampling.programs import LARGEST_NUMEL, Program, check_families, draw_program, make_inputs
from torchledger.sampling.turns import Turns
from torchledger.store.launch_file import LaunchSet, MeasuredLaunch, join_launches, read_launches, write_launches
from torchledger.store.output import check_output

log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]

_WARMUP = 2
_SWEEP_BYTES = 2**28
_ROUND_S = 75.0
_GRACE_S = 240.0  # a worker that says nothing for so long is given up
_MEASURE_SHARE = 0.12  # of the time, kept for measuring what the last round compiled


@dataclass(frozen=True)
class FusedPlan:
    """What to compile and how to measure it. ``seeds`` start at ``first_seed``; ``minutes`` bound the whole."""

    device: str = "cuda"
    minutes: float = 4.0
    processes: int = 12
    iterations: int = 6
    first_seed: int = 0
    largest_numel: int = LARGEST_NUMEL
    memory_share: float = 0.06
    programs: int | None = None
    families: tuple[str, ...] = ()
    """Which are drawn, all alike; none given: all of them, by their weights."""
    turns: str | None = None
    """A lock file: each graph call and each recording waits there for its turn on the device."""


@dataclass(frozen=True)
class FusedReport:
    """What became of the programs: how many compiled and measured, and why the others were not."""

    programs: int = 0
    launches: int = 0
    measured: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def sample_fused(
    output: str | os.PathLike[str],
    plan: FusedPlan | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> FusedReport:
    """Compile random programs, measure their kernels and write them to ``output`` (a ``.launches`` file).

    Raises ``SampleError`` if nothing could be measured; before anything is, for a family that nobody draws, and
    ``StoreError`` if ``output`` exists (without ``force``).
    """
    plan = plan or FusedPlan()
    check_families(plan.families)
    output = Path(output)
    check_output(output, force=force)
    started = time.monotonic()
    deadline = started + 60 * plan.minutes
    failures: Counter[str] = Counter()
    programs = 0
    with tempfile.TemporaryDirectory(prefix="torchledger-fused-") as folder:
        workers = _start(plan, Path(folder))
        try:
            while workers and time.monotonic() < deadline:
                left = deadline - time.monotonic()
                until = time.time() + min(_ROUND_S, max(0.0, left - _MEASURE_SHARE * 60 * plan.minutes))
                if not _ask_all(workers, ("compile", until), failures):
                    break
                compiled = 0
                for worker in list(workers):
                    told = _ask_all([worker], ("measure", None), failures)
                    if not told:
                        workers.remove(worker)
                        continue
                    compiled += told[0]["programs"]
                programs += compiled
                if progress is not None:
                    progress(min(int(time.monotonic() - started), int(60 * plan.minutes)), int(60 * plan.minutes), "")
                if not compiled or until - time.time() > 0:
                    break
            for answer in _ask_all(workers, ("finish", None), failures):
                failures.update(answer["failures"])
        finally:
            for process, connection in workers:
                connection.close()
                process.join(20)
                if process.is_alive():
                    process.terminate()
        parts = [read_launches(path) for path in sorted(Path(folder).glob("part-*.launches"))]
    parts = [part for part in parts if part.launches]
    if not parts:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in failures.most_common(3))
        raise SampleError(f"no program was measured on {plan.device}: {reasons or 'nothing was compiled in time'}.")
    found = join_launches(parts)
    write_launches(output, found, force=force)
    measured = sum(1 for item in found.launches if item.times_us)
    return FusedReport(programs, len(found.launches), measured, dict(failures), time.monotonic() - started)


Worker = tuple[Any, Connection]


def _start(plan: FusedPlan, folder: Path) -> list[Worker]:
    context = get_context("spawn")
    workers = []
    for index in range(plan.processes):
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, plan, index, str(folder)), daemon=True)
        process.start()
        theirs.close()
        workers.append((process, ours))
    return workers


def _ask_all(workers: Sequence[Worker], question: tuple[str, Any], failures: Counter[str]) -> list[dict[str, Any]]:
    """Put a question to workers at once and gather their answers; a worker that died or hangs is a failure."""
    answers = []
    for _, connection in workers:
        with contextlib.suppress(OSError):
            connection.send(question)
    limit = _GRACE_S + (max(0.0, question[1] - time.time()) if isinstance(question[1], float) else 0.0)
    end = time.monotonic() + limit
    for process, connection in workers:
        try:
            if connection.poll(max(0.1, end - time.monotonic())):
                answers.append(connection.recv())
                continue
            failures["a worker hung"] += 1
            process.terminate()
        except (EOFError, OSError):
            failures["a worker died"] += 1
    return answers


# What a worker does


class GraphMarks(Watcher):
    """Names the calls of compiled graphs in a running profile, and keeps their launches."""

    def __init__(self, turns: Turns | None = None) -> None:
        self.launches: dict[str, list[Launch]] = {}
        self._turns = turns
        self._names: dict[int, str] = {}
        self._keep: list[Any] = []
        self._patches: list[Any] = []
        self.is_recording = False  # the whole recording is one turn

    def on_ready(self) -> bool:
        from torchledger._torch.profiler import make_kernels_visible, watch_graph_calls

        self._patches = [make_kernels_visible(), watch_graph_calls(self._around)]
        return True

    def on_graph(self, name: str, compiled: Any, launches: Sequence[Launch]) -> None:
        self._names[id(compiled)] = name
        self._keep.append(compiled)  # an id is only a name while its object lives
        self.launches[name] = list(launches)

    def on_close(self) -> bool:
        for patches in self._patches:
            patches.undo()
        return True

    def forget(self) -> None:
        """Drop the graphs of programs that are measured."""
        self.launches.clear()
        self._names.clear()
        self._keep.clear()

    def _around(self, compiled: Any, inputs: Sequence[Any], proceed: Callable[[], Any]) -> Any:
        from torchledger._torch import profiler
        from torchledger.traces.graph_marks import graph_mark

        name = self._names.get(id(compiled))
        if self._turns is not None and not self.is_recording:
            with self._turns.take(shared=True):
                outputs = proceed()
                profiler.synchronize()
                return outputs
        if name is None or not profiler.is_profiling():
            return proceed()
        with profiler.mark(graph_mark(name)):
            return proceed()


@dataclass
class _Compiled:
    program: Program
    function: Any
    graphs: tuple[str, ...]


def _work(connection: Connection, plan: FusedPlan, index: int, folder: str) -> None:
    """The loop of one worker process: compile, measure, write."""
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ[name] = "1"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / f"inductor-{index}")
    worker = FusedWorker(plan, Path(folder) / f"worker-{index}.ledger")
    seeds = iter(range(plan.first_seed + index, plan.first_seed + (plan.programs or 10**9), plan.processes))
    failures: Counter[str] = Counter()
    pending: Any = None
    part = 0
    with contextlib.suppress(EOFError, OSError):
        while True:
            task, until = connection.recv()
            if task == "compile":
                part += _write_part(worker, pending, Path(folder) / f"part-{index}-{part}.launches", failures)
                pending = None
                worker.forget()
                worker.compile_until(seeds, until, failures)
                connection.send({"programs": len(worker.compiled)})
            elif task == "measure":
                count = len(worker.compiled)
                pending = worker.record(failures)
                connection.send({"programs": count})
            else:
                part += _write_part(worker, pending, Path(folder) / f"part-{index}-{part}.launches", failures)
                pending = None
                connection.send({"failures": dict(failures)})
                break
    worker.close()


def sample_in_turns(
    plan: FusedPlan, index: int, folder: str, until: float, round_s: float = 30.0, caches: str | None = None
) -> None:
    """The whole life of one process among others that share the device: compile, measure in a turn, write, again.

    ``until`` is a moment of the wall clock. Each round leaves ``part-INDEX-ROUND.launches`` in ``folder`` and
    ``failures-INDEX.json``; what was compiled and not measured when the process is ended is lost, no more. Compilers
    write gigabytes into ``caches`` (``None``: ``folder``), which whoever gave it removes.
    """
    warnings.simplefilter("ignore")  # a user who calibrates asked for none of these programs
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        os.environ[name] = "1"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(caches or folder) / f"inductor-{index}")
    os.environ["TRITON_CACHE_DIR"] = str(Path(caches or folder) / f"triton-{index}")
    worker = FusedWorker(plan, Path(folder) / f"worker-{index}.ledger")
    seeds = iter(range(plan.first_seed + index, plan.first_seed + (plan.programs or 10**9), plan.processes))
    failures: Counter[str] = Counter()
    # Processes that ended their rounds together would queue for the device and let the cores rest.
    round_end = time.time() + round_s * (0.6 + 0.8 * index / max(plan.processes, 1))
    number = 0
    while time.time() < until:
        worker.compile_until(seeds, min(round_end, until), failures)
        if not worker.compiled:
            break
        pending = worker.record(failures)
        _write_part(worker, pending, Path(folder) / f"part-{index}-{number}.launches", failures)
        (Path(folder) / f"failures-{index}.json").write_text(json.dumps(failures))
        worker.forget()
        number, round_end = number + 1, time.time() + round_s
    worker.close()


def _write_part(worker: FusedWorker, pending: Any, path: Path, failures: Counter[str]) -> int:
    if pending is None:
        return 0
    try:
        write_launches(path, worker.measured(pending))
    except Exception as error:  # one round is lost and said, the others stand
        failures[f"a round could not be read: {type(error).__name__}: {str(error)[:120]}"] += 1
    return 1


class FusedWorker:
    """Compiles and measures programs in this process."""

    def __init__(self, plan: FusedPlan, ledger: Path) -> None:
        import torch

        self.plan = plan
        self.compiled: list[_Compiled] = []
        self._on_cuda = torch.device(plan.device).type == "cuda"
        if self._on_cuda:
            torch.cuda.set_per_process_memory_fraction(plan.memory_share)
            self._sweep = torch.empty(_SWEEP_BYTES, dtype=torch.uint8, device=plan.device)
        allow_recompilations(10**6)
        self._choosing = None
        if self._on_cuda and plan.processes > 1 and plan.turns is None:
            from torchledger._torch.choosing import choose_in_turn

            self._choosing = choose_in_turn(Turns(ledger.with_name("choosing")).take)
        self._capture = Capture(ledger, force=True)
        self.turns = Turns(plan.turns) if plan.turns else None
        self._marks = GraphMarks(self.turns)
        self._capture.watch(self._marks)

    def close(self) -> None:
        """Take the hooks out."""
        self._capture.close()
        if self._choosing is not None:
            self._choosing.undo()

    def forget(self) -> None:
        """Drop what was compiled."""
        import torch

        self.compiled.clear()
        self._marks.forget()
        torch.compiler.reset()

    def compile_until(self, seeds: Iterator[int], until: float, failures: Counter[str]) -> None:
        """Compile one program after the other until a moment of the wall clock, or until seeds end."""
        import torch

        while time.time() < until:
            seed = next(seeds, None)
            if seed is None:
                return
            known = set(self._marks.launches)
            own = self.plan.families
            family = own[seed // self.plan.processes % len(own)] if own else None
            program = draw_program(seed, largest_numel=self.plan.largest_numel, family=family)
            try:
                function = torch.compile(program.function, dynamic=False)
                with self.turns.take(shared=True) if self.turns is not None else contextlib.nullcontext():
                    inputs = make_inputs(program, self.plan.device)
                self._step(program, function, inputs)
            except Exception as error:  # a random program may be too large or hit a compiler's fault: it is counted
                failures[f"{program.family}: {type(error).__name__}: {str(error).splitlines()[0][:80]}"] += 1
                continue
            finally:
                inputs = {}
                self._free()
            graphs = tuple(name for name in self._marks.launches if name not in known)
            self.compiled.append(_Compiled(program, function, graphs))

    def record(self, failures: Counter[str]) -> Any:
        """Run everything that is compiled, alone on the device, under one profile."""
        if not self.compiled:
            return None
        if self.turns is None:
            return self._record(failures)
        with self.turns.take():
            self._marks.is_recording = True
            try:
                return self._record(failures)
            finally:
                self._marks.is_recording = False

    def _record(self, failures: Counter[str]) -> Any:
        from torchledger._torch import profiler

        recording = profiler.Recording()
        started = False
        try:
            for item in self.compiled:
                try:
                    inputs = make_inputs(item.program, self.plan.device)
                    for _ in range(_WARMUP):
                        self._step(item.program, item.function, inputs)
                    profiler.synchronize()
                    if not started:
                        recording.start()
                        started = True
                    for _ in range(self.plan.iterations):
                        self._step(item.program, item.function, inputs)
                    profiler.synchronize()
                except RuntimeError as error:
                    failures[f"measuring {item.program.family}: {str(error).splitlines()[0][:80]}"] += 1
                finally:
                    inputs = {}
                    self._free()
        finally:
            if started:
                recording.stop()
        return recording if started else None

    def measured(self, recording: Any) -> LaunchSet:
        """The launches of the compiled programs with their times, out of a recording."""
        import torch

        from torchledger.device.describe import describe_devices
        from torchledger.profiling.records import profile_records
        from torchledger.profiling.steps import Steps
        from torchledger.traces.reading import read_trace

        path: Path = recording.export()
        try:
            trace = read_trace(path)
        finally:
            path.unlink(missing_ok=True)
        launches = [launch for group in self._marks.launches.values() for launch in group]
        devices = describe_devices()
        records, _ = profile_records(
            trace, launches, steps=Steps(), learned={}, devices=devices, n_steps=self.plan.iterations
        )
        times = {record.subject: record.samples_us for record in records if isinstance(record, Measurement)}
        found = []
        for item in self.compiled:
            program = f"{item.program.name}-{item.program.precision}"
            for graph in item.graphs:
                for launch in self._marks.launches[graph]:
                    samples = times.get(launch.launch_id, ())
                    found.append(MeasuredLaunch(launch, samples, program))
        own = [device for device in devices if device.kind == torch.device(self.plan.device).type]
        versions = {"torch": str(torch.__version__)}
        name, record = (own[0].name, own[0]) if own else (self.plan.device, None)
        return LaunchSet(name, tuple(found), versions, record)

    def _step(self, program: Program, function: Any, inputs: Mapping[str, Any]) -> None:
        import torch

        kind = torch.device(self.plan.device).type
        for tensor in inputs.values():
            tensor.grad = None
        self._sweep_cache()
        with torch.autocast(kind, torch.bfloat16, enabled=program.precision == "autocast"):
            output = function(**inputs)
        outputs = [part for part in (output if isinstance(output, tuple) else (output,)) if part.requires_grad]
        gradients = [torch.ones_like(part) for part in outputs]
        self._sweep_cache()
        torch.autograd.backward(outputs, gradients)

    def _sweep_cache(self) -> None:
        # Beside others a sweep would disturb their times, and say nothing of ours.
        if self._on_cuda and (self.turns is None or self._marks.is_recording):
            self._sweep.zero_()

    def _free(self) -> None:
        import torch

        if self._on_cuda:
            torch.cuda.empty_cache()
