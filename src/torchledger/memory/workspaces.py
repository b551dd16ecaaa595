"""What libraries hold of a GPU for themselves once a program has used them, by formula.

cuBLAS gets one workspace for each of its handles, and every thread that multiplies has one: the program's own, and
autograd's for the device. They stay until the process ends, and the caching allocator counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchledger.nouns import Launch, LiveStorage, StepCall

_HOPPER_BYTES = 4096 * 8 * 1024
_OTHER_BYTES = 4096 * 2 * 1024 + 16 * 8 * 1024
"""``getChosenWorkspaceSize`` in ATen/cuda/CUDABlas: 32 MiB from compute capability 9.0 on, else 8.125 MiB."""

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "linear", "_int_mm", "_scaled_mm")


def library_workspaces(
    calls: Sequence[StepCall],
    launches: Mapping[str, Sequence[Launch]],
    *,
    step: str,
    device: str,
    compute_capability: tuple[int, int] | None,
    first_number: int,
) -> list[LiveStorage]:
    """One storage for each workspace that the products of a step need; none where the device is not known."""
    if compute_capability is None:
        return []
    nbytes = _HOPPER_BYTES if compute_capability >= (9, 0) else _OTHER_BYTES
    threads = {
        "autograd" if call.phase == "backward" else "the program" for call in calls if _multiplies(call, launches)
    }
    return [
        LiveStorage(
            step=step,
            number=first_number + place,
            category="workspaces",
            nbytes=nbytes,
            device=device,
            name=f"cuBLAS workspace of {thread}'s thread",
        )
        for place, thread in enumerate(sorted(threads))
    ]


def _multiplies(call: StepCall, launches: Mapping[str, Sequence[Launch]]) -> bool:
    if call.kind != "graph":
        return call.name.removeprefix("aten::") in _PRODUCTS
    return any(
        launch.category == "extern" and launch.kernel_name.removesuffix(".default").split(".")[-1] in _PRODUCTS
        for launch in launches.get(call.name, ())
    )
