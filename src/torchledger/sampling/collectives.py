"""Timing collectives: every rank runs this under torchrun, the first one journals.

An iteration's time is the shortest over the ranks: a rank that arrives early waits inside its kernel for the others,
so that only the last one's kernel is all transfer. On CUDA the times are CUPTI's, on a CPU (gloo) the host's. A
collective may run beside other work, as it does in a program: products or copies that a stream of their own begins
before it and ends after it (on a CPU a thread).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchledger.errors import SampleError
from torchledger.nouns import Sample
from torchledger.operators.collectives import COLLECTIVES, OPERATOR_PREFIX, Beside, beside_prefix, make_call
from torchledger.sampling.dataset import compact, measured_points, single_precision
from torchledger.sampling.journal import JOURNAL_FOLDER, Journal, read_journals
from torchledger.sampling.points import point_id
from torchledger.sampling.worker import describe_device, refuse_other_device
from torchledger.work.element_sizes import ELEMENT_SIZES

log = logging.getLogger(__name__)

Timer = Callable[[Callable[[], Any], Any, int, int, Callable[[], Any] | None], list[float]]
"""Times in microseconds of a call in a group after so many warm-ups, so many times, beside work."""

LARGEST_REPEATED_BYTES = 2**26
"""Above this, three warm-ups and ten iterations take long enough to be steady."""


@dataclass(frozen=True)
class CollectivePoint:
    """One collective at one message size, dtype and group size, and what runs beside it."""

    collective: str
    numel: int
    dtype: str
    world: int
    beside: Beside = "nothing"

    @property
    def operator(self) -> str:
        """The operator that its samples are of, ``"collective.beside_products.all_reduce"``."""
        return f"{OPERATOR_PREFIX}{beside_prefix(self.beside)}{self.collective}"


def collect_collectives(
    points: Sequence[CollectivePoint],
    folder: str | os.PathLike[str],
    *,
    device: str = "cuda",
    warmup: int = 3,
    active: int = 10,
    allow_mixed: bool = False,
    keep_journals: bool = False,
) -> int:
    """Measure what the folder does not hold yet; returns how many points this call measured.

    Runs on all ranks of a torchrun launch; groups smaller than the whole are its first ranks. Raises ``SampleError``
    outside of torchrun, or if the folder holds another device's or version's measurements.
    """
    import torch
    import torch.distributed as distributed

    if "RANK" not in os.environ:
        raise SampleError(
            "collectives need peers: start this command with torchrun, such as "
            "torchrun --nproc-per-node 4 -m torchledger sample SWEEP.yml"
        )
    folder = Path(folder)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_cuda = device.startswith("cuda")
    place = f"cuda:{local % max(torch.cuda.device_count(), 1)}" if on_cuda else "cpu"
    if on_cuda:
        if not torch.cuda.is_available():
            raise SampleError("no CUDA device is visible. Pass --device cpu to run the collectives on gloo.")
        torch.cuda.set_device(place)
    started_here = not distributed.is_initialized()
    if started_here:
        distributed.init_process_group("nccl" if on_cuda else "gloo")
    try:
        return _collect(points, folder, place, warmup, active, allow_mixed, keep_journals)
    finally:
        if started_here:
            distributed.destroy_process_group()


def link_topology() -> dict[str, str]:
    """How the GPUs of this node are linked, by pair: ``{"0-1": "NV18"}``, as ``nvidia-smi topo -m`` calls it; empty
    where it tells nothing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    try:
        answer = subprocess.run([program, "topo", "-m"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_topology(answer.stdout)


def parse_topology(text: str) -> dict[str, str]:
    """The links in ``nvidia-smi topo -m``'s matrix.

    >>> parse_topology("\\tGPU0\\tGPU1\\tCPU Affinity\\nGPU0\\t X \\tNV18\\t0-31\\nGPU1\\tNV18\\t X \\t0-31\\n")
    {'0-1': 'NV18'}
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    # The header begins with a tab, the rows with their GPU.
    rows = [re.split(r"\s+", line.strip()) for line in plain.splitlines() if re.match(r"GPU\d+\s", line)]
    links = {}
    for first, row in enumerate(rows):
        for second in range(first + 1, len(rows)):
            if len(row) > second + 1:
                links[f"{first}-{second}"] = row[second + 1]
    return links


def _collect(
    points: Sequence[CollectivePoint],
    folder: Path,
    place: str,
    warmup: int,
    active: int,
    allow_mixed: bool,
    keep_journals: bool,
) -> int:
    import torch.distributed as distributed

    rank, world = distributed.get_rank(), distributed.get_world_size()
    identity = describe_device(place)
    protocol = f"collective-{warmup}+{active}"
    groups = {
        size: distributed.new_group(list(range(size))) for size in sorted({p.world for p in points if p.world <= world})
    }
    message: list[Any] = [None]
    if rank == 0:
        message = [_plan(points, folder, identity, protocol, allow_mixed, world)]
    distributed.broadcast_object_list(message, src=0)
    if isinstance(message[0], str):
        raise SampleError(message[0])
    left: list[CollectivePoint] = message[0]
    links = link_topology() if rank == 0 else {}
    journal = Journal(folder, {**identity, "clock": "cupti", "links": links}) if rank == 0 and left else None
    timer: Timer = _cuda_times if place.startswith("cuda") and _has_trace() else _host_times
    clock = "cupti" if timer is _cuda_times else "host"
    for point in left:
        group = groups[point.world]
        result: tuple[str, Any] = ("unsupported", None)
        if rank < point.world:
            result = _measure(point, place, group, warmup, active, timer)
        gathered: list[Any] = [None] * world
        distributed.all_gather_object(gathered, result)
        if journal is not None:
            sample = _sample(point, gathered[: point.world], identity, protocol, clock, warmup, links)
            journal.finish((sample.point_id, [sample]))
    if journal is not None:
        journal.close()
        if not keep_journals and (folder / JOURNAL_FOLDER).is_dir():
            compact(folder)
    distributed.barrier()
    return len(left)


def _plan(
    points: Sequence[CollectivePoint],
    folder: Path,
    identity: dict[str, Any],
    protocol: str,
    allow_mixed: bool,
    world: int,
) -> list[CollectivePoint] | str:
    """What is left to measure, or why nothing can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        state = read_journals(folder, samples=False)
        if not allow_mixed:
            refuse_other_device(folder, identity, state)
        done = set(state.samples) | measured_points(folder)
    except (SampleError, OSError) as error:
        return str(error)
    too_large = sorted({p.world for p in points if p.world > world})
    if too_large:
        return f"groups of {too_large[0]} ranks are asked for, torchrun started {world}."
    return [p for p in points if _id(p, identity["device"], protocol) not in done]


def _id(point: CollectivePoint, device: str, protocol: str) -> str:
    parameters = {"numel": point.numel, "world": point.world}
    return point_id(point.operator, parameters, point.dtype, device, protocol)


def _measure(
    point: CollectivePoint,
    place: str,
    group: Any,
    warmup: int,
    active: int,
    timer: Timer,
) -> tuple[str, Any]:
    """("ok", times) or a status and its reason; the same on all ranks, for the arguments are."""
    import torch

    if reason := COLLECTIVES[point.collective].check(point.numel, point.world):
        return "unsupported", reason
    if point.numel * ELEMENT_SIZES[point.dtype] > LARGEST_REPEATED_BYTES:
        warmup = min(warmup, 2)
    try:
        call = make_call(point.collective, point.numel, point.dtype, place, group)
    except torch.OutOfMemoryError as error:
        return "out_of_memory", str(error).splitlines()[0]
    try:
        return "ok", timer(call, group, warmup, active, make_work(point.beside, place))
    except (RuntimeError, NotImplementedError) as error:
        return "failed", f"{type(error).__name__}: {str(error).splitlines()[0]}"


def make_work(beside: Beside, place: str) -> Callable[[], Any] | None:
    """One call of what runs beside a collective: a product of 4096 cubed or a copy of 256 MiB (on a CPU 256 and 1 MiB);
    ``None`` for nothing."""
    import torch

    if beside == "nothing":
        return None
    on_cuda = place.startswith("cuda")
    if beside == "copies":
        source = torch.ones(2**28 if on_cuda else 2**20, dtype=torch.uint8, device=place)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)
    edge, dtype = (4096, torch.bfloat16) if on_cuda else (256, torch.float32)
    left, right = (torch.randn(edge, edge, device=place).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=product)


def _host_times(
    call: Callable[[], Any], group: Any, warmup: int, active: int, work: Callable[[], Any] | None
) -> list[float]:
    import torch.distributed as distributed

    for _ in range(warmup):
        call()
    times = []
    with _on_a_thread(work):
        for _ in range(active):
            distributed.barrier(group=group)
            started = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - started) / 1e3)
    return times


