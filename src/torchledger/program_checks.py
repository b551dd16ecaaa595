"""Which truth lets a program's own check pass: an assertion, or an ``if`` that raises."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import FrameType
from typing import cast

from torchledger.program_text import parsed, statements_around

_Place = tuple[int, int, int, int]
"""First and last line, first and last column."""


def truth_that_passes(frame: FrameType) -> bool | None:
    """The truth of the expression that a frame is at with which the check passes that asks for it; ``None`` where no
    check does, where the text is not there to be read, and where it does not say which part of a check asks."""
    # Code behind a graph break of Dynamo's may hold a slice or a dict, and has no hash then.
    place = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,))
    return _truth_at(frame.f_code.co_filename, place)


@lru_cache(maxsize=4096)
def _truth_at(file: str, place: tuple[int | None, ...]) -> bool | None:
    tree = parsed(file)
    if tree is None or None in place:
        return None
    known = cast(_Place, place)
    for node in statements_around(tree, known[0]):
        checked = _checked(node)
        if checked is not None and (_holds(checked[0], known) or _place_of(node) == known):
            test, passes = checked
            parities = {_is_contrary(test, each) for each in _asked(test, known)}
            return passes ^ parities.pop() if len(parities) == 1 else None
    return None


def _checked(statement: ast.stmt) -> tuple[ast.expr, bool] | None:
    """What a check asks, and the truth with which it passes; ``None`` for any other statement."""
    if isinstance(statement, ast.Assert):
        return statement.test, True
    if isinstance(statement, ast.If):
        ways = [bool(way) and isinstance(way[-1], ast.Raise) for way in (statement.body, statement.orelse)]
        return (statement.test, ways[1]) if ways[0] != ways[1] else None
    return None


def _asked(test: ast.expr, place: _Place) -> Iterator[_Place]:
    """The places that may be asked for: the one that is known if it lies in the test, else (Python 3.11 gives branches
    the place of their statement) all parts of it."""
    if _holds(test, place):
        yield place
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _asked(test.operand, place)
    elif isinstance(test, ast.BoolOp):
        for each in test.values:
            yield from _asked(each, place)
    else:
        yield _place_of(test)


def _place_of(node: ast.expr | ast.stmt) -> _Place:
    return node.lineno, node.end_lineno or node.lineno, node.col_offset, node.end_col_offset or node.col_offset


def _holds(node: ast.AST, place: _Place) -> bool:
    """Whether a node's text reaches over a place."""
    if not isinstance(node, (ast.expr, ast.stmt)):
        return False
    first, last, begin, end = _place_of(node)
    return (first, begin) <= (place[0], place[2]) and (place[1], place[3]) <= (last, end)


def _is_contrary(test: ast.expr, place: _Place) -> bool:
    """Whether an odd number of ``not`` stands around a place."""
    node: ast.AST | None = test
    contraries = 0
    while node is not None:
        contraries += isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        node = next((each for each in ast.iter_child_nodes(node) if _holds(each, place)), None)
    return contraries % 2 == 1
