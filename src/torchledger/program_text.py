"""A program's text: which statement a line stands in."""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType

LOOPS = (ast.For, ast.AsyncFor, ast.While)
"""Statements that go round."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
"""Statements that make a function."""

PACKAGES = "-packages/"
"""In the paths of what is installed."""

_BRANCHES = ("body", "orelse", "finalbody", "handlers", "cases")

_EXPRESSIONS = frozenset({"<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""What the code of functions is called that are expressions."""


def parsed(file: str) -> ast.Module | None:
    """A file's text as it is now; ``None`` where it is not there or not Python."""
    try:
        return _parsed(file, os.stat(file).st_mtime_ns)
    except (OSError, SyntaxError, ValueError):
        return None


@lru_cache(maxsize=32)
def _parsed(file: str, changed_ns: int) -> ast.Module:
    """A file's text as it was when it was changed last: many lines of a stack are of one file."""
    del changed_ns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the program's own text
        return ast.parse(Path(file).read_bytes())


def statements_around(tree: ast.Module, line: int) -> Iterator[ast.stmt]:
    """The statements that a line stands in, outermost first."""
    node = _statement_at(tree, line)
    while node is not None:
        yield node
        node = _statement_at(node, line)


def statements_of_function(code: CodeType, line: int) -> Iterator[ast.stmt]:
    """Those of a function that a line of it stands in, innermost first, and the function's own last; none of a lambda
    or a comprehension, in which no statement is: what its text stands in need not be what runs it, or runs it too."""
    if code.co_name in _EXPRESSIONS:
        return
    tree = parsed(code.co_filename)
    for each in reversed(list(statements_around(tree, line)) if tree is not None else []):
        yield each
        if isinstance(each, FUNCTIONS):
            return


def place_of(file: str, statement: ast.stmt) -> str:
    """Where a statement begins, as sentences name it.

    >>> place_of("/home/me/train.py", ast.parse("pass").body[0])
    'train.py:1'
    """
    return shortened(f"{file}:{statement.lineno}")


def shortened(line: str) -> str:
    """A line of a program by its file's name alone; as it is where no file is told.

    >>> shortened("/home/me/train.py:1"), shortened("unknown")
    ('train.py:1', 'unknown')
    """
    file, _, number = line.rpartition(":")
    return f"{Path(file).name}:{number}" if file else line


def _statement_at(node: ast.AST, line: int) -> ast.stmt | None:
    """The statement directly inside another that a line stands in."""
    for each in statements_in(node):
        first = min((each.lineno, *(found.lineno for found in getattr(each, "decorator_list", ()))))
        if first <= line <= (each.end_lineno or each.lineno):
            return each
    return None


def statements_in(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements directly inside another."""
    for branch in _BRANCHES:
        for each in getattr(node, branch, ()) if not isinstance(node, ast.expr) else ():
            if isinstance(each, ast.stmt):
                yield each
            else:  # a handler, or a case of a match
                yield from each.body
