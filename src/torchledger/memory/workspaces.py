"""What libraries hold of a GPU for themselves: cuBLAS once a program has used it, cuDNN while a convolution runs.

cuBLAS gets one workspace for each of its handles, and every thread that multiplies has one: the program's own, and
autograd's for the device. They stay until the process ends, and the caching allocator counts them; their size is a
formula. cuDNN asks for room anew in each convolution and gives it back in the same call: how much a network says
(``convolution_workspaces.py``); beside it lies what ATen first brings into the layout that the convolution runs in.
ATen itself sorts words before it adds up their gradients, and needs room for as many sums as there may be; a softmax
copies what does not lie row by row.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchledger.memory.convolution_workspaces import PRECISIONS, ConvolutionPass, Pass, workspace_bytes
from torchledger.nouns import Buffer, Launch, LiveStorage, StepCall, TensorArgument
from torchledger.work.categories import operation_of
from torchledger.work.convolution_shapes import convolution_shape
from torchledger.work.element_sizes import element_size
from torchledger.work.launch_tensors import tensors_of
from torchledger.work.library_launches import library_launch
from torchledger.work.place_algorithms import sums_of_words
from torchledger.work.settings import setting
from torchledger.work.tensor_layouts import is_contiguous

_HOPPER_BYTES = 4096 * 8 * 1024
_OTHER_BYTES = 4096 * 2 * 1024 + 16 * 8 * 1024
"""``getChosenWorkspaceSize`` in ATen/cuda/CUDABlas: 32 MiB from compute capability 9.0 on, else 8.125 MiB."""

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "linear", "_int_mm", "_scaled_mm")
_CONVOLUTIONS = ("convolution", "convolution_backward")
_SIZES = ("n", "c_in", "c_out", "height", "width", "kernel_height", "kernel")
"""Of ``convolution_shape``; where one is 0, nothing runs."""


def library_workspaces(
    calls: Sequence[StepCall],
    launches: Mapping[str, Sequence[Launch]],
    storages: Sequence[LiveStorage],
    *,
    step: str,
    device: str,
    compute_capability: tuple[int, int] | None,
    first_number: int,
    convolution_tf32: bool = True,
) -> list[LiveStorage]:
    """One storage for each workspace that the products and convolutions of a step need; none where the device is not
    known. ``storages`` are the step's tensors, among them what each convolution made: its workspace is there beside it
    until the call ends. ``convolution_tf32``: convolutions of float32 may be rounded for the tensor cores."""
    if compute_capability is None:
        return []
    nbytes = _HOPPER_BYTES if compute_capability >= (9, 0) else _OTHER_BYTES
    threads = {
        "autograd" if call.phase == "backward" else "the program" for call in calls if _multiplies(call, launches)
    }
    found = [
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
    asked = list(_asked_passes(calls, launches, storages, is_rounded=convolution_tf32))
    sizes = [own + each.copies for own, each in zip(workspace_bytes([a.one for a in asked]), asked, strict=True)]
    beside_calls = [(each.beside, size, "cuDNN workspace") for each, size in zip(asked, sizes, strict=True) if size]
    beside_calls += _rooms_of_operators(calls, storages)
    return found + [
        LiveStorage(
            step=step,
            number=first_number + len(found) + place,
            category="workspaces",
            nbytes=size,
            device=device,
            born=beside.born,
            born_in=beside.born_in,
            born_launch=beside.born_launch,
            freed=beside.born,
            freed_in=beside.born_in,
            freed_launch=beside.born_launch,
            name=name,
            operator=beside.operator,
            module=beside.module,
            source=beside.source,
        )
        for place, (beside, size, name) in enumerate(beside_calls)
    ]


def _rooms_of_operators(
    calls: Sequence[StepCall], storages: Sequence[LiveStorage]
) -> Iterator[tuple[LiveStorage, int, str]]:
    """Beside what some eager operators make, the tensors that ATen needs until it is made."""
    made = {each.born_in: each for each in storages if each.born is not None and each.born_launch is None}
    for call in calls:
        if call.name in _ROOMS and call.order in made:
            bytes_of, name = _ROOMS[call.name]
            size = bytes_of(call)
            if size:
                yield made[call.order], size, name


def _bytes_of_copies(tensors: Iterable[TensorArgument]) -> int:
    """What is first brought into an order in which it lies row by row."""
    return sum(0 if is_contiguous(each) else _bytes_of(each) for each in tensors)


def _bytes_of_softmax(call: StepCall) -> int:
    """What ``host_softmax`` and ``host_softmax_backward`` (``SoftMax.cu``) copy first; a softmax's own gradient is
    worked out from the product of what they are given, and a logarithm's from both."""
    given = call.arguments[: 2 if "backward" in call.name else 1]
    if call.name == "aten::_softmax_backward_data":
        return _bytes_of(given[0]) + _bytes_of_copies(given[1:])
    return _bytes_of_copies(given)


def _bytes_of_sorted_words(call: StepCall) -> int:
    """What ``EmbeddingBackwardKernel.cu`` of torch 2.11 asks for: words sorted and where each of them begins, eight
    bytes each, and the sums of ten rows of a word each; before these the rows, one behind the other."""
    rows, words = call.arguments[:2]
    table, count = setting(call.settings, "num_weights"), math.prod(words.shape)
    copied = _bytes_of_copies([rows])
    is_scaled = setting(call.settings, "scale_grad_by_freq") == (1,)
    sums = int(sums_of_words(count, table[0], is_scaled=is_scaled)) if table else 0
    if not table or not sums:
        return copied
    return copied + 8 * (2 * count + 3 * min(count, table[0]) + sums) + 4 * sums * rows.shape[-1]


