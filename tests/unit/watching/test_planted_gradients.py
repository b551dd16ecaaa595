"""Faults in the backward, and bad values that come from outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torchledger
from planted import ROOT
from watched import Case


@pytest.fixture(scope="module", params=["mlp", pytest.param("norm", marks=pytest.mark.slow)])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    torch._dynamo.reset()
    path = tmp_path_factory.mktemp("trained") / "a.ledger"
    with torchledger.values(path, find="nan", level="off") as watch:
        yield Case(request.param, watch)


@pytest.mark.parametrize("place", [0, 1])
def test_a_nan_in_a_gradient_only_is_found_in_the_backward(trained: Case, place: int) -> None:
    assert trained.ask("nan", trained.neutral(), backward=True) == []
    trained.ask("nan", trained.faulty(place, ROOT, 0.0), backward=True)
    first = trained.assert_first_is_at(place)
    assert first.subject.startswith("backward_")


def test_a_bad_input_came_in_and_was_not_created(trained: Case) -> None:
    spoilt = Case.__new__(Case)
    spoilt.__dict__ = dict(trained.__dict__, x=trained.x.clone())
    spoilt.x[3, 5] = torch.nan
    findings = spoilt.ask("nan", spoilt.neutral(), backward=True)
    assert not [finding for finding in findings if finding.verdict == "created here"]
    first = trained.watch.first_bad
    assert first is not None
    assert first.verdict == "came in"
    assert first.indices == ((3, 5),)
