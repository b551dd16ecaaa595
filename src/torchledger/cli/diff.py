"""``torchledger diff``."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import json_option, print_document, print_json
from torchledger.errors import UsageError


@click.command(name="diff")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--values", "of_values", is_flag=True, help="Compare what launches computed: where the runs first part.")
@click.option("--tolerance", type=float, help="With --values: relative difference that is none. Default: 0.001.")
@click.option("--top", default=10, show_default=True, type=click.IntRange(min=1), help="Rows per list.")
@json_option
def command(first: Path, second: Path, of_values: bool, tolerance: float | None, top: int, as_json: bool) -> None:
    """Compare two ledgers.

    Without options, say where the time of a step went: launches of both runs are aligned by what they compute, not by
    name, and each split, merge and changed launch stands with its change in time, traffic and FLOPs.

    With --values, name the first tensor that differs between two runs recorded by `torchledger values`, also across
    torch versions, devices and settings: tensors are matched by the operators' graph, not by kernels.
    """
    if not of_values:
        if tolerance is not None:
            raise UsageError("--tolerance is of --values: times are compared without one.")
        _compare_launches(first, second, top=top, as_json=as_json)
        return
    from torchledger.reporting.values import values_diff_as_plain, values_diff_document
    from torchledger.store import open_ledger
    from torchledger.watching.compare import DEFAULT_TOLERANCE, compare_values

    with open_ledger(first) as one, open_ledger(second) as other:
        found = compare_values(one, other, tolerance=DEFAULT_TOLERANCE if tolerance is None else tolerance)
    if as_json:
        print_json(values_diff_as_plain(found))
    else:
        print_document(values_diff_document(found, str(first), str(second), top=top))


def _compare_launches(first: Path, second: Path, *, top: int, as_json: bool) -> None:
    from torchledger.cli.progress import progress_bar
    from torchledger.comparing.run_diff import diff_ledgers
    from torchledger.reporting.run_diff import run_diff_as_plain, run_diff_document

    with progress_bar("comparing") as progress:
        found = diff_ledgers(first, second, progress=progress)
    if as_json:
        print_json(run_diff_as_plain(found))
    else:
        print_document(run_diff_document(found, str(first), str(second), top=top))
