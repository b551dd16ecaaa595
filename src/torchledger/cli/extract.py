"""``torchledger extract``."""

from __future__ import annotations

from pathlib import Path

import click

from torchledger.cli.output import check_order, force_option, json_option, print_json, tell_rank
from torchledger.errors import UsageError


@click.command(name="extract")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("kernel", required=False)
@click.option("--graph", metavar="GRAPH", help="A whole compiled graph instead of one kernel.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE.py", help="To write.")
@force_option
@click.option("--trust", is_flag=True, help="Make code of a ledger that somebody else recorded.")
@json_option
def command(
    file: Path, kernel: str | None, graph: str | None, output: Path, force: bool, trust: bool, as_json: bool
) -> None:
    """Write one kernel of FILE (or with --graph a whole graph) as a module that runs without torchledger.

    The module makes its inputs, runs the kernel as the generated code does, compares its outputs with eager ATen ops
    and takes the time. Nothing is executed here.
    """
    from torchledger.replaying.extract import extract_graph, extract_kernel

    if (kernel is None) == (graph is None):
        raise UsageError("Name one KERNEL, or a graph with --graph.")
    check_order("extract", file, kernel)
    tell_rank(file)
    if graph is not None:
        extracted = extract_graph(file, graph, output, force=force, trust=trust)
    else:
        extracted = extract_kernel(file, str(kernel), output, force=force, trust=trust)
    if as_json:
        print_json(
            {
                "written": str(extracted.path),
                "title": extracted.title,
                "compared": list(extracted.checked),
                "not_compared": dict(extracted.unchecked),
            }
        )
        return
    click.echo(extracted.path)
    click.echo(f"{extracted.title}: compares {', '.join(extracted.checked) or 'nothing'} with eager ops", err=True)
    for name, reason in extracted.unchecked.items():
        click.echo(f"not compared: {name}: {reason}", err=True)
    click.echo(f"torchledger: run it with `python {extracted.path}`", err=True)
