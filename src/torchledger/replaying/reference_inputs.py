"""Which values of the FX graph a launch's made-up inputs stand for: what it reads as it is before the launch.

A buffer carries the name of the value that it holds in the end. Two kinds hold another one before: a buffer that a
library call changes in place holds what the call's first operand is; one whose parts the launch fills through views
(the halves of a concatenation) and reads back holds nothing yet.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

from torchledger.nouns import Graph, Launch
from torchledger.replaying.call_site import Allocation, CallSite
from torchledger.replaying.reference import parse_fx


def reference_inputs(graph: Graph, launch: Launch, site: CallSite) -> dict[str, str]:
    """FX node to the input that stands for it."""
    outputs = dict(site.outputs)
    filled = _filled_through_views(launch, site)
    values: dict[str, str] = {}
    for name, node in site.inputs:
        if node is None or (name in filled and name not in outputs):
            continue
        if outputs.get(name) == node and launch.category in ("extern", "inline"):
            before = _first_operand(graph, node)
            if before is not None:
                values[before] = name
        else:
            values[node] = name
    return values


def _first_operand(graph: Graph, node: str) -> str | None:
    """What an in-place call's buffer holds before it; a placeholder holds itself."""
    if not graph.fx_source:
        return node
    code = parse_fx(graph.fx_source)
    if node in code.placeholders:
        return node
    value, _ = code.statements.get(node, (None, ""))
    first = value.args[0] if isinstance(value, ast.Call) and value.args else None
    return first.id if isinstance(first, ast.Name) else None


def _filled_through_views(launch: Launch, site: CallSite) -> set[str]:
    """Tensors of which the launch writes a part through a view of their memory."""
    sizes = {buffer.name: math.prod(buffer.shape) for buffer in launch.buffers}
    viewed = dict(_views(site.setup))
    return {
        root
        for name, _ in site.outputs
        if (root := viewed.get(name)) is not None and sizes.get(name, 0) < sizes.get(root, 0)
    }


def _views(setup: Sequence[Allocation | str]) -> Iterator[tuple[str, str]]:
    """View and viewed tensor of lines such as ``buf1 = reinterpret_tensor(buf3, ...)``."""
    for step in setup:
        if isinstance(step, Allocation):
            continue
        for statement in ast.parse(step).body:
            if (
                isinstance(statement, ast.Assign)
                and isinstance(statement.targets[0], ast.Name)
                and isinstance(statement.value, ast.Call)
                and statement.value.args
                and isinstance(statement.value.args[0], ast.Name)
            ):
                yield statement.targets[0].id, statement.value.args[0].id
