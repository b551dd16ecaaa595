"""A device's ceilings: what it was measured to reach, kept in the user's cache so that every report can use it.

``measure_ceilings`` takes the times, ``store_ceilings`` keeps them under the device's name, ``known_ceilings`` answers
from a record or from that store. Nothing but the first imports torch.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchledger.errors import MeasureError
from torchledger.nouns import Ceilings, Device, Run
from torchledger.store import LedgerWriter, open_ledger
from torchledger.store.cache_folder import cache_folder, write_cached
from torchledger.store.codec import decode, encode

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

CUDA_DTYPES = ("bfloat16", "float16", "tf32", "float32", "float64", "float8_e4m3fn")
CPU_DTYPES = ("float32", "float64", "bfloat16", "float16")
"""Element types whose product rate is measured. ``tf32`` is float32 with its operands rounded for the tensor cores;
``float32`` is the full precision."""


def known_ceilings(device: Device | None) -> Ceilings | None:
    """Ceilings of a device: those in its record, else those that ``torchledger doctor`` stored on this machine for a
    device of that name. ``None`` if nobody measured any: then there is no roofline fraction."""
    if device is None:
        return None
    if device.ceilings is not None:
        return device.ceilings
    path = ceilings_path(device)
    try:
        return decode(Ceilings, path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("%s cannot be read (%s). Measure again with `torchledger doctor`.", path, error)
        return None


def product_rate(ceilings: Ceilings | None, dtype: str, *, allow_tf32: bool = False) -> float | None:
    """The TFLOP/s ceiling of products of ``dtype`` elements; ``allow_tf32`` says that float32 ones may be rounded.

    >>> product_rate(Ceilings(tflops_per_s={"float32": 50.0, "tf32": 400.0}), "float32", allow_tf32=True)
    400.0
    """
    if ceilings is None:
        return None
    if dtype == "float32" and allow_tf32 and "tf32" in ceilings.tflops_per_s:
        return ceilings.tflops_per_s["tf32"]
    return ceilings.tflops_per_s.get(dtype)


def ceilings_path(device: Device) -> Path:
    """Where the ceilings of a device of this name lie: ``~/.cache/torchledger/ceilings-<device>.json``.

    ``TORCHLEDGER_CACHE`` names another folder; ``XDG_CACHE_HOME`` is respected. A CPU's core count is part of the name.
    """
    cores = f" {device.num_cores} cores" if device.kind == "cpu" and device.num_cores else ""
    name = re.sub(r"[^a-z0-9]+", "-", f"{device.name}{cores}".lower()).strip("-")
    return cache_folder() / f"ceilings-{name}.json"


def store_ceilings(device: Device, ceilings: Ceilings) -> Path:
    """Keep the ceilings for ``known_ceilings``; returns the path. Raises ``StoreError`` if it cannot be written."""
    path = ceilings_path(device)
    write_cached(path, encode(ceilings))
    return path


def put_ceilings_into(file: str | os.PathLike[str], measured: Mapping[str, tuple[Device, Ceilings]]) -> list[str]:
    """Write ceilings into the ``Device`` records of a ledger; returns the names of the devices that got some.

    ``measured`` maps anything to (device, ceilings); they go to the devices of the same kind and name. Raises
    ``MeasureError`` if the ledger has none of them: ceilings of another machine would make its fractions wrong.
    """
    with open_ledger(file) as reader:
        run = reader.run()
    by_name = {(device.kind, device.name): ceilings for device, ceilings in measured.values()}
    matching = [device.name for device in run.devices if (device.kind, device.name) in by_name]
    if not matching:
        theirs = ", ".join(device.name for device in run.devices) or "no device"
        raise MeasureError(
            f"{file} was recorded on {theirs}, which is not what was measured here ("
            f"{', '.join(name for _, name in by_name)}). Run `torchledger doctor {file}` on the machine that wrote it."
        )
    devices = tuple(
        dataclasses.replace(device, ceilings=by_name.get((device.kind, device.name), device.ceilings))
        for device in run.devices
    )
    changed: Run = dataclasses.replace(run, devices=devices)
    with LedgerWriter(file, append=True) as writer:
        writer.add(changed, replace=True)
    return matching


# --- measuring -------------------------------------------------------------------------------------------------------


def measure_ceilings(
    device: str,
    *,
    dtypes: Sequence[str] | None = None,
    budget_s: float = 20.0,
    scale: float = 1.0,
    with_launches: bool = True,
    progress: Callable[[int, int, str], None] | None = None,
) -> Ceilings:
    """Measure what ``device`` (``"cuda"``, ``"cuda:1"``, ``"cpu"``) reaches: seconds on CUDA, ``budget_s`` on a CPU.

    Copy bandwidth is the best of several copies of up to 1 GiB (CPU: 256 MiB), read plus written. The product rate of
    each element type is the best over square products of several sizes. ``launch_overhead_us`` is the time per empty
    kernel when many are launched one after another, ``graph_launch_overhead_us`` the same inside one replayed CUDA
    graph; on a CPU, the time of one operator call on one element. ``scale`` makes all sizes smaller, for tests.
    Without ``with_launches`` only bandwidth and products are measured: about a second on CUDA. ``progress`` is told
    measurements done, their number, and what is measured next.

    Raises ``MeasureError`` if torch has no such device.
    """
    import torch

    place = find_place(device)
    if place.type not in ("cpu", "cuda"):
        raise MeasureError(f"ceilings of {device} cannot be measured; cpu and cuda can.")
    wanted = dtypes if dtypes is not None else CUDA_DTYPES if place.type == "cuda" else CPU_DTYPES

    def tell(done: int, what: str) -> None:
        if progress is not None:
            progress(done, len(wanted) + 2, what)

    meter = _CudaMeter(place) if place.type == "cuda" else _CpuMeter(place)
    deadline = time.monotonic() + budget_s
    with torch.no_grad():
        tell(0, f"{device} copy")
        copied = _copy_rate(meter, deadline, scale)
        rates = {}
        for done, dtype in enumerate(wanted, 1):
            tell(done, f"{device} {dtype}")
            rate = _product_rate(meter, dtype, deadline, scale)
            if rate is not None:
                rates[dtype] = rate
        tell(len(wanted) + 1, f"{device} launches")
        launch_us, graph_us = meter.launch_overheads_us() if with_launches else (None, None)
        return Ceilings(
            copy_gb_per_s=copied,
            tflops_per_s=rates,
            launch_overhead_us=launch_us,
            graph_launch_overhead_us=graph_us,
            timer_resolution_us=meter.timer_resolution_us(),
            measured_utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            method=f"best copy and best square products, clock {meter.clock}, torch {torch.__version__}"
            + (f", {torch.get_num_threads()} threads" if place.type == "cpu" else ""),
        )


def find_place(device: str) -> torch.device:
    """Torch's name of a device. Raises ``MeasureError`` for one that torch does not know, and for CUDA without any."""
    import torch

    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise MeasureError(f"torch knows no device {device!r}. Write cuda, cuda:1 or cpu.") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise MeasureError(f"torch {torch.__version__} sees no CUDA device here. Measure the CPU with --device cpu.")
    return place


