"""``torchledger doctor``."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import json_option, print_document, print_json


@click.command(name="doctor")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--device", "devices", multiple=True, metavar="DEVICE", help="cpu, cuda, cuda:1; default: all there are.")
@click.option("--budget", default=20.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds per device.")
@click.option("--host/--no-host", "with_host", default=None, help="Also what the host needs; default: with a GPU.")
@json_option
def command(file: Path | None, devices: tuple[str, ...], budget: float, with_host: bool | None, as_json: bool) -> None:
    """Measure what this machine's devices reach, and keep it.

    Copy bandwidth, products per element type, launch overhead, timer resolution: the ceilings that every roofline
    fraction refers to. With a GPU also what the host needs for each kind of launch, which decides short steps. They are
    kept for later runs on this machine and, with FILE, written into that ledger.
    """
    from torchledger.cli.progress import progress_bar
    from torchledger.device.doctor import examine
    from torchledger.reporting.ceilings import ceilings_document
    from torchledger.reporting.document import as_plain

    with progress_bar("measuring") as progress:
        found = examine(devices, file=file, budget_s=budget, with_host=with_host, progress=progress)
    if as_json:
        print_json(as_plain(found))
    else:
        print_document(
            ceilings_document(found.devices, host=found.host, kept_in=found.kept_in, complaints=found.complaints)
        )
