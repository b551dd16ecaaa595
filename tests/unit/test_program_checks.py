"""Checks of a program's own, and the truth with which they pass."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType

import pytest

from torchledger.program_checks import truth_that_passes


class Asked:
    """Is whatever lets the check pass that asks; ``told`` keeps what that was."""

    def __init__(self) -> None:
        self.told: list[bool | None] = []

    def __bool__(self) -> bool:
        self.told.append(truth_that_passes(sys._getframe(1)))
        return bool(self.told[-1])


def told(folder: Path, text: str) -> list[bool | None]:
    """What a program with the truth ``a`` is told, in turn."""
    script, asked = folder / "program.py", Asked()
    script.write_text(text)
    exec(without_hash(compile(text, str(script), "exec")), {"a": asked})
    return asked.told


def without_hash(code: CodeType) -> CodeType:
    """The same code, with a value among its constants that has no hash, as behind a graph break of Dynamo's."""
    return code.replace(co_consts=(*code.co_consts, {}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("assert a", [True]),
        ("assert not a, 'said'", [False]),
        ("assert a and a", [True, True]),
        ("assert not (a or\n  a)", [False, False]),
        ("if a:\n    raise ValueError", [False]),
        ("if not a: raise ValueError", [True]),
        ("if not (a and a):\n    x = 1\n    raise ValueError", [True, True]),
        ("assert bool(a) and not bool(a)", [True, False]),
        ("if a:\n    x = 1\nelse:\n    raise ValueError", [True]),
        ("def f():\n    if not a:\n        raise ValueError\nf()", [True]),
    ],
)
def test_a_check_is_told_what_lets_it_pass(tmp_path: Path, text: str, expected: list[bool]) -> None:
    assert told(tmp_path, text) == expected


@pytest.mark.parametrize(
    "text",
    ["x = 1 if a else 2", "if a:\n    x = 1", "while a:\n    break", "if a:\n    x = 1\nelse:\n    x = 2"],
)
def test_what_is_no_check_is_told_nothing(tmp_path: Path, text: str) -> None:
    assert told(tmp_path, text) == [None]


def test_a_check_whose_text_is_not_there_is_told_nothing() -> None:
    asked = Asked()
    exec(compile("if a:\n    raise ValueError", "<made up>", "exec"), {"a": asked})
    assert asked.told == [None]
