"""When something is about to be compiled."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo.convert_frame

from torchledger._torch.dynamo import GivenUp, before_compiling, hear_given_up
from torchledger._torch.steps import watch_compile

_LIBRARY = """
import torch


@torch.compile(backend="eager")
def doubled(x):
    return x + x
"""


@pytest.mark.parametrize("watch", [before_compiling, watch_compile])
@pytest.mark.parametrize(("folder", "is_heard"), [("site-packages", False), ("own", True)])
def test_what_a_library_decorates_while_it_is_imported_compiles_nothing_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch: object, folder: str, is_heard: bool
) -> None:
    heard: list[int] = []
    name = f"decorated_{folder.replace('-', '_')}_{getattr(watch, '__name__', '')}"
    (tmp_path / folder).mkdir()
    (tmp_path / folder / f"{name}.py").write_text(_LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path / folder))
    before = torch._dynamo.convert_frame.CatchErrorsWrapper.__call__
    patches = watch(lambda: heard.append(1))  # type: ignore[operator]
    try:
        library = importlib.import_module(name)
        assert bool(heard) is is_heard
        assert library.doubled(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
        assert heard
    finally:
        patches.undo()
        sys.modules.pop(name, None)
        torch._dynamo.reset()
    assert torch._dynamo.convert_frame.CatchErrorsWrapper.__call__ is before


def test_a_program_that_compiles_is_heard_at_once() -> None:
    heard: list[int] = []
    patches = before_compiling(lambda: heard.append(1))
    try:
        torch.compile(lambda x: x, backend="eager")
    finally:
        patches.undo()
    assert heard


def test_code_that_is_compiled_as_often_as_its_limit_lets_it_is_told_once() -> None:
    found: list[GivenUp] = []

    def times(x: torch.Tensor, count: int) -> torch.Tensor:
        return x * str(count).count("1")

    torch._dynamo.reset()
    patches = hear_given_up(found.append)
    try:
        with torch._dynamo.config.patch(recompile_limit=2):
            compiled = torch.compile(times, backend="eager", dynamic=False)
            for count in range(5):
                assert compiled(torch.ones(1), count).tolist() == [str(count).count("1")]
    finally:
        patches.undo()
        torch._dynamo.reset()
    (only,) = found
    assert (only.function, only.line) == ("times", times.__code__.co_firstlineno)
    assert (only.limit, only.times, only.path) == ("recompile_limit", 2, __file__)
