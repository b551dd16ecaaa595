"""Plans of the tests look on for a longer step by steps alone: how quick a machine is must decide nothing here."""

from __future__ import annotations

import gc

import pytest

from torchledger.planning import step_hearing


@pytest.fixture(autouse=True)
def _looks_on_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_hearing, "_LOOKED_ON_S", 300.0)


@pytest.fixture
def no_optimizer_stays() -> None:
    """One of a test before, which lives on, would be waited for in this one's program."""
    gc.collect()
