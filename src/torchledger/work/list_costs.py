"""Operators on lists of tensors (foreach, fused optimizers): what they move, and how launches share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchledger.nouns import Cost
from torchledger.work.categories import operator_name
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
_GRADIENTS = 1
_GRADIENT_SCALE: Mapping[str, int] = {"_fused_adam": 13, "_fused_adamw": 13, "_fused_sgd": 10, "_fused_adagrad": 9}
"""Where a gradient scaler's scale stands among the arguments of a fused optimizer."""


def _optimizer(call: OpCall) -> Cost | None:
    if not call.tensor_list(0):
        return None
    places = _WRITTEN_BY_OPTIMIZER[call.base_name]
    if _is_rescaling(call):
        places = (*places, _GRADIENTS)
    return memory_cost(call.tensors, [tensor for place in places for tensor in call.tensor_list(place)])


def _is_rescaling(call: OpCall) -> bool:
    """Whether a fused optimizer divides the gradients by a scaler's scale, and writes them back (ATen's
    ``FusedAdamKernel`` and ``FusedSgdKernel`` do if they are given one)."""
    place = _GRADIENT_SCALE.get(call.base_name)
    return place is not None and place < len(call.arguments) and isinstance(call.arguments[place], Tensor)


CHUNK_ELEMENTS, BLOCKS_A_LAUNCH = 65536, 320
TENSORS_A_LAUNCH = (0, 110, 64, 48, 36, 30)
"""How torch spreads lists of tensors over launches (ATen's ``MultiTensorApply.cuh``): a block takes a chunk of so many
elements of one tensor, a launch at most so many blocks, and tensors by the number of lists."""

_MOST_TOGETHER = 4
"""More tensors than these with a kernel each are not gone through together."""

_LARGEST_SHARE = 8
"""A model's largest tensor holds at least one part in so many of its elements: of 562 lists of drawn models' parameters
all but one hold a whole chunk, however small their mean tensor."""


@dataclass(frozen=True)
class ListLaunches:
    """How the kernels of a call share its list: ``full`` of them take ``full_share`` of its elements each, one more
    ``last_share``. ``fill`` is how much of a chunk its largest tensor fills, which one block goes through while the
    others wait; 0 where each tensor has kernels of its own."""

    full: int
    full_share: float
    last_share: float
    fill: float


def works_on_lists(name: str) -> bool:
    """True for a fused or foreach operator, a gradient scaler's among them."""
    return operator_name(name)[1].startswith(
        ("_fused_adam", "_fused_sgd", "_fused_adagrad", "_foreach_", "_amp_foreach_")
    )


def launches_of_list(tensors: int, elements: int, kernels: int, largest: int = 0) -> ListLaunches:
    """How ``kernels`` share a list of ``tensors`` with ``elements`` in all, the largest known of which has ``largest``.

    All launches but the last take as many blocks as a launch may have, if these are more than the others could hold;
    else the number of tensors bounds them, and they are taken as alike.

    >>> launches_of_list(4, 400 * 65536, 2)
    ListLaunches(full=1, full_share=0.796..., last_share=0.203..., fill=1.0)
    """
    kernels = max(kernels, 1)
    if kernels >= tensors > _MOST_TOGETHER:
        return ListLaunches(kernels - 1, 1 / kernels, 1 / kernels, 0.0)
    # Half of a model's tensors are small, and end in a block that they do not fill.
    blocks = min(max(tensors, elements / CHUNK_ELEMENTS + tensors / 2), BLOCKS_A_LAUNCH * kernels)
    before = BLOCKS_A_LAUNCH * (kernels - 1)
    full = BLOCKS_A_LAUNCH / blocks if blocks > before else 1 / kernels
    fill = max(largest, elements / tensors, elements / _LARGEST_SHARE) / CHUNK_ELEMENTS
    return ListLaunches(kernels - 1, full if kernels > 1 else 0.0, 1 - (kernels - 1) * full, min(1.0, fill))


LIST_COSTS: Mapping[str, Formula] = {
    **dict.fromkeys(_WRITTEN_BY_OPTIMIZER, _optimizer),
}
"""Operator name (without namespace and in-place mark) to its formula."""
