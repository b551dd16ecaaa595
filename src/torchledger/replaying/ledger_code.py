"""The one door through which code comes out of a ledger: records that are under this user's seal, or were trusted.

All that ``bench`` runs and ``extract`` writes is made of a ``LedgerCode``: one graph, all its launches and the kernels
that they name. The seals cover every field of these records, and are checked on the very objects that are handed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchledger.errors import MeasureError
from torchledger.nouns import Graph, Kernel, Launch
from torchledger.store import LedgerReader
from torchledger.store.find import find_graph
from torchledger.store.seal import seal_fault


@dataclass(frozen=True)
class LedgerCode:
    """A graph, its launches in order and the kernels that they launch or that those are made of."""

    graph: Graph
    launches: tuple[Launch, ...]
    kernels: tuple[Kernel, ...]

    def launch(self, launch_id: str) -> Launch:
        """The launch of this id. Raises ``MeasureError`` if it is none of those that were checked."""
        for launch in self.launches:
            if launch.launch_id == launch_id:
                return launch
        raise MeasureError(
            f"{launch_id} is no launch of {self.graph.name}: the ledger's tables contradict its records."
        )


def ledger_code(reader: LedgerReader, graphs: Iterable[str], *, trust: bool) -> dict[str, LedgerCode]:
    """What code may be made of, by graph.

    Raises ``MeasureError`` if ``trust`` is not given and a record was not written by this user on this machine, or was
    changed since; ``StoreError`` if the key that would tell is open to others.
    """
    known = reader.read(Kernel)
    found = {name: _of_graph(reader, name, known) for name in dict.fromkeys(graphs)}
    if not trust:
        _check(reader, found.values())
    return found


def _of_graph(reader: LedgerReader, name: str, known: Sequence[Kernel]) -> LedgerCode:
    launches = tuple(reader.iterate(Launch, graph=name))
    keys = {launch.kernel for launch in launches}
    keys |= {part for kernel in known if kernel.key in keys for part in kernel.sub_kernels}
    return LedgerCode(find_graph(reader, name), launches, tuple(kernel for kernel in known if kernel.key in keys))


def _check(reader: LedgerReader, codes: Iterable[LedgerCode]) -> None:
    faults = [fault for code in codes if (fault := seal_fault(code.graph, code.launches, code.kernels)) is not None]
    if faults:
        others = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise MeasureError(
            f"{reader.path} was not recorded by you on this machine, or was changed since: {faults[0]}{others}. Code "
            f"made of it runs with your rights. Read it first (`torchledger show {reader.path} --wrapper GRAPH`); then "
            "record the model again, or, if you trust who sent it, pass --trust."
        )
