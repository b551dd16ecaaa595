"""Loops whose turns are one computation, as each goes on from what the one before has made, told from the text.

A sampler refines a picture, a decoder continues its text: a name is given a value by a call that was given its value of
the turn before. Loops over batches only add up what they find.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from torchledger.program_text import statements_in

_COLLECT = frozenset({"append", "extend", "insert", "update"})
"""Methods that put what they are given into what they are called of, beside those in place (``copy_``)."""

_JOIN = frozenset(
    {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "max", "min", "maximum", "minimum", "sum"}
)
"""Functions by which what was found so far is joined with what was found now."""


@dataclass(frozen=True)
class _Assignment:
    """What a statement writes and reads, by names and attributes (``self.state``); ``given`` are those that it gives to
    calls, or calls something of. Without ``is_whole`` what it writes keeps a part of what it was, or is left."""

    writes: frozenset[str]
    reads: frozenset[str]
    given: frozenset[str]
    is_whole: bool


@lru_cache(maxsize=512)
def carries(loop: ast.stmt) -> bool:
    """Whether turns of a loop go on from what the one before has made.

    >>> carries(ast.parse("for t in times: noise = net(x, t); x = x - noise").body[0])
    True
    >>> carries(ast.parse("for x in batches: total += loss(net(x))").body[0])
    False
    """
    assignments = [_of_target(loop), *_assignments(statements_in(loop), is_sure=True)]
    written = frozenset[str]().union(*(each.writes for each in assignments))
    whole, carried = set[str](), set[str]()
    for each in assignments:
        carried |= (each.reads & written) - whole
        if each.is_whole:
            whole |= each.writes
    return any(_comes_back(name, assignments) for name in carried)


def _of_target(loop: ast.stmt) -> _Assignment:
    target = getattr(loop, "target", None)
    names = _names(target) if target is not None else frozenset[str]()
    return _Assignment(names, frozenset(), frozenset(), is_whole=True)


def _comes_back(name: str, assignments: list[_Assignment]) -> bool:
    """Whether a name's value comes, by calls, of its own value in the turn before."""
    reached, ahead = set[tuple[str, bool]](), [(name, False)]
    while ahead:
        at, is_called = ahead.pop()
        for each in assignments:
            if at not in each.reads:
                continue
            for after in each.writes:
                state = after, is_called or at in each.given
                if after == at and not (after == name and at in each.given):
                    continue
                if state == (name, True):
                    return True
                if state not in reached:
                    reached.add(state)
                    ahead.append(state)
    return False


def _assignments(statements: Iterator[ast.stmt], *, is_sure: bool) -> Iterator[_Assignment]:
    """Those of statements and of what stands inside them, in order; ``is_sure`` that they run in each turn."""
    for each in statements:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        inside = list(statements_in(each))
        if not inside:
            yield _of_statement(each, is_sure)
            continue
        if isinstance(each, (ast.For, ast.AsyncFor)):
            yield _Assignment(_names(each.target), _names(each.iter), _given(each.iter), is_sure)
        yield from _assignments(iter(inside), is_sure=is_sure and isinstance(each, (ast.With, ast.AsyncWith)))


def _of_statement(statement: ast.stmt, is_sure: bool) -> _Assignment:
    value = getattr(statement, "value", None)
    if not isinstance(value, ast.expr):
        return _Assignment(frozenset(), frozenset(), frozenset(), is_sure)
    reads, given = _names(value), _given(value)
    if isinstance(statement, ast.AugAssign):
        return _Assignment(_stored(statement.target)[0], reads, given, is_whole=False)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        stored = [_stored(target) for target in targets]
        writes = frozenset[str]().union(*(names for names, _ in stored))
        if isinstance(value, ast.Call) and _called(value) in _JOIN:
            given -= writes
        return _Assignment(writes, reads, given, is_sure and all(is_whole for _, is_whole in stored))
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        owner, method, arguments = _own_names(value.func.value), value.func.attr, ast.Tuple(value.args)
        if method in _COLLECT or method.endswith("_"):
            return _Assignment(owner, _names(arguments), _given(arguments), is_whole=False)
    return _Assignment(frozenset(), reads, given, is_sure)


def _stored(target: ast.expr) -> tuple[frozenset[str], bool]:
    """What an assignment's target writes, and whether nothing of what it was is left."""
    if isinstance(target, (ast.Tuple, ast.List)):
        parts = [_stored(each) for each in target.elts]
        return frozenset[str]().union(*(names for names, _ in parts)), all(is_whole for _, is_whole in parts)
    if isinstance(target, ast.Starred):
        return _stored(target.value)
    if isinstance(target, ast.Subscript):
        return _own_names(target.value), False
    return _own_names(target), True


def _own_names(node: ast.expr) -> frozenset[str]:
    """The name that an expression is, or is a part of."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return frozenset({ast.unparse(node)}) if isinstance(node, (ast.Name, ast.Attribute)) else frozenset()


def _names(node: ast.expr) -> frozenset[str]:
    """All names and attributes in an expression."""
    return frozenset(ast.unparse(each) for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute)))


def _given(node: ast.expr) -> frozenset[str]:
    """Names that an expression gives to calls, or calls something of."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    given = [argument for each in calls for argument in (*each.args, *(keyword.value for keyword in each.keywords))]
    owners = [each.func.value for each in calls if isinstance(each.func, ast.Attribute)]
    return frozenset[str]().union(*(_names(each) for each in (*given, *owners)))


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