def _copy_rate(meter: _CudaMeter | _CpuMeter, deadline: float, scale: float) -> float:
    import torch

    best = 0.0
    for size in meter.copy_sizes:
        size = max(int(size * scale), 4096)
        source = torch.empty(size, dtype=torch.uint8, device=meter.place).random_(0, 255)
        target = torch.empty_like(source)
        best = max(best, 2 * size / meter.best_us(lambda a=source, b=target: b.copy_(a), deadline) / 1e3)  # type: ignore[misc]
        if time.monotonic() > deadline:
            break
    return best


def _product_rate(meter: _CudaMeter | _CpuMeter, dtype: str, deadline: float, scale: float) -> float | None:
    """Best TFLOP/s of square products; ``None`` where the device cannot take this element type."""
    import torch

    best = None
    former = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    try:
        for side in meter.product_sides:
            side = max(int(side * scale), 64)
            try:
                run = _make_product(meter.place, dtype, side)
                us = meter.best_us(run, deadline)
            except (RuntimeError, AttributeError, TypeError) as error:
                log.info("no %s products on %s: %s", dtype, meter.place, str(error).partition("\n")[0])
                return best
            best = max(best or 0.0, 2 * side**3 / us / 1e6)
            # A slow type would take eight times longer at the next size.
            if us > 2e5 or time.monotonic() > deadline:
                break
    finally:
        torch.backends.cuda.matmul.allow_tf32 = former
    return best


