"""The sampling guide's YAML, as it is: read, checked, run, and written out as its CSV and log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from torchledger.errors import SampleError
from torchledger.operators import Operator, find_operator
from torchledger.operators.declaration import dtype_name
from torchledger.operators.functions import FunctionOperator, aim_function
from torchledger.sampling.collection import Collection, collect_samples
from torchledger.sampling.dataset import read_samples
from torchledger.sampling.guide_csv import (
    BACKWARD_COLUMN,
    COLUMN_DIRECTIONS,
    FORWARD_COLUMN,
    STEP_COLUMN,
    guide_file_stem,
    short_precision,
    write_guide_csv,
)
from torchledger.sampling.points import Plan, Point, check_part, unique_points
from torchledger.sampling.supervisor import WorkerOptions
from torchledger.sampling.sweep import LARGEST_PLAN, LARGEST_RANGE, Whole
from torchledger.store.yaml_file import YamlFile, read_yaml, validate

log = logging.getLogger(__name__)

RunMode = Literal["get_all", "get_one", "get_profiler", "run_function"]


class GuideFile(BaseModel):
    """The keys of the guide's YAML."""

    model_config = ConfigDict(extra="forbid")

    module_name: str = "target_functions"
    kernel_name: str
    function_name: str
    columns_name: list[str]
    targets: list[list[str]] = []
    first_n_column: Whole = Field(ge=1)
    starts: list[Whole]
    steps: list[Whole]
    ends: list[Whole]
    operators: list[Literal["mul", "add"]]
    warmup_shapes: list[Whole]
    wait: Whole = Field(default=2, ge=0)
    warmup: Whole = Field(default=2, ge=0)
    active: Whole = Field(default=10, ge=1)
    shapes: list[Whole]
    run: RunMode = "get_all"


@dataclass(frozen=True)
class GuideSweep:
    """A checked guide file: the operator, every shape of the grid that it can run, and the file's own settings."""

    path: Path
    operator: Operator
    settings: GuideFile
    shapes: tuple[tuple[int, ...], ...]
    skipped: int
    operator_files: tuple[str, ...] = ()
    """Python of the user's that a worker must load first."""

    def plan(self, dtype: str, shapes: Sequence[Sequence[int]] | None = None) -> Plan:
        """The plan: all shapes, or those given. ``wait`` and ``warmup`` iterations both run the shape itself."""
        chosen = self.shapes if shapes is None else shapes
        points = [Point(self.operator.key, self.operator.resolve(list(shape)), dtype) for shape in chosen]
        settings = self.settings
        targets = {}
        if isinstance(self.operator, FunctionOperator):
            targets[self.operator.key] = self.operator.targets
        return Plan(
            unique_points(points),
            settings.wait + settings.warmup,
            settings.active,
            self.operator_files,
            targets=targets,
        )


def is_guide_file(path: Path) -> bool:
    """True for a file with the guide's keys, false for the native form."""
    content = read_yaml(path).content
    return "sweeps" not in content and ("kernel_name" in content or "function_name" in content)


def load_guide_sweep(path: str | Path, *, operator_files: tuple[str, ...] = ()) -> GuideSweep:
    """Read and check a guide file; raises ``YamlError`` with file, line and key of everything that is wrong.

    ``operator_files`` are those that were loaded already and that workers must load too.
    """
    path = Path(path)
    file = read_yaml(path)
    settings = validate(GuideFile, file)
    try:
        operator = find_operator(settings.function_name, prefer_guide=True)
    except SampleError as error:
        raise file.error(("function_name",), str(error)) from error
    if operator.needs_peers:
        raise file.error(("function_name",), f"{operator.name} needs several ranks, which a guide file cannot ask for")
    if isinstance(operator, FunctionOperator):
        _aim(file, settings, operator)
    _check_lengths(file, settings, operator)
    axes = [_axis(file, settings, index) for index in range(settings.first_n_column)]
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > LARGEST_PLAN:
        raise file.error(("ends",), f"{count:,} combinations are more than {LARGEST_PLAN:,}")
    grid = list(product(*axes))
    possible = tuple(shape for shape in grid if operator.check(operator.resolve(list(shape))) is None)
    if not possible:
        reason = operator.check(operator.resolve(list(grid[0])))
        raise file.error(("starts",), f"no shape of the grid is possible: {reason}")
    for key, shape in (("shapes", settings.shapes), ("warmup_shapes", settings.warmup_shapes)):
        if reason := operator.check(operator.resolve(shape)):
            raise file.error((key,), reason)
    return GuideSweep(path, operator, settings, possible, len(grid) - len(possible), operator_files)


