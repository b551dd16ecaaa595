"""``torchledger export``."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.answers import FORMATS, Format, export_ledger
from torchledger.cli.output import force_option, json_option, print_json


@click.command(name="export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--format", "format_name", type=click.Choice(FORMATS), help="What to write; told by Data_*.json and *.trace.json."
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Folder to write; a file for chrome, step and Data_NAME.json.",
)
@force_option
@json_option
def command(file: Path, format_name: Format | None, output: Path, force: bool, as_json: bool) -> None:
    """Write a ledger, or all ranks of a job, in another format and print the paths of what was written.

    inductor-json writes Data_<graph>.json, one file a graph (or -o Data_NAME.json, one file of all): nodes with flops,
    ops, inputs, kwargs and triton, and gpu_info. parquet writes the whole ledger as tables, one file per kind of
    record. chrome writes the profile's trace for Perfetto, each kernel with its FLOPs, bytes, rates, source line and
    module. step writes the calls of the recorded step by the suffix of -o: a table (.parquet, .csv, .json) or a Chrome
    trace (.trace.json, .trace.json.gz).

    Of a job: parquet has all ranks in each table, and tables of what lies between them; chrome and step have a process
    for each rank on one clock, or a column of ranks; inductor-json a folder for each rank.
    """
    paths = export_ledger(file, output, format=format_name, force=force)
    if as_json:
        print_json({"written": [str(path) for path in paths]})
        return
    for path in paths:
        click.echo(path)
