"""What an H200 was asked and said (``benchmarks/plans/choices_cuda.py``), and what a plan says that has none to ask."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device
from torchledger.predicting.devices import find_model
from torchledger.predicting.padding import PaddingRule

ROOT = Path(__file__).resolve().parents[3]
HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=132)


@pytest.fixture(scope="module")
def choices() -> ModuleType:
    return importlib.import_module("benchmarks.plans.choices_cuda")


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "data" / "h200" / "choices_torch2.11.json").read_text())
    return found


def test_every_call_of_attention_takes_the_backend_that_it_took_there(
    choices: ModuleType, recorded: dict[str, Any]
) -> None:
    rows = recorded["attention"]
    with FakeDevice(HOPPER):
        chosen = [choices.attention_of(row, "cuda") for row in rows]
    assert len({row["backend"] for row in rows}) == 4, "all four are among them"
    assert [row for row, mine in zip(rows, chosen, strict=True) if mine != row["backend"]] == []


def test_nearly_every_product_is_padded_or_not_as_it_was_there(choices: ModuleType, recorded: dict[str, Any]) -> None:
    rows = recorded["products"][:600]
    model = find_model("H200")
    pays = PaddingRule(lambda: model, slowness=0.0)  # its host kept up
    same = sum(pays(choices.product_of(row)) == row["is_padded"] for row in rows)
    assert 0.1 < sum(row["is_padded"] for row in rows) / len(rows) < 0.5
    assert same > 0.92 * len(rows)
