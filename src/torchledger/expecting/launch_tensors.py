"""What the descriptions of library calls share: their tensors, how these align, how a product divides into tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from torchledger.expecting.operator_features import gemm_columns
from torchledger.nouns import Buffer, Launch

EXPECTED = "log expected"
"""The column that holds the logarithm of the time by the library's tiles, where they are known."""


def tensors_of(launch: Launch) -> tuple[list[Buffer], list[Buffer]]:
    """What a launch reads and what it writes, without scalars; what it does both with is in each."""
    inputs = [buffer for buffer in launch.buffers if buffer.role != "output" and len(buffer.shape) > 0]
    outputs = [buffer for buffer in launch.buffers if buffer.role != "input" and len(buffer.shape) > 0]
    return inputs, outputs


def runs_transposed(image: Sequence[int], weight: Sequence[int], result: Sequence[int]) -> bool:
    """Whether a convolution of these shapes runs the other way round, from ``result`` to ``image``: its weight is then
    stored by the channels of what it is given. Of any number of dimensions; what has another number than the image is
    no result."""
    if len(result) != len(image):
        return False
    if weight[0] != result[1]:
        return True
    return weight[0] == image[1] and math.prod(result[2:]) > math.prod(image[2:])


@lru_cache(maxsize=20_000)
def tiles_of_product(
    name: str, batch: float, m: float, n: float, k: float, multiprocessors: int
) -> Mapping[str, float]:
    """``gemm_columns`` of one product: the layers of a model have alike ones."""
    rows = np.array([[float(max(side, 1))] for side in (batch, m, n, k)])
    columns = gemm_columns(name, rows[0], rows[1], rows[2], rows[3], multiprocessors)
    return {column: float(values[0]) for column, values in columns.items()}


def alignment_of(value: float) -> float:
    """log2 of the largest power of two, up to 256, that divides a whole number; 8 for nothing."""
    whole = int(value)
    return float(math.log2(min(whole & -whole, 256))) if whole > 0 else 8.0
