"""``torchledger report``."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import force_option, json_option, print_json, tell_rank
from torchledger.cli.progress import progress_bar
from torchledger.reporting.html import report


@click.command(name="report")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("against", type=click.Path(path_type=Path), required=False)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="HTML", help="Default: the ledger's name, .html."
)
@click.option("--predict", metavar="DEVICE", help="Also predict: a device whose model is at hand, or a model file.")
@force_option
@json_option
def command(
    file: Path, against: Path | None, output: Path | None, predict: str | None, force: bool, as_json: bool
) -> None:
    """Write a ledger as one HTML page that opens in any browser without a network.

    FILE may also be a set of samples: a folder of `torchledger sample`, a Parquet file or the guide's CSV files. Then
    the page shows how far the set is, what it cost and what failed.

    With a second ledger AGAINST, write the two side by side: totals, categories, and launches aligned by
    what they compute, as `torchledger diff` aligns them. Of jobs stand one rank of each side by side: name the
    ledgers of the ranks, j.job/rank1.ledger, to choose.
    """
    if against is not None or predict is not None:
        tell_rank(file, *([] if against is None else [against]))
    with progress_bar("reading") as progress:
        path = report(file, output, against=against, predict=predict, force=force, progress=progress)
    print_json({"written": str(path)}) if as_json else click.echo(path)
