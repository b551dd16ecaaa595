"""``torchledger show FILE --guards GRAPH``: what must hold for a graph to be called, and what failed to before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchledger.nouns import Compilation, Graph
from torchledger.printable import counted
from torchledger.reporting.document import Block, Code, Document, Section, Sentence, as_plain
from torchledger.reporting.overview import shorten_source
from torchledger.store import LedgerReader


def read_compilations(reader: LedgerReader, graph: Graph) -> list[Compilation]:
    """The compilations that a graph came of: one, or several where the program reset Dynamo, which counts anew then."""
    return reader.read(Compilation, compile_id=graph.compile_id) if graph.compile_id is not None else []


def guards_document(graph: Graph, compilations: Sequence[Compilation], *, folder: str = "") -> Document:
    """A section for each compilation; ``folder`` is what source paths are relative to."""
    if not compilations:
        told = f"The guards of {graph.name} were not recorded. Record it again: `torchledger run SCRIPT`."
        return Document((Section("", (Sentence(told),)),))
    return Document(tuple(_section(graph, compilation, folder) for compilation in compilations))


def guards_as_plain(graph: Graph, compilations: Sequence[Compilation]) -> dict[str, Any]:
    """What ``show FILE --guards GRAPH --json`` prints."""
    return {"graph": graph.name, "compilations": as_plain(compilations)}


def _section(graph: Graph, compilation: Compilation, folder: str) -> Section:
    blocks: list[Block] = []
    if compilation.failed_guards:
        blocks.append(Sentence("Compiled again, as these guards of earlier compilations failed:"))
        blocks.append(Code("\n".join(compilation.failed_guards), "text"))
    where = shorten_source(compilation.source, folder)
    title = f"Guards of {graph.name}: {compilation.function} ({where}), {compilation.compile_id}"
    if compilation.n_guards is None:
        return Section(title, (*blocks, Sentence("Its own guards could not be read.", "bad")))
    shown = len(compilation.guards)
    rest = f", the first {shown:,} of which were kept" if shown < compilation.n_guards else ""
    blocks.append(Sentence(f"It is called where these hold ({counted(compilation.n_guards, 'guard')}{rest}):"))
    blocks.append(Code("\n".join(compilation.guards), "text"))
    return Section(title, tuple(blocks))
