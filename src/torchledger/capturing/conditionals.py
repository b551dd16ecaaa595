"""Where a generated wrapper takes one of two ways, goes in circles or comes again, and which launches stand there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchledger.capturing.wrapper_code import called_functions, wrapper_functions
from torchledger.nouns import Launch

_SUBGRAPH = re.compile(r"^def (?!call\b|get_args\b|benchmark_|recursively_)", re.MULTILINE)
"""A function of a wrapper beside those that each has."""

Lines = tuple[int, int]
"""The first and the last line of a function."""

Conditional = tuple[tuple[Lines, ...], ...]
"""A place at which one of several ways is taken: for each the functions that it alone calls."""


@dataclass(frozen=True)
class Loop:
    """A place at which some launches are made again and again (``while_loop``, and ``scan`` by it): the functions of
    its ``check``, which is made once more than there are turns, and of its ``body``."""

    check: tuple[Lines, ...]
    body: tuple[Lines, ...]


@dataclass(frozen=True)
class Regions:
    """Functions of a wrapper of which one at least is called from several lines (``nested_compile_region``): the lines
    of the calls, each with the function that it calls."""

    calls: tuple[tuple[int, Lines], ...]

    def function_at(self, line: int) -> Lines | None:
        """The function that a line stands in; ``None`` for that of the whole graph."""
        return next((lines for _, lines in self.calls if lines[0] <= line <= lines[1]), None)

    def times(self, function: Lines | None) -> int:
        """How often a call of the graph comes to a function."""
        if function is None:
            return 1
        return sum(self.times(self.function_at(line)) for line, called in self.calls if called == function)

    def in_order(self, places: Sequence[int], lines: Sequence[int], function: Lines | None = None) -> list[int]:
        """The ``places`` of launches in the order in which they run from a function on; ``lines`` has those of all."""
        inside: list[tuple[int, int | Lines]] = [
            (lines[place], place) for place in places if self.function_at(lines[place]) == function
        ]
        inside += [call for call in self.calls if self.function_at(call[0]) == function]
        found: list[int] = []
        for _, each in sorted(inside, key=lambda item: item[0]):
            found += [each] if isinstance(each, int) else self.in_order(places, lines, each)
        return found


Fork = Conditional | Loop | Regions
"""A place at which a graph's call makes some of its launches, not at all, once or more often."""


@dataclass(frozen=True)
class Decision:
    """A line of a wrapper that asks a value which way of ``fork`` is taken or, at a loop, whether there is a turn.

    One that ``goes_on`` is asked before each turn, and once more.
    """

    fork: Conditional | Loop
    goes_on: bool = False


def find_forks(source: str) -> tuple[Fork, ...]:
    """The conditionals, loops and repeated regions of a Python wrapper."""
    return (*find_conditionals(source), *find_loops(source), *find_regions(source))


def find_regions(source: str) -> tuple[Regions, ...]:
    """What a Python wrapper calls from several lines: none, or one for all.

    >>> find_regions("def a(x):\\n    f(x)\\ndef call(x):\\n    a(x)\\n    a(x)")
    (Regions(calls=((4, (1, 2)), (5, (1, 2)))),)
    """
    functions = _functions_in(source)
    calls: list[tuple[int, str]] = []
    for function in functions.values():
        circles = [node for node in ast.walk(function) if isinstance(node, ast.While)]
        again: dict[str, int] = {}
        for line, name in called_functions(function, functions):
            if any(node.lineno <= line <= (node.end_lineno or 0) for node in circles):
                again.setdefault(name, line)  # what goes in circles is a loop's, and stands here once
            else:
                calls.append((line, name))
        calls += [(line, name) for name, line in again.items() if name not in (each for _, each in calls)]
    names = [name for _, name in calls]
    if len(set(names)) == len(names):
        return ()
    lines = {name: (each.lineno, each.end_lineno or 0) for name, each in functions.items()}
    return (Regions(tuple((line, lines[name]) for line, name in sorted(calls))),)


def find_loops(source: str) -> tuple[Loop, ...]:
    """Where a Python wrapper calls subgraphs in a loop.

    >>> find_loops("def a(x):\\n    f(x)\\ndef call(x):\\n    while x:\\n        a(x)")
    (Loop(check=(), body=((1, 2),)),)
    """
    return tuple(loop for _, _, loop in _loops_in(_functions_in(source)))


def find_conditionals(source: str) -> tuple[Conditional, ...]:
    """Where a Python wrapper calls one of two subgraphs, as ``torch.cond`` asks; an outer one stands before an inner.

    >>> find_conditionals("def a(x):\\n    f(x)\\ndef call(x):\\n    if x:\\n        a(x)\\n    else:\\n        pass")
    ((((1, 2),), ()),)
    """
    found = _conditionals_in(_functions_in(source))
    return tuple(conditional for _, _, conditional in sorted(found, key=lambda each: -each[0]))


