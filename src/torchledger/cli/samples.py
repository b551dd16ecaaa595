"""``torchledger samples``: what can be done with sets of samples."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import force_option, json_option, print_document, print_json
from torchledger.printable import counted


@click.group(name="samples")
def command() -> None:
    """Show, merge, check and export sets of samples."""


@command.command(name="merge")
@click.argument("parts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Parquet file to write.")
@click.option("--allow-mixed", is_flag=True, help="Join other devices and versions all the same.")
@force_option
@json_option
def merge(parts: tuple[Path, ...], output: Path, allow_mixed: bool, force: bool, as_json: bool) -> None:
    """Join PARTS (data folders, Parquet files or the guide's CSV files) into one file, each label once."""
    from torchledger.sampling.sets import merge_files

    count, dropped = merge_files(parts, output, allow_mixed=allow_mixed, force=force)
    if as_json:
        print_json({"written": str(output), "samples": count, "duplicates": dropped})
    else:
        click.echo(f"{counted(count, 'sample')} in {output}; {counted(dropped, 'duplicate')} dropped", err=True)


@command.command(name="show")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def show(path: Path, as_json: bool) -> None:
    """Say how far the set PATH is, what it cost, and what it holds of each operator.

    Its page in a browser: `torchledger report PATH`.
    """
    from torchledger.reporting.document import as_plain
    from torchledger.reporting.samples import progress_document
    from torchledger.sampling.progress import set_progress

    progress = set_progress(path)
    print_json(as_plain(progress)) if as_json else print_document(progress_document(progress, str(path)))


@command.command(name="check")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the judged samples to a Parquet file.")
@force_option
@json_option
def check(path: Path, output: Path | None, force: bool, as_json: bool) -> None:
    """Judge the samples of PATH (a set, a guide CSV or a folder of them) by the sanity gates."""
    from torchledger.reporting.samples import judgement_document
    from torchledger.sampling.sets import judge

    judged = judge(path, output, force=force)
    print_json(judged) if as_json else print_document(judgement_document(judged, str(path)))
    if judged["quarantined"]:
        raise SystemExit(3)


@command.command(name="export")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to write CSV files into.")
@force_option
@json_option
def export(path: Path, output: Path, force: bool, as_json: bool) -> None:
    """Write the guide's operators in PATH as the guide's CSV files."""
    from torchledger.sampling.sets import export_guide

    written = export_guide(path, output, force=force)
    if as_json:
        print_json({"written": {str(file): rows for file, rows in written.items()}})
        return
    for file, rows in written.items():
        click.echo(f"{counted(rows, 'row')} in {file}", err=True)


@command.command(name="compact")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
def compact(folder: Path, as_json: bool) -> None:
    """Bring the journals of FOLDER into its Parquet file; not while a worker writes there."""
    from torchledger.sampling.dataset import compact as compact_folder

    count = compact_folder(folder)
    print_json({"samples": count}) if as_json else click.echo(f"{counted(count, 'sample')} in {folder}", err=True)
