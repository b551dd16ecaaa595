"""Whether a program trains once more behind the loop that its step stands in, told from its text: a search for the
learning rate comes before the training, and where its steps take long to plan, the plan ends with one of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType

from torchledger.program_text import FUNCTIONS, LOOPS, PACKAGES, parsed, place_of, statements_of_function

_NOTE = (
    "behind the loop of this step the program trains in another, at {}, whose steps are not priced: if they are the "
    "ones that are meant, plan it without what comes before"
)


def trained_behind_note(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """That a loop behind the one of a step trains with another optimizer; ``None`` where the text tells of none.

    ``frames`` lead to the step, with their lines, innermost first.
    """
    own = [(frame.f_code, line) for frame, line in frames if PACKAGES not in frame.f_code.co_filename]
    around = [list(statements_of_function(code, line)) for code, line in own]
    looped = [place for place, found in enumerate(around) if any(isinstance(each, LOOPS) for each in found)]
    if not looped or not around[0]:
        return None
    stepped, running = _stepped_by(around[0][0]), {code.co_name for code, _ in own}
    for place in range(looped[-1], len(own)):
        code = own[place][0]
        for each in _behind(code, around[place]):
            for loop in _loops_that_train(each, code, running):
                if place or not stepped & _stepped_by(loop):
                    return _NOTE.format(place_of(code.co_filename, loop))
    return None


def _behind(code: CodeType, around: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """What a function does behind the outermost loop that stands ``around`` a line, or else behind the line."""
    first = max((place for place, each in enumerate(around) if isinstance(each, LOOPS)), default=0)
    tree = parsed(code.co_filename)
    parents: list[ast.AST] = [*around[first + 1 :]]
    if around and not isinstance(around[-1], FUNCTIONS) and tree is not None:
        parents.append(tree)
    for each, parent in zip(around[first:], parents, strict=False):
        for block in (getattr(parent, name, []) for name in ("body", "orelse", "finalbody")):
            if each in block:
                yield from block[block.index(each) + 1 :]


def _loops_that_train(statement: ast.stmt, code: CodeType, running: set[str]) -> Iterator[ast.stmt]:
    """Loops in a statement, or in functions of the file that it calls, in which there are gradients and steps."""
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return
    tree = parsed(code.co_filename)
    functions = {each.name: each for each in (tree.body if tree is not None else []) if isinstance(each, FUNCTIONS)}
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    called = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    for each in (statement, *(functions[name] for name in sorted(called - running) if name in functions)):
        for node in ast.walk(each):
            if isinstance(node, LOOPS) and any(_calls_of(node, "backward")) and _stepped_by(node):
                yield node


def _stepped_by(node: ast.AST) -> set[str]:
    """What a statement calls ``step`` of, and what it gives that: a gradient scaler steps the optimizer it is given."""
    return {ast.unparse(part) for owner, call in _calls_of(node, "step") for part in (owner, *call.args)}


def _calls_of(node: ast.AST, method: str) -> Iterator[tuple[ast.expr, ast.Call]]:
    """Calls of a method by its name, each with what it is called of."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == method:
            yield each.func.value, each
