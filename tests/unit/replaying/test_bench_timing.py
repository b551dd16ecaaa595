"""Many calls in one recording: what is taken apart, and what happens when records are lost. No CUDA device needed."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from torchledger._torch import device_trace
from torchledger._torch.device_trace import Piece
from torchledger.replaying import bench_timing
from torchledger.replaying.bench_timing import Budget, Subject, Times, clock_of


class Recorder:
    """Stands for the device: what runs appends how long it took."""

    log: ClassVar[list[float | None]] = []
    sessions = 0
    fails_above = 10**9

    def __enter__(self) -> Recorder:
        Recorder.sessions += 1
        Recorder.log.clear()
        self.marks = 0
        return self

    def __exit__(self, *unused: Any) -> None:
        pass

    def mark(self) -> int:
        Recorder.log.append(None)
        self.marks += 1
        return self.marks

    def pieces(self) -> list[Piece] | None:
        if self.marks > Recorder.fails_above:
            return None
        pieces: list[Piece] = []
        current: list[float] = []
        for entry in [*Recorder.log, None]:
            if entry is None:
                intervals = tuple((0, int(1000 * each)) for each in current)
                pieces.append(Piece(tuple("k" for _ in current), intervals))
                current = []
            else:
                current.append(entry)
        return pieces


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(device_trace, "DeviceTrace", Recorder)
    monkeypatch.setattr(bench_timing, "_clock_mhz", lambda place: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    Recorder.sessions, Recorder.fails_above = 0, 10**9
    made: Any = object.__new__(bench_timing._CudaClock)

    class Flushed:
        def zero_(self) -> None:
            Recorder.log.append(500.0)

    made.place, made._name, made._flushed = "cuda:0", "cupti", Flushed()
    return made


def _timed(clock: Any, subjects: list[Subject], budget: Budget) -> list[Times]:
    pairs = [(subject, clock.warm_up(subject)) for subject in subjects]
    clock.measure(pairs, budget)
    return [times for _, times in pairs]


def _subjects() -> list[Subject]:
    def led(mark: Any) -> None:
        Recorder.log.append(70.0)
        mark()
        Recorder.log.append(3.0)
        mark()

    alone = Subject(call=lambda: Recorder.log.append(2.0), prepare=lambda: Recorder.log.append(90.0))
    return [alone, Subject(led=led, states=("step",))]


def test_what_lies_before_and_between_the_marks_is_kept_apart(clock: Any) -> None:
    alone, led = _timed(clock, _subjects(), Budget(seconds=1, min_repeats=10, max_repeats=40))
    assert alone.samples_us == {"warm": [2.0] * 10, "cold": [2.0] * 10}
    assert led.samples_us == {"step": [3.0] * 10}
    assert Recorder.sessions == 1


def test_a_recording_that_lost_records_is_taken_again_in_halves(clock: Any) -> None:
    Recorder.fails_above = 30
    alone, led = _timed(clock, _subjects(), Budget(seconds=1, min_repeats=10, max_repeats=40))
    assert len(alone.samples_us["warm"]) == len(alone.samples_us["cold"]) == len(led.samples_us["step"]) == 10
    assert not alone.notes and not led.notes


def test_a_call_whose_records_are_always_lost_says_so(clock: Any) -> None:
    Recorder.fails_above = 0
    _, led = _timed(clock, _subjects(), Budget(seconds=0.01, min_repeats=10, max_repeats=40))
    assert not led.samples_us and "lost the records" in led.notes[0]


def test_times_that_scatter_are_taken_until_the_budget_ends(clock: Any) -> None:
    values = iter(range(1, 10**6))
    subject = Subject(call=lambda: Recorder.log.append(float(next(values) % 97)), states=("warm",))
    (times,) = _timed(clock, [subject], Budget(seconds=10, min_repeats=20, max_repeats=60))
    assert len(times.samples_us["warm"]) == 60


def test_on_a_cpu_each_time_has_its_own_lead_in() -> None:
    clock = clock_of("cpu")
    order: list[str] = []

    def led(mark: Any) -> None:
        order.append("before")
        mark()
        order.append("timed")
        mark()

    subject = Subject(led=led, states=("step",))
    times = clock.warm_up(subject)
    clock.measure([(subject, times)], Budget(seconds=0.01, min_repeats=6, max_repeats=6))
    assert times.clock == "host" and len(times.samples_us["step"]) >= 1
    assert order == ["before", "timed"] * (len(order) // 2)
