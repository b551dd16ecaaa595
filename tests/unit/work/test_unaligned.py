"""Products of sizes that are not aligned, and what they are between padded copies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchledger.work.unaligned import UnalignedProduct, stays_as_it_is

ODD = UnalignedProduct(
    operator="mm",
    batch=1,
    rows=64,
    inner=30,
    columns=50,
    dtype="bfloat16",
    strides=((30, 1), (1, 30)),
    added=(0, 2, 6),
)


def test_the_product_is_called_as_the_program_has_it_or_between_dense_copies() -> None:
    left, right, out = ODD.launch(is_padded=False).buffers
    assert (left.shape, left.stride, right.shape, right.stride) == ((64, 30), (30, 1), (30, 50), (1, 30))
    assert (out.shape, out.stride, out.role) == ((64, 50), (50, 1), "output")
    left, right, out = ODD.launch(is_padded=True).buffers
    assert (left.shape, left.stride, right.shape, right.stride) == ((64, 32), (32, 1), (32, 56), (56, 1))
    assert (out.shape, out.bytes_written) == ((64, 56), 2 * 64 * 56)
    assert ODD.launch(is_padded=True).flops == 2 * 64 * 32 * 56


def test_a_factor_that_does_not_grow_stays_where_it_is() -> None:
    narrow = replace(ODD, inner=32, strides=((32, 1), (1, 32)), added=(0, 0, 6))
    left, right, _ = narrow.launch(is_padded=True).buffers
    assert (left.stride, right.stride) == ((32, 1), (56, 1))
    assert narrow.further_kernels == 2 and narrow.filled_bytes == 2 * 32 * 56


def test_copies_are_counted_by_what_they_fill_read_and_write() -> None:
    assert ODD.filled_bytes == 2 * (64 * 32 + 32 * 56)
    assert ODD.copied_across_bytes == 2 * (30 * 50 + 32 * 56)
    assert ODD.copied_bytes == ODD.copied_across_bytes + 2 * (64 * 30 + 64 * 32)
    assert ODD.further_kernels == 4


def test_what_is_written_padded_is_not_copied() -> None:
    planned = replace(ODD, is_planned=(True, True))
    assert (planned.filled_bytes, planned.copied_bytes, planned.further_kernels) == (0, 0, 2)


def test_batches_are_copied_each_and_a_bias_grows_with_the_columns() -> None:
    many = replace(ODD, operator="bmm", batch=3, strides=((1920, 30, 1), (1500, 1, 30)))
    assert many.copied_bytes == 3 * ODD.copied_bytes
    assert many.launch(is_padded=True).buffers[0].shape == (3, 64, 32)
    added = replace(ODD, operator="addmm")
    assert added.further_kernels == ODD.further_kernels + 2
    assert added.launch(is_padded=False).buffers[0].shape == (50,)


@pytest.mark.parametrize("is_padded", [False, True])
def test_where_nothing_is_known_no_product_is_padded(is_padded: bool) -> None:
    assert ODD.launch(is_padded=is_padded).order == int(is_padded)
    assert not stays_as_it_is(ODD)
