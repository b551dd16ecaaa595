"""Planted faults: the first bad launch is named, and clean runs raise no alarm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchledger
from planted import DIVISION, LOG, MODELS, SCALE
from watched import Case

_SLOW = ("experts", "recurrent", "lookup")
"""Models whose kernels take long to build and whose parts others have too."""


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name in _SLOW)) for name in MODELS]
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    path: Path = tmp_path_factory.mktemp(request.param) / "a.ledger"
    torch._dynamo.reset()
    with torchledger.values(path, find="nan", level="off") as watch:
        yield Case(request.param, watch)


def test_a_clean_run_has_no_findings(case: Case) -> None:
    for question in ("nan", "inf", "overflow"):
        assert case.ask(question, case.neutral()) == []


@pytest.mark.parametrize("place", [0, 1])
def test_the_launch_that_divides_by_zero_is_named(case: Case, place: int) -> None:
    case.ask("inf", case.faulty(place, DIVISION, 0.0))
    first = case.assert_first_is_at(place)
    assert first.count
    assert all(len(index) == len(first.shape) for index in first.indices)


@pytest.mark.parametrize("place", [0, 1])
def test_the_launch_that_takes_the_log_of_a_negative_number_is_named(case: Case, place: int) -> None:
    case.ask("nan", case.faulty(place, LOG, -1.0))
    first = case.assert_first_is_at(place)
    assert first.indices
    assert first.reaches_output is not (case.name == "masked" and place == 0)


def test_a_nan_at_the_third_call_only_is_found_there(case: Case) -> None:
    start = case.watch._graphs[0].n_calls
    for _ in range(2):
        assert case.ask("nan", case.neutral()) == []
    case.ask("nan", case.faulty(1, LOG, -1.0))
    assert case.assert_first_is_at(1).call_index == start + 2


def test_the_launch_that_overflows_is_named(case: Case) -> None:
    scale = {"float16": 6e4, "bfloat16": 3e38}.get(case.name, 3e38)
    case.ask("overflow", case.faulty(0, SCALE, scale))
    first = case.assert_first_is_at(0)
    if case.name in ("float16", "bfloat16"):
        assert first.dtype == case.name
