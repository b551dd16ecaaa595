"""A sweep file of either form, run as its file and the caller ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchledger.errors import UsageError
from torchledger.operators import load_operators
from torchledger.operators.declaration import dtype_name
from torchledger.sampling.collection import Collection, Progress, collect_samples, prepare_folder
from torchledger.sampling.collectives import collect_collectives
from torchledger.sampling.guide_sweep import (
    collect_guide,
    guide_raw_folder,
    is_guide_file,
    load_guide_sweep,
    measure_one,
    run_function,
    write_profile,
)
from torchledger.sampling.points import check_part
from torchledger.sampling.supervisor import WorkerOptions
from torchledger.sampling.sweep import duration_s, load_collectives, load_sweep


@dataclass(frozen=True)
class Request:
    """What the caller adds to a sweep file; empty where the file decides."""

    output: Path | None = None
    precisions: tuple[str, ...] = ()
    part: int = 1
    parts: int = 1
    device: str = "cuda"
    engine: str = "local"
    engine_options: Mapping[str, str] = field(default_factory=dict)
    workers: int | None = None
    budget: str | None = None
    until_error: str | None = None
    operator_files: tuple[Path, ...] = ()
    group_size: int | None = None
    allow_mixed: bool = False
    plan_only: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a sweep file: the collection if one was made, the file that was written, and lines to report."""

    collection: Collection | None = None
    written: Path | None = None
    times_us: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    planned: int | None = None
    measured: int | None = None


def sample_file(path: str | os.PathLike[str], request: Request, on_progress: Progress | None = None) -> Outcome:
    """Check a sweep file whole, then do what it says.

    A native file, and a guide file with ``run: get_all``, collects samples and can be called again to go on. The
    guide's other modes measure one shape, write a trace, or run a shape without timing it. Raises ``YamlError`` before
    a device is touched, or ``SampleError``.
    """
    path = Path(path)
    check_part(request.part, request.parts)
    for file in request.operator_files:
        load_operators(file)
    names = _checked_dtypes(request.precisions)
    files = tuple(str(file.resolve()) for file in request.operator_files)
    if is_guide_file(path):
        return _guide(path, request, names, files, on_progress)
    points = load_collectives(path, world=int(os.environ.get("WORLD_SIZE", "2")), dtypes=names)
    if points is not None:
        folder = request.output or Path(f"{path.stem}.samples")
        measured = collect_collectives(points, folder, device=request.device, allow_mixed=request.allow_mixed)
        # One of the ranks reports for all.
        is_first = os.environ.get("RANK", "0") == "0"
        return Outcome(written=folder, planned=len(points), measured=measured) if is_first else Outcome()
    plan = load_sweep(path, operator_files=files, dtypes=names)
    folder = request.output or Path(f"{path.stem}.samples")
    if request.plan_only:
        prepare_folder(plan, folder)
        return Outcome(written=folder, planned=len(plan.points))
    collection = collect_samples(
        plan,
        folder,
        worker=_worker(request, plan.notes),
        engine=request.engine,
        engine_options=request.engine_options,
        part=request.part,
        parts=request.parts,
        workers=request.workers,
        on_progress=on_progress,
    )
    return Outcome(collection, folder)


def percent(text: str) -> float:
    """The number of ``"3%"`` or ``"3"``; raises ``UsageError`` for anything else."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = 0.0
    if not 0 < value < 1000:
        raise UsageError(f"{text!r} is no percentage; write 3%")
    return value


def _guide(
    path: Path, request: Request, names: tuple[str, ...], files: tuple[str, ...], on_progress: Progress | None
) -> Outcome:
    if len(names) > 1:
        raise UsageError("a guide file is run in one precision at a time: give --precision once.")
    sweep = load_guide_sweep(path, operator_files=files)
    precision = names[0] if names else "fp16"
    if request.plan_only:
        written = guide_raw_folder(sweep, precision, request.device, request.output)
        plan = sweep.plan(dtype_name(precision))
        prepare_folder(plan, written)
        return Outcome(written=written, planned=len(plan.points))
    if sweep.settings.run == "get_one":
        return Outcome(times_us=measure_one(sweep, precision=precision, device=request.device))
    if sweep.settings.run == "run_function":
        run_function(sweep, precision=precision, device=request.device)
        return Outcome()
    if sweep.settings.run == "get_profiler":
        trace = request.output or Path(f"{sweep.operator.name}.pt.trace.json.gz")
        write_profile(sweep, trace, precision=precision, device=request.device)
        return Outcome(written=trace)
    collection, csv_path = collect_guide(
        sweep,
        precision=precision,
        worker=_worker(request, {}),
        part=request.part,
        parts=request.parts,
        folder=request.output,
        engine=request.engine,
        engine_options=dict(request.engine_options),
        workers=request.workers,
        on_progress=on_progress,
    )
    return Outcome(collection, csv_path)


def _worker(request: Request, notes: Mapping[str, str]) -> WorkerOptions:
    budget = request.budget or notes.get("budget")
    until_error = request.until_error or notes.get("until_error")
    try:
        budget_s = None if budget is None else duration_s(budget)
    except ValueError as error:
        raise UsageError(f"--budget: {error}") from error
    return WorkerOptions(
        device=request.device,
        group_size=request.group_size,
        budget_s=budget_s,
        allow_mixed=request.allow_mixed,
        adaptive=budget is not None or until_error is not None,
        until_error_pct=None if until_error is None else percent(until_error),
    )


def _checked_dtypes(names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(dtype_name(name) for name in names)
    except ValueError as error:
        raise UsageError(f"--precision: {error}") from error
