"""FLOPs and minimum bytes of one operator call, from shapes alone.

``op_cost(call)`` finds the formula of an operator by its name. FLOPs are tensor FLOPs: products of matrices,
convolutions and attention, one multiply-add = 2 FLOPs; other operators have 0. Minimum bytes are inputs read once plus
outputs written once, at distinct addresses; output shapes are inferred from the inputs. Nothing here needs torch.

Conventions, which are those of ``torch.utils.flop_counter``: a bias adds none, attention counts the whole square of
scores (a causal mask makes the number an upper bound), attention backward counts its five products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from torchledger.nouns import Cost, Quality
from torchledger.work.attention_costs import ATTENTION_COSTS
from torchledger.work.collective_costs import COLLECTIVE_COSTS
from torchledger.work.cost_parts import Formula, dense, memory_cost
from torchledger.work.indexing_costs import INDEXING_COSTS
from torchledger.work.layer_costs import LAYER_COSTS
from torchledger.work.list_costs import LIST_COSTS, foreach_cost
from torchledger.work.op_shapes import UNRECORDED_DTYPE, Argument, OpCall
from torchledger.work.pointwise_costs import POINTWISE_COSTS
from torchledger.work.product_costs import PRODUCT_COSTS
from torchledger.work.reduction_costs import REDUCTION_COSTS
from torchledger.work.sparse_costs import is_of_sparse, sparse_cost

NO_TENSOR_SHAPES = "the trace holds no shapes for this operator (recorded without record_shapes=True)"


LONG_LIST = "the trace holds no shapes for long lists of tensors"


def op_cost(call: OpCall) -> Cost:
    """FLOPs and minimum bytes of a call; what is unknown is ``None`` with the reason.

    >>> from torchledger.work.op_shapes import Tensor
    >>> cost = op_cost(OpCall("aten::mm", (Tensor((4, 8), "float32"), Tensor((8, 16), "float32"))))
    >>> cost.flops, cost.bytes_moved
    (1024, 896)
    """
    if call.has_unknown_list:
        return Cost(reason=LONG_LIST)
    if any(tensor.dtype == UNRECORDED_DTYPE for tensor in call.tensors):
        return _assuming(call, "float32")
    if is_of_sparse(call) and call.base_name not in VIEWS:
        return sparse_cost(call)
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


def _assuming(call: OpCall, dtype: str) -> Cost:
    """The cost of a call with lists whose dtype nobody recorded, as if they were of this one."""

    def assumed(argument: Argument) -> Argument:
        if isinstance(argument, tuple):
            return tuple(
                replace(tensor, dtype=dtype) if tensor.dtype == UNRECORDED_DTYPE else tensor for tensor in argument
            )
        return argument

    cost = op_cost(replace(call, arguments=tuple(map(assumed, call.arguments))))
    if cost.bytes_moved is None:
        return cost
    quality: Quality = cost.bytes_quality if cost.bytes_quality == "upper_bound" else "estimated"
    return replace(cost, bytes_quality=quality, basis=f"lists without a recorded dtype taken as {dtype}")


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


_VIEWS = """empty empty_like empty_strided new_empty new_empty_strided resize resize_as set view view_as view_as_real
view_as_complex _unsafe_view _reshape_alias reshape reshape_as as_strided expand expand_as broadcast_to
broadcast_tensors permute movedim moveaxis transpose swapaxes swapdims t numpy_T mT mH adjoint detach alias lift
lift_fresh select slice narrow unsqueeze squeeze split split_with_sizes tensor_split hsplit vsplit dsplit chunk
unsafe_split unsafe_split_with_sizes unsafe_chunk unbind unfold diagonal flatten unflatten real imag conj _conj
_neg_view resolve_conj resolve_neg is_same_size result_type can_cast is_pinned record_stream cudnn_is_acceptable
sym_size sym_stride sym_numel sym_storage_offset _indices _values indices values is_coalesced _coalesced _nnz
sparse_dim dense_dim _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_unsafe _use_cudnn_ctc_loss
_use_miopen_ctc_loss _efficientzerotensor _has_same_storage_numel"""

VIEWS = frozenset(_VIEWS.split())
"""Operators that make a view, take memory or ask for a fact: they launch nothing. Where one has to copy, it calls
``copy`` or ``clone``, which count."""

FORMULAS: Mapping[str, Formula] = {
    **POINTWISE_COSTS,
    **REDUCTION_COSTS,
    **PRODUCT_COSTS,
    **ATTENTION_COSTS,
    **LAYER_COSTS,
    **INDEXING_COSTS,
    **LIST_COSTS,
    **COLLECTIVE_COSTS,
    **dict.fromkeys(VIEWS, _nothing),
}
"""Operator name (without namespace and in-place mark) to its formula."""
