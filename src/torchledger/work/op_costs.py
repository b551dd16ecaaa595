"""FLOPs and minimum bytes of one operator call, from shapes alone.

``op_cost(call)`` finds the formula of an operator by its name. FLOPs are tensor FLOPs: products of matrices,
convolutions and attention, one multiply-add = 2 FLOPs; other operators have 0. Minimum bytes are inputs read once plus
outputs written once, at distinct addresses; output shapes are inferred from the inputs. Nothing here needs torch.

Conventions, which are those of ``torch.utils.flop_counter``: a bias adds none, attention counts the whole square of
scores (a causal mask makes the number an upper bound), attention backward counts its five products.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from torchledger.nouns import Cost
from torchledger.work.attention_costs import ATTENTION_COSTS
from torchledger.work.cost_parts import Formula, dense, memory_cost, named
from torchledger.work.indexing_costs import INDEXING_COSTS
from torchledger.work.layer_costs import LAYER_COSTS
from torchledger.work.list_costs import LIST_COSTS, foreach_cost
from torchledger.work.op_shapes import OpCall
from torchledger.work.pointwise_costs import POINTWISE_COSTS
from torchledger.work.product_costs import PRODUCT_COSTS
from torchledger.work.reduction_costs import REDUCTION_COSTS

NO_TENSOR_SHAPES = "the trace holds no shapes for this operator (recorded without record_shapes=True)"


LONG_LIST = "the trace holds no shapes for long lists of tensors"


def op_cost(call: OpCall) -> Cost:
    """FLOPs and minimum bytes of a call; what is unknown is ``None`` with the reason.

    >>> cost = op_cost(OpCall("aten::mm", (Tensor((4, 8), "float32"), Tensor((8, 16), "float32"))))
    >>> cost.flops, cost.bytes_moved
    (1024, 896)
    """
    if call.has_unknown_list:
        return Cost(reason=LONG_LIST)
    formula = FORMULAS.get(call.base_name)
    if formula is None and call.base_name.startswith("_foreach_"):
        formula = foreach_cost
    if formula is not None:
        cost = _guarded(formula, call)
        if cost is not None:
            return cost
    if not call.tensors:
        return Cost(reason=NO_TENSOR_SHAPES)
    if formula is not None:
        return Cost(reason=f"the shapes recorded for {call.name} do not fit its formula")
    return _unknown_operator(call)


@lru_cache(maxsize=100_000)
def has_formula(name: str) -> bool:
    """True when an operator of this name has a formula of its own."""
    base_name = OpCall(name, ()).base_name
    return base_name in FORMULAS or base_name.startswith("_foreach_")


def _nothing(call: OpCall) -> Cost | None:
    return Cost(0, 0, "exact", "exact")


def _unknown_operator(call: OpCall) -> Cost:
    """An operator without a formula: bytes as if it read each input once and wrote one like the largest."""
    largest = max(call.tensors, key=lambda tensor: tensor.numel)
    cost = memory_cost(call.tensors, [dense(largest)])
    if cost.bytes_moved is None:
        return cost
    return Cost(
        None,
        cost.bytes_moved,
        "unavailable",
        "estimated",
        reason=f"no FLOP formula for {call.name}",
        basis="inputs read once, one result like the largest input",
    )


def _guarded(formula: Formula, call: OpCall) -> Cost | None:
    """A formula's answer, or ``None`` where recorded arguments are not what the operator's schema promises."""
    try:
        cost = formula(call)
    except (IndexError, ValueError, ZeroDivisionError, TypeError):
        return None
    if cost is not None and (cost.flops or 0) < 0:
        return None
    return cost


FORMULAS: Mapping[str, Formula] = {
    **POINTWISE_COSTS,
    **REDUCTION_COSTS,
    **PRODUCT_COSTS,
    **ATTENTION_COSTS,
    **LAYER_COSTS,
    **INDEXING_COSTS,
    **LIST_COSTS,
    **named("empty empty_like empty_strided view reshape as_strided expand permute transpose t detach", _nothing),
}
"""Operator name (without namespace and in-place mark) to its formula."""
