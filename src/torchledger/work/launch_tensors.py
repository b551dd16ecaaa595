"""The tensors of a launch that calls a library: what it reads and writes, how they align, which way it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchledger.nouns import Buffer, Launch


def tensors_of(launch: Launch) -> tuple[list[Buffer], list[Buffer]]:
    """What a launch reads and what it writes, without scalars; what it does both with is in each."""
    inputs = [buffer for buffer in launch.buffers if buffer.role != "output" and len(buffer.shape) > 0]
    outputs = [buffer for buffer in launch.buffers if buffer.role != "input" and len(buffer.shape) > 0]
    return inputs, outputs


def runs_transposed(
    image: Sequence[int], weight: Sequence[int], result: Sequence[int], *, told: bool | None = None
) -> bool:
    """Whether a convolution of these shapes runs the other way round, from ``result`` to ``image``: its weight is then
    stored by the channels of what it is given. Of any number of dimensions; what has another number than the image is
    no result. What its call says (``told``) decides, where that is known: an even filter on a padded image makes a
    larger one, too."""
    if told is not None:
        return told
    if len(result) != len(image):
        return False
    if weight[0] != result[1]:
        return True
    return weight[0] == image[1] and math.prod(result[2:]) > math.prod(image[2:])


def alignment_of(value: float) -> float:
    """log2 of the largest power of two, up to 256, that divides a whole number; 8 for nothing."""
    whole = int(value)
    return float(math.log2(min(whole & -whole, 256))) if whole > 0 else 8.0
