"""``torchledger show``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import click

from torchledger.cli.output import check_order, json_option, print_document, print_json
from torchledger.errors import UsageError
from torchledger.jobs.traces import is_ranks, read_ranks
from torchledger.nouns import StageName
from torchledger.reporting.guards import guards_as_plain, guards_document, read_compilations
from torchledger.reporting.job import job_as_plain, job_document
from torchledger.reporting.names import kernel_names, names_as_plain, names_document
from torchledger.reporting.overview import ledger_as_plain, ledger_document
from torchledger.reporting.story import (
    read_stage,
    stage_as_plain,
    stage_document,
    story_as_plain,
    story_document,
    tell_story,
    wrapper_as_plain,
    wrapper_document,
)
from torchledger.store import open_ledger
from torchledger.store.find import find_graph


@click.command(name="show")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("kernel", required=False)
@click.option("--wrapper", "graph", metavar="GRAPH", help="Print the generated code of one graph.")
@click.option("--guards", "guarded", metavar="GRAPH", help="Print what must hold for one graph to be called again.")
@click.option(
    "--stage", type=click.Choice(get_args(StageName)), help="Print a stage of the graph that stands in KERNEL's place."
)
@click.option(
    "--names", is_flag=True, help="Print every kernel under all its names: symbol, wrapper, source, ATen ops."
)
@click.option("--top", default=10, show_default=True, type=click.IntRange(min=1), help="Rows per table.")
@click.option("--depth", default=2, show_default=True, type=click.IntRange(min=1), help="Parts of a module path.")
@json_option
def command(
    file: Path,
    kernel: str | None,
    graph: str | None,
    guarded: str | None,
    stage: StageName | None,
    names: bool,
    top: int,
    depth: int,
    as_json: bool,
) -> None:
    """Show a ledger: its balance, its launches and its heaviest kernels. Of a job, its ranks and what is between them.

    With KERNEL, tell one kernel's whole story. KERNEL is a launch (forward_0#12), a kernel's name, its key, or a part
    that only one kernel has. With --wrapper, print the code that Inductor generated for a graph; with --guards,
    what it was compiled for, and which guards of its earlier compilations failed. --stage joint forward_0 prints what
    a graph looked like on its way, where it was recorded with `torchledger run --stages`.
    """
    if sum(each is not None for each in (kernel, graph, guarded)) > 1:
        raise UsageError("KERNEL, --wrapper and --guards are questions of their own. Ask one at a time.")
    if stage is not None and kernel is None:
        raise UsageError(f"--stage is of one graph: torchledger show {file} --stage {stage} forward_0.")
    check_order("show", file, kernel)
    if not names and graph is guarded is kernel is None and is_ranks(file):
        job = read_ranks(file)
        print_json(job_as_plain(job)) if as_json else print_document(job_document(job, top=top))
        return
    with open_ledger(file) as reader:
        if names:
            known = kernel_names(reader)
            print_json(names_as_plain(known)) if as_json else print_document(names_document(known))
        elif graph is not None:
            found = find_graph(reader, graph)
            print_json(wrapper_as_plain(found)) if as_json else print_document(wrapper_document(found))
        elif guarded is not None:
            found = find_graph(reader, guarded)
            compilations = read_compilations(reader, found)
            if as_json:
                print_json(guards_as_plain(found, compilations))
            else:
                print_document(guards_document(found, compilations, folder=os.getcwd()))
        elif stage is not None:
            assert kernel is not None
            found = find_graph(reader, kernel)
            kept = read_stage(reader, found, stage)
            if as_json:
                print_json(stage_as_plain(found, kept))
            else:
                print_document(stage_document(kept))
        elif kernel is not None:
            story = tell_story(reader, kernel)
            if as_json:
                print_json(story_as_plain(reader, story))
            else:
                print_document(story_document(story, top=top, folder=os.getcwd()))
        elif as_json:
            print_json(ledger_as_plain(reader))
        else:
            print_document(ledger_document(reader, top=top, module_depth=depth, folder=os.getcwd()))
