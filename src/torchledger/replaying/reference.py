"""What a launch should compute: the piece of its FX graph between the values that it reads and those that it writes.

The graph's ``fx_source`` is readable code of ATen calls, one statement a node. Only its text is used here; the
statements that are picked run in the extracted file, as plain eager calls.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchledger.nouns import Buffer, Graph, Launch
from torchledger.replaying.sizes import check_name, symbol_value

_RANDOM = re.compile(r"rand|bernoulli|dropout|philox|inductor_seed|multinomial|rng_state")


@dataclass(frozen=True)
class Reference:
    """Statements that compute ``targets`` (FX node by output name) from ``parameters`` (FX nodes that are given).

    ``unchecked`` says, per output, why it has no reference.
    """

    parameters: tuple[str, ...]
    statements: tuple[str, ...]
    targets: Mapping[str, str]
    unchecked: Mapping[str, str]
    dtypes: frozenset[str]


@dataclass(frozen=True)
class FxCode:
    """A parsed ``fx_source``: statements by node, in order, and the annotations of nodes and placeholders."""

    statements: Mapping[str, tuple[ast.expr, str]]
    annotations: Mapping[str, str]
    placeholders: frozenset[str]


class _Unavailable(Exception):
    pass


def find_reference(graph: Graph, available: Sequence[str], outputs: Sequence[tuple[str, str | None]]) -> Reference:
    """The reference of some outputs (buffer name, FX node or ``None``), given the FX nodes whose values are there."""
    unchecked: dict[str, str] = {}
    targets: dict[str, str] = {}
    wanted: dict[str, None] = {}
    if not graph.fx_source:
        return Reference((), (), {}, {name: "the ledger holds no FX graph" for name, _ in outputs}, frozenset())
    code = parse_fx(graph.fx_source)
    for name, node in outputs:
        if node is None:
            unchecked[name] = "a value of the compiler's own, which no node of the FX graph stands for"
            continue
        target = _written_value(code, node) if node in code.placeholders else node
        try:
            needed = _walk(code, target, frozenset(available), graph.symbols)
        except _Unavailable as error:
            unchecked[name] = str(error)
            continue
        targets[name] = target
        wanted |= dict.fromkeys(needed)
    order = {node: index for index, node in enumerate(code.statements)}
    statements = []
    for node in sorted((node for node in wanted if node in order), key=order.__getitem__):
        statements.append(code.statements[node][1])
    numbers = [f"{node} = {_symbol_value(code, node, graph.symbols)}" for node in wanted if _is_symbol(code, node)]
    used = {part.id for text in statements for part in ast.walk(ast.parse(text)) if isinstance(part, ast.Name)}
    used.update(target for target in targets.values() if target not in wanted)
    parameters = tuple(name for name in dict.fromkeys(available) if name in used and name not in numbers)
    nodes = [*wanted, *parameters]
    dtypes = frozenset(code.annotations[node].split("[")[0] for node in nodes if node in code.annotations)
    return Reference(parameters, (*numbers, *statements), targets, unchecked, dtypes)


def _parse(source: str) -> ast.Module:
    # Graphs of models without gradients are printed as a class named "<lambda>".
    return ast.parse(source.replace("class <lambda>(", "class GraphModule("))


@functools.lru_cache(maxsize=8)
def parse_fx(source: str) -> FxCode:
    """The statements of readable FX code; nested graphs are left out."""
    tree = _parse(source)
    outer = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    forward = next(node for node in outer.body if isinstance(node, ast.FunctionDef))
    annotations: dict[str, str] = {}
    placeholders = []
    for argument in forward.args.args:
        if argument.arg != "self":
            placeholders.append(argument.arg)
            if isinstance(argument.annotation, ast.Constant):
                annotations[argument.arg] = str(argument.annotation.value)
    statements: dict[str, tuple[ast.expr, str]] = {}
    for statement in forward.body:
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]  # type: ignore[assignment]
        value = getattr(statement, "value", None)
        if not isinstance(target, ast.Name) or value is None or _frees(value):
            continue
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.annotation, ast.Constant):
            annotations[target.id] = str(statement.annotation.value)
        statements[target.id] = (value, f"{target.id} = {ast.unparse(value)}")
    return FxCode(statements, annotations, frozenset(placeholders))


def _frees(value: ast.expr) -> bool:
    """``x = None`` and ``x = y = None`` let go of values."""
    return isinstance(value, ast.Constant) and value.value is None


def _written_value(code: FxCode, placeholder: str) -> str:
    """The node whose value a mutated input holds in the end: the last that is copied into it."""
    found = placeholder
    for value, _ in code.statements.values():
        if isinstance(value, ast.Call) and "copy_" in ast.unparse(value.func) and len(value.args) >= 2:
            first, second = value.args[:2]
            if isinstance(first, ast.Name) and first.id == placeholder and isinstance(second, ast.Name):
                found = second.id
    return found


def _walk(code: FxCode, target: str, available: frozenset[str], symbols: Mapping[str, int]) -> list[str]:
    """The nodes that must be computed for ``target``, in any order; raises ``_Unavailable``."""
    needed: dict[str, None] = {}
    pending = [target]
    while pending:
        node = pending.pop()
        if node in needed:
            continue
        if node in available and node != target:
            continue
        if node in code.placeholders:
            if node in available:
                continue
            if not _is_symbol(code, node):
                raise _Unavailable(f"its value also hangs on {node}, which this launch does not read")
            needed[node] = None
            continue
        if node not in code.statements:
            raise _Unavailable(f"{node} is not a statement of the FX graph")
        value, text = code.statements[node]
        if isinstance(value, ast.Call) and _RANDOM.search(ast.unparse(value.func)):
            raise _Unavailable(f"{node} draws random numbers")
        if "self." in text:
            raise _Unavailable(f"{node} calls a nested graph or reads a constant")
        needed[node] = None
        pending += [part.id for part in ast.walk(value) if isinstance(part, ast.Name) and _is_node(code, part.id)]
    return list(needed)


def _is_node(code: FxCode, name: str) -> bool:
    return name in code.statements or name in code.placeholders


def _is_symbol(code: FxCode, node: str) -> bool:
    return node in code.placeholders and code.annotations.get(node, "").startswith("Sym(")


def _symbol_value(code: FxCode, node: str, symbols: Mapping[str, int]) -> int:
    name = code.annotations[node][4:-1]
    value = int(name) if name.isdigit() else symbol_value(symbols, name)
    return 1 if value is None else value


def library_operands(graph: Graph, launch: Launch) -> dict[str, str]:
    """FX node to the view that a library call gets for it, as code; empty where they cannot be paired.

    The operands of the call's own node, in order, are the tensors that the call gets, in order: also where a copy in
    another layout, which no node stands for, was put between.
    """
    if not graph.fx_source or not launch.fx_nodes:
        return {}
    code = parse_fx(graph.fx_source)
    value, _ = code.statements.get(launch.fx_nodes[-1], (None, ""))
    if not isinstance(value, ast.Call):
        return {}
    operands = [
        part.id
        for argument in (*value.args, *(keyword.value for keyword in value.keywords))
        for part in ast.walk(argument)
        if isinstance(part, ast.Name) and _is_node(code, part.id) and not _is_symbol(code, part.id)
    ]
    buffers = [buffer for buffer in launch.buffers if buffer.role in ("input", "inout")]
    if len(operands) != len(buffers):
        buffers = list(dict.fromkeys(buffers))  # an operand can be recorded twice, by place and by name
    if len(operands) != len(buffers):
        return {}
    found = {}
    for node, buffer in zip(operands, buffers, strict=True):
        annotation = re.match(r"\w+\[([\d, ]*)\]", code.annotations.get(node, ""))
        shape = tuple(int(part) for part in annotation[1].split(",") if part.strip()) if annotation else None
        if shape != buffer.shape or _is_packed(buffer):
            return {}
        check_name(buffer.name)
        stride, offset = tuple(map(int, buffer.stride)), int(buffer.offset)
        found[node] = f"reinterpret_tensor({buffer.name}, {shape}, {stride}, {offset})"
    return found


def _is_packed(buffer: Buffer) -> bool:
    """True for a weight in a library's own format, as freezing makes them: no view of it exists."""
    return buffer.name.startswith("_frozen_param") and not all(buffer.stride)


def whole_reference(graph: Graph) -> tuple[tuple[str, ...], tuple[str, ...], str, str | None]:
    """Placeholders, statements and returned expression of a whole FX graph, and why it is no reference (if so)."""
    if not graph.fx_source:
        return (), (), "()", "the ledger holds no FX graph"
    code = parse_fx(graph.fx_source)
    tree = _parse(graph.fx_source)
    returned = next(node for node in ast.walk(tree) if isinstance(node, ast.Return))
    texts = [text for _, text in code.statements.values()]
    reason = None
    for text in texts:
        if _RANDOM.search(text):
            reason = f"{text.partition(' =')[0]} draws random numbers"
        elif "self." in text:
            reason = f"{text.partition(' =')[0]} calls a nested graph or reads a constant"
    forward = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    names = tuple(argument.arg for argument in forward.args.args if argument.arg != "self")
    return names, tuple(texts), ast.unparse(returned.value) if returned.value else "()", reason
