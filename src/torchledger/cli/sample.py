"""``torchledger sample``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from torchledger.cli.output import force_option, json_option, print_json
from torchledger.cli.progress import progress_bar
from torchledger.errors import UsageError
from torchledger.printable import counted, one_line, shorten
from torchledger.profiling.profile import silence_kineto
from torchledger.sampling.request import Outcome, Request, sample_file


def _pairs(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        pairs[name] = text
    return pairs


@click.command(name="sample")
@click.argument("sweep", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder of the samples (SWEEP.samples).")
@click.option("--precision", "precisions", multiple=True, help="bf16, fp16 or fp32; replaces the file's dtypes.")
@click.option("--parts", default=1, show_default=True, help="Into how many parts the sweep is divided.")
@click.option("--part", default=1, show_default=True, help="Which of them to measure, counted from 1.")
@click.option("--device", help="cuda (all visible GPUs), cuda:N or cpu; cuda if there is a GPU.")
@click.option("--device-num", "--device_num", "device_number", type=int, help="Number of the one GPU to use.")
@click.option("--engine", default="local", show_default=True, help="local, slurm, ray, env, or an installed one.")
@click.option("--engine-option", "engine_options", multiple=True, callback=_pairs, metavar="NAME=VALUE")
@click.option("--workers", type=click.IntRange(min=1), help="How many workers to place (one a GPU).")
@click.option("--budget", help="Stop after this long, choosing the most telling shapes first: 10min.")
@click.option("--until-error", help="Stop when a model of the times errs by less on new shapes: 3%.")
@click.option(
    "--operators", "operator_files", multiple=True, type=click.Path(path_type=Path), help="Your own operators."
)
@click.option("--group-size", type=click.IntRange(min=1), help="Shapes per profiler session.")
@click.option("--allow-mixed", is_flag=True, help="Go on in a folder of another device or version.")
@click.option("--fused", is_flag=True, help="Instead of SWEEP: the kernels that Inductor makes of random programs.")
@click.option("--minutes", default=4.0, show_default=True, type=click.FloatRange(0.2), help="How long, with --fused.")
@click.option("--plan-only", is_flag=True, help="Write the plan and measure nothing.")
@force_option
@json_option
def command(
    sweep: Path | None,
    output: Path | None,
    precisions: tuple[str, ...],
    parts: int,
    part: int,
    device: str | None,
    device_number: int | None,
    engine: str,
    engine_options: dict[str, str],
    workers: int | None,
    budget: str | None,
    until_error: str | None,
    operator_files: tuple[Path, ...],
    group_size: int | None,
    allow_mixed: bool,
    fused: bool,
    minutes: float,
    plan_only: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Time operators, forward and backward, over the shapes of SWEEP.

    SWEEP is a sweep file or one of the sampling guide's. Run the same command again to go on after any interruption.
    With --fused, programs are drawn at random, compiled in several processes and measured one after the other, until
    the minutes are over; `torchledger fit` learns from the file of launches. --force replaces that file; a folder of
    samples is never replaced.
    """
    if fused:
        _sample_fused(output or Path("fused.launches"), device or _default_device(), minutes, workers, force, as_json)
        return
    if sweep is None:
        raise UsageError("name a sweep file, or pass --fused.")
    silence_kineto()  # before torch is imported, in workers too
    request = Request(
        output=output,
        precisions=precisions,
        part=part,
        parts=parts,
        device=f"cuda:{device_number}" if device_number is not None else device or _default_device(),
        engine=engine,
        engine_options=engine_options,
        workers=workers,
        budget=budget,
        until_error=until_error,
        operator_files=operator_files,
        group_size=group_size,
        allow_mixed=allow_mixed,
        plan_only=plan_only,
    )
    with progress_bar("measuring") as progress:
        outcome = sample_file(sweep, request, lambda done, total: progress(done, total, "shapes"))
    print_json(_as_plain(outcome)) if as_json else _report(outcome)
    if outcome.collection is not None and not outcome.collection.is_complete:
        raise SystemExit(3)


def _sample_fused(output: Path, device: str, minutes: float, workers: int | None, force: bool, as_json: bool) -> None:
    from torchledger.reporting.document import as_plain
    from torchledger.sampling.fused import FusedPlan, sample_fused

    processes = workers or max(1, min(14, (os.cpu_count() or 2) - 2))
    with progress_bar("compiling and measuring") as progress:
        plan = FusedPlan(device=device, minutes=minutes, processes=processes)
        report = sample_fused(output, plan, force=force, progress=progress)
    if as_json:
        print_json(as_plain(report))
        return
    click.echo(
        f"{report.measured:,} of {report.launches:,} launches of {report.programs:,} programs measured into {output}",
        err=True,
    )
    for reason, count in sorted(report.failures.items(), key=lambda item: -item[1])[:10]:
        click.echo(f"{count} x {reason}", err=True)
    click.echo(f"next: torchledger fit {output} -o MODEL", err=True)


def _default_device() -> str:
    import torch

    if torch.cuda.is_available():
        return "cuda"
    click.echo("no GPU here: sampling the processor, by the host's clock", err=True)
    return "cpu"


def _as_plain(outcome: Outcome) -> dict[str, object]:
    collection = outcome.collection
    plain: dict[str, object] = {
        "written": None if outcome.written is None else str(outcome.written),
        "times_us": dict(outcome.times_us),
        "planned": outcome.planned,
        "measured": outcome.measured,
    }
    if collection is not None:
        plain |= {
            "planned": collection.planned,
            "finished_now": collection.finished_now,
            "statuses": dict(collection.statuses),
            "seconds": collection.seconds,
            "points_per_s": collection.points_per_s,
            "adaptive": list(collection.adaptive),
            "failures": dict(collection.failures),
        }
    return plain


_MOST_REASONS = 3


def _report(outcome: Outcome) -> None:
    for direction, times in outcome.times_us.items():
        click.echo(f"{direction}: " + ", ".join(f"{us:.2f}" for us in times) + " us")
    collection = outcome.collection
    if collection is None:
        if outcome.measured is not None:
            click.echo(f"{outcome.measured:,} of {outcome.planned:,} points measured into {outcome.written}", err=True)
        elif outcome.planned is not None:
            click.echo(f"{counted(outcome.planned, 'point')} planned in {outcome.written}", err=True)
        elif outcome.written is not None:
            click.echo(f"wrote {outcome.written}", err=True)
        return
    statuses = ", ".join(f"{count:,} {status}" for status, count in collection.statuses.items())
    speed = f", {collection.points_per_s:.1f} a second" if collection.points_per_s else ""
    click.echo(
        f"{collection.finished_now:,} of {collection.planned:,} shapes measured now in "
        f"{collection.seconds:.1f} s{speed}; {statuses or 'no samples'} in {collection.folder}",
        err=True,
    )
    for reason, count in list(collection.failures.items())[:_MOST_REASONS]:
        click.echo(f"{count:,} x {shorten(one_line(reason), 300)}", err=True)
    if outcome.written is not None and outcome.written != collection.folder:
        click.echo(f"wrote {outcome.written}", err=True)
    for report in collection.adaptive:
        if report["rounds"]:
            last = report["rounds"][-1]
            click.echo(
                f"error {last['error_pct']:.1f} % on new shapes after {last['device_minutes']:.2f} minutes", err=True
            )
    click.echo(f"next: torchledger samples show {collection.folder}", err=True)
