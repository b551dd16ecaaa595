"""``torchledger bench``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from torchledger.cli.output import check_order, json_option, print_document, print_json, tell_rank
from torchledger.cli.progress import progress_bar


@click.command(name="bench")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option("--all", "all_kernels", is_flag=True, help="Every launch, not the heaviest 95 % of the time only.")
@click.option("--seconds", default=0.5, show_default=True, type=click.FloatRange(min=0.01), help="Per kernel, state.")
@click.option("--repeats", default=400, show_default=True, type=click.IntRange(min=6), help="At most, per kernel.")
@click.option("--total", "total_s", type=click.FloatRange(min=1), help="Seconds for all; what is left is not timed.")
@click.option("--timeout", "timeout_s", default=120.0, show_default=True, help="Seconds for one, compiling included.")
@click.option("--warm-only", is_flag=True, help="Neither with a flushed cache nor in its place.")
@click.option("--configs", type=click.Choice(["all"]), help="Time every configuration of each Triton kernel.")
@click.option("--max-autotune", is_flag=True, help="Compile Triton kernels with max-autotune and say whether it pays.")
@click.option("--trust", is_flag=True, help="Run code out of a ledger that somebody else recorded.")
@click.option("--no-save", is_flag=True, help="Do not write the measurements into FILE.")
@json_option
def command(
    file: Path,
    kernels: tuple[str, ...],
    all_kernels: bool,
    seconds: float,
    repeats: int,
    total_s: float | None,
    timeout_s: float,
    warm_only: bool,
    configs: str | None,
    max_autotune: bool,
    trust: bool,
    no_save: bool,
    as_json: bool,
) -> None:
    """Run kernels of FILE alone, on their own arguments and layouts, and time them.

    KERNEL is a launch (forward_0#12), a kernel's name, its key, or a part that only one kernel has; without any, the
    heaviest ones are taken until 95 % of the time is covered. Times are with a warm cache, with a flushed one, and
    after the launches that come before it in the step, which leave the cache as it is there.
    """
    from torchledger.replaying.bench import STATES, bench
    from torchledger.replaying.bench_timing import Budget
    from torchledger.reporting.benches import bench_as_plain, bench_document

    check_order("bench", file, *kernels)
    tell_rank(file)
    with progress_bar("timing") as progress:
        report = bench(
            file,
            kernels,
            all_kernels=all_kernels,
            mode="max_autotune" if max_autotune else "configurations" if configs else "run",
            states=("warm",) if warm_only else STATES,
            budget=Budget(seconds=seconds, max_repeats=repeats, min_repeats=min(20, repeats)),
            trust=trust,
            save=not no_save,
            timeout_s=timeout_s,
            total_s=total_s,
            progress=progress,
        )
    print_json(bench_as_plain(report)) if as_json else print_document(bench_document(report))
    sys.exit(3 if report.failures else 0)