@contextmanager
def _on_a_thread(work: Callable[[], Any] | None) -> Iterator[None]:
    """Keep a thread busy with ``work`` meanwhile."""
    if work is None:
        yield
        return
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            work()

    thread = threading.Thread(target=run, name="work beside a collective", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _cuda_times(
    call: Callable[[], Any], group: Any, warmup: int, active: int, work: Callable[[], Any] | None
) -> list[float]:
    import torch

    from torchledger._torch.device_trace import DeviceTrace

    for _ in range(warmup):
        call()
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    queued = 0 if work is None else _how_many(work, call)
    with DeviceTrace() as trace:
        pieces = []
        for _ in range(active):
            pieces.append(trace.mark())
            if work is not None:
                aside.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(aside):
                    for _ in range(queued):
                        work()
            call()
            if work is not None:
                # The next marker stands behind the work, and on one stream with the collective.
                torch.cuda.current_stream().wait_stream(aside)
        trace.mark()
    found = trace.pieces()
    if found is None:
        raise RuntimeError("the profiler lost records")
    if work is None:
        # A rank that takes no part in a p2p has no kernel, and does not count.
        return [found[index].busy_us or float("inf") for index in pieces]
    return [found[index].named("nccl").busy_us or float("inf") for index in pieces]


def _how_many(work: Callable[[], Any], call: Callable[[], Any]) -> int:
    """Calls of ``work`` that begin before a collective and outlast it, though each takes half as long again."""
    import torch

    durations = []
    for one in (work, call):
        one()
        torch.cuda.synchronize()
        started = time.perf_counter()
        one()
        torch.cuda.synchronize()
        durations.append(time.perf_counter() - started)
    return min(1000, int(8 + 2 * durations[1] / durations[0]))


def _has_trace() -> bool:
    from torchledger._torch.device_trace import device_trace_available

    return device_trace_available()


def _sample(
    point: CollectivePoint,
    results: Sequence[tuple[str, Any]],
    identity: dict[str, Any],
    protocol: str,
    clock: str,
    warmup: int,
    links: dict[str, str],
) -> Sample:
    status, value = next((result for result in results if result[0] != "ok"), ("ok", None))
    times: tuple[float, ...] = ()
    if status == "ok":
        involved = [result[1] for result in results][: 2 if point.collective == "p2p" else None]
        times = single_precision([min(one) for one in zip(*involved, strict=True)])
    item_size = ELEMENT_SIZES[point.dtype]
    moved = COLLECTIVES[point.collective].bus_bytes(point.numel, point.world, item_size)
    kinds = sorted({kind for pair, kind in links.items() if max(map(int, pair.split("-"))) < point.world})
    return Sample(
        point_id=_id(point, identity["device"], protocol),
        operator=point.operator,
        parameters={"numel": point.numel, "world": point.world},
        direction="forward",
        dtype=point.dtype,
        device=identity["device"],
        status=status,  # type: ignore[arg-type]
        times_us=times,
        flops=0,
        bytes_moved=int(moved),
        reason=value,
        clock=clock,
        warmup=warmup,
        telemetry={"links": ",".join(kinds) or None},
        versions=identity["versions"],
        measured_utc=round(time.time(), 3),
    )