def _make_product(place: Any, dtype: str, side: int) -> Callable[[], Any]:
    import torch

    from torchledger._torch.tensors import dtype_named

    def operand() -> Any:
        values = torch.randn(side, side, device=place)
        return values.to(dtype_named({"tf32": "float32"}.get(dtype, dtype)))

    left, right = operand(), operand()
    if dtype.startswith("float8"):
        from torchledger._torch.products import scaled_product

        return lambda: scaled_product(left, right)
    target = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=target)


class _CudaMeter:
    """Times by CUDA events on the present stream."""

    clock = "cuda_event"
    copy_sizes = (2**28, 2**30)
    product_sides = (4096, 8192)

    def __init__(self, place: Any) -> None:
        import torch

        self.place = torch.device("cuda", torch.cuda.current_device() if place.index is None else place.index)
        torch.cuda.set_device(self.place)

    def best_us(self, run: Callable[[], Any], deadline: float, repeats: int = 10) -> float:
        """The shortest time of one call, each between two events, after the first ones."""
        import torch

        for _ in range(3):
            run()
        events = [_event() for _ in range(repeats + 1)]
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        return min(float(first.elapsed_time(last)) * 1e3 for first, last in itertools.pairwise(events))

    def launch_overheads_us(self) -> tuple[float | None, float | None]:
        """Time per empty kernel, launched one by one and inside a replayed graph."""
        import torch

        from torchledger._torch.kernels import launch_empty_kernel

        count = 1000
        graph = torch.cuda.CUDAGraph()
        launch_empty_kernel()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(count):
                launch_empty_kernel()

        def launch_all() -> None:
            for _ in range(count):
                launch_empty_kernel()

        deadline = time.monotonic() + 5
        return self.best_us(launch_all, deadline, 5) / count, self.best_us(graph.replay, deadline, 5) / count

    def timer_resolution_us(self) -> float | None:
        """The smallest step between the times of pairs of events."""
        import torch

        events = [_event() for _ in range(300)]
        for event in events:
            event.record()
        torch.cuda.synchronize()
        times = {events[0].elapsed_time(event) * 1e3 for event in events[1:]}
        return _smallest_step(times)


class _CpuMeter:
    """Times by the host's clock."""

    clock = "host"
    copy_sizes = (2**26, 2**28)
    product_sides = (1024, 2048)

    def __init__(self, place: Any) -> None:
        self.place = place

    def best_us(self, run: Callable[[], Any], deadline: float, repeats: int = 10) -> float:
        """The shortest time of one call; fewer repeats once the deadline is near."""
        run()
        times: list[float] = []
        while not times or (len(times) < repeats and time.monotonic() < deadline):
            started = time.perf_counter_ns()
            run()
            times.append((time.perf_counter_ns() - started) / 1e3)
        return max(min(times), 1e-3)

    def launch_overheads_us(self) -> tuple[float | None, float | None]:
        """Time of one operator call on one element; a CPU has no graphs to replay."""
        import torch

        element = torch.zeros(1)
        times = []
        for _ in range(5):
            started = time.perf_counter_ns()
            for _ in range(2000):
                element.neg_()
            times.append((time.perf_counter_ns() - started) / 1e3 / 2000)
        return statistics.median(times), None

    def timer_resolution_us(self) -> float | None:
        """The smallest step between readings of the clock."""
        return _smallest_step({time.perf_counter_ns() / 1e3 for _ in range(2000)})


def _smallest_step(times: Iterable[float]) -> float | None:
    ordered = sorted(set(times))
    return min((later - earlier for earlier, later in itertools.pairwise(ordered)), default=None)


def _event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
