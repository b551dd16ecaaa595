"""Rewrite a generated wrapper so that every launch in it can be watched.

Only text and syntax trees in here: a wrapper's source goes in, code and its call sites come out. Each launching call
``kernel(a, b, out=c)`` becomes ``launch(site, kernel, a, b, out=c)``, each allocation ``empty(shape, ...)`` becomes
``allocate(empty, shape, ...)``: the same calls with the same arguments in the same order, with somebody in between.
Kernels are not compiled again, and lines keep their numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import CodeType

from torchledger.capturing.wrapper_code import find_call_nodes, wrapper_functions

LAUNCH = "_torchledger_launch"
ALLOCATE = "_torchledger_allocate"

_ENTRY_NAMES = frozenset({"runner", "call", "recursively_apply_fns"})
_ALLOCATIONS = ("empty_strided_", "empty_strided", "torch.empty", "torch.empty_strided")
_NAMESPACES = frozenset({"torch", "aten", "inductor_ops", "extern_kernels", "prims", "_quantized", "math"})


Names = str | tuple[str | None, ...] | None
"""The buffer behind an argument, the buffers behind a list of them, or ``None`` for a number."""


@dataclass(frozen=True)
class Site:
    """One launching call of a wrapper: where it stands and what its arguments are called there.

    ``arguments`` are the names of the buffers behind the positional arguments, ``keywords`` those behind keyword
    arguments. ``results`` are the names that its result, or the items of
    its result, are bound to.
    """

    index: int
    name: str
    line: int
    function: str
    arguments: tuple[Names, ...]
    keywords: Mapping[str, Names]
    receiver: str | None
    result: str | None
    items: Mapping[int, str]


@dataclass(frozen=True)
class Rewritten:
    """Code to run in a copy of the wrapper's namespace; it binds ``call`` anew, over the same kernels."""

    code: CodeType
    sites: tuple[Site, ...]
    inputs: tuple[str, ...]


def rewrite_wrapper(source: str, filename: str, *, only: Collection[int] | None = None) -> Rewritten | None:
    """The wrapper with every launch watched, or ``None`` if its text holds no ``call`` or no launch (a C++ wrapper).

    ``only`` watches the sites of these numbers, each through a function of its own (``launch_name``), and no
    allocation.

    Raises ``ValueError`` if the text cannot be parsed.
    """
    try:
        tree = ast.parse(source, filename)
    except SyntaxError as error:
        raise ValueError(f"the generated wrapper cannot be parsed: {error}") from error
    found = list(find_call_nodes(tree))
    if not found:
        return None
    items = _unpacked_items(tree)
    targets = _targets(tree)
    sites = []
    for index, (call, node) in enumerate(found):
        result = targets.get(id(node))
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        sites.append(
            Site(
                index=index,
                name=call.name,
                line=call.line,
                function=call.function,
                arguments=tuple(_names(argument) for argument in node.args),
                keywords={keyword.arg: _names(keyword.value) for keyword in node.keywords if keyword.arg},
                receiver=_buffer_name(receiver) if receiver is not None and call.name.startswith(".") else None,
                result=result,
                items=items.get((call.function, result), {}) if result else {},
            )
        )
    replaced = {id(node): index for index, (_, node) in enumerate(found) if only is None or index in only}
    kept: list[ast.stmt] = []
    for statement in tree.body:
        if _is_entry(statement):
            kept.append(_Rewriter(replaced, is_partial=only is not None).visit(statement))
    module = ast.fix_missing_locations(ast.Module(kept, []))
    return Rewritten(compile(module, filename, "exec"), tuple(sites), input_names(tree))


def launch_name(site: int) -> str:
    """What a wrapper calls for one site, if only some are watched."""
    return f"{LAUNCH}_{site}"


def input_names(tree: ast.Module) -> tuple[str, ...]:
    """The names of a graph's inputs: what its ``call`` unpacks its arguments into."""
    for function in wrapper_functions(tree):
        for statement in function.body if function.name == "call" else ():
            if (
                isinstance(statement, ast.Assign)
                and isinstance(statement.value, ast.Name)
                and statement.value.id == "args"
                and isinstance(statement.targets[0], ast.Tuple)
            ):
                return tuple(ast.unparse(element) for element in statement.targets[0].elts)
    return ()


class _Rewriter(ast.NodeTransformer):
    def __init__(self, sites: Mapping[int, int], *, is_partial: bool) -> None:
        self._sites = sites
        self._is_partial = is_partial

    def visit_Call(self, node: ast.Call) -> ast.AST:
        site = self._sites.get(id(node))
        self.generic_visit(node)
        if site is not None and self._is_partial:
            call = ast.Call(_name(launch_name(site), node), [node.func, *node.args], node.keywords)
        elif site is not None:
            call = ast.Call(_name(LAUNCH, node), [ast.Constant(site), node.func, *node.args], node.keywords)
        elif not self._is_partial and _is_allocation(node.func):
            call = ast.Call(_name(ALLOCATE, node), [node.func, *node.args], node.keywords)
        else:
            return node
        return ast.copy_location(call, node)


def _name(name: str, node: ast.AST) -> ast.Name:
    return ast.copy_location(ast.Name(name, ast.Load()), node)


def _is_entry(statement: ast.stmt) -> bool:
    """What a graph's call runs: its functions, the class around them and the names bound to them."""
    if isinstance(statement, ast.ClassDef):
        return True
    if isinstance(statement, ast.FunctionDef):
        return any(True for _ in wrapper_functions(ast.Module([statement], [])))
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id in _ENTRY_NAMES for target in statement.targets)
    return False


def _is_allocation(function: ast.expr) -> bool:
    text = ast.unparse(function)
    return text.startswith(_ALLOCATIONS[0]) or text in _ALLOCATIONS[1:]


def _names(node: ast.expr) -> Names:
    if isinstance(node, (ast.List, ast.Tuple)):
        return tuple(_buffer_name(element) for element in node.elts)
    return _buffer_name(node)


def _buffer_name(node: ast.expr) -> str | None:
    """The name at the root of an argument: ``buf4`` for ``reinterpret_tensor(buf4, (2, 3), (3, 1), 0)``."""
    while True:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            node = node.value
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and _root(node.func) not in _NAMESPACES:
                node = node.func.value
            elif node.args:
                node = node.args[0]
            else:
                return None
        else:
            return None


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _targets(tree: ast.Module) -> dict[int, str]:
    """Call node to the name that its result is bound to."""
    return {
        id(node.value): node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    }


def _unpacked_items(tree: ast.Module) -> dict[tuple[str, str | None], dict[int, str]]:
    """``buf7 = buf6[0]``: the names of the items of a result, by function and result."""
    found: dict[tuple[str, str | None], dict[int, str]] = {}
    for function in wrapper_functions(tree):
        for node in ast.walk(function):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Subscript)
                and isinstance(node.value.value, ast.Name)
                and isinstance(node.value.slice, ast.Constant)
                and isinstance(node.value.slice.value, int)
                and isinstance(node.targets[0], ast.Name)
            ):
                key = (function.name, node.value.value.id)
                found.setdefault(key, {}).setdefault(node.value.slice.value, node.targets[0].id)
    return found
