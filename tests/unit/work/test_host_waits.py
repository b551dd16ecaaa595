"""Operators in which the host waits for the device."""

from __future__ import annotations

import pytest

from torchledger.work.host_waits import host_waits
from torchledger.work.op_shapes import Argument, OpCall, Tensor

ROWS, MASK, PLACES = Tensor((8, 4), "float32"), Tensor((8,), "bool"), Tensor((3,), "int64")


def of(name: str, *arguments: Argument, constants: tuple[str, ...] = ()) -> int:
    return host_waits(OpCall(name, arguments, constants))


def test_what_is_as_long_as_values_say_is_waited_for() -> None:
    assert of("aten::nonzero", MASK) == of("aten::masked_select", ROWS, MASK) == of("aten::_unique2", PLACES) == 1
    assert of("aten::_coalesce", Tensor((8, 4), "float32", None, 40, 32)) == 1
    assert of("aten::mm", ROWS, ROWS) == of("aten::topk", ROWS) == of("aten::sort", ROWS) == 0


def test_indices_are_waited_for_where_they_are_masks() -> None:
    assert of("aten::index", ROWS, (MASK,)) == 1
    assert of("aten::index", ROWS, (PLACES,)) == 0


def test_one_number_that_is_put_where_a_mask_says_is_filled_in_without_waiting() -> None:
    assert of("aten::index_put_", ROWS, (MASK,), Tensor((), "float32")) == 0
    assert of("aten::index_put_", ROWS, (MASK,), Tensor((3, 4), "float32")) == 1
    assert of("aten::_index_put_impl_", ROWS, (MASK,), Tensor((3, 4), "float32")) == 1


def test_repeats_are_added_up_on_the_host_unless_their_sum_is_given() -> None:
    assert of("aten::repeat_interleave", PLACES, constants=("", "None")) == 1
    assert of("aten::repeat_interleave", PLACES, constants=("", "64")) == 0


@pytest.mark.parametrize(
    ("drawn", "with_replacement", "waits"), [("1", "False", 2), ("1", "True", 2), ("4", "False", 2), ("4", "True", 0)]
)
def test_probabilities_are_checked_where_samples_are_drawn_by_an_argmax(
    drawn: str, with_replacement: str, waits: int
) -> None:
    assert of("aten::multinomial", ROWS, constants=("", drawn, with_replacement)) == waits


def test_whole_zeros_of_channels_are_checked_on_the_host_before_they_round() -> None:
    scales = Tensor((8,), "float32")
    assert of("aten::fake_quantize_per_channel_affine_cachemask", ROWS, scales, Tensor((8,), "int32")) == 2
    assert of("aten::fake_quantize_per_channel_affine_cachemask", ROWS, scales, scales) == 0
    assert of("aten::_fake_quantize_learnable_per_tensor_affine_backward", ROWS, ROWS, scales, scales) == 2
    assert of("aten::fake_quantize_per_tensor_affine_cachemask", ROWS) == 0
