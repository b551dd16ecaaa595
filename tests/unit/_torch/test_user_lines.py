"""Whose line asks: neither torch's nor Python's own."""

from __future__ import annotations

import contextlib
import functools
import linecache
import sys
from collections.abc import Iterator

import pytest
import torch
from typing_extensions import deprecated

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.user_lines import is_of_python, user_line, user_lines, user_stack


@contextlib.contextmanager
def _leaving(found: list[str]) -> Iterator[None]:
    yield
    found.append(user_stack()[1][-2])


def test_what_leaves_a_context_manager_is_at_the_line_that_has_it() -> None:
    found: list[str] = []
    with _leaving(found):
        pass
    (file, _, line) = found[0].rpartition(":")
    assert (file, linecache.getline(file, int(line)).strip()) == (__file__, "with _leaving(found):")


def test_a_function_that_is_deprecated_is_called_from_its_callers_line() -> None:
    @deprecated("by another")
    def old() -> tuple[tuple[str, int], ...]:
        return user_lines()

    with pytest.warns(DeprecationWarning):
        files = [file for file, _ in old()[:2]]
    assert files == [__file__, __file__]


def test_an_operator_that_pythons_library_calls_has_the_programs_lines() -> None:
    listener = EagerCalls(lambda: None)
    assert listener.start()
    functools.reduce(torch.add, [torch.zeros(2), torch.zeros(2)])
    with contextlib.ExitStack() as stack:
        stack.callback(torch.zeros, 2)
    listener.stop()
    assert {call.sources[-1].rpartition(":")[0] for call in listener.calls} == {__file__}


def test_a_module_of_pythons_that_is_run_itself_is_the_program() -> None:
    code = compile("frame = sys._getframe()", contextlib.__file__, "exec")
    for name, is_library in (("__main__", False), ("contextlib", True)):
        space = {"sys": sys, "__name__": name}
        exec(code, space)
        assert is_of_python(space["frame"]) == is_library  # type: ignore[arg-type]


def test_a_package_beside_pythons_library_is_none_of_it() -> None:
    assert user_line().startswith("/") and "pluggy" in "".join(file for file, _ in user_lines())
