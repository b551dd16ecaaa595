"""Steps of a training that begins where calls that nothing updates were, or are being, recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.recorded_program import Program, in_thread

from torchledger.stepping.states import State

TRAINED = {"forward_0": 1, "backward_0": 1, "Compiled.step": 1}
SERVED = {"inference_0": 1}


class Serving(Program):
    """A program that is asked for answers on the test's own thread, and trains where it is told to."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.graphs.append(self.compile("inference_0"))

    def serve(self, number: int) -> None:
        for _ in range(number):
            self.call("inference_0")
            self.tools.now_us += 10.0


class Worker:
    """A thread that does what it is handed, one thing after the other, until it is let go."""

    def __init__(self) -> None:
        self._wanted, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._action: Callable[[], Any] | None = None
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while self._wanted.acquire() and self._action is not None:
            self._action()
            self._done.release()

    def do(self, action: Callable[[], Any]) -> None:
        self._action = action
        self._wanted.release()
        self._done.acquire()

    def end(self) -> None:
        self._action = None
        self._wanted.release()
        self._thread.join()


@pytest.fixture
def worker() -> Any:
    made = Worker()
    yield made
    made.end()


@pytest.mark.parametrize("n_served", range(2, 30, 3))
def test_a_thread_that_trains_is_recorded_however_far_the_recording_of_one_that_serves_has_come(
    n_served: int, worker: Worker
) -> None:
    program = Serving()
    program.serve(n_served)
    for _ in range(25):
        worker.do(program.step)
        program.serve(1)
    result = program.result()
    assert result.found_by == "optimizer"
    assert result.kinds[0].calls == TRAINED
    assert result.n_steps == 2 and result.times is not None
    assert result.optimizers, "the optimizer of the recorded steps is known"
    assert any("by other threads" in note for note in result.notes)
    assert program.tools.n_open == 0


def test_a_thread_that_trains_beside_calls_being_recorded_waits_for_the_end_of_their_recording(worker: Worker) -> None:
    program = Serving()
    while program.recorder.state is not State.RECORDING:
        program.serve(1)
    worker.do(program.step)
    assert program.recorder.state is State.RECORDING
    worker.do(lambda: program.steps(3))
    while program.recorder.state is not State.WARMING:
        program.serve(1)
    worker.do(lambda: program.steps(20))
    assert program.result().kinds[0].calls == TRAINED


def test_what_a_thread_evaluates_before_it_trains_is_not_the_step() -> None:
    program = Serving()
    program.serve(100)
    assert program.recorder.is_done
    program.steps(20)
    result = program.result()
    assert result.found_by == "optimizer" and result.kinds[0].calls == TRAINED
    assert not any("other threads" in note for note in result.notes)


def test_a_training_too_short_to_be_recorded_leaves_what_was_recorded_and_is_said(worker: Worker) -> None:
    program = Serving()
    program.serve(40)
    worker.do(lambda: program.steps(3))
    result = program.result()
    assert result.found_by == "period" and result.kinds[0].calls == SERVED
    assert result.times is not None
    assert any("3 steps of optimizers came after what was recorded" in note for note in result.notes)


def test_an_optimizer_on_a_thread_of_its_own_behind_backwards_of_another_is_no_second_training() -> None:
    program = Program()
    for _ in range(100):
        program.call("forward_0")
        program.call("backward_0")
    recorded = program.recorder.is_done
    in_thread(lambda: program.recorder.optimizer_stepped(program.optimizer))
    assert recorded and program.recorder.is_done


def test_calls_are_heard_again_once_and_not_where_they_cannot_be() -> None:
    asked: list[str] = []

    def cannot() -> bool:
        asked.append("again")
        return False

    program = Serving(on_again=cannot)
    program.serve(40)
    program.steps(20)
    result = program.result()
    assert result.kinds[0].calls == SERVED and result.found_by == "period"
    assert asked


def test_a_recording_of_training_frees_that_of_the_calls_before_it(worker: Worker) -> None:
    program = Serving()
    program.serve(40)
    worker.do(lambda: program.steps(20))
    program.result()
    assert program.tools.n_held == 0
    assert program.tools.said.count("start recording") == 2


def test_a_second_training_behind_a_recorded_one_is_said_and_the_first_stays() -> None:
    program = Program().steps(30)
    assert program.recorder.is_done
    program.graphs.append(program.compile("forward_1"))
    result = program.steps(50).result()
    assert result.kinds[0].calls == TRAINED
    assert any("1 graph was compiled after the recorded steps, and 50 steps" in note for note in result.notes)


def test_a_training_that_goes_on_as_recorded_is_no_second_one() -> None:
    assert Program().steps(500).result().notes == ()


def test_steps_of_an_optimizer_on_a_later_thread_are_said(worker: Worker) -> None:
    program = Program().steps(30)
    worker.do(lambda: program.steps(20))
    assert any("20 steps of optimizers by other threads" in note for note in program.result().notes)
