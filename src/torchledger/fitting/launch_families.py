"""Which regressor a launch belongs to: launches of one family answer to the same features."""

from __future__ import annotations

from torchledger.nouns import Launch

_FUSED = frozenset(
    {"pointwise", "reduction", "persistent_reduction", "split_scan", "foreach", "combo", "multi_kernel", "cpp"}
)


def family_of(launch: Launch) -> str | None:
    """``"launch:fused/pointwise"``, ``"launch:gemm"``, ``"launch:attention/backward"``, ...; ``None`` launches nothing.

    The part before the slash says which features describe the launch.
    """
    if launch.category == "nop":
        return None
    if launch.category in _FUSED:
        has_reduction = any(nest.reduction_extents for nest in launch.loops)
        return "launch:fused/reduction" if has_reduction else "launch:fused/pointwise"
    name = operation_of(launch)
    direction = "backward" if "backward" in name else "forward"
    if "attention" in name or "sdpa" in name or "flash" in name:
        return f"launch:attention/{direction}"
    if "convolution" in name or "conv2d" in name:
        gradients = [buffer for buffer in launch.buffers if buffer.role == "output" and len(buffer.shape) == 4]
        # The first layer of a model needs no gradient of its image.
        only_weight = direction == "backward" and len(gradients) == 1
        return f"launch:convolution/{'weight' if only_weight else direction}"
    if name.removesuffix("_out").endswith(("mm", "linear", "addmv", "mv")) or name == "template":
        return "launch:gemm/any"
    return "launch:library/other"


def operation_of(launch: Launch) -> str:
    """The bare name of a library call: ``"mm"``, ``"convolution_backward"``."""
    if launch.category == "template":
        return next((op.split(".")[1] for op in launch.aten_ops if op.split(".")[1].endswith("mm")), "template")
    text = launch.kernel_name or launch.call or ""
    parts = [part for part in text.replace("::", ".").split(".") if part not in ("default", "out", "torch", "ops")]
    return parts[-1].rstrip("_") if parts else ""
