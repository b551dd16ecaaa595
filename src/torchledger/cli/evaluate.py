"""``torchledger evaluate``."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import json_option


@click.command(name="evaluate")
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--device", help="Whose samples to use, where the data hold several devices'.")
@click.option("--group", help="Only samples drawn for this purpose, such as held_out.")
@click.option("--operator", "operators", multiple=True, help="Only this operator; may be given several times.")
@click.option("--split", "splits", multiple=True, help="grouped or extrapolation; both unless given.")
@click.option("--model", type=click.Path(path_type=Path), help="Test this model on all rows instead of splitting them.")
@click.option("--forest/--no-forest", default=True, show_default=True, help="Fit the random forest beside it.")
@json_option
def command(
    data: tuple[Path, ...],
    device: str | None,
    group: str | None,
    operators: tuple[str, ...],
    splits: tuple[str, ...],
    model: Path | None,
    forest: bool,
    as_json: bool,
) -> None:
    """Fit on one side of splits that cannot leak, and report the error on the other.

    Grouped: no shape stands on both sides. Extrapolation: the largest sizes are held out. With --model, DATA are rows
    that the model has not seen.
    """
    from torchledger.cli.output import print_document, print_json
    from torchledger.cli.progress import progress_bar
    from torchledger.predicting.testing import evaluate_data
    from torchledger.reporting.fits import evaluation_as_plain, evaluation_document

    with progress_bar("evaluating") as progress:
        found = evaluate_data(
            data,
            device=device,
            group=group,
            operators=operators,
            splits=splits,
            model=model,
            with_forest=forest,
            progress=progress,
        )
    print_json(evaluation_as_plain(*found)) if as_json else print_document(evaluation_document(*found))