_ROOMS: Mapping[str, tuple[Callable[[StepCall], int], str]] = {
    "aten::embedding_dense_backward": (_bytes_of_sorted_words, "sorted words and sums of their rows"),
    **dict.fromkeys(
        ("aten::_softmax", "aten::_log_softmax", "aten::_softmax_backward_data", "aten::_log_softmax_backward_data"),
        (_bytes_of_softmax, "what a softmax copies row by row"),
    ),
}
"""What eager operators need until they have made their tensors, and what it is."""


def _multiplies(call: StepCall, launches: Mapping[str, Sequence[Launch]]) -> bool:
    if call.kind != "graph":
        return call.name.removeprefix("aten::") in _PRODUCTS
    return any(
        launch.category == "extern" and launch.kernel_name.removesuffix(".default").split(".")[-1] in _PRODUCTS
        for launch in launches.get(call.name, ())
    )


@dataclass(frozen=True)
class _Asked:
    """A pass of a convolution, the tensor that it makes, and the bytes of what it is given that are copied first."""

    one: ConvolutionPass
    beside: LiveStorage
    copies: int


def _asked_passes(
    calls: Sequence[StepCall],
    launches: Mapping[str, Sequence[Launch]],
    storages: Sequence[LiveStorage],
    *,
    is_rounded: bool,
) -> Iterator[_Asked]:
    made: dict[tuple[int | None, int | None], list[LiveStorage]] = defaultdict(list)
    for each in storages:
        if each.born is not None:
            made[each.born_in, each.born_launch].append(each)
    for call in calls:
        if call.kind == "graph":
            for launch in launches.get(call.name, ()):
                if launch.category == "extern" and operation_of(launch) in _CONVOLUTIONS:
                    yield from _passes_of(launch, made[call.order, launch.order], is_rounded=is_rounded)
        elif call.name.removeprefix("aten::") in _CONVOLUTIONS:
            results = made[call.order, None]
            eager = _launch_of(call, results)
            if eager is not None:
                yield from _passes_of(eager, results, is_rounded=is_rounded)


def _launch_of(call: StepCall, results: Sequence[LiveStorage]) -> Launch | None:
    """An eager convolution as a graph would have it."""
    given = [each for each in call.arguments if len(each.shape) > 2]
    outputs = [TensorArgument(each.shape, each.dtype) for each in results if each.shape and each.dtype]
    name = call.name.removeprefix("aten::")
    return library_launch(name, given, outputs, flops=0, device=call.device or "", graph=call.step, order=call.order)


def _passes_of(launch: Launch, results: Sequence[LiveStorage], *, is_rounded: bool) -> Iterator[_Asked]:
    sizes = convolution_shape(launch)
    if sizes is None or not all(sizes[name] for name in _SIZES):
        return
    precision = _precision(launch, is_rounded=is_rounded)
    if precision is None:
        return
    if "backward" in operation_of(launch):
        wanted: list[tuple[Pass, Buffer]] = list(zip(("image", "weight"), _images(launch)[1:3], strict=True))
    else:
        wanted = [("forward", each) for each in tensors_of(launch)[1][:1]]
    left = sorted(results, key=lambda each: each.born or 0)
    for direction, made in wanted:
        beside = next((each for each in left if each.nbytes == _bytes_of(made)), None)
        if beside is not None:
            left.remove(beside)
            yield _Asked(_pass(direction, precision, sizes), beside, int(sizes["copies"]))


def _images(launch: Launch) -> list[Buffer]:
    """What a convolution is given but for its bias."""
    return [each for each in tensors_of(launch)[0] if len(each.shape) > 2]


def _bytes_of(buffer: Buffer | TensorArgument) -> int:
    return math.prod(buffer.shape) * (element_size(buffer.dtype) or 0)


def _precision(launch: Launch, *, is_rounded: bool) -> str | None:
    dtype = _images(launch)[0].dtype
    if dtype == "float32" and is_rounded:
        return "tf32"
    return dtype if dtype in PRECISIONS else None


def _pass(direction: Pass, precision: str, sizes: Mapping[str, float]) -> ConvolutionPass:
    """A transposed convolution runs the passes of the plain one that it is the gradient of."""
    if sizes["transposed"] and direction != "weight":
        direction = "image" if direction == "forward" else "forward"
    return ConvolutionPass(
        direction=direction,
        precision=precision,
        count=int(sizes["n"]),
        c_in=int(sizes["c_in"]),
        c_out=int(sizes["c_out"]),
        height=int(sizes["height"]),
        width=int(sizes["width"]),
        kernel_height=int(sizes["kernel_height"]),
        kernel=int(sizes["kernel"]),
        stride=int(sizes["stride"]),
        padding_height=int(sizes["padding_height"]),
        padding=int(sizes["padding"]),
        groups=int(sizes["groups"]),
        channels_last=bool(sizes["channels_last"]),
        stride_height=int(sizes["stride_height"]),
    )
