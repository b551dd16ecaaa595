"""Uninitialised memory, predicates of the user, and kernels that compute something else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor.async_compile import AsyncCompile

import torchledger
from factories import make_run
from planted import SCALE, faulty, make_planted, neutral
from torchledger.capturing.session import Capture
from torchledger.nouns import Gap
from torchledger.nouns.run import ValuesLack
from torchledger.reporting.values import summarize_values
from torchledger.store import LedgerWriter, open_ledger
from torchledger.watching.options import ValueOptions
from torchledger.watching.session import Watch, attach


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


def is_large_float(tensor: Tensor) -> Any:
    if tensor.dtype is torch.bool:
        raise TypeError("booleans have no size")
    return tensor.abs() > 2


def test_a_predicate_that_fails_on_one_tensor_is_asked_of_the_others(tmp_path: Path) -> None:
    torch._dynamo.reset()
    path = tmp_path / "a.ledger"
    with torchledger.values(path, find="test_questions:is_large_float", level="off") as watch:
        torch.compile(lambda x, mask: (x * 3) @ mask.float())(torch.ones(4, 4), torch.ones(4, 4, dtype=torch.bool))
    assert watch.first_bad is not None and watch.first_bad.verdict == "created here"
    with open_ledger(path) as reader:
        summary = summarize_values(reader)
    assert [note for note in summary.notes if note.startswith("the predicate failed on 1 tensor,")]
    assert summary.lack == ("predicate failed",) and summary.exit_code == 3


@pytest.mark.parametrize(
    ("lack", "note", "code"),
    [
        (("nothing matched",), "a note in other words", 2),
        (("not saved",), "a note in other words", 3),
        (("predicate failed", "nothing matched"), "a note in other words", 2),
        ((), "the predicate failed on no tensor", 0),
        (None, "no launch passed the filters: kernel x (near it: none is known)", 2),
        (None, "3 launches were not saved: the budget is spent", 3),
        (None, "the predicate failed on 1 tensor, so nothing is known of it", 3),
        (None, "no NaN in 3 calls of compiled graphs: no watched launch reads or writes one", 0),
    ],
)
def test_the_exit_code_is_told_by_what_is_missing_and_in_older_files_by_the_notes(
    lack: tuple[ValuesLack, ...] | None, note: str, code: int, tmp_path: Path
) -> None:
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run(notes=(note,), values_lack=lack))
    with open_ledger(tmp_path / "a.ledger") as reader:
        assert reader.run().values_lack == lack
        assert summarize_values(reader).exit_code == code


@pytest.mark.parametrize(("name", "is_found"), [("checks_here", True), ("checks_nowhere", False)])
def test_a_predicate_may_lie_beside_the_script_and_one_that_does_not_is_not_a_clean_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_found: bool
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "checks_here.py").write_text("def is_large(tensor):\n    return tensor > 9\n")
    monkeypatch.setattr(sys, "orig_argv", ["python", str(tmp_path / "train.py")])
    before = list(sys.path)
    capture = Capture(tmp_path / "x.ledger")
    try:
        settings = ValueOptions(level="off", find=f"{name}:is_large").as_plain()
        assert attach(capture, settings) is is_found
        assert capture.run.values_lack == (None if is_found else ("predicate failed",))
    finally:
        capture.close()
        sys.modules.pop(name, None)
    assert sys.path == before


def test_a_predicate_that_raises_is_told_once_and_the_program_goes_on(tmp_path: Path) -> None:
    model, x = make_planted("mlp")
    torch._dynamo.reset()
    with torch.no_grad():
        expected = torch.compile(model)(x, neutral(model))
        torch._dynamo.reset()
        with torchledger.values(tmp_path / "a.ledger", find="test_questions:fails", level="off") as watch:
            found = torch.compile(model)(x, neutral(model))
    assert torch.equal(found, expected)
    with open_ledger(watch.path) as reader:
        (note,) = [note for note in reader.run().notes if "predicate" in note]
    assert "not my day" in note and "true of none of the others" in note


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.sin(self.first(x))))


def _compare_waves(path: Path, **options: Any) -> Watch:
    torch.manual_seed(0)
    model, x = Waves(), torch.randn(8, 16)
    torch._dynamo.reset()
    with torchledger.values(path, level="off", against_eager=True, **options) as watch:
        torch.compile(model)(x).sum().backward()
    return watch


def test_a_kernel_whose_source_was_changed_is_the_first_to_leave_the_tolerance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = AsyncCompile.cpp_pybinding

    def change_one(self: AsyncCompile, argtypes: list[str], source_code: str) -> Any:
        return original(self, argtypes, source_code.replace("sin(", "cos("))

    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", change_one)
    watch = _compare_waves(tmp_path / "a.ledger")
    first = next(item for item in watch.comparisons if item.is_within is False)
    launch = watch.launch(first.subject)
    assert launch is not None
    assert "aten.sin" in launch.aten_ops
    assert first.further == "compiled"
    others = [item for item in watch.comparisons if item.subject != first.subject and item.call_index == 0]
    assert all(item.is_within for item in others if "sin" not in (watch.launch(item.subject) or launch).aten_ops)


def test_an_unchanged_program_is_within_tolerance_and_close_to_float64(tmp_path: Path) -> None:
    watch = _compare_waves(tmp_path / "a.ledger")
    assert len(watch.comparisons) >= 6
    for item in watch.comparisons:
        assert item.is_within, item
        assert item.compiled_error is not None
        assert item.compiled_error < 1e-5
        assert item.eager_error is not None
        assert item.compiled_ulps is not None


def test_outputs_that_need_new_random_numbers_say_so(tmp_path: Path) -> None:
    torch._dynamo.reset()
    with torch.no_grad(), torchledger.values(tmp_path / "a.ledger", level="off", against_eager=True) as watch:
        torch.compile(lambda x: F.dropout(x.sin(), 0.5) @ x)(torch.randn(16, 16))
    assert any(item.note and "random" in item.note for item in watch.comparisons)
    assert all(item.is_within for item in watch.comparisons if not item.note)


def test_a_launch_that_was_not_compared_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "_compare", lambda self, *arguments: None)
    torch._dynamo.reset()
    with torch.no_grad(), torchledger.values(tmp_path / "a.ledger", level="off", against_eager=True) as watch:
        torch.compile(torch.sin)(torch.ones(8))
    with open_ledger(watch.path) as reader:
        assert [(gap.account, gap.reason, gap.amount) for gap in reader.read(Gap)] == [
            ("values", "a launch was not compared with eager code", 1)
        ]
