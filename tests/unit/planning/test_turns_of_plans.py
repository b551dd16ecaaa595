"""Turns of several steps of an optimizer and the work that these use, told from where a program's calls are made."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent
from traceback import walk_stack
from types import SimpleNamespace

import pytest

from torchledger.planning.turns import Turns

CALL, STEP = 100, 10
"""Operators of a call of the model, and of a step behind it."""


class Data:
    """What a program computes."""


def told(folder: Path, text: str, beyond: int | None = 1) -> tuple[Turns, list[bool]]:
    """Run a program that calls ``model()`` and ``step()``. Returns whether each step ended a turn."""
    script = folder / "train.py"
    script.write_text(dedent(text))
    made, ends = 0, []
    turns = Turns(lambda: made, lambda value: isinstance(value, Data))

    def model(*given: object) -> Data:
        nonlocal made
        turns.model_called()
        made += CALL
        return Data()

    def step() -> None:
        nonlocal made
        made += STEP
        frames = [each for each in walk_stack(sys._getframe(1)) if each[0].f_code.co_filename == str(script)]
        ends.append(turns.optimizer_stepped(frames, beyond=beyond))

    known = {"model": model, "step": step, "space": SimpleNamespace}
    exec(compile(script.read_text(), str(script), "exec"), known)
    return turns, ends


SEVERAL = {
    "a rollout": """
        for _ in range(5):
            data = model()
            for _ in range(4):
                model(data)
                step()
    """,
    "an endless loop, and functions": """
        def collect():
            return [model() for _ in range(3)][-1]
        def update(data):
            for part in (1, 2, 3, 4):
                model(data)
                step()
        left = 5
        while left:
            left -= 1
            data = collect()
            update(data)
    """,
    "minibatches of epochs": """
        for turn in range(5):
            data = model()
            data = model(data)
            for epoch in range(2):
                order = epoch
                for part in range(2):
                    model(data)
                    step()
    """,
}

ONE = {
    "an evaluation behind an epoch": """
        for epoch in range(5):
            order = model
            for batch in range(4):
                model(order)
                step()
            model()
    """,
    "an evaluation before an epoch, which uses nothing of it": """
        for epoch in range(5):
            accuracy = model()
            for batch in range(4):
                model(batch)
                step()
    """,
    "a step for each of its data": """
        for turn in range(20):
            data = model()
            model(data)
            step()
    """,
    "turns of as many steps as their data ask": """
        for turn in range(5):
            data = model()
            for _ in range(2 + turn % 2):
                model(data)
                step()
    """,
    "steps at two places": """
        for turn in range(5):
            data = model()
            for _ in range(2):
                model(data)
                step()
            for _ in range(2):
                model(data)
                step()
    """,
    "little before many steps": """
        for turn in range(5):
            data = model()
            for _ in range(40):
                model(data)
                step()
    """,
}


@pytest.mark.parametrize("text", SEVERAL.values(), ids=SEVERAL.keys())
def test_steps_that_use_what_was_computed_before_them_make_one_turn(tmp_path: Path, text: str) -> None:
    turns, ends = told(tmp_path, text)
    assert turns.turn is not None and turns.turn.count == 4
    assert [place for place, ended in enumerate(ends, 1) if ended] == [12, 16, 20]


@pytest.mark.parametrize("text", ONE.values(), ids=ONE.keys())
def test_steps_that_do_not_surely_belong_together_are_steps(tmp_path: Path, text: str) -> None:
    turns, ends = told(tmp_path, text)
    assert turns.turn is None and not any(ends)


def test_the_note_names_the_loop_and_where_its_steps_are_made(tmp_path: Path) -> None:
    turns, _ = told(tmp_path, SEVERAL["a rollout"])
    assert turns.turn is not None and turns.turn.note() == (
        "a step is one turn of the loop at train.py:2: 4 steps of its optimizer (at train.py:4) and the work before "
        "them that they use; end a step elsewhere with torchledger.step()"
    )


@pytest.mark.parametrize("beyond", [None, 4])
def test_steps_that_are_known_to_be_one_are_no_turn_of_several(tmp_path: Path, beyond: int | None) -> None:
    assert told(tmp_path, SEVERAL["a rollout"], beyond)[0].turn is None
