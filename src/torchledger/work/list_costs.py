"""Operators on lists of tensors (foreach, fused optimizers): what they move, and how launches share them."""

from __future__ import annotations

from collections.abc import Mapping

from torchledger.nouns import Cost
from torchledger.work.cost_parts import (
    Formula,
    dense,
    memory_cost,
)
from torchledger.work.op_shapes import OpCall, Tensor


def foreach_cost(call: OpCall) -> Cost | None:
    """Every list read once and one list written like the first, but for those that only write or only read."""
    name = call.base_name
    first = next((value for value in call.arguments if isinstance(value, tuple) and value), None)
    if first is None:
        return None
    if name == "_foreach_zero":
        return memory_cost([], first)
    if name == "_foreach_copy":
        return memory_cost(call.tensor_list(1), first)
    if name in ("_foreach_norm", "_foreach_max"):
        return memory_cost(first, [Tensor((), tensor.dtype) for tensor in first])
    return memory_cost(call.tensors, [dense(tensor) for tensor in first])


_WRITTEN_BY_OPTIMIZER: Mapping[str, tuple[int, ...]] = {
    "_fused_adam": (0, 2, 3, 4),
    "_fused_adamw": (0, 2, 3, 4),
    "_fused_sgd": (0, 2),
    "_fused_adagrad": (0, 2),
    "_amp_foreach_non_finite_check_and_unscale": (0,),
}


def _optimizer(call: OpCall) -> Cost | None:
    if not call.tensor_list(0):
        return None
    written = [tensor for position in _WRITTEN_BY_OPTIMIZER[call.base_name] for tensor in call.tensor_list(position)]
    return memory_cost(call.tensors, written)


CHUNK_ELEMENTS, BLOCKS_A_LAUNCH = 65536, 320
TENSORS_A_LAUNCH = (0, 110, 64, 48, 36, 30)
"""How torch spreads lists of tensors over launches (ATen's ``MultiTensorApply.cuh``): a block takes a chunk of so many
elements of one tensor, a launch at most so many blocks, and tensors by the number of lists."""

LIST_COSTS: Mapping[str, Formula] = {
    **dict.fromkeys(_WRITTEN_BY_OPTIMIZER, _optimizer),
}
"""Operator name (without namespace and in-place mark) to its formula."""
