"""``torchledger samples``: what can be done with sets of samples."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import json_option, print_json


@click.group(name="samples")
def command() -> None:
    """Show, merge, check and export sets of samples."""


@command.command(name="merge")
@click.argument("parts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Parquet file to write.")
@click.option("--allow-mixed", is_flag=True, help="Join other devices and versions all the same.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def merge(parts: tuple[Path, ...], output: Path, allow_mixed: bool, force: bool) -> None:
    """Join PARTS (data folders, Parquet files or the guide's CSV files) into one file, each label once."""
    from torchledger.sampling.sets import merge_files

    count, dropped = merge_files(parts, output, allow_mixed=allow_mixed, force=force)
    click.echo(f"{count:,} samples in {output}; {dropped:,} duplicates dropped", err=True)


@command.command(name="show")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def show(path: Path, as_json: bool) -> None:
    """Count the samples of PATH by operator, dtype, direction and status."""
    from torchledger.sampling.sets import overview, overview_text

    table = overview(path)
    print_json(table) if as_json else click.echo(overview_text(table))


@command.command(name="check")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the judged samples to a Parquet file.")
@json_option
def check(path: Path, output: Path | None, as_json: bool) -> None:
    """Judge the samples of PATH (a set, a guide CSV or a folder of them) by the sanity gates."""
    from torchledger.sampling.sets import judge, judgement_text

    judged = judge(path, output)
    print_json(judged) if as_json else click.echo(judgement_text(judged))
    if judged["quarantined"]:
        raise SystemExit(3)


@command.command(name="export")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to write CSV files into.")
def export(path: Path, output: Path) -> None:
    """Write the guide's operators in PATH as the guide's CSV files."""
    from torchledger.sampling.sets import export_guide

    for written, rows in export_guide(path, output).items():
        click.echo(f"{rows:,} rows in {written}", err=True)


@command.command(name="compact")
@click.argument("folder", type=click.Path(path_type=Path))
def compact(folder: Path) -> None:
    """Bring the journals of FOLDER into its Parquet file; not while a worker writes there."""
    from torchledger.sampling.dataset import compact as compact_folder

    click.echo(f"{compact_folder(folder):,} samples in {folder}", err=True)
