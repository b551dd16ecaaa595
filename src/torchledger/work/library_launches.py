"""A library's call as the launch that a compiled graph makes of it: for calls that no graph has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torchledger.nouns import Buffer, Launch, TensorArgument
from torchledger.work.element_sizes import element_size
from torchledger.work.tensor_layouts import row_major


def library_launch(
    name: str,
    inputs: Sequence[TensorArgument],
    outputs: Sequence[TensorArgument],
    *,
    flops: int,
    device: str,
    graph: str = "",
    order: int = 0,
) -> Launch | None:
    """The launch of operator ``name`` (``"mm"``), each tensor read or written once; tensors whose strides are not told
    are dense. ``None`` where the size of an element is unknown."""
    buffers = [_buffer(each, place, "input", device) for place, each in enumerate(inputs)]
    buffers += [_buffer(each, len(inputs) + place, "output", device) for place, each in enumerate(outputs)]
    if any(buffer is None for buffer in buffers):
        return None
    return Launch(
        graph=graph,
        order=order,
        kernel=name,
        kernel_name=f"extern_kernels.{name}",
        category="extern",
        device=device,
        buffers=tuple(buffer for buffer in buffers if buffer is not None),
        aten_ops=(f"aten.{name}",),
        flops=flops,
    )


def _buffer(tensor: TensorArgument, place: int, role: Literal["input", "output"], device: str) -> Buffer | None:
    size = element_size(tensor.dtype) if tensor.dtype is not None else None
    if size is None or tensor.dtype is None:
        return None
    moved = size * math.prod(tensor.shape)
    return Buffer(
        name=f"tensor {place}",
        role=role,
        dtype=tensor.dtype,
        shape=tensor.shape,
        stride=tensor.stride if tensor.stride is not None else row_major(tensor.shape),
        device=device,
        bytes_read=moved if role == "input" else 0,
        bytes_written=moved if role == "output" else 0,
    )
