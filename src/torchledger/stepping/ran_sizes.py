"""Launches of dynamic graphs at the sizes that the recorded step called them with.

A launch is recorded at the sizes that its graph was compiled for; its times are those of the step's calls. Rates and
sums of the two together take the sizes as they ran, where all calls of a graph had the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchledger.nouns import Launch, Step, StepCall
from torchledger.store.latest import latest
from torchledger.store.ledger import LedgerReader
from torchledger.store.rows import LaunchRow
from torchledger.work.sizes import sizes_at


@dataclass(frozen=True)
class RanSizes:
    """By graph the symbols of all its calls in the step that counts; ``unlike`` are graphs whose calls differed, which
    stay at the sizes that they were compiled for."""

    symbols: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unlike: tuple[str, ...] = ()

    def launch(self, launch: Launch) -> Launch:
        """A launch with FLOPs, bytes, shapes and strides as it ran."""
        symbols = self.symbols.get(launch.graph)
        return sizes_at([launch], symbols)[0] if symbols else launch

    def rows(self, reader: LedgerReader, rows: Sequence[LaunchRow]) -> list[LaunchRow]:
        """The same of rows; only the launches of graphs that ran at sizes of their own are opened."""
        at = {
            (launch.graph, launch.order): self.launch(launch)
            for graph in self.symbols
            for launch in reader.iterate(Launch, graph=graph)
        }
        return [row if (ran := at.get((row.graph, row.order))) is None else _row_of(row, ran) for row in rows]

    @property
    def sentence(self) -> str | None:
        """Which sizes the FLOPs and bytes of launches are of; ``None`` where no graph of the step has sizes."""
        said = []
        if self.symbols:
            texts = (", ".join(f"{name}={value}" for name, value in each.items()) for each in self.symbols.values())
            alike = "; ".join(dict.fromkeys(texts))
            said.append(
                f"Launches are at the sizes of the recorded step ({alike}), as their times are; the accounts of flops "
                "and bytes are at those of the compilation."
            )
        if self.unlike:
            graphs = ", ".join(self.unlike)
            said.append(f"Calls of {graphs} had different sizes: their launches are at those of the compilation.")
        return " ".join(said) or None


def read_ran_sizes(reader: LedgerReader) -> RanSizes:
    """The sizes that the step that counts called its graphs with; none without a step."""
    step = latest(reader, Step)
    if step is None:
        return RanSizes()
    called: dict[str, list[Mapping[str, int]]] = {}
    for call in reader.iterate(StepCall, step=step.name, kind="graph"):
        if call.sizes:
            called.setdefault(call.name, []).append(dict(call.sizes))
    return RanSizes(
        {graph: sizes[0] for graph, sizes in called.items() if all(each == sizes[0] for each in sizes)},
        tuple(graph for graph, sizes in called.items() if any(each != sizes[0] for each in sizes)),
    )


def _row_of(row: LaunchRow, ran: Launch) -> LaunchRow:
    return row._replace(
        flops=ran.flops,
        flops_quality=ran.flops_quality,
        vector_flops=ran.vector_flops,
        bytes_read=ran.bytes_read,
        bytes_written=ran.bytes_written,
        bytes_quality=ran.bytes_quality,
        reason=ran.reason,
    )
