"""What later rooms are told of a capture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchledger.nouns import Launch


class Watcher:
    """Told what happens in a capture; later rooms (profile, values) build on it. Override what you need."""

    def on_ready(self) -> bool:
        """Inductor is imported and the hooks are in. ``True`` once all that this asks for is done."""
        return True

    def on_lowered(self, compiled: Any, graph: Any) -> None:
        """A ``CompiledFxGraph`` was made from a ``GraphLowering`` in this process (none is on a cache hit)."""

    def on_graph(self, name: str, compiled: Any, launches: Sequence[Launch]) -> None:
        """A compiled graph was recorded under ``name`` and is about to run for the first time."""

    def on_close(self) -> bool:
        """The capture ends; the ledger can still be written. ``True`` once all that was heard is there."""
        return True
