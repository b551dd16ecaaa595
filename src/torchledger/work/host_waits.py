"""How often the host waits for the device inside one call of an operator: where it has to know a value to go on.

An operator whose result is as long as values say reads that length before it allocates, and some check what they are
given. The counts are those of ATen's sources for CUDA (torch 2.11 and 2.13): ``Nonzero.cu``, ``Unique.cu``,
``SummaryOps.cu``, ``Distributions.cpp``, ``TensorAdvancedIndexing.cpp``, ``SparseCUDATensor.cu``; a barrier waits in
``ProcessGroupNCCL.cpp``, zeros of channels are checked in ``FakeQuantPerChannelAffine.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchledger.work.kernel_counts import MASKS
from torchledger.work.op_shapes import OpCall, Tensor

BARRIER = "c10d::barrier"

DRIVER_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize")
"""The driver's calls that wait for a stream or an event. A wait for the whole device is how a loop is timed, and no
part of a step."""

_ALWAYS: Mapping[str, int] = {
    "aten::nonzero": 1,
    "aten::masked_select": 1,
    "aten::_unique": 1,
    "aten::_unique2": 1,
    "aten::unique_dim": 1,
    "aten::unique_consecutive": 1,
    "aten::_coalesce": 1,  # how many places are left
    "aten::_to_sparse": 1,  # how many are other than zero
    "aten::bincount": 2,  # the least, which may not be negative, and the largest
    "aten::equal": 1,
    "aten::_fake_quantize_learnable_per_tensor_affine": 2,  # a scale and a zero
    "aten::_fake_quantize_learnable_per_tensor_affine_backward": 2,
    "aten::_fake_quantize_learnable_per_channel_affine": 2,  # the least and the largest zero
    "aten::_fake_quantize_learnable_per_channel_affine_backward": 2,
    "aten::_linalg_check_errors": 1,
    "torchvision::nms": 1,
    BARRIER: 1,
}

_FLOATS = ("float32", "float16", "bfloat16")
_NOT_SAID = ("", "None")


def host_waits(call: OpCall) -> int:
    """Waits of a call on the device; copies to the host and numbers that are read are not among these operators.

    >>> host_waits(OpCall("aten::nonzero", (Tensor((8,), "bool"),)))
    1
    """
    name = call.name.removesuffix("_")
    if name in ("aten::index", "aten::index_put", "aten::_index_put_impl"):
        return _of_masks(call)
    if name == "aten::multinomial":  # probabilities are checked where a sample is drawn by one argmax
        is_by_argmax = call.constant(1) == "1" or call.constant(2) != "True"
        return 2 * is_by_argmax
    if name == "aten::fake_quantize_per_channel_affine_cachemask":
        zeros = call.tensor(2)
        return 0 if zeros is None or zeros.dtype in _FLOATS else 2
    if name == "aten::repeat_interleave":
        return int((call.constant(1) or "") in _NOT_SAID)
    return _ALWAYS.get(call.name, 0)


def _of_masks(call: OpCall) -> int:
    """Each mask becomes the places that it leaves; one number that is put at them is filled in without."""
    indices = call.arguments[1] if len(call.arguments) > 1 else None
    values = call.tensor(2)
    if values is not None and values.numel == 1:
        return 0
    given = indices if isinstance(indices, tuple) else (indices,)
    return sum(isinstance(each, Tensor) and each.dtype in MASKS for each in given)
