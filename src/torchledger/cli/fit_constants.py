"""``torchledger fit-constants``."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import force_option, json_option


@click.command(name="fit-constants")
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The file of constants to write.")
@click.option("--device", help="The device's name, where the data do not say (files of single kernels).")
@click.option("--group", help="Only samples drawn for this purpose, such as train.")
@click.option(
    "--base", type=click.Path(path_type=Path), help="Constants to begin with; those that come with torchledger if not."
)
@force_option
@json_option
def command(
    data: tuple[Path, ...],
    output: Path,
    device: str | None,
    group: str | None,
    base: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Fit the constants under a device's baselines to DATA: tiles of products, convolutions, fused kernels.

    DATA is any mix of operator samples (matrix products and convolutions are used), measured launches (.launches
    files, ledgers with a profile), files of single kernels (.npz) and of what kernels draw (.json). `torchledger fit
    --constants FILE` builds on them.
    """
    from torchledger.cli.output import print_document, print_json
    from torchledger.cli.progress import progress_bar
    from torchledger.expecting.constants import constants_of_package, read_constants, write_constants
    from torchledger.expecting.generations import BORROWED
    from torchledger.fitting.constants_data import read_measurements
    from torchledger.fitting.fit_constants import fit_constants
    from torchledger.reporting.fits import constants_as_plain, constants_document
    from torchledger.store.output import check_output

    check_output(output, force=force)
    began = constants_of_package(BORROWED) if base is None else read_constants(base)
    measured = read_measurements(data, device=device, group=group)
    with progress_bar("fitting") as progress:
        constants, groups = fit_constants(measured, began, name=output.name.partition(".")[0], progress=progress)
    write_constants(constants, output, force=force)
    if as_json:
        print_json({"written": str(output)} | constants_as_plain(constants, groups))
        return
    print_document(constants_document(constants, groups))
    click.echo(f"next: torchledger fit DATA --constants {output} -o MODEL", err=True)
