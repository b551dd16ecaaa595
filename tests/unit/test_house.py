"""The rooms of the house and the direction in which a record moves through them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import torchledger

HOUSE = Path(torchledger.__file__).parent
IN_ORDER = (
    ("nouns", "errors", "printable"),
    ("work", "roofline"),
    ("store", "_torch"),
    ("device",),
    ("traces", "operators"),
    ("capturing",),
    ("stepping",),
    ("profiling", "replaying", "watching", "comparing"),
    ("sampling",),
    ("fitting",),
    ("predicting",),
    ("reporting",),
    ("cli",),
)
PLACE = {room: place for place, rooms in enumerate(IN_ORDER) for room in rooms}


def imports_of(path: Path) -> set[str]:
    """The rooms that a file imports, also inside functions."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
    return {module.split(".")[1] for module in modules if module.startswith("torchledger.")}


@pytest.mark.parametrize("room", sorted(set(PLACE) - {"cli"}))
def test_a_room_imports_no_later_room(room: str) -> None:
    files = [HOUSE / f"{room}.py"] if (HOUSE / f"{room}.py").exists() else sorted((HOUSE / room).rglob("*.py"))
    assert files
    wrong = {
        str(path.relative_to(HOUSE)): later
        for path in files
        if (later := {other for other in imports_of(path) if PLACE.get(other, 0) > PLACE[room]})
    }
    assert not wrong
