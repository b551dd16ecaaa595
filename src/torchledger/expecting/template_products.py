"""Products that Inductor's own templates do (``max-autotune``), asked about as the library's product of their sizes.

A template is generated with what surrounds the product: its buffers are those of the fused operations before and
behind, in shapes of theirs. The sizes of the product follow from its FLOPs and what it writes. Templates mask what does
not fill a tile and lose little where sizes are not aligned, so that the library is asked about aligned ones. Of 211 in
half precision on an H200 the library's time and a tenth, with half of what further buffers need, is 16.7 % off in the
mean (``benchmarks/launch_errors.py`` of ``data/h200/templates_torch2.11.launches``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchledger.nouns import Buffer, Launch
from torchledger.work.element_sizes import element_size
from torchledger.work.flops import matmul_flops

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
    product = _product(
        launch,
        written[0],
        (batch, _aligned(rows, item_size), _aligned(inner, item_size), _aligned(columns, item_size)),
        dtype,
        (left is not None and _is_turned(left, rows, inner), right is None or _is_turned(right, inner, columns)),
    )
    own = item_size * batch * (rows * inner + inner * columns + rows * columns)
    moved = sum((buffer.bytes_read or 0) + (buffer.bytes_written or 0) for buffer in launch.buffers)
    return TemplateProduct(product, max(0, moved - own))


def _product(
    launch: Launch, like: Buffer, sides: tuple[int, int, int, int], dtype: str, turned: tuple[bool, bool]
) -> Launch:
    batch, rows, inner, columns = sides
    front = (batch,) if batch > 1 else ()

    def matrix(name: str, first: int, last: int, *, is_turned: bool = False, is_written: bool = False) -> Buffer:
        nbytes = batch * first * last * (element_size(dtype) or 4)
        strides = (1, first) if is_turned else (last, 1)
        return replace(
            like,
            name=name,
            role="output" if is_written else "input",
            dtype=dtype,
            shape=(*front, first, last),
            stride=(*((first * last,) if front else ()), *strides),
            offset=0,
            bytes_read=0 if is_written else nbytes,
            bytes_written=nbytes if is_written else 0,
        )

    operator = "bmm" if front else "mm"
    return replace(
        launch,
        category="extern",
        kernel_name=f"extern_kernels.{operator}",
        aten_ops=(f"aten.{operator}",),
        flops=matmul_flops(rows, inner, columns, batch),
        buffers=(
            matrix("left", rows, inner, is_turned=turned[0]),
            matrix("right", inner, columns, is_turned=turned[1]),
            matrix("out", rows, columns, is_written=True),
        ),
        loops=(),
    )


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
