"""A generated wrapper as text: its functions, and in them who sets a name."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from dataclasses import dataclass

from torchledger.nouns import Graph
from torchledger.replaying.sizes import CannotReplay

_INPUT_FUNCTIONS = ("get_args", "benchmark_compiled_module")


@dataclass(frozen=True)
class Wrapper:
    """A parsed wrapper."""

    lines: tuple[str, ...]
    preamble: tuple[str, ...]
    preamble_names: frozenset[str]
    definitions: dict[str, tuple[str, ast.expr]]
    functions: tuple[ast.FunctionDef, ...]
    input_functions: tuple[ast.FunctionDef, ...]

    def text(self, node: ast.stmt) -> str:
        """A statement as written, without its indentation and what shares its line."""
        return ast.unparse(node)


@functools.lru_cache(maxsize=8)
def _parse(source: str) -> Wrapper:
    tree = ast.parse(source)
    lines = tuple(source.splitlines())
    preamble: list[str] = []
    names: set[str] = set()
    definitions: dict[str, tuple[str, ast.expr]] = {}
    functions: list[ast.FunctionDef] = []
    input_functions: list[ast.FunctionDef] = []
    for statement in tree.body:
        text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            preamble.append(text)
            names.update(alias.asname or alias.name.split(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if ast.unparse(statement.value).startswith("async_compile."):
                definitions[name] = (text, statement.value)
            elif name not in ("runner", "call", "recursively_apply_fns") and not _is_set_later(statement.value):
                preamble.append(text)
                names.add(name)
        elif isinstance(statement, ast.FunctionDef):
            (input_functions if statement.name in _INPUT_FUNCTIONS else functions).append(statement)
        elif isinstance(statement, ast.ClassDef):
            functions += [item for item in statement.body if isinstance(item, ast.FunctionDef)]
    return Wrapper(lines, tuple(preamble), frozenset(names), definitions, tuple(functions), tuple(input_functions))


def _is_set_later(value: ast.expr) -> bool:
    """True for the ``None`` that stands for a frozen parameter until the module is loaded."""
    return isinstance(value, ast.Constant) and value.value is None


def read_wrapper(graph: Graph) -> Wrapper:
    """The graph's wrapper, parsed. Raises ``CannotReplay`` if there is none or it is not Python."""
    if graph.is_ahead_of_time:
        raise CannotReplay(
            f"{graph.name} was compiled ahead of time (AOTInductor), into a library whose calls cannot be made one by "
            "one. Record a program that calls torch.compile(exported_program.module())."
        )
    if graph.wrapper_language != "python":
        raise CannotReplay(
            f"{graph.name} has a C++ wrapper, whose calls cannot be made one by one. Record it without cpp_wrapper."
        )
    if not graph.wrapper_source:
        raise CannotReplay(f"{graph.name} was recorded without its generated code.")
    try:
        return _parse(graph.wrapper_source)
    except SyntaxError as error:
        raise CannotReplay(f"the generated code of {graph.name} cannot be parsed: {error}") from error


_PURE_CALLS = ("reinterpret_tensor", "alloc_from_pool", "torch.as_strided", "math.", "max", "min", "int", "float")


@functools.lru_cache(maxsize=8192)
def loaded(node: ast.AST) -> tuple[str, ...]:
    """The names that a piece of code reads, each once."""
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load))
    return tuple(dict.fromkeys(part.id for part in names))


@functools.lru_cache(maxsize=64)
def statements_by_line(function: ast.FunctionDef) -> dict[int, ast.stmt]:
    """The statement of each line; of several the last that calls something, since others free or rename."""
    by_line: dict[int, ast.stmt] = {}
    for node in ast.walk(function):
        if not isinstance(node, (ast.Assign, ast.Expr, ast.AugAssign, ast.AnnAssign)):
            continue
        calls = any(isinstance(part, ast.Call) for part in ast.walk(node))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            if calls or line not in by_line:
                by_line[line] = node
    return by_line


@functools.lru_cache(maxsize=64)
def assignments(function: ast.FunctionDef) -> tuple[ast.Assign, ...]:
    """Statements that set one name, or one tuple of names."""
    return tuple(node for node in ast.walk(function) if isinstance(node, ast.Assign) and len(node.targets) == 1)


def last_assignment(name: str, function: ast.FunctionDef, line: int) -> ast.Assign | None:
    """The latest ``name = ...`` before ``line``; ``None`` if a tuple, such as that of the arguments, was unpacked."""
    found = None
    for node in _assignments_by_name(function).get(name, ()):
        if node.lineno < line:
            found = node
    return found if found is not None and isinstance(found.targets[0], ast.Name) else None


@functools.lru_cache(maxsize=64)
def _assignments_by_name(function: ast.FunctionDef) -> dict[str, list[ast.Assign]]:
    by_name: dict[str, list[ast.Assign]] = {}
    for node in sorted(assignments(function), key=lambda node: (node.lineno, node.col_offset)):
        target = node.targets[0]
        for part in ast.walk(target):
            if isinstance(part, ast.Name):
                by_name.setdefault(part.id, []).append(node)
    return by_name


def asserted_size(name: str, functions: Iterable[ast.FunctionDef]) -> tuple[ast.expr, ast.expr] | None:
    """Size and strides that the wrapper asserts of a tensor, from the first function that does."""
    for function in functions:
        found = _asserted_sizes(function).get(name)
        if found is not None:
            return found
    return None


@functools.lru_cache(maxsize=64)
def _asserted_sizes(function: ast.FunctionDef) -> dict[str, tuple[ast.expr, ast.expr]]:
    found = {}
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "assert_size_stride"
            and isinstance(node.args[0], ast.Name)
        ):
            found[node.args[0].id] = (node.args[1], node.args[2])
    return found


def is_pure(value: ast.expr) -> bool:
    """True for an expression that only computes numbers or makes views."""
    for part in ast.walk(value):
        if isinstance(part, ast.Call) and not ast.unparse(part.func).startswith(_PURE_CALLS):
            return False
        if isinstance(part, (ast.Subscript, ast.Lambda, ast.Await, ast.NamedExpr)):
            return False
    return True
