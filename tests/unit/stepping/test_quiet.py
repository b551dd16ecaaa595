"""Plain steps behind a recording pass unheard, but for the calls of graphs, and are timed all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recorded_program import Compiled, Program, in_thread
from torchledger.nouns import StepKind
from torchledger.stepping.states import State


class QuietProgram(Program):
    """A program whose hooks can be taken out: then only ``count`` is told of the calls of its graphs."""

    def __init__(self, **options: Any) -> None:
        self.count: Callable[[Any], None] | None = None
        self.heard: list[str] = []
        super().__init__(quiet=self._quiet, after_us=1000.0, **options)
        self.by_name = dict(zip(("forward_0", "backward_0"), self.graphs, strict=True))

    def _quiet(self, called: Callable[[Any], None] | None) -> bool:
        self.count = called
        return True

    def compile(self, name: str) -> Compiled:
        compiled = super().compile(name)
        if hasattr(self, "by_name"):
            self.by_name[name] = compiled
        return compiled

    def call(self, name: str, proceed: Callable[[], Any] = lambda: 7) -> Any:
        if self.count is not None:
            self.count(self.by_name[name])
            return proceed()
        self.heard.append(name)
        return super().call(name, proceed)

    def step(self, *, took_us: float = 100.0, forwards: int = 1) -> None:
        for _ in range(forwards):
            self.call("forward_0")
            self.call("backward_0")
        self.tools.now_us += took_us
        if self.count is None and not self.recorder.is_done:
            self.recorder.optimizer_stepped(self.optimizer)


def until_quiet(program: QuietProgram) -> None:
    for _ in range(20):
        program.step()
        if program.count is not None:
            return
    raise AssertionError("no step was quiet")


def test_steps_behind_a_recording_are_timed_by_the_calls_of_graphs_alone() -> None:
    program = QuietProgram()
    until_quiet(program)
    heard = len(program.heard)
    for number in range(30):
        program.step(took_us=200.0 + number)
    assert program.recorder.is_done and program.count is None
    # Once that is over, at the beginning of a seventh, nobody counts: here they are heard, and nothing is made of it.
    assert len(program.heard) == heard + 2 * (30 - 6) + 1
    result = program.result()
    assert result.plain_after_us == (200.0, 201.0, 202.0, 203.0, 204.0)
    assert result.issued_after_us == tuple(each / 2 for each in result.plain_after_us)
    assert result.plain_us == (100.0, 100.0, 100.0)


def test_quiet_steps_are_seen_all_the_same() -> None:
    program = QuietProgram()
    until_quiet(program)
    heard = program.recorder.result().seen
    program.steps(30)
    result = program.result()
    assert result.seen == heard + len(result.plain_after_us)
    assert result.kinds == (StepKind(result.seen, {"Compiled.step": 1, "backward_0": 1, "forward_0": 1}),)


def test_a_program_that_ends_in_quiet_steps_keeps_those_that_it_made() -> None:
    program = QuietProgram()
    until_quiet(program)
    program.steps(4)
    result = program.result()
    assert result.plain_after_us == (100.0,) * 3
    assert program.count is None


def test_steps_of_another_kind_end_the_quiet() -> None:
    program = QuietProgram()
    until_quiet(program)
    program.steps(2)
    program.call("backward_0")
    program.step()
    assert program.count is None and program.recorder.state is State.AFTER
    program.steps(20)
    result = program.result()
    assert program.recorder.is_done
    assert set(result.plain_after_us) == {100.0}


def test_a_graph_that_is_compiled_ends_the_quiet() -> None:
    program = QuietProgram()
    until_quiet(program)
    program.compile("forward_1")
    assert program.count is None
    program.steps(20)
    assert program.recorder.is_done


def test_calls_of_another_thread_end_the_quiet() -> None:
    program = QuietProgram()
    until_quiet(program)
    program.steps(2)
    in_thread(lambda: program.steps(3))
    assert program.count is None


def test_an_optimizer_that_steps_where_none_was_known_ends_the_quiet() -> None:
    program = QuietProgram()
    until_quiet(program)
    program.recorder.optimizer_stepped(program.optimizer)
    assert program.count is None


def test_a_mark_says_nothing_new_of_quiet_steps() -> None:
    program = QuietProgram()
    until_quiet(program)
    program.recorder.marked("torchledger.step")
    assert program.count is not None


@pytest.mark.parametrize("share", [3, 5])
def test_programs_whose_steps_differ_are_heard_throughout(share: int) -> None:
    program = QuietProgram()
    for number in range(60):
        program.step(forwards=2 if number % share == 0 else 1)
        assert program.count is None


def test_a_child_of_a_fork_counts_no_steps_of_its_parents() -> None:
    program = QuietProgram()
    until_quiet(program)
    program.recorder.after_fork()
    program.steps(30)
    assert program.recorder.result().plain_after_us == ()


def test_calls_that_no_optimizer_follows_pass_quietly_too() -> None:
    program = QuietProgram()
    for _ in range(40):
        program.call("forward_0")
        program.tools.now_us += 50.0
    result = program.result()
    assert result.found_by == "period"
    assert set(result.plain_after_us) == {50.0} and len(result.plain_after_us) >= 20
    assert len(program.heard) < 40 - 20
