"""Products that Inductor's own templates do (``max-autotune``), asked about as the library's product of their sizes.

A template is generated with what surrounds the product: its buffers are those of the fused operations before and
behind, in shapes of theirs. The sizes of the product follow from its FLOPs and what it writes. Templates mask what does
not fill a tile and lose little where sizes are not aligned, so that the library is asked about aligned ones. Of 211 in
half precision on an H200 the library's time and a tenth, with half of what further buffers need, is 16.7 % off in the
mean (``benchmarks/launches/launch_errors.py`` of ``data/h200/templates_torch2.11.launches``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchledger.nouns import Buffer, Launch, TensorArgument
from torchledger.work.element_sizes import element_size
from torchledger.work.flops import matmul_flops
from torchledger.work.library_launches import library_launch
from torchledger.work.tensor_layouts import row_major

LONGER = 1.1
"""How much longer a template takes than the library's product of aligned sizes."""

FURTHER_SHARE = 0.5
"""How much of the time of further buffers is seen: the rest passes beside the product."""

WIDTH = 0.35
"""Half the width, in logarithms, of nine tenths of what templates took beside that."""

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_BATCHED = ("bmm", "baddbmm")
_FLOATS = ("bfloat16", "float16", "float32")
_ALIGNED_BYTES = 16


@dataclass(frozen=True)
class TemplateProduct:
    """The library's launch that stands for a template, and the bytes that the template moves beside the product."""

    launch: Launch
    further_bytes: int


def template_product(launch: Launch) -> TemplateProduct | None:
    """What stands for a template of a matrix product; ``None`` for any other launch, or where FLOPs are unknown."""
    if launch.category != "template" or not launch.flops or launch.device.partition(":")[0] == "cpu":
        return None
    operators = [name.rpartition(".")[2] for name in launch.aten_ops]
    operator = next((name for name in operators if name in _PRODUCTS), None)
    written = [buffer for buffer in launch.buffers if buffer.role != "input"]
    factors = [buffer for buffer in launch.buffers if buffer.role != "output" and buffer.dtype in _FLOATS]
    if operator is None or not written or not factors or not written[0].shape or not math.prod(written[0].shape):
        return None
    shape = written[0].shape
    batch = shape[0] if operator in _BATCHED and len(shape) == 3 else 1
    columns = shape[-1]
    rows = math.prod(shape) // columns // batch
    inner = max(1, round(launch.flops / (2 * math.prod(shape))))
    left = _factor(factors, batch, rows, inner)
    right = _factor([buffer for buffer in factors if buffer is not left], batch, inner, columns)
    dtypes = [buffer.dtype for buffer in (left, right) if buffer is not None] or [buffer.dtype for buffer in factors]
    dtype = next((name for name in _FLOATS if name in dtypes), "float32")
    item_size = element_size(dtype) or 4
    sides = [_aligned(side, item_size) for side in (rows, inner, columns)]
    front = (batch,) if batch > 1 else ()
    left_of, right_of, out_of = ((*front, *pair) for pair in (sides[:2], sides[1:], sides[::2]))
    product = library_launch(
        "bmm" if front else "mm",
        [
            _stored(left_of, dtype, is_turned=left is not None and _is_turned(left, rows, inner)),
            _stored(right_of, dtype, is_turned=right is None or _is_turned(right, inner, columns)),
        ],
        [TensorArgument(out_of, dtype)],
        flops=matmul_flops(sides[0], sides[1], sides[2], batch),
        device=launch.device,
        graph=launch.graph,
        order=launch.order,
    )
    if product is None:
        return None
    own = item_size * batch * (rows * inner + inner * columns + rows * columns)
    moved = sum((buffer.bytes_read or 0) + (buffer.bytes_written or 0) for buffer in launch.buffers)
    return TemplateProduct(product, max(0, moved - own))


def _stored(shape: tuple[int, ...], dtype: str, *, is_turned: bool) -> TensorArgument:
    """A matrix, or some, by rows or by columns."""
    if not is_turned:
        return TensorArgument(shape, dtype)
    *front, rows, columns = shape
    dense = row_major((*front, columns, rows))
    return TensorArgument(shape, dtype, (*dense[:-2], dense[-1], dense[-2]))


def _factor(buffers: Sequence[Buffer], batch: int, rows: int, columns: int) -> Buffer | None:
    """The first buffer of as many elements as a factor has."""
    return next(
        (each for each in buffers if len(each.shape) >= 2 and math.prod(each.shape) == batch * rows * columns), None
    )


def _is_turned(factor: Buffer, rows: int, columns: int) -> bool:
    """Whether a factor is stored by columns, by the axis that lies along memory: it is one of the matrix, or a part of
    one."""
    along = next((size for size, stride in zip(factor.shape, factor.stride, strict=True) if stride == 1), columns)
    of_columns, of_rows = columns % along == 0, rows % along == 0
    return along == rows != columns if of_columns == of_rows else of_rows


def _aligned(side: int, item_size: int) -> int:
    step = _ALIGNED_BYTES // item_size
    return -(-side // step) * step if side > 1 else side
