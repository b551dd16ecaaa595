"""Weights that a library packed, made again."""

from __future__ import annotations

import ast
from collections.abc import Callable


def packed_weights(statement: ast.stmt, arguments: frozenset[str]) -> list[str]:
    """Lines that pack the weights of a library call as freezing does: the library takes them in no other form."""
    lines = []
    for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
        pack = _PACKED.get(ast.unparse(call.func))
        given = [ast.unparse(argument) for argument in call.args]
        if pack is not None and len(given) > 4 and given[1] in arguments:
            lines.append(pack(given))
    return lines


_PACKED: dict[str, Callable[[list[str]], str]] = {
    "torch.ops.mkl._mkl_linear.default": lambda given: (
        f"{given[1]} = torch.ops.mkl._mkl_reorder_linear_weight({given[2]}, {given[4]})"
    ),
    "torch.ops.mkldnn._convolution_pointwise.default": lambda given: (
        f"{given[1]} = torch.ops.mkldnn._reorder_convolution_weight("
        f"torch.rand({given[1]}.shape).to({given[1]}.dtype), "
        f"{given[3]}, {given[4]}, {given[5]}, {given[6]}, list({given[0]}.shape))"
    ),
    "torch.ops.mkldnn._linear_pointwise.default": lambda given: (
        f"{given[1]} = torch.ops.mkldnn._reorder_linear_weight("
        f"torch.rand({given[1]}.shape).to({given[1]}.dtype), {given[0]}.shape[0])"
    ),
}
