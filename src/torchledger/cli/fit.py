"""``torchledger fit``."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import force_option, json_option


@click.command(name="fit")
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The model file to write.")
@click.option("--device", help="Whose samples to learn from, where the data hold several devices'.")
@click.option("--group", help="Only samples drawn for this purpose, such as train.")
@click.option(
    "--steps", type=click.Path(path_type=Path), help="Measured steps of the launches, to learn overheads from."
)
@click.option(
    "--constants", type=click.Path(path_type=Path), help="Constants of `fit-constants`; the generation's unless given."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes to fit with; one per core unless given.")
@click.option(
    "--operators", multiple=True, type=click.Path(path_type=Path), help="A Python file with operators of your own."
)
@force_option
@json_option
def command(
    data: tuple[Path, ...],
    output: Path,
    device: str | None,
    group: str | None,
    steps: Path | None,
    constants: Path | None,
    jobs: int | None,
    operators: tuple[Path, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Learn a device's times from DATA.

    DATA is any mix of operator samples (a .parquet file or a data folder), measured launches (.launches files,
    ledgers with a profile) and the sampling guide's CSV files or folders of them.
    """
    from torchledger.cli.output import print_document, print_json
    from torchledger.cli.progress import progress_bar
    from torchledger.expecting.constants import read_constants
    from torchledger.fitting.fit_data import fit_data, read_launch_files
    from torchledger.operators import load_operators
    from torchledger.predicting.model_file import save_model
    from torchledger.predicting.overheads import learn_overheads
    from torchledger.reporting.fits import fit_as_plain, fit_document
    from torchledger.store.output import check_output

    check_output(output, force=force)
    for file in operators:
        load_operators(file)
    with progress_bar("fitting") as progress:
        model, left_out = fit_data(
            data,
            device=device,
            group=group,
            constants=None if constants is None else read_constants(constants),
            jobs=jobs,
            progress=progress,
        )
    if steps is not None:
        model = learn_overheads(model, steps, read_launch_files(data))
    size = save_model(model, output, force=force)
    if as_json:
        print_json({"written": str(output)} | fit_as_plain(model, left_out, size))
        return
    print_document(fit_document(model, left_out, size))
    click.echo(f"next: torchledger predict OPERATOR NAME=VALUE ... --device {output}", err=True)
