"""What libraries hold for themselves: cuBLAS to the end, cuDNN beside what a convolution makes while it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.factories import make_buffer, make_launch, make_live_storage, make_step_call

from torchledger.memory.convolution_workspaces import ConvolutionPass, workspace_bytes
from torchledger.memory.live_set import add_up_memory, alive_at
from torchledger.memory.workspaces import library_workspaces
from torchledger.nouns import Launch, LiveStorage, StepMemory, TensorArgument
from torchledger.work.tensor_layouts import row_major

IMAGE, WEIGHT, MADE = (8, 64, 56, 56), (128, 64, 3, 3), (8, 128, 56, 56)
HALF, SINGLE = 2, 4
"""Bytes of an element."""


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    _, channels, height, width = shape
    return (channels * height * width, 1, width * channels, channels)


def tensor(
    name: str, shape: tuple[int, ...], *, last: bool = False, dtype: str = "bfloat16", role: str = "input"
) -> Any:
    stride = channels_last(shape) if last else row_major(shape)
    return make_buffer(name=name, dtype=dtype, shape=shape, stride=stride, role=role)


def convolution(**layout: Any) -> Launch:
    given = (tensor("image", IMAGE, **layout), tensor("weight", WEIGHT, **layout))
    made = tensor("made", MADE, role="output", **layout)
    return make_launch(category="extern", kernel_name="extern_kernels.convolution", buffers=(*given, made))


def backward(*, is_laid_out: bool = True) -> Launch:
    buffers = (
        tensor("gradient", MADE, last=not is_laid_out),
        tensor("image", IMAGE),
        tensor("weight", WEIGHT),
        tensor("image's", IMAGE, role="output"),
        tensor("weight's", WEIGHT, role="output"),
    )
    name = "torch.ops.aten.convolution_backward.default"
    return make_launch(category="extern", kernel_name=name, buffers=buffers)


def storage(of: Sequence[int], *, size: int = HALF, **changes: Any) -> LiveStorage:
    given = {"nbytes": size * math.prod(of), "born": 3, "born_in": 0, "born_launch": 0, "freed": 9, "freed_in": 0}
    return make_live_storage(**given | changes)


def spaces(launch: Launch, storages: Sequence[LiveStorage], **changes: Any) -> list[LiveStorage]:
    calls = [make_step_call(kind="graph", name="forward_0", phase="forward")]
    given: dict[str, Any] = {"step": "step_0", "device": "cuda:0", "compute_capability": (9, 0), "first_number": 50}
    return library_workspaces(calls, {"forward_0": [launch]}, storages, **given | changes)


def pass_of(**changes: Any) -> ConvolutionPass:
    sizes: dict[str, Any] = {
        "count": 8, "c_in": 64, "c_out": 128, "height": 56, "width": 56, "kernel_height": 3, "kernel": 3, "stride": 1,
        "padding_height": 1, "padding": 1, "groups": 1, "channels_last": False,
    }  # fmt: skip
    return ConvolutionPass(**{"direction": "forward", "precision": "bfloat16"} | sizes | changes)


def test_a_convolution_s_workspace_is_there_beside_what_it_makes_and_no_longer() -> None:
    (space,) = spaces(convolution(), [storage(MADE)])
    assert space.name == "cuDNN workspace"
    assert space.nbytes == workspace_bytes([pass_of()])[0] > 0
    assert space.born == space.freed == 3
    assert (space.born_in, space.born_launch) == (0, 0)


def test_where_channels_do_not_lie_last_the_kernels_of_half_precision_are_given_each_tensor_once_more() -> None:
    assert workspace_bytes([pass_of()]) == [HALF * sum(map(math.prod, (IMAGE, WEIGHT, MADE)))]
    assert workspace_bytes([pass_of(channels_last=True)]) == [0]


def test_channels_are_padded_to_sixteen_bytes_in_that_room() -> None:
    assert workspace_bytes([pass_of(c_in=61, c_out=125)]) == workspace_bytes([pass_of()])


def test_a_backward_s_passes_each_have_their_own_beside_their_gradients() -> None:
    found = spaces(backward(), [storage(IMAGE, born=5), storage(WEIGHT, number=1, born=6)])
    assert [each.born for each in found] == [5, 6]
    passes = [pass_of(direction="image"), pass_of(direction="weight")]
    assert [each.nbytes for each in found] == workspace_bytes(passes)


def test_a_gradient_that_nobody_asked_for_has_no_workspace() -> None:
    found = spaces(backward(), [storage(WEIGHT, born=6)])
    assert [each.nbytes for each in found] == workspace_bytes([pass_of(direction="weight")])


def test_what_is_copied_into_the_layout_first_lies_there_too() -> None:
    storages = [storage(IMAGE, born=5), storage(WEIGHT, number=1, born=6)]
    plain, copied = spaces(backward(), storages), spaces(backward(is_laid_out=False), storages)
    gradient = HALF * math.prod(MADE)
    assert [each.nbytes for each in copied] == [each.nbytes + gradient for each in plain]


def test_an_eager_convolution_has_its_workspace_as_one_in_a_graph() -> None:
    given = (TensorArgument(IMAGE, "bfloat16"), TensorArgument(WEIGHT, "bfloat16"))
    call = make_step_call(name="aten::convolution", phase="forward", arguments=given)
    made = storage(MADE, born_launch=None, shape=MADE, dtype="bfloat16")
    eager = library_workspaces(
        [call], {}, [made], step="step_0", device="cuda:0", compute_capability=(9, 0), first_number=1
    )
    assert [each.nbytes for each in eager] == [each.nbytes for each in spaces(convolution(), [storage(MADE)])]


def test_convolutions_of_float32_that_may_not_be_rounded_are_others() -> None:
    launch, made = convolution(last=True, dtype="float32"), [storage(MADE, size=SINGLE)]
    found = [[each.nbytes for each in spaces(launch, made, convolution_tf32=rounds)] for rounds in (True, False)]
    said = [workspace_bytes([pass_of(precision=name, channels_last=True)]) for name in ("tf32", "float32")]
    assert found == [[nbytes for nbytes in each if nbytes] for each in said]


def test_without_a_capability_nothing_is_said() -> None:
    assert spaces(convolution(), [storage(MADE)], compute_capability=None) == []


def test_a_convolution_whose_result_no_allocation_shows_has_no_workspace() -> None:
    assert spaces(convolution(), []) == []


def test_a_convolution_of_which_no_tensors_are_known_or_none_of_any_size_has_no_workspace() -> None:
    call = make_step_call(name="aten::convolution", phase="forward")
    given: dict[str, Any] = {"step": "s", "device": "cuda:0", "compute_capability": (9, 0), "first_number": 1}
    assert library_workspaces([call], {}, [storage(MADE, born_launch=None)], **given) == []
    images = (TensorArgument((0, *IMAGE[1:]), "bfloat16"), TensorArgument(WEIGHT, "bfloat16"))
    empty = storage((0,), born_launch=None, shape=(0, *MADE[1:]), dtype="bfloat16")
    assert library_workspaces([replace(call, arguments=images)], {}, [empty], **given) == []


def test_the_peak_holds_the_workspace_and_so_does_what_is_alive_there() -> None:
    made = storage(MADE)
    (space,) = spaces(convolution(), [made])
    memory = StepMemory(step="step_0", device="cuda:0", rounding=512)
    totals = add_up_memory(memory, [made, space])
    assert totals.peak_live_bytes == made.nbytes + space.nbytes
    assert totals.by_category == {"eager": made.nbytes, "workspaces": space.nbytes}
    assert [each.number for each in alive_at([made, space], 4)] == [made.number]
    assert totals.curve.levels[-1].nbytes == 0


def words_gradient(count: int, *, stride: tuple[int, ...] | None = None) -> list[LiveStorage]:
    rows, table = TensorArgument((count, 64), "float32", stride), (1000, 64)
    settings = (("num_weights", (1000,)), ("padding_idx", (-1,)))
    words = TensorArgument((count,), "int64", None)
    call = make_step_call(
        name="aten::embedding_dense_backward", phase="backward", arguments=(rows, words), settings=settings
    )
    made = storage(table, size=SINGLE, born_launch=None, shape=table, dtype="float32")
    given: dict[str, Any] = {"step": "s", "device": "cuda:0", "compute_capability": (9, 0), "first_number": 1}
    return library_workspaces([call], {}, [made], **given)


def test_gradients_of_many_words_need_room_for_their_sums_and_those_of_few_none() -> None:
    dense = row_major((4000, 64))
    (room,) = words_gradient(4000, stride=dense)
    assert room.nbytes == 8 * (2 * 4000 + 3 * 1000 + 1400) + SINGLE * 1400 * 64 and room.born == room.freed
    assert words_gradient(3000, stride=row_major((3000, 64))) == []


def test_rows_that_do_not_lie_one_behind_the_other_are_copied_before() -> None:
    (plain,), (turned,) = words_gradient(4000, stride=row_major((4000, 64))), words_gradient(4000, stride=(1, 4000))
    assert turned.nbytes == plain.nbytes + SINGLE * 4000 * 64


def softmax_room(name: str, *given: tuple[tuple[int, ...], tuple[int, ...]]) -> list[LiveStorage]:
    tensors = tuple(TensorArgument(shape, "float32", stride) for shape, stride in given)
    made = storage(tensors[0].shape, size=SINGLE, born_launch=None, shape=tensors[0].shape, dtype="float32")
    call = make_step_call(name=f"aten::{name}", arguments=tensors)
    options: dict[str, Any] = {"step": "s", "device": "cuda:0", "compute_capability": (9, 0), "first_number": 1}
    return library_workspaces([call], {}, [made], **options)


def test_a_softmax_copies_what_does_not_lie_row_by_row() -> None:
    shape = (8, 500, 128)
    plain, turned = (shape, row_major(shape)), (shape, (64_000, 1, 500))
    size = SINGLE * 8 * 500 * 128
    assert softmax_room("_log_softmax", plain) == []
    (room,) = softmax_room("_softmax", turned)
    assert room.nbytes == size and room.born == room.freed
    assert softmax_room("_log_softmax_backward_data", plain, plain) == []
    assert [each.nbytes for each in softmax_room("_log_softmax_backward_data", turned, turned)] == [2 * size]


def test_a_softmaxs_gradient_is_worked_out_from_a_product_of_its_own() -> None:
    plain = ((8, 128), row_major((8, 128)))
    assert [each.nbytes for each in softmax_room("_softmax_backward_data", plain, plain)] == [SINGLE * 8 * 128]
