"""Products of float32 matrices that are rounded for the tensor cores (TF32): what a regressor sees of them."""

from __future__ import annotations

from dataclasses import replace

from torchledger.expecting.launch_families import family_of
from torchledger.expecting.launch_features import LaunchFeatures
from torchledger.expecting.launch_products import LEARNED, factors_of
from torchledger.nouns import Buffer, Launch

ROUNDED = "launch:gemm/rounded"
"""Family of these products."""


def as_bfloat16(launch: Launch) -> Launch:
    """The product of bfloat16 matrices that does the work of a product of float32 ones under TF32: twice as long a sum
    at twice the rate, over as many bytes. Any other launch is returned as it is."""
    if family_of(launch) != "launch:gemm/any" or launch.device.partition(":")[0] == "cpu":
        return launch
    if sum(buffer.role != "output" and len(buffer.shape) >= 2 for buffer in launch.buffers) < 2:
        return launch
    left, right = factors_of(launch)
    if (left.dtype, right.dtype) != ("float32", "float32"):
        return launch

    def narrow(buffer: Buffer) -> Buffer:
        if buffer.dtype != "float32":
            return buffer
        # A row then begins at the same byte as before.
        strides = tuple(stride if stride < 2 else 2 * stride for stride in buffer.stride)
        shape = buffer.shape
        if buffer is left:
            shape = (*shape[:-1], 2 * shape[-1])
        elif buffer is right:
            shape = (*shape[:-2], 2 * shape[-2], shape[-1])
        return replace(buffer, dtype="bfloat16", shape=shape, stride=strides)

    flops = None if launch.flops is None else 2 * launch.flops
    return replace(launch, flops=flops, buffers=tuple(narrow(buffer) for buffer in launch.buffers))


def of_rounded_product(features: LaunchFeatures, launch: Launch) -> LaunchFeatures:
    """The features of what stands for a product (``as_bfloat16``), with the layout of its own factors: tensor cores
    read bfloat16 either way, TF32 only along the sum."""
    left, right = factors_of(launch)
    # The networks learned of half precision and of float32 as it is: beside them regressors err more than without.
    values = {
        **{name: value for name, value in features.values.items() if name != LEARNED},
        "left across": float(left.stride[-1] != 1),
        "right across": float(right.stride[-2] != 1),
        "alignment of factors": float(min(_alignment(left), _alignment(right))),
    }
    return replace(features, family=ROUNDED, values=values)


def _alignment(factor: Buffer) -> int:
    """The largest power of two up to 16 that divides the elements between rows."""
    stride = max(factor.stride[-2:])
    return min(stride & -stride, 16)
