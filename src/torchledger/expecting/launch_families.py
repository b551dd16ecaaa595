"""Which regressor a launch belongs to: launches of one family answer to the same features."""

from __future__ import annotations

from torchledger.nouns import Launch
from torchledger.work.categories import LOOPS, category_of_work, operation_of
from torchledger.work.convolution_shapes import makes_image_alone

USER_TRITON = "launch:user_triton/any"
"""The family of Triton kernels that a program brings along."""

LIBRARY = "launch:library/other"
"""The family of a library's calls that have none of their own."""

COMPLEX = "launch:library/complex"
"""The family of ATen's element-wise kernels on complex numbers: no model learns it, and what others of the library
need says nothing of them."""


def family_of(launch: Launch) -> str | None:
    """``"launch:fused/pointwise"``, ``"launch:gemm"``, ``"launch:attention/backward"``, ...; ``None`` launches nothing.

    The part before the slash says which features describe the launch.
    """
    if launch.category == "nop":
        return None
    if launch.category in LOOPS:
        has_reduction = any(nest.reduction_extents for nest in launch.loops)
        return "launch:fused/reduction" if has_reduction else "launch:fused/pointwise"
    if launch.category == "user_triton":
        return USER_TRITON  # its bytes are known and what it computes is not: no model learns it
    category = category_of_work(launch)
    direction = "backward" if "_backward" in operation_of(launch) else "forward"
    if category == "attention":
        return f"launch:attention/{direction}"
    if category == "convolution":
        gradients = [buffer for buffer in launch.buffers if buffer.role == "output" and len(buffer.shape) in (3, 4, 5)]
        if makes_image_alone(launch):
            return "launch:convolution/forward"
        # The first layer of a model needs no gradient of its image.
        only_weight = direction == "backward" and len(gradients) == 1
        return f"launch:convolution/{'weight' if only_weight else direction}"
    if category == "gemm":
        return "launch:gemm/any"
    return COMPLEX if _is_over_complex(launch) else LIBRARY


def _is_over_complex(launch: Launch) -> bool:
    """True for plain operators on complex numbers, for which Inductor writes no kernels; transforms are none."""
    is_complex = any(buffer.dtype.startswith("complex") for buffer in launch.buffers)
    return is_complex and not operation_of(launch).startswith("_fft")
