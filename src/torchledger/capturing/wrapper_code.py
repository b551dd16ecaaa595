"""Count the kernel calls in generated wrapper code: the independent side of the launch account.

This module sees nothing but the text of the wrapper that Inductor wrote; it shares no information with the recorder,
whose entries it is compared with. Python wrappers are parsed (never executed), C++ wrappers are scanned.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

_NOT_LAUNCHED_PREFIXES = (
    "torch.ops.inductor._alloc_from_pool",
    "torch.ops.inductor._reinterpret_tensor",
    "inductor_ops._alloc_from_pool",
    "inductor_ops._reinterpret_tensor",
    "torch.ops.inductor.resize_storage_bytes_",
    "inductor_ops.resize_storage_bytes_",
    "torch.ops.streams.",
)
"""Operators that only make views, resize storage or order streams."""

_LAUNCHING_METHODS = frozenset({"copy_", "fill_", "zero_", "sum", "amax", "amin", "prod", "add_", "mul_"})
"""Tensor methods that Inductor writes into a wrapper as eager lines and that run a kernel."""

_OPERATOR_ROOTS = ("extern_kernels.", "torch.ops.", "aten.", "inductor_ops.", "_quantized.", "prims.")

_SKIPPED_FUNCTIONS = frozenset(
    {"benchmark_compiled_module", "get_args", "recursively_apply_fns", "__init__", "benchmark_all_configs"}
)


@dataclass(frozen=True)
class WrapperCall:
    """One kernel call site: the callee as written, the line it stands on (1-based), the function around it."""

    name: str
    line: int
    function: str


def find_calls(source: str, language: str = "python") -> list[WrapperCall]:
    """The kernel call sites of a wrapper, in the order of the text.

    Raises ``ValueError`` if a Python wrapper cannot be parsed.

    >>> find_calls("async_compile = 0\\nk = async_compile.cpp('')\\ndef call(args):\\n    k(args)")[0].name
    'k'
    """
    return _find_cpp_calls(source) if language == "cpp" else list(_find_python_calls(source))


def in_running_order(source: str, calls: Sequence[WrapperCall]) -> list[WrapperCall]:
    """The calls of a Python wrapper as its functions call each other: a subgraph's stand before it in the text, and run
    where it is called."""
    if len({call.function for call in calls}) < 2:
        return list(calls)
    functions = {each.name: each for each in wrapper_functions(ast.parse(source))}
    sites: dict[str, tuple[int, str]] = {}
    for caller in functions.values():
        for line, called in called_functions(caller, functions):
            sites[called] = min(sites.get(called, (line, caller.name)), (line, caller.name))

    def place(call: WrapperCall) -> tuple[int, ...]:
        lines, function = [call.line], call.function
        while function in sites and len(lines) <= len(sites):
            line, function = sites[function]
            lines.insert(0, line)
        return tuple(lines)

    return sorted(calls, key=place)


def called_functions(caller: ast.FunctionDef, functions: Container[str]) -> list[tuple[int, str]]:
    """Lines of a wrapper's function that call others of it, with their names, in order."""
    nodes = (node for node in ast.walk(caller) if isinstance(node, ast.Call))
    named = ((node.lineno, node.func.id) for node in nodes if isinstance(node.func, ast.Name))
    return sorted((line, name) for line, name in named if name in functions)


def is_launching_line(line: str) -> bool:
    """True for one line of Python wrapper text that runs a kernel on its own (an eager method or library call)."""
    if "(" not in line:
        return False
    try:
        tree = ast.parse(line.strip())
    except SyntaxError:
        return False
    return any(True for _ in _calls(tree, frozenset(), "call"))


def launching_callee(line: str) -> str | None:
    """The callee of the first launching call on a line of wrapper text."""
    try:
        tree = ast.parse(line.strip())
    except SyntaxError:
        return None
    return next((call.name for call, _ in _calls(tree, frozenset(), "call")), None)


def _find_python_calls(source: str) -> Iterator[WrapperCall]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"the generated wrapper cannot be parsed: {error}") from error
    return (call for call, _ in find_call_nodes(tree))


def find_call_nodes(tree: ast.Module) -> Iterator[tuple[WrapperCall, ast.Call]]:
    """The kernel call sites of a parsed Python wrapper with their nodes, in the order of the text."""
    kernels = frozenset(_kernel_names(tree))
    for function in wrapper_functions(tree):
        for statement in function.body:
            yield from _calls(statement, kernels, function.name)


def _kernel_names(tree: ast.Module) -> Iterator[str]:
    """Module-level names bound to what ``async_compile`` makes."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            callee = _dotted(statement.value.func)
            if callee is not None and callee.startswith("async_compile."):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        yield target.id


def wrapper_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The functions of a wrapper that run when its graph runs."""
    for statement in tree.body:
        bodies = statement.body if isinstance(statement, ast.ClassDef) else [statement]
        for function in bodies:
            if isinstance(function, ast.FunctionDef) and function.name not in _SKIPPED_FUNCTIONS:
                yield function


def _calls(tree: ast.AST, kernels: frozenset[str], function: str) -> Iterator[tuple[WrapperCall, ast.Call]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _launched(node, kernels)) is not None:
            found.append((WrapperCall(name, node.lineno, function), node))
    yield from sorted(found, key=lambda item: (item[0].line, item[1].col_offset, item[0].name))


def _launched(call: ast.Call, kernels: frozenset[str]) -> str | None:
    callee = _dotted(call.func)
    if callee is not None:
        if callee in kernels or callee.removesuffix(".run") in kernels:
            return callee
        if callee.startswith(_NOT_LAUNCHED_PREFIXES):
            return None
        if callee.startswith(_OPERATOR_ROOTS):
            return callee
        root = callee.split(".")[0]
        if root in ("torch", "self", "async_compile", "args", "sys", "os", "math"):
            return None
    if isinstance(call.func, ast.Attribute) and call.func.attr in _LAUNCHING_METHODS:
        return f".{call.func.attr}"
    return None


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


_CPP_CALL = re.compile(
    r"\b(?P<kernel>cpp_(?:fused_|CppMicroGemm|)\w+|call_triton_\w+|call_multi_kernel_\w+)\s*\("
    r"|\b(?P<library>aoti_torch_(?:cpu|cuda|xpu|mps|proxy_executor|call_dispatcher|copy_|mkldnn|_mm|_addmm|index_put"
    r"|scatter)\w*)\s*\("
    r"|\b(?P<name>loadKernel)\b"
)
_CPP_DEFINITION = re.compile(r'^\s*(?:extern "C"|static inline|template|#|//|void |inline )')
_CPP_ENTRY = re.compile(r"inductor_entry_impl|::run_impl\s*\(")


def _find_cpp_calls(source: str) -> list[WrapperCall]:
    found = []
    inside = False
    for number, line in enumerate(source.splitlines(), start=1):
        if _CPP_ENTRY.search(line):
            inside = True
        if not inside or _CPP_DEFINITION.match(line):
            continue
        for match in _CPP_CALL.finditer(line):
            name = match["kernel"] or match["library"]
            if name:
                found.append(WrapperCall(name, number, "inductor_entry_impl"))
    return found