def collect_guide(
    sweep: GuideSweep,
    *,
    precision: str,
    worker: WorkerOptions,
    part: int = 1,
    parts: int = 1,
    folder: Path | None = None,
    engine: str = "local",
    engine_options: dict[str, str] | None = None,
    workers: int | None = None,
    on_progress: Any = None,
) -> tuple[Collection, Path]:
    """Run ``get_all``: measure the part, and write the guide's CSV and log; returns the collection and the CSV.

    The raw samples go to ``sampling_data/{GPU}_{operator}_{precision}/``, the CSV beside it, the log to
    ``sampling_log/``, below ``folder`` (the present one by default).
    """
    check_part(part, parts)
    folder = folder or Path.cwd()
    dtype = dtype_name(precision)
    device = device_name(worker.device)
    stem = guide_file_stem(device, sweep.operator.name, precision, parts, part)
    raw = _raw_folder(sweep, precision, device, folder)
    plan = sweep.plan(dtype)
    check_targets(sweep, dtype, worker.device)
    (folder / "sampling_log").mkdir(parents=True, exist_ok=True)
    lines = _LogLines(folder / "sampling_log" / f"{stem}.txt", f"{sweep.settings.kernel_name}_{short_precision(dtype)}")

    def progress(done: int, total: int) -> None:
        lines.tell(done, total)
        if on_progress is not None:
            on_progress(done, total)

    collection = collect_samples(
        plan,
        raw,
        worker=worker,
        engine=engine,
        engine_options=engine_options,
        part=part,
        parts=parts,
        workers=workers,
        on_progress=progress,
    )
    csv_path = folder / "sampling_data" / f"{stem}.csv"
    mine = {tuple(sorted(p.parameters.items())) for p in plan.shard(part, parts)}
    samples = [s for s in read_samples(raw) if s.dtype == dtype and tuple(sorted(s.parameters.items())) in mine]
    write_guide_csv(csv_path, sweep.settings.columns_name, samples, force=True)
    return collection, csv_path


def guide_raw_folder(sweep: GuideSweep, precision: str, device: str, folder: Path | None = None) -> Path:
    """Where ``collect_guide`` keeps the raw samples of a sweep: plan, journals and ``samples.parquet``."""
    return _raw_folder(sweep, precision, device_name(device), folder or Path.cwd())


def _raw_folder(sweep: GuideSweep, precision: str, name: str, folder: Path) -> Path:
    return folder / "sampling_data" / guide_file_stem(name, sweep.operator.name, precision, 0, 0).removesuffix("_0_0")


def measure_one(sweep: GuideSweep, *, precision: str, device: str) -> dict[str, tuple[float, ...]]:
    """``get_one``: the times of the file's ``shapes``, by direction, in microseconds."""
    from torchledger.sampling.function_times import FunctionTimer
    from torchledger.sampling.timing import make_timer

    dtype = dtype_name(precision)
    check_targets(sweep, dtype, device)
    plan = sweep.plan(dtype, [sweep.settings.shapes])
    timer = FunctionTimer(make_timer(_one_device(device)), _one_device(device))
    (result,) = timer.measure(plan.points, warmup=plan.warmup, active=plan.active)
    if result.status != "ok":
        raise SampleError(f"{sweep.operator.name} at {sweep.settings.shapes}: {result.status}: {result.reason}")
    return {direction: times.times_us for direction, times in result.directions.items()}


def run_function(sweep: GuideSweep, *, precision: str, device: str) -> None:
    """``run_function``: every direction once at the file's ``shapes``, nothing timed."""
    (point,) = sweep.plan(dtype_name(precision), [sweep.settings.shapes]).points
    _case_of(sweep.operator, point, _one_device(device))()


def write_profile(sweep: GuideSweep, path: Path, *, precision: str, device: str) -> None:
    """``get_profiler``: a Chrome trace of ``active`` iterations at the file's ``shapes``."""
    profile = _profile(sweep, dtype_name(precision), _one_device(device), sweep.settings.active)
    profile.export_chrome_trace(str(path))


def check_targets(sweep: GuideSweep, dtype: str, device: str) -> None:
    """Raise ``SampleError`` if a target is found neither among the names of a profile of the first warm-up shape nor
    among the originals that the operator stands for.

    The targets say which calls the guide's own extraction looks for. Here a direction is timed whole, so they select
    nothing; but one that matches nothing is a mistake that its author wants to know of.
    """
    if not sweep.settings.targets:
        return
    file = read_yaml(sweep.path)
    names: set[str] | None = None
    for index, path in enumerate(sweep.settings.targets):
        for target in path:
            if any(target in original or original in target for original in sweep.operator.originals):
                continue
            if names is None:
                names = {event.name for event in _profile(sweep, dtype, _one_device(device), 1).events()}
            if not any(target in name for name in names):
                there = "\n  ".join(sorted(name for name in names if not name.startswith(("cuda", "cudaLaunch")))[:40])
                message = f"{target!r} matches nothing in the profile of {sweep.settings.warmup_shapes}; there were:"
                raise SampleError(f"{file.fault(('targets', index), message)}\n  {there}")


def device_name(device: str) -> str:
    """The name of the device that a worker will measure, as the driver gives it."""
    from torchledger.sampling.worker import describe_device

    return str(describe_device(_one_device(device))["device"])


def _one_device(device: str) -> str:
    return "cuda:0" if device == "cuda" else device