def find_decisions(source: str) -> dict[int, Decision]:
    """The lines of a Python wrapper at which a value decides what runs.

    >>> find_decisions("def a(x):\\n    f(x)\\ndef call(x):\\n    while x:\\n        a(x)")
    {4: Decision(fork=Loop(check=(), body=((1, 2),)), goes_on=True)}
    """
    functions = _functions_in(source)
    found = {node.lineno: Decision(conditional) for _, node, conditional in _conditionals_in(functions)}
    for function, node, loop in _loops_in(functions):
        found[node.lineno] = Decision(loop, goes_on=True)
        # What a loop that makes no turn gives back is asked for before it.
        never = ast.dump(ast.UnaryOp(ast.Not(), node.test))
        for other in ast.walk(function):
            if isinstance(other, ast.If) and other.lineno < node.lineno and ast.dump(other.test) == never:
                found.setdefault(other.lineno, Decision(loop))
    return found


def asker_of(fork: Conditional | Loop, launches: Sequence[Launch]) -> str | None:
    """The user's line that a fork was compiled from: that of the entry which stands behind its launches.

    Where no such entry is known, it is the line of the last launch inside it; ``None`` where there is none.
    """
    inside = [launch for launch in launches if stands_in(launch, functions_of(fork))]
    last = max((launch.order for launch in inside), default=-1)
    behind = (launch for launch in launches if launch.order > last and launch.kernel_name in _ASKERS)
    asker = next(behind, inside[-1] if inside else None)
    return None if asker is None else asker.source


def functions_of(fork: Conditional | Loop) -> tuple[Lines, ...]:
    """All functions of a wrapper that a fork calls."""
    return (*fork.check, *fork.body) if isinstance(fork, Loop) else tuple(lines for way in fork for lines in way)


_ASKERS = frozenset({"Conditional", "WhileLoop"})
"""Entries without a call, by which Inductor stands for what it calls subgraphs with."""


def _loops_in(functions: Mapping[str, ast.FunctionDef]) -> Iterator[tuple[ast.FunctionDef, ast.While, Loop]]:
    for function in functions.values():
        for node in ast.walk(function):
            if isinstance(node, ast.While):
                again = _functions_of(node.body, functions)
                first = _functions_of(_statements_before(node, function), functions)
                check, body = again & first, again - first
                if body:
                    yield function, node, Loop(_lines_of(check, functions), _lines_of(body, functions))


def _conditionals_in(functions: Mapping[str, ast.FunctionDef]) -> Iterator[tuple[int, ast.If, Conditional]]:
    """With how many functions stand below each."""
    for function in functions.values():
        for node in ast.walk(function):
            if isinstance(node, ast.If):
                taken, other = (_functions_of(side, functions) for side in (node.body, node.orelse))
                sides = [side - both for side, both in ((taken, other), (other, taken))]
                if any(sides):
                    yield len(taken | other), node, tuple(_lines_of(side, functions) for side in sides)


def _functions_in(source: str) -> dict[str, ast.FunctionDef]:
    if _SUBGRAPH.search(source) is None:
        return {}
    try:
        return {each.name: each for each in wrapper_functions(ast.parse(source))}
    except SyntaxError:
        return {}


def _statements_before(loop: ast.While, function: ast.FunctionDef) -> list[ast.stmt]:
    simple = (each for each in ast.walk(function) if isinstance(each, ast.stmt) and not hasattr(each, "body"))
    return [each for each in simple if each.lineno < loop.lineno]


def _functions_of(statements: Sequence[ast.stmt], functions: Mapping[str, ast.FunctionDef]) -> set[str]:
    """The wrapper's functions that some statements call, and those that these call."""
    found: set[str] = set()
    pending: list[ast.stmt] = list(statements)
    while pending:
        for node in ast.walk(pending.pop()):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
            if name is not None and name in functions and name not in found:
                found.add(name)
                pending += functions[name].body
    return found


def _lines_of(names: set[str], functions: Mapping[str, ast.FunctionDef]) -> tuple[Lines, ...]:
    return tuple(sorted((functions[name].lineno, functions[name].end_lineno or 0) for name in names))


def stands_in(launch: Launch, functions: Sequence[Lines]) -> bool:
    """Whether a launch's line of the wrapper is in one of these functions."""
    line = launch.wrapper_line
    return line is not None and any(first <= line <= last for first, last in functions)
