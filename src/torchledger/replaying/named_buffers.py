"""What a ledger knows of a name in a graph's wrapper."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchledger.nouns import Buffer, Graph, Launch


@dataclass
class NamedBuffers:
    """The buffers of a graph by name, and who writes them."""

    graph: Graph
    launches: tuple[Launch, ...]
    buffers: dict[str, list[Buffer]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for launch in self.launches:
            for buffer in launch.buffers:
                self.buffers.setdefault(buffer.name, []).append(buffer)

    def fx_node(self, name: str) -> str | None:
        found = next((buffer.fx_node for buffer in self.buffers.get(name, ()) if buffer.fx_node), None)
        # An input that is only ever seen under the name it is overwritten as bears its node's name.
        return found if found is not None or name in self.buffers else name

    def producer(self, name: str, before: int) -> Launch | None:
        """The last launch before a place in the graph that wrote a buffer."""
        for launch in reversed(self.launches):
            writes = any(buffer.name == name and buffer.role != "input" for buffer in launch.buffers)
            if writes and launch.order < before and launch.wrapper_line is not None:
                return launch
        return None

    def device(self, name: str) -> str | None:
        return next((buffer.device for buffer in self.buffers.get(name, ())), None)
