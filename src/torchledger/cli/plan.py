"""``torchledger plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchledger.cli.output import force_option, json_option, refuse_unknown_option, tell_misplaced
from torchledger.errors import LoneRankError

if TYPE_CHECKING:
    from torchledger.planning.plan import Plan
    from torchledger.predicting.overheads import Mode


@click.command(
    "plan",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "auto_envvar_prefix": None},
)
@click.option(
    "--device",
    default="H200",
    show_default=True,
    help="A device of `torchledger devices`, a model file or a data sheet (YAML).",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Keep the ledger of the step there.")
@force_option
@click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is a module name, as in python -m.")
@click.option("--graphs", is_flag=True, help="Launched as CUDA graphs (mode reduce-overhead), not one by one.")
@click.option("--layouts", type=click.Path(path_type=Path), help="Rank layouts of the model in this YAML file instead.")
@click.option("--world", type=click.IntRange(1), help="So many ranks, one a device.")
@click.option("--rank", type=click.IntRange(0), help="With --world: record only this rank; all are like it.")
@click.option("--mesh", help="The sizes of the script's mesh, as dp=8,tp=4: their product divides --world.")
@click.option("--node", "ranks_per_node", type=click.IntRange(1), help="Ranks that share a node; else the fabric's.")
@click.option("--fabric", help="What links the devices: a name, NAME+800gb, or a file of nccl-tests.")
@click.option("--host", help="A host that torchledger doctor measured, by name or file; else usual costs.")
@json_option
@click.argument("script", nargs=1, required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    device: str,
    output: Path | None,
    force: bool,
    is_module: bool,
    graphs: bool,
    layouts: Path | None,
    world: int | None,
    rank: int | None,
    mesh: str | None,
    ranks_per_node: int | None,
    fabric: str | None,
    host: str | None,
    as_json: bool,
    script: str | None,
    arguments: tuple[str, ...],
) -> None:
    """Price a step of SCRIPT on a device that need not be here.

    The script runs as it is, on this machine without a GPU, until one whole step is recorded: its tensors have shapes
    and no values, nothing is computed and nothing of the model's size is allocated. What it prints goes to stderr.
    With --world it runs as each rank that differs from the others (the stages of a pipeline).
    """
    from torchledger.cli.output import print_document, print_json
    from torchledger.errors import UsageError

    if script is not None:
        refuse_unknown_option(script)
    if layouts is not None:
        of_scripts = {"SCRIPT": script, "--mesh": mesh, "--rank": rank, "--host": host, "-o": output}
        of_scripts |= {"--graphs": graphs or None, "-m": is_module or None}
        if unused := [name for name, value in of_scripts.items() if value is not None]:
            raise UsageError(
                f"--layouts prices the model of its file over --world ranks, and takes no {' or '.join(unused)}: "
                "axes, schedules and microbatches stand in the file."
            )
        from torchledger.cli.progress import progress_bar
        from torchledger.planning.layout_file import plan_layouts
        from torchledger.reporting.layouts import layouts_as_plain, layouts_document

        with progress_bar("layouts") as progress:
            found = plan_layouts(
                layouts,
                world=world or 1,
                device=device,
                fabric=fabric,
                ranks_per_node=ranks_per_node,
                progress=progress,
            )
        if as_json:
            print_json(layouts_as_plain(found))
        else:
            print_document(layouts_document(found))
        return
    if script is None:
        raise UsageError("SCRIPT is missing: torchledger plan train.py, or --layouts FILE.")
    if not is_module:
        from torchledger.planning.script_imports import check_imports

        tell_misplaced(script, arguments)
        check_imports(script)
    from torchledger.planning.dry_run import script_program
    from torchledger.planning.plan import plan_program, plan_world
    from torchledger.planning.world import Script, world_of
    from torchledger.reporting.plan import plan_as_plain, plan_document

    size = world_of(world, mesh)
    mode: Mode = "graphs" if graphs else "eager"

    def of_ranks(size: int) -> Plan:
        return plan_world(
            Script(script, arguments, is_module),
            size,
            device=device,
            rank=rank,
            mesh=mesh,
            ranks_per_node=ranks_per_node,
            fabric=fabric,
            output=output,
            force=force,
            mode=mode,
            host=host,
        )

    if size > 1 or world is not None:
        plan = of_ranks(size)
    elif rank is not None or ranks_per_node is not None or fabric is not None:
        raise click.UsageError("--rank, --node and --fabric are of a world of ranks: add --world N.")
    else:
        try:
            plan = plan_program(
                script_program(script, arguments, is_module=is_module),
                device=device,
                output=output,
                force=force,
                argv=(script, *arguments),
                mode=mode,
                host=host,
            )
        except LoneRankError:
            click.echo("torchledger: the script makes a process group of one rank: planned with --world 1", err=True)
            plan = of_ranks(1)
    if as_json:
        print_json(plan_as_plain(plan.step, plan.dry_run))
    else:
        print_document(plan_document(plan.step, plan.dry_run))
    if plan.ledger is not None:
        click.echo(f"torchledger: wrote {plan.ledger}; look at it with `torchledger show {plan.ledger}`", err=True)
