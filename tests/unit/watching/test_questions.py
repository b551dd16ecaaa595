"""Uninitialised memory, predicates of the user, and kernels that compute something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchledger
from planted import SCALE, faulty, make_planted, neutral


def test_memory_that_nothing_has_written_is_named_where_it_is_read(tmp_path: Path) -> None:
    class Careless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            cache = torch.empty(8, 16)
            return (x @ x.t()) @ cache

    torch._dynamo.reset()
    with torch.no_grad(), torchledger.values(tmp_path / "a.ledger", find="nan", level="off") as watch:
        torch.compile(Careless())(torch.randn(8, 16))
    first = watch.first_bad
    assert first is not None
    assert (first.verdict, first.question) == ("read before written", "uninitialised")
    launch = watch.launch(first.subject)
    assert launch is not None
    assert "mm" in launch.kernel_name


def test_a_predicate_of_the_user_names_the_first_launch_where_it_is_true(tmp_path: Path) -> None:
    model, x = make_planted("mlp")
    torch._dynamo.reset()
    with torch.no_grad(), torchledger.values(find="test_questions:is_large", level="off") as watch:
        compiled = torch.compile(model)
        compiled(x, neutral(model))
        assert watch.findings == []
        compiled(x, faulty(model, 1, SCALE, 9e4))
    first = watch.first_bad
    assert first is not None
    launch = watch.launch(first.subject)
    assert launch is not None
    assert "plants.1" in launch.modules


def is_large(tensor: Tensor) -> Any:
    return tensor.abs() > 9.5e4


def fails(tensor: Tensor) -> Any:
    raise RuntimeError("not my day")


def test_a_predicate_that_raises_is_told_once_and_the_program_goes_on(tmp_path: Path) -> None:
    model, x = make_planted("mlp")
    torch._dynamo.reset()
    with torch.no_grad():
        expected = torch.compile(model)(x, neutral(model))
        torch._dynamo.reset()
        with torchledger.values(tmp_path / "a.ledger", find="test_questions:fails", level="off") as watch:
            found = torch.compile(model)(x, neutral(model))
    assert torch.equal(found, expected)
    with torchledger.open_ledger(watch.path) as reader:
        (note,) = [note for note in reader.run().notes if "predicate" in note]
    assert "not my day" in note
