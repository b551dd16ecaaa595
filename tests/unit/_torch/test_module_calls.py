"""Outermost calls of modules, heard in programs that compile nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.utils.data._utils import worker

from torchledger._torch.module_calls import ModuleCalls
from torchledger.balance import balance_books
from torchledger.books import open_books
from torchledger.nouns import Step
from torchledger.store import open_ledger


class Broken(nn.Module):
    """Its forward fails inside another module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such row")


def test_a_module_is_heard_where_no_other_calls_it_also_after_one_that_failed() -> None:
    model, broken = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(Broken())
    heard: list[nn.Module] = []
    calls = ModuleCalls(heard.append, lambda error: None)
    try:
        model(torch.ones(1, 2))
        with pytest.raises(KeyError):
            broken(torch.ones(1, 2))
        model(torch.ones(1, 2))
    finally:
        calls.undo()
    model(torch.ones(1, 2))
    assert heard == [model, broken, model]
    assert not nn_module._global_forward_pre_hooks and not nn_module._global_forward_hooks


def test_what_makes_a_parameter_that_is_read_is_no_call_of_the_programs() -> None:
    """A model's initialization reads them again and again, which were taken for its steps."""
    heard: list[nn.Module] = []
    calls = ModuleCalls(heard.append, lambda error: None)
    try:
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
        for _ in range(4):
            assert layer.weight.shape == (2, 2)
        layer(torch.ones(1, 2))
    finally:
        calls.undo()
    assert heard == [layer]


def test_a_process_that_loads_batches_calls_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[nn.Module] = []
    calls = ModuleCalls(heard.append, lambda error: None)
    try:
        with monkeypatch.context() as inside:
            inside.setattr(worker, "_worker_info", object())
            nn.Identity()(3)
        nn.ReLU()(torch.ones(1))
    finally:
        calls.undo()
    assert [type(each) for each in heard] == [nn.ReLU]


def test_a_listener_that_fails_is_told_of_and_the_call_is_made() -> None:
    faults: list[Exception] = []
    calls = ModuleCalls(lambda module: [][1], faults.append)
    try:
        assert nn.Identity()(3) == 3
    finally:
        calls.undo()
    assert isinstance(faults[0], IndexError)


LOOP = """
import torch
from torch import nn
from torch.nn.modules import module

model, head = nn.Linear(4, 8), nn.Linear(8, 2)
with torch.no_grad():
    for _ in range(3000):
        head(model(torch.ones(3, 4)).relu())
assert not module._global_forward_pre_hooks
"""


def test_the_steps_of_a_loop_of_forwards_without_marks_or_optimizer_are_its_period(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    command = [sys.executable, "-m", "torchledger", "run", "--profile", "--count-eager", "-o", "a.ledger", "loop.py"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    with open_ledger(tmp_path / "a.ledger") as reader:
        (step,) = reader.read(Step)
        accounts = balance_books(open_books(reader)).accounts
    assert step.found_by == "period" and step.kinds[0].calls == {"Linear.forward": 2}
    assert accounts["step_flops"].ledger == accounts["step_flops"].reference == 2 * 3 * (4 * 8 + 8 * 2)
    assert accounts["step_operators"].is_balanced


WHOLE = """
import torch
from torch import nn
from torch.nn.modules import module

model = nn.Linear(4, 8)
assert module._global_forward_pre_hooks
model(torch.ones(3, 4))
traced = torch.compile(lambda x: model(x).relu(), fullgraph=True, backend="eager")
assert traced(torch.ones(3, 4)).shape == (3, 8)
"""


def test_a_function_that_may_not_break_is_compiled_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "whole.py").write_text(WHOLE)
    command = [sys.executable, "-m", "torchledger", "run", "--profile", "-o", "a.ledger", "whole.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
