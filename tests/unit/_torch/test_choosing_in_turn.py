"""Turns where Inductor measures what it chooses among."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from torch._inductor.runtime.benchmarking import benchmarker

from torchledger._torch.choosing import choose_in_turn


def test_a_measurement_holds_one_turn_also_where_it_asks_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        told.append("taken")
        yield
        told.append("given back")

    def measure(what: str) -> float:
        told.append(what)
        return benchmarker.benchmark_gpu("inner") if what == "outer" else 1.0

    monkeypatch.setattr(benchmarker, "benchmark_gpu", measure)
    patches = choose_in_turn(turn)
    assert benchmarker.benchmark_gpu("outer") == 1.0
    assert told == ["taken", "outer", "inner", "given back"]
    patches.undo()
    assert benchmarker.benchmark_gpu("alone") == 1.0
    assert told[4:] == ["alone"]


def test_a_measurement_that_fails_gives_its_turn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        turns.append(1)
        try:
            yield
        finally:
            turns.append(-1)

    def measure() -> float:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(benchmarker, "benchmark_gpu", measure)
    patches = choose_in_turn(turn)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            benchmarker.benchmark_gpu()
    patches.undo()
    assert turns == [1, -1, 1, -1]
