"""What came of several recordings of one program: the newest that has times stands."""

from __future__ import annotations

from pathlib import Path

from torchledger.stepping.finder import StepFinder
from torchledger.stepping.outcome import Outcome


def times_in(folder: Path, name: str) -> Path:
    path = folder / f"{name}.json"
    path.write_text("{}")
    return path


def test_steps_whose_second_recording_came_to_nothing_stand_and_not_the_calls_before_them(tmp_path: Path) -> None:
    calls, steps = (times_in(tmp_path, name) for name in ("calls", "steps"))
    outcome = Outcome()
    outcome.update(times=calls)
    outcome.set_calls_aside(outcome.found)
    outcome.update(times=steps)
    outcome.drop_former_times()
    assert not calls.exists()
    outcome.set_aside((("forward_0", 1),))
    whole = outcome.whole(StepFinder(), (), counts_eager=True, n_updates=3, needed=9, own_later=0, elsewhere_later=0)
    assert whole.times == steps and steps.exists()


def test_calls_stand_where_the_training_behind_them_ended_too_early(tmp_path: Path) -> None:
    calls = times_in(tmp_path, "calls")
    outcome = Outcome()
    outcome.update(times=calls)
    outcome.set_calls_aside(outcome.found)
    whole = outcome.whole(StepFinder(), (), counts_eager=True, n_updates=3, needed=9, own_later=0, elsewhere_later=0)
    assert whole.times == calls and "3 steps of optimizers came after" in whole.notes[-1]
