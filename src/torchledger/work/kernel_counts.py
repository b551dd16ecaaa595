"""How many kernels one call of an operator runs on a GPU, where PyTorch's own code is more than a kernel.

Counted on an NVIDIA H200 with torch 2.11 over drawn calls (``benchmarks/operators/drawn_library.py``). Sorting takes
one kernel for as many elements as a block holds and a dozen more beyond; what sorts its indices first does so too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchledger.nouns import Launch
from torchledger.work.categories import operation_of


@dataclass(frozen=True)
class _Count:
    """Kernels of a call, and of one that sorts more than ``beyond`` elements."""

    kernels: int
    many: int | None = None
    beyond: int = 2304


_COUNTS: Mapping[str, _Count] = {
    "_cdist_forward": _Count(12),
    "_chunk_cat": _Count(2),
    "_coalesce": _Count(12),  # by its source (SparseCUDATensor.cu): places copied, numbered, sorted and made unique
    "_embedding_bag_backward": _Count(12, 31),
    "_embedding_bag_dense_backward": _Count(12, 31),
    "_foreach_norm": _Count(3),
    "_index_put_impl": _Count(13, 20),
    "_scaled_dot_product_cudnn_attention": _Count(2),
    "_scaled_dot_product_cudnn_attention_backward": _Count(4),
    "_scaled_dot_product_efficient_attention_backward": _Count(5),
    "_scaled_dot_product_flash_attention_backward": _Count(3),
    "_adaptive_avg_pool2d_backward": _Count(2),
    "_unique2": _Count(4, 23),
    "bincount": _Count(7),
    "binary_cross_entropy_with_logits": _Count(6),
    "cudnn_batch_norm": _Count(2),
    "cudnn_batch_norm_backward": _Count(2),
    "embedding_dense_backward": _Count(2, 31, beyond=3072),
    "fake_quantize_per_channel_affine_cachemask": _Count(4),  # zeros are checked; values and mask apart
    "grid_sampler_2d_backward": _Count(2),
    "histc": _Count(8),
    "index_add": _Count(2),
    "index_put": _Count(13, 20),
    "linalg_cholesky_ex": _Count(9),
    "masked_fill": _Count(2),
    "masked_select": _Count(6),
    "max_pool2d_with_indices_backward": _Count(2),
    "mse_loss": _Count(3),
    "mse_loss_backward": _Count(2),
    "multinomial": _Count(14),
    "native_batch_norm": _Count(3),
    "native_group_norm": _Count(2),
    "native_group_norm_backward": _Count(3),
    "native_layer_norm_backward": _Count(2),
    "nll_loss_backward": _Count(2),
    "nonzero": _Count(5),
    "randperm": _Count(5, 18),
    "reflection_pad2d_backward": _Count(2),
    "replication_pad2d_backward": _Count(2),
    "scatter": _Count(2),
    "scatter_add": _Count(2),
    "scatter_reduce": _Count(3),
    "smooth_l1_loss": _Count(3),
    "smooth_l1_loss_backward": _Count(2),
    "sort": _Count(5, 17, beyond=4096),
    "split_with_sizes_copy": _Count(2),
    "topk": _Count(2),
    "upsample_bicubic2d": _Count(2),
    "upsample_bicubic2d_backward": _Count(2),
    "upsample_bilinear2d_backward": _Count(2),
    "wait_tensor": _Count(0),
}
"""By operator's name without namespace, overload and in-place mark; all others are one kernel."""

_OF_ROWS = ("sort", "topk")
_ACCUMULATES = {"index_put": -1, "_index_put_impl": -2}
"""Where among the options they are told whether to add up."""
INTEGERS = ("int64", "int32")
"""What indices are of."""
MASKS = ("bool", "uint8")
"""What truth values that choose elements are of."""
_WITH_VALUE = 3
_LARGEST_OF_BAGS = "2"
"""The mode of a bag that keeps its largest values: their gradients are scattered, nothing is sorted."""


def kernel_count(name: str, tensors: Sequence[tuple[str, tuple[int, ...]]] = (), options: Sequence[str] = ()) -> int:
    """Kernels of a call of ``name`` (as in ``aten::sort``), given dtypes and shapes of its tensors and its other
    arguments in their order."""
    operation = name.rpartition("::")[2].partition(".")[0].rstrip("_")
    count = _COUNTS.get(operation)
    if count is None:
        return 1
    if operation.startswith("_embedding_bag"):
        if options[3:4] == ["True"]:  # a sparse gradient, of rows that are gathered and not sorted
            return 1
        if options[2:3] == [_LARGEST_OF_BAGS]:
            return 2
    if (place := _ACCUMULATES.get(operation)) is not None and list(options)[place:][:1] == ["False"]:
        if is_filled_by_mask([(shape, dtype) for dtype, shape in tensors]):
            return 1 if name.endswith("_") else _COUNTS["masked_fill"].kernels
        return _overwritten(tensors)
    if count.many is None or not tensors:
        return count.kernels
    if operation in _OF_ROWS:
        sorted_elements = tensors[0][1][-1] if tensors[0][1] else 1
    else:
        sorted_elements = max((math.prod(shape) for dtype, shape in tensors if dtype in INTEGERS), default=0)
    return count.many if sorted_elements > count.beyond else count.kernels


def _overwritten(tensors: Sequence[tuple[str, tuple[int, ...]]]) -> int:
    """Kernels of writing to places without adding up: nothing is sorted. Indices are made wide first, masks counted."""
    dtypes = [dtype for dtype, _ in tensors[1:]]
    return 1 + ("int32" in dtypes) + _COUNTS["nonzero"].kernels * ("bool" in dtypes)


def is_filled_by_mask(tensors: Sequence[tuple[tuple[int, ...], str | None]]) -> bool:
    """Whether what is written to places, by shapes and dtypes of the tensor, the places and the values, is one number
    where one mask says: ATen fills it in (``canDispatchToMaskedFill`` in ``TensorAdvancedIndexing.cpp``).

    A number on the device is written otherwise, but one that stands in a program's text is the host's.
    """
    return len(tensors) == _WITH_VALUE and tensors[1][1] in MASKS and tensors[2][0] == ()


def kernels_of_launch(launch: Launch) -> int:
    """Kernels of a library call of a compiled graph; 1 for a generated kernel."""
    if launch.category != "extern":
        return 1
    tensors = [(buffer.dtype, buffer.shape) for buffer in launch.buffers]
    return kernel_count(operation_of(launch), tensors, list(launch.kwargs.values()))