def _profile(sweep: GuideSweep, dtype: str, device: str, iterations: int) -> Any:
    import torch
    from torch.profiler import ProfilerActivity, profile

    shape = sweep.settings.shapes if iterations > 1 else sweep.settings.warmup_shapes
    (point,) = sweep.plan(dtype, [shape]).points
    run = _case_of(sweep.operator, point, device, iterations)
    on_cuda = device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities) as recorded:
        run()
        if on_cuda:
            torch.cuda.synchronize()
    return recorded


def _case_of(operator: Operator, point: Point, device: str, iterations: int = 1) -> Callable[[], None]:
    """A call that runs every direction so often; what it needs is made now."""
    from torchledger.sampling.cases import InputPool, make_case
    from torchledger.sampling.function_times import function_call

    if isinstance(operator, FunctionOperator):
        call = function_call(operator, point, device)

        def run_function() -> None:
            for _ in range(iterations):
                call()

        return run_function
    case = make_case(operator, point.parameters, point.dtype, InputPool(device))

    def run_all() -> None:
        for direction, run in case.runs.items():
            if direction in case.prepare:
                case.prepare[direction]()
            for _ in range(iterations):
                run()

    return run_all


def _aim(file: YamlFile, settings: GuideFile, operator: FunctionOperator) -> None:
    """Give a function the directions that the file's time columns name, each with its target."""
    times = settings.columns_name[settings.first_n_column :]
    directions = [COLUMN_DIRECTIONS[column] for column in times if column in COLUMN_DIRECTIONS]
    if len(settings.targets) != len(directions) or not all(settings.targets) or not directions:
        raise file.error(
            ("targets",),
            f"{operator.name} is a function: each of the time columns {', '.join(times) or 'none'} needs one target, "
            f"the calls that are its time; there are {len(settings.targets)}",
        )
    aim_function(operator, dict(zip(directions, settings.targets, strict=True)))


def _check_lengths(file: YamlFile, settings: GuideFile, operator: Operator) -> None:
    count = settings.first_n_column
    if count != len(operator.parameters):
        names = ", ".join(operator.parameters)
        message = f"{count}, but {operator.name} has {len(operator.parameters)} parameters: {names}"
        raise file.error(("first_n_column",), message)
    for key in ("starts", "steps", "ends", "operators", "warmup_shapes", "shapes"):
        if len(getattr(settings, key)) != count:
            raise file.error((key,), f"has {len(getattr(settings, key))} entries, first_n_column says {count}")
    times = [FORWARD_COLUMN, BACKWARD_COLUMN] if "backward" in operator.directions else [STEP_COLUMN]
    if "forward" in operator.directions and "backward" not in operator.directions:
        times = [FORWARD_COLUMN]
    expected = [*settings.columns_name[:count], *times]
    if settings.columns_name != expected:
        message = f"must name {count} parameters and then {', '.join(times)}, not {settings.columns_name[count:]}"
        raise file.error(("columns_name",), message)


def _axis(file: YamlFile, settings: GuideFile, index: int) -> list[int]:
    start, step, end = settings.starts[index], settings.steps[index], settings.ends[index]
    if start < 1:
        raise file.error(("starts", index), f"{start} is below 1")
    if end < start:
        raise file.error(("ends", index), f"{end} is below the start {start}")
    multiplies = settings.operators[index] == "mul"
    if step < 1 or (multiplies and step == 1 and end > start):
        way = "multiplying by" if multiplies else "a step of"
        raise file.error(("steps", index), f"{way} {step} never reaches {end}")
    if not multiplies and (end - start) // step >= LARGEST_RANGE:
        raise file.error(("steps", index), f"from {start} to {end} are more than {LARGEST_RANGE:,} steps of {step}")
    values = [start]
    while (following := values[-1] * step if multiplies else values[-1] + step) <= end and following > values[-1]:
        values.append(following)
    return values


class _LogLines:
    """The guide's log: a line whenever progress is told."""

    def __init__(self, path: Path, kernel: str) -> None:
        self._path, self._kernel = path, kernel
        self._started = time.monotonic()
        self._last = -1

    def tell(self, done: int, total: int) -> None:
        """Append a line if something was finished since the last."""
        if done == self._last or total == 0:
            return
        self._last = done
        line = log_line(time.localtime(), self._kernel, done, total, time.monotonic() - self._started)
        with self._path.open("a") as file:
            file.write(line + "\n")


def log_line(now: time.struct_time, kernel: str, done: int, total: int, seconds: float) -> str:
    """One line of progress in the guide's form.

    >>> import time
    >>> log_line(time.struct_time((2024, 1, 15, 10, 30, 45, 0, 15, 0)), "gelu_fp16", 100, 1000, 123.0)
    '[2024-01-15 10:30:45]Kernel: gelu_fp16 | Progress: 100/1000=10.00% | Speed: 1.23s/sample | Remaining: 0d0h18m27s'
    """
    speed = seconds / done if done else 0.0
    remaining = int(speed * (total - done))
    days, rest = divmod(remaining, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    return (
        f"[{time.strftime('%Y-%m-%d %H:%M:%S', now)}]Kernel: {kernel} | "
        f"Progress: {done}/{total}={100 * done / total:.2f}% | Speed: {speed:.2f}s/sample | "
        f"Remaining: {days}d{hours}h{minutes}m{left}s"
    )
