"""Branches that a plan does not take, as nobody knows the truth that they ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchledger.nouns import StandIn
from torchledger.planning.untaken import untaken_note


def note_on(text: str, tmp_path: Path, *, value: str = "False") -> str | None:
    path = tmp_path / "branches.py"
    path.write_text(text)
    return untaken_note([StandIn(f"{path}:1", "the value of a tensor of bool", value)])


def test_a_branch_that_asks_for_a_mask_and_computes_is_named_with_its_line(tmp_path: Path) -> None:
    said = note_on("if mask.any():\n    x = second(x)\n", tmp_path)
    assert said is not None and "`if mask.any():` (" in said and "branches.py:1)" in said


@pytest.mark.parametrize(
    "text",
    [
        "if torch.isnan(loss).any():\n    skip(loss)\n",
        "if loss > best:\n    save(model)\n",
        "if mask.any():\n    raise ValueError(text())\n",
        "if mask.any():\n    count += 1\n",
        "while mask.any():\n    x = second(x)\n",
    ],
)
def test_checks_milestones_and_branches_without_work_are_not_named(text: str, tmp_path: Path) -> None:
    assert note_on(text, tmp_path) is None


def test_a_branch_that_is_taken_is_not_named(tmp_path: Path) -> None:
    assert note_on("if mask.any():\n    x = second(x)\n", tmp_path, value="True") is None
