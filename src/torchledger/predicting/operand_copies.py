"""Products whose factors cuBLAS cannot read as they lie: ATen copies these first, inside the same call.

A library reads matrices whose rows or columns are dense. In a product over channels that lie innermost (``einsum`` of
``"ikc,jkc->ijc"``) neither is, and a factor is brought into another layout by a copy that takes longer than the
product (``prepare_batch_matrix_for_cublas`` of torch 2.11, ``LinearAlgebra.cpp``).
"""

from __future__ import annotations

import math
from dataclasses import replace

from torchledger.fitting.call_costs import cost_keys, cost_of, elements_of
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Buffer, Launch, Prediction, TensorArgument
from torchledger.work.categories import operation_of
from torchledger.work.element_sizes import element_size
from torchledger.work.launch_tensors import tensors_of

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_COPY = "aten::clone"


def with_copied_operands(model: TimeModel, launch: Launch, said: Prediction) -> Prediction:
    """The price of a product and of what is copied for it; of any other launch what was said."""
    if launch.category != "extern" or operation_of(launch) not in _PRODUCTS:
        return said
    copied_us = sum(_copy_us(model, each) for each in tensors_of(launch)[0][-2:] if is_copied(each))
    if not copied_us:
        return said
    return replace(
        said,
        duration_us=said.duration_us + copied_us,
        low_us=None if said.low_us is None else said.low_us + copied_us,
        high_us=None if said.high_us is None else said.high_us + copied_us,
        note="; ".join(filter(None, (said.note, "with copies of factors whose rows and columns are not dense"))),
    )


def is_copied(factor: Buffer) -> bool:
    """Whether neither rows nor columns of a factor are dense."""
    if len(factor.shape) < 2 or 1 in factor.shape[-2:]:
        return False
    (rows, columns), (down, along) = factor.shape[-2:], factor.stride[-2:]
    return not (along == 1 and down >= columns) and not (down == 1 and along >= rows)


def _copy_us(model: TimeModel, factor: Buffer) -> float:
    """Microseconds of a copy of this layout, by such calls in recorded steps; 0 where none was learned."""
    given = TensorArgument(factor.shape, factor.dtype, factor.stride)
    moved = 2 * math.prod(factor.shape) * (element_size(factor.dtype) or 0)
    cost = cost_of(cost_keys(_COPY, (given,)), model.extras, moved)
    if cost is None:
        return 0.0
    elements = elements_of(_COPY, (given,))
    return cost.duration_us(1, moved, model.machine.bytes_per_us, elements=elements)
