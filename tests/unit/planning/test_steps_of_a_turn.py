"""Several steps of an optimizer in a turn of a loop around them, told from a program's text."""

from __future__ import annotations

import sys
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from traceback import walk_stack
from types import SimpleNamespace
from typing import Any

import pytest

from torchledger.planning.steps_of_a_turn import StepsOfATurn, steps_of_a_turn


def told(folder: Path, text: str, **known: Any) -> list[StepsOfATurn | None]:
    """What each ``step()`` of a program is told."""
    script = folder / "train.py"
    script.write_text(dedent(text))
    found = []

    def step() -> None:
        frames = [each for each in walk_stack(sys._getframe(1)) if each[0].f_code.co_filename == str(script)]
        frames = list(takewhile(lambda each: each[0].f_code.co_name != "plan", frames))
        found.append(steps_of_a_turn(frames))

    exec(compile(script.read_text(), str(script), "exec"), {"step": step, **known})
    return found


SEVERAL = {
    "a range": """
        for turn in turns:
            for _ in range(4):
                step()
            average()
    """,
    "a range of what was asked for": """
        while turns:
            turns.pop()
            for _ in range(0, args.updates, 2):
                with context:
                    step()
    """,
    "a function that is called in it": """
        def update():
            step()
        for turn in turns:
            for name in ("first", "second", "third", "fourth"):
                update()
    """,
    "a function that loops": """
        def update(updates):
            for _ in range(updates):
                step()
        for turn in turns:
            update(4)
    """,
}

ONE = {
    "one loop": """
        for _ in range(4):
            step()
    """,
    "as many as there are batches": """
        for epoch in turns:
            for batch in list(turns):
                step()
    """,
    "an epoch": """
        for epoch in turns:
            for batch in range(1000):
                step()
    """,
    "some turns alone": """
        for turn in turns:
            for micro_batch in range(4):
                if micro_batch == 3:
                    step()
    """,
    "a list of optimizers": """
        for _ in range(4):
            [each() for each in (step,)]
    """,
    "a program that a lambda runs": """
        def plan(program):
            program()
        def train():
            for _ in range(4):
                step()
        for batch in turns:
            plan(lambda: train())
    """,
    "a turn": """
        for turn in turns:
            for _ in range(1):
                step()
    """,
}


def known() -> dict[str, Any]:
    class Context:
        def __enter__(self) -> None: ...
        def __exit__(self, *error: Any) -> None: ...

    return {"turns": [1], "average": list, "context": Context(), "args": SimpleNamespace(updates=8)}


@pytest.mark.parametrize("text", SEVERAL.values(), ids=SEVERAL.keys())
def test_a_loop_of_few_turns_inside_another_makes_several_steps_of_one_turn(tmp_path: Path, text: str) -> None:
    found = told(tmp_path, text, **known())
    assert len(found) == 4 and len(set(found)) == 1
    assert found[0] is not None and found[0].count == 4 and found[0].loop != found[0].around


@pytest.mark.parametrize("text", ONE.values(), ids=ONE.keys())
def test_steps_that_are_turns_or_of_which_the_text_does_not_say_how_many_are_not_several(
    tmp_path: Path, text: str
) -> None:
    assert set(told(tmp_path, text, **known())) == {None}


def test_the_note_names_both_loops(tmp_path: Path) -> None:
    (first, *_) = told(tmp_path, SEVERAL["a range"], **known())
    assert first is not None and first.note() == (
        "one step of the optimizer is priced: the loop at train.py:3 makes 4 in each turn of the loop around it "
        "(train.py:2); end a whole turn with torchledger.step() to price it"
    )
