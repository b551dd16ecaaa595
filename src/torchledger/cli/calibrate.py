"""``torchledger calibrate``."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import force_option, json_option


@click.command(name="calibrate")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The model file; named by the device if not given."
)
@click.option("--budget", default="10m", show_default=True, help="How long it may take, such as 90s or 10m.")
@click.option("--device", default="cuda", show_default=True, help="cuda, cuda:1 or cpu.")
@click.option("--base", help="The model to start from; the nearest that comes with torchledger unless given.")
@click.option("--keep", type=click.Path(path_type=Path), help="A folder for what is measured; it is dropped otherwise.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes to fit with; one per core unless given.")
@force_option
@json_option
def command(
    output: Path | None,
    budget: str,
    device: str,
    base: str | None,
    keep: Path | None,
    jobs: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Make a model of this machine's GPU in ten minutes.

    Measures its ceilings, its host, the operators and fused programs of which a model transferred from another device
    is least sure, and collectives between several GPUs; learns what differs, and says the error at shapes drawn at
    random. The model file is for predict, predict-step and plan.
    """
    from torchledger.calibrating.calibrate import calibrate
    from torchledger.cli.output import print_document, print_json
    from torchledger.cli.progress import progress_bar
    from torchledger.device.doctor import describe_device
    from torchledger.predicting.model_file import SUFFIX
    from torchledger.reporting.devices import calibration_as_plain, calibration_document
    from torchledger.sampling.sweep import duration_s

    try:
        seconds = duration_s(budget)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--budget") from error
    output = output or Path(f"{describe_device(device).name.replace(' ', '_')}{SUFFIX}")
    with progress_bar("calibrating") as progress:
        found = calibrate(
            output, device=device, budget_s=seconds, base=base, keep=keep, force=force, jobs=jobs, progress=progress
        )
    if as_json:
        print_json({"written": str(output)} | calibration_as_plain(found))
        return
    print_document(calibration_document(found))
    click.echo(f"next: torchledger predict linear m=4096 k=4096 n=4096 --device {output}", err=True)
