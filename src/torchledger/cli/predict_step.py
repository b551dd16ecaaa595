"""``torchledger predict-step``."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import json_option


@click.command(name="predict-step")
@click.argument("ledger", type=click.Path(path_type=Path))
@click.option("--device", default="H200", show_default=True, help="A device whose model is shipped, or a model file.")
@click.option(
    "--graphs/--no-graphs",
    default=None,
    help="Launched as CUDA graphs (mode reduce-overhead), or one by one; default: as where recorded.",
)
@click.option(
    "--optimizer",
    metavar="adamw:NUMEL[:TENSORS]",
    help="Add a fused step over so many elements of so many parameters, where LEDGER's step holds none.",
)
@click.option(
    "--host", help="ledger (as it was measured where recorded), usual, or the name of a host that doctor kept."
)
@click.option("--top", default=15, show_default=True, type=click.IntRange(min=1), help="Launches to list.")
@click.option("--sort", "sort_by", default="time", type=click.Choice(["time", "error"]), help="What to list first.")
@json_option
def command(
    ledger: Path,
    device: str,
    graphs: bool | None,
    optimizer: str | None,
    host: str | None,
    top: int,
    sort_by: str,
    as_json: bool,
) -> None:
    """Predict the time of the step that LEDGER recorded, on a device that need not be here.

    The sum over its launches (each graph as often as the step calls it), its eager operators, optimizer and
    collectives, gaps and launch overhead (or the replay of CUDA graphs). Where the ledger holds a profile, measured
    times stand beside the predictions. Of a job, each rank's step, and the slowest rank's launches.
    """
    from torchledger.cli.output import print_document, print_json
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.job import predict_job
    from torchledger.predicting.step import asked_mode, predict_ledger
    from torchledger.reporting.steps import job_steps_as_plain, job_steps_document, step_as_plain, step_document
    from torchledger.store.job import is_job

    if is_job(ledger):
        ranks = predict_job(find_model(device), ledger, mode=asked_mode(graphs), optimizer=optimizer, host=host)
        if as_json:
            print_json(job_steps_as_plain(ranks))
        else:
            print_document(job_steps_document(ranks, top=top, sort_by=sort_by))
        return
    found = predict_ledger(find_model(device), ledger, mode=asked_mode(graphs), optimizer=optimizer, host=host)
    if as_json:
        print_json(step_as_plain(*found))
    else:
        print_document(step_document(*found, top=top, sort_by=sort_by))
