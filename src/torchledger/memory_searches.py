"""Programs that try until memory runs out, told from their text: the largest batch is looked for so."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from torchledger.program_text import parsed, place_of, statements_around

_SAYS_SO = ("OutOfMemoryError", "out of memory", "should_reduce_batch_size")
"""What a handler asks for; the last is accelerate's."""

_ENDS_PROGRAM = frozenset({"exit", "sys.exit", "quit", "os._exit"})


def catches_running_out(lines: Iterable[tuple[str, int]]) -> str | None:
    """Where the innermost ``try`` stands that catches what these lines of a stack raise when memory runs out
    (``"search.py:7"``); ``None`` where none goes on then. They are files and numbers, innermost first."""
    for file, line in lines:
        tree = parsed(file)
        around = () if tree is None else tuple(statements_around(tree, line))
        for each in reversed(around):
            if isinstance(each, ast.Try) and _is_in(each.body, line) and any(map(_goes_on, each.handlers)):
                return place_of(file, each)
    return None


def _is_in(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes the error, and the program goes on behind it."""
    is_asked = any(said in ast.unparse(handler).replace("OUT OF MEMORY", "out of memory") for said in _SAYS_SO)
    last = handler.body[-1]
    ends = isinstance(last, ast.Raise) or (
        isinstance(last, ast.Expr)
        and isinstance(last.value, ast.Call)
        and ast.unparse(last.value.func) in _ENDS_PROGRAM
    )
    return is_asked and not ends
