"""``torchledger export``."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import force_option, json_option, print_json
from torchledger.errors import UsageError
from torchledger.stepping.export import TRACE_SUFFIXES, export_step
from torchledger.store import open_ledger
from torchledger.store.inductor_json import export_inductor_json
from torchledger.store.parquet import export_parquet
from torchledger.traces.chrome_export import export_chrome

FORMATS = {
    "inductor-json": export_inductor_json,
    "parquet": export_parquet,
    "chrome": export_chrome,
    "step": export_step,
}


@click.command(name="export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", "format_name", type=click.Choice(list(FORMATS)), help="What to write. Of *.trace.json: step.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Folder (chrome, step: file) to write.",
)
@force_option
@json_option
def command(file: Path, format_name: str | None, output: Path, force: bool, as_json: bool) -> None:
    """Write a ledger in another format and print the paths of what was written.

    inductor-json writes Data_<graph>.json, one file a graph: nodes with flops, ops, inputs, kwargs and triton, and
    gpu_info. parquet writes the whole ledger as tables, one file per kind of record. chrome writes the profile's trace
    for Perfetto, each kernel with its FLOPs, bytes, rates, source line and module. step writes the calls of the
    recorded step by the suffix of -o: a table (.parquet, .csv, .json) or a Chrome trace (.trace.json, .trace.json.gz).
    """
    if format_name is None:
        if not output.name.endswith(TRACE_SUFFIXES):
            raise UsageError(f"--format is needed: {output} does not tell what to write. One of {', '.join(FORMATS)}.")
        format_name = "step"
    with open_ledger(file) as reader:
        paths = FORMATS[format_name](reader, output, force=force)
    if as_json:
        print_json({"written": [str(path) for path in paths]})
        return
    for path in paths:
        click.echo(path)
