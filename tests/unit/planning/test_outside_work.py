"""What a program does outside the step that was recorded, counted in operators."""

from __future__ import annotations

from collections.abc import Sequence

from torchledger.planning.outside_work import OutsideWork


def counted(model: int, first: int, recorded: int, following: Sequence[int], *, n_updates: int = 1) -> OutsideWork:
    """A program that made its model, a first step, the recorded one and others, of so many operators each."""
    made = 0
    outside = OutsideWork(lambda: made)
    made += model
    outside.model_called()
    made += first
    outside.model_called()
    outside.optimizer_stepped()
    outside.hearing_begins()
    made += recorded
    for _ in range(n_updates):
        outside.optimizer_stepped()
    outside.hearing_ended()
    for each in following:
        made += each
        outside.optimizer_stepped()
    return outside


def test_what_makes_the_model_belongs_to_no_step() -> None:
    outside = counted(10_000, 150, 100, [])
    assert not outside.is_looked_for and outside.note() is None


def test_a_long_first_step_is_looked_for_until_one_comes_again() -> None:
    assert counted(0, 1_000, 100, []).is_looked_for
    assert counted(0, 1_000, 100, [100, 100]).is_looked_for
    assert not counted(0, 1_000, 100, [100, 1_000]).is_looked_for


def test_steps_before_the_first_replay_say_nothing_of_those_that_are_replayed() -> None:
    outside = counted(0, 1_000, 1_000, [1_000, 1_000])
    outside.begin_anew()
    outside.hearing_begins()
    outside.optimizer_stepped()
    outside.hearing_ended()
    assert outside.updates == 1 and not outside.is_looked_for and outside.note() is None


def test_the_mean_is_that_of_whole_turns() -> None:
    note = counted(0, 1_000, 100, [100, 1_000, 100, 100]).note()
    assert note is not None and "4.0 times as many operators" in note and "mean of 3;" in note


def test_a_rare_step_that_adds_little_is_not_said() -> None:
    assert counted(0, 100, 100, [*49 * [100], 300]).note() is None


def test_a_step_that_no_optimizer_ended_is_compared_with_none() -> None:
    assert counted(0, 1_000, 100, [], n_updates=0).note() is None


def test_steps_of_optimizers_in_the_recorded_step_are_counted() -> None:
    assert counted(0, 100, 100, [], n_updates=3).updates == 3


def test_the_state_that_an_optimizer_makes_in_its_first_step_is_no_work_of_the_program() -> None:
    made = 0
    outside = OutsideWork(lambda: made)
    outside.model_called()
    for update in (500, 20, 20):
        outside.hearing_begins()
        made += 100
        outside.optimizer_begins()
        made += update
        outside.optimizer_stepped()
    outside.hearing_ended()
    assert not outside.is_looked_for and outside.note() is None
