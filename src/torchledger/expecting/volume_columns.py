"""What folding a convolution of three dimensions into two (``work/depth_folding.py``) forgets of it.

No network learned passes of three dimensions, and the library has other kernels for them, some many times slower
than those of two: what is measured beside this is learned in families of their own (``OF_VOLUMES``). A model without
them is within a factor of 2.6 in nine of ten of 84 eager calls (``docs/results/strangers_kernels.md``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torchledger.nouns import Buffer
from torchledger.work.depth_folding import volumes_of
from torchledger.work.launch_tensors import alignment_of

DEEP = "deep"
"""The column of convolutions of three dimensions."""
DEEP_WIDTH = math.log(2.0)
"""Half of an interval's logarithm: what holds six of seven of these calls where nothing was learned of volumes."""

OF_VOLUMES = " of volumes"
"""What the name of a convolution's family ends in where it is of three dimensions."""

_NARROW = 8  # channels, below which a library pads or has other kernels


def volume_columns(inputs: Sequence[Buffer], outputs: Sequence[Buffer], *, is_backward: bool) -> Mapping[str, float]:
    """What folding forgets of a convolution of three dimensions: its sides along the depth, and how its tensors lie.
    Empty for any other."""
    given = volumes_of(inputs, outputs, is_backward=is_backward)
    if given is None:
        return {}
    result, image, weight = given
    taps, depth, left = weight.shape[2:], image.shape[2], result.shape[2]
    larger = math.prod(max(image.shape[2:], result.shape[2:], key=math.prod))
    return {
        "volumes": math.log(image.shape[0]),
        "log depth": math.log(depth),
        "log depth of result": math.log(left),
        "taps along depth": float(taps[0]),
        "taps across depth": float(taps[1] * taps[2]),
        "log depth over depth": math.log(depth / left),
        "log side over side": math.log(image.shape[-1] / result.shape[-1]),
        "log places": math.log(larger),
        "channels of a filter": math.log(weight.shape[1]),
        "alignment of a filter": alignment_of(weight.shape[1]),
        "alignment of places": alignment_of(math.prod(result.shape[2:])),
        "narrow": float(min(weight.shape[:2]) < _NARROW),
        "float16": float(image.dtype == "float16"),
        "lies last": float(image.stride[1] == 1 < image.shape[1]),
        "result lies last": float(result.stride[1] == 1 < result.shape[1]),
        "filters lie last": float(weight.stride[1] == 1 < weight.shape[1]),
    }
