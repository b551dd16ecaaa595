"""For pytest: a ``ledger`` fixture that records what a test compiles, and snapshots of it.

Installing torchledger is enough: pytest finds this module by its entry point. It imports nothing heavy until a test
asks for the fixture.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torchledger.answers import Ledger

SNAPSHOT_FOLDER = "__ledgers__"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--ledger-update``."""
    group = parser.getgroup("torchledger")
    group.addoption("--ledger-update", action="store_true", help="Write the ledger snapshots that tests ask for.")


class TestLedger:
    """What the test has compiled so far; each number counts a launch once, however often the test ran it."""

    __test__ = False

    def __init__(self, path: Path, snapshot: Path, *, update: bool) -> None:
        self.path = path
        self._snapshot, self._update = snapshot, update

    def load(self) -> Ledger:
        """The whole ledger, as ``torchledger.load`` gives it."""
        from torchledger.answers import load

        return load(self.path)

    @property
    def launches(self) -> int:
        """Kernel launches of all graphs."""
        return len(self.load().launches)

    @property
    def graphs(self) -> int:
        """Compiled graphs: forward and backward are one each."""
        return len(self.load().graphs)

    @property
    def flops(self) -> int | None:
        """Tensor FLOPs of all launches; ``None`` where one is unknown."""
        return _sum([launch.flops for launch in self.load().launches])

    @property
    def bytes_moved(self) -> int | None:
        """Minimum traffic of all launches, in bytes; ``None`` where one is unknown."""
        return _sum([launch.bytes_moved for launch in self.load().launches])

    def check_snapshot(self, name: str | None = None) -> None:
        """Fail if the ledger is not that of the snapshot beside the test (``__ledgers__/TEST.json``).

        ``pytest --ledger-update`` writes it. It holds each launch's category, operators, FLOPs and bytes, graph by
        graph; names of kernels, times and versions play no part.
        """
        __tracebackhide__ = True
        path = self._snapshot if name is None else self._snapshot.with_name(f"{name}.json")
        now = _plain(self.load())
        if self._update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(now, indent=1) + "\n")
            return
        if not path.exists():
            pytest.fail(f"{path} does not exist: run pytest --ledger-update once, and keep the file with the tests.")
        differences = _differences(json.loads(path.read_text()), now)
        if differences:
            told = "\n  ".join(differences)
            pytest.fail(f"the ledger is not that of {path}:\n  {told}\nIf that is meant, run pytest --ledger-update.")


@pytest.fixture
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestLedger]:
    """Records what the test compiles: ``assert ledger.launches <= 51``.

    What an earlier test compiled is compiled again, so that it is seen whatever the order of the tests.
    """
    import torchledger

    if "torch" in sys.modules:
        import torch

        torch.compiler.reset()
    path = tmp_path / "test.ledger"
    name = re.sub(r"[^\w.-]+", "_", request.node.name)
    snapshot = request.path.parent / SNAPSHOT_FOLDER / f"{request.path.stem}.{name}.json"
    with torchledger.capture(path):
        yield TestLedger(path, snapshot, update=request.config.getoption("--ledger-update"))


def _plain(ledger: Ledger) -> dict[str, list[str]]:
    """Each graph's launches in order, a line each."""
    graphs: dict[str, list[str]] = {graph.name: [] for graph in ledger.graphs}
    for launch in ledger.launches:
        ops = ", ".join(launch.aten_ops) or "no operator"
        work = f"{_told(launch.flops)} FLOPs, {_told(launch.bytes_moved)} bytes"
        graphs.setdefault(launch.graph, []).append(f"{launch.category}: {ops}: {work}")
    return graphs


def _differences(before: dict[str, list[str]], now: dict[str, list[str]]) -> list[str]:
    found = []
    for graph in dict.fromkeys((*before, *now)):
        one, other = Counter(before.get(graph, [])), Counter(now.get(graph, []))
        if sum(one.values()) != sum(other.values()):
            found.append(f"{graph}: {sum(one.values())} launches -> {sum(other.values())}")
        found += [f"- {graph}: {line}" for line in (one - other).elements()]
        found += [f"+ {graph}: {line}" for line in (other - one).elements()]
    return found


def _told(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def _sum(counts: list[Any]) -> int | None:
    return None if None in counts else sum(counts)
