"""Turns of several steps of an optimizer and the work that these use, told from where a program's calls are made."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from traceback import walk_stack
from types import SimpleNamespace

import pytest

from torchledger.planning.turns import Turn, Turns

CALL, STEP = 100, 10
"""Operators of a call of the model, and of a step behind it."""


class Data:
    """What a program computes."""


class Flow:
    """What the model computes in a part of a program, and whether it is read behind that."""

    def __init__(self) -> None:
        self.is_used, self.is_before, self.is_over = False, True, False
        self.computed: list[Data] = []

    def behind(self) -> None:
        self.is_before = False

    def end(self) -> None:
        self.is_over = True

    def called(self, given: Sequence[object], made: Data) -> None:
        assert not self.is_over
        self.computed += [made] if self.is_before else []
        self.is_used = self.is_used or (
            not self.is_before and any(each is data for each in given for data in self.computed)
        )


def told(folder: Path, text: str, beyond: int | None = 1, given: Turn | None = None) -> tuple[Turns, list[bool]]:
    """Run a program that calls ``model()`` and ``step()``. Returns whether each step ended a turn.

    Its code has no hash, as there is behind a graph break of Dynamo's.
    """
    script = folder / "train.py"
    script.write_text(dedent(text))
    made, ends, flows = 0, [], list[Flow]()

    def follow() -> Flow:
        flows.append(Flow())
        return flows[-1]

    turns = Turns(lambda: made, follow, given)

    def model(*given: object) -> Data:
        nonlocal made
        turns.model_called()
        made += CALL
        data = Data()
        for flow in flows:
            if not flow.is_over:
                flow.called(given, data)
        return data

    def step() -> None:
        nonlocal made
        made += STEP
        frames = [each for each in walk_stack(sys._getframe(1)) if each[0].f_code.co_filename == str(script)]
        ends.append(turns.optimizer_stepped(frames, beyond=beyond))

    known = {"model": model, "step": step, "space": SimpleNamespace}
    code = compile(script.read_text(), str(script), "exec")
    exec(code.replace(co_consts=(*code.co_consts, {})), known)
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
    "a trainer that keeps what it collects": """
        class Trainer:
            def collect(self):
                self.kept = {"data": [model() for _ in range(3)]}
            def update(self):
                for part in range(4):
                    model(self.kept["data"][part % 3])
                    step()
            def learn(self):
                for turn in range(5):
                    self.collect()
                    self.update()
        Trainer().learn()
    """,
    "a method that collects and updates": """
        class Trainer:
            def collect(self):
                self.kept = model()
            def update(self):
                for part in range(4):
                    model(self.kept)
                    step()
            def one(self):
                self.collect()
                self.update()
        trainer = Trainer()
        for turn in range(5):
            trainer.one()
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
    "an evaluation before an epoch, of which a mean is kept": """
        class Trainer:
            def evaluate(self):
                self.best = model()
            def train(self):
                for batch in range(4):
                    model(batch)
                    step()
        trainer = Trainer()
        for epoch in range(5):
            trainer.evaluate()
            trainer.train()
    """,
    "a function that is called once": """
        def main():
            data = model()
            for _ in range(12):
                model(data)
                step()
        main()
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


def test_a_turn_in_a_method_of_its_own_is_named_by_the_loop_that_calls_it(tmp_path: Path) -> None:
    turns, _ = told(tmp_path, SEVERAL["a method that collects and updates"])
    assert turns.turn == Turn("train.py:13", "train.py:11", 4)


def test_a_turn_that_another_rank_has_found_is_counted_from_its_first_step(tmp_path: Path) -> None:
    text = SEVERAL["a trainer that keeps what it collects"]
    turns, ends = told(tmp_path, text, given=told(tmp_path, text)[0].turn)
    assert turns.turn == Turn("train.py:10", "train.py:12", 4)
    assert [place for place, ended in enumerate(ends, 1) if ended] == [4, 8, 12, 16, 20]


def test_a_given_turn_of_another_loop_is_none(tmp_path: Path) -> None:
    turns, ends = told(tmp_path, SEVERAL["a rollout"], given=Turn("train.py:77", "train.py:78", 4))
    assert turns.turn is None and not any(ends)


def test_steps_of_the_first_turn_may_be_parts_of_one_where_a_model_was_called_before_them(tmp_path: Path) -> None:
    first = SEVERAL["a rollout"].replace("range(5)", "range(1)")
    assert told(tmp_path, first)[0].is_possible
    assert not told(tmp_path, ONE["an evaluation behind an epoch"].replace("range(5)", "range(1)"))[0].is_possible


@pytest.mark.parametrize("beyond", [None, 4])
def test_steps_that_are_known_to_be_one_are_no_turn_of_several(tmp_path: Path, beyond: int | None) -> None:
    assert told(tmp_path, SEVERAL["a rollout"], beyond)[0].turn is None
