"""Patches around functions of others: what fails in them is no fault of the caller."""

from __future__ import annotations

import types
from typing import Any

import pytest

from torchledger._torch import patching
from torchledger._torch.patching import Patches


def _raise(*_: object) -> None:
    raise RuntimeError("planted")


@pytest.mark.parametrize("planted", [_raise, lambda *_: None], ids=["raises", "answers None"])
def test_a_call_that_cannot_be_noted_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch, planted: Any) -> None:
    told: list[str] = []
    owner = types.SimpleNamespace(double=lambda x: 2 * x)
    patches = Patches(lambda where, error: told.append(where))
    patches.around(owner, "double", lambda original, x: original(x))
    monkeypatch.setattr(patching._Call, "__init__", planted)
    assert owner.double(4) == 8
    assert told == ["double"]


def test_what_the_original_raises_is_the_callers() -> None:
    told: list[str] = []
    owner = types.SimpleNamespace(fail=_raise)
    Patches(lambda where, error: told.append(where)).around(owner, "fail", lambda original: original())
    with pytest.raises(RuntimeError, match="planted"):
        owner.fail()
    assert told == []
