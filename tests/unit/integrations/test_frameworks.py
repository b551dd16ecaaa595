"""Callbacks of training frameworks: the examples, run without compiling."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import pytest
import torch

import torchledger
from torchledger.profiling.profile import DEFAULT_REPEATS, DEFAULT_TIMED, DEFAULT_WARMUP

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry a call of ``torchledger.step()``."""
    calls: list[None] = []
    monkeypatch.setattr(torchledger, "step", lambda: calls.append(None))
    return calls


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["lightning_fit", "transformers_train"])
def test_a_callback_tells_each_step_and_writes_the_ledger_of_the_training(
    name: str, steps: list[None], tmp_path: Path
) -> None:
    path = tmp_path / "training.ledger"
    _example(name).main(str(path), compiled=False, steps=3)
    assert len(steps) == 3
    assert torchledger.load(path).run.status == "finished"


@pytest.mark.parametrize("name", ["accelerate_loop", "lightning_fit", "transformers_train"])
def test_an_example_runs_long_enough_for_a_profile(name: str) -> None:
    compiles, begins, ends = 3, 1, 2  # steps that compile, that reach the beginning of one, that are heard or counted
    needed = compiles + begins + ends + DEFAULT_WARMUP + DEFAULT_TIMED + DEFAULT_REPEATS
    assert inspect.signature(_example(name).main).parameters["steps"].default >= needed


def test_accelerate_tells_a_step_when_the_optimizer_really_steps(steps: list[None]) -> None:
    _example("accelerate_loop").main(compiled=False, steps=3)
    assert len(steps) == 3


def test_a_hook_of_accelerate_tells_a_step_with_each_forward(steps: list[None]) -> None:
    from accelerate.hooks import add_hook_to_module

    from torchledger.integrations.accelerate import LedgerHook

    model = add_hook_to_module(torch.nn.Linear(2, 2), LedgerHook())
    out = model(torch.ones(1, 2))
    assert (tuple(out.shape), len(steps)) == ((1, 2), 1)
