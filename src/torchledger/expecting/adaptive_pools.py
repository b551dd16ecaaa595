"""Pooling to a number of cells, whose windows follow from the image, and its gradients.

PyTorch's kernels give a block to a plane or a cell to a thread, and where windows overlap a gradient is added up by
atomics: a thread that adds up a whole picture, or a hundred that add to one pixel, take up to a thousand times what the
bytes would. They are a family of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchledger.nouns import Launch
from torchledger.work.categories import operation_of
from torchledger.work.launch_tensors import tensors_of

ADAPTIVE_POOLS = "launch:library/adaptive_pools"
"""Family of these calls."""

_NAMES = ("_adaptive_avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d")
_SIDES = 4


def is_adaptive_pool(operator: str) -> bool:
    """Whether an operator's name, without namespace and overload, is of such a pool or its gradient.

    >>> is_adaptive_pool("_adaptive_avg_pool2d_backward"), is_adaptive_pool("max_pool2d")
    (True, False)
    """
    return operator.removesuffix("_backward") in _NAMES


def pool_columns(launch: Launch) -> Mapping[str, float]:
    """What such a pool goes over: its planes, the image and its cells, and how often it comes to a pixel. Empty for
    any other call."""
    name = operation_of(launch)
    if not is_adaptive_pool(name):
        return {}
    inputs, outputs = ([buffer for buffer in buffers if len(buffer.shape) == _SIDES] for buffers in tensors_of(launch))
    is_gradient = name.endswith("_backward")
    pair = inputs[:2] if is_gradient else [*outputs[:1], *inputs[:1]]
    if len(pair) < 2 or min(min(buffer.shape) for buffer in pair) < 1:
        return {}
    cells, image = pair
    over = list(zip(image.shape[2:], cells.shape[2:], strict=True))
    visits = math.prod(_visits(size, number) for size, number in over)
    divides = all(size % number == 0 for size, number in over)
    return {
        "log planes": math.log(math.prod(image.shape[:2])),
        "log pixels of a plane": math.log(math.prod(image.shape[2:])),
        "log cells of a plane": math.log(math.prod(cells.shape[2:])),
        "log visits of a plane": math.log(visits),
        "log visits": math.log(visits * math.prod(image.shape[:2])),
        "log visits of a cell": math.log(visits / math.prod(cells.shape[2:])),
        "log visits of a pixel": math.log(visits / math.prod(image.shape[2:])),
        "log channels": math.log(image.shape[1]),
        "windows overlap": float(not divides),
        "keeps the largest": float("max" in name),
        "cells lie last": float(cells.stride[1] == 1 < cells.shape[1]),
        "pixels lie last": float(image.stride[1] == 1 < image.shape[1]),
    }


def _visits(size: int, cells: int) -> int:
    """Pixels that all windows along a side hold together: the window of a cell begins at ``floor(i * size / cells)``
    and ends at ``ceil((i + 1) * size / cells)`` (``AdaptiveAveragePooling.cu``)."""
    return sum(-(-(cell + 1) * size // cells) - cell * size // cells for cell in range(cells))
