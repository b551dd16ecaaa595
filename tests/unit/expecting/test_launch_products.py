"""Products among launches: how their library is asked about what is stored in one way or another."""

from __future__ import annotations

import math

import pytest

from factories import make_buffer, make_h200, make_launch
from torchledger.expecting.launch_library import expected_columns
from torchledger.expecting.launch_products import LEARNED, TILED
from torchledger.expecting.rounded_products import as_bfloat16
from torchledger.nouns import Buffer, Launch

H200 = make_h200()
Shape = tuple[int, int]


def _matrix(name: str, shape: Shape, *, across: bool = False, stride: int = 0, dtype: str = "bfloat16") -> Buffer:
    """A matrix with rows along memory, or columns; ``stride`` elements from one to the next."""
    rows, columns = shape
    strides = (1, stride or rows) if across else (stride or columns, 1)
    size = rows * columns * (4 if dtype == "float32" else 2)
    written = size if name == "out" else 0
    return make_buffer(
        name=name, role="output" if name == "out" else "input", dtype=dtype, shape=shape, stride=strides,
        device="cuda:0", bytes_read=size - written, bytes_written=written,
    )  # fmt: skip


def _launch(*buffers: Buffer, operator: str = "mm") -> Launch:
    return make_launch(
        category="extern", kernel_name=f"extern_kernels.{operator}", device="cuda:0", aten_ops=(f"aten.{operator}",),
        buffers=buffers,
    )  # fmt: skip


def _asked(*buffers: Buffer, operator: str = "mm") -> dict[str, float]:
    (found,) = expected_columns([_launch(*buffers, operator=operator)], H200)
    return found


def _product(m: int, n: int, k: int, *, left: bool = False, right: bool = False) -> dict[str, float]:
    return _asked(_matrix("a", (m, k), across=left), _matrix("b", (k, n), across=right), _matrix("out", (m, n)))


def test_rows_that_were_padded_are_asked_for_as_long_as_that() -> None:
    whole = _product(30528, 768, 4096, left=True)
    odd = _asked(
        _matrix("a", (30522, 4096), across=True, stride=30528), _matrix("b", (4096, 768)), _matrix("out", (30522, 768))
    )
    assert odd[LEARNED] == pytest.approx(whole[LEARNED])
    assert odd["rows end oddly"] == 1 and whole["rows end oddly"] == 0
    unpadded = _product(30522, 768, 4096, left=True)
    assert unpadded[LEARNED] > odd[LEARNED] + 0.3, "rows that begin anywhere keep the quick kernels away"


def test_rows_of_float32_may_end_anywhere() -> None:
    matrices = (
        _matrix("a", (512, 1022), stride=1024, dtype="float32"),
        _matrix("b", (1022, 512), dtype="float32"),
        _matrix("out", (512, 512), dtype="float32"),
    )
    assert _asked(*matrices)["rows end oddly"] == 0


def test_a_product_of_columns_is_the_transposed_one_of_rows() -> None:
    assert _product(384, 1024, 512, left=True, right=True)[LEARNED] == pytest.approx(
        _product(1024, 384, 512)[LEARNED], abs=1e-3
    )


def test_a_product_of_columns_is_written_by_rows_and_as_slow_as_these_are_odd() -> None:
    whole, odd = (_product(4096, columns, 2048, left=True, right=True) for columns in (4096, 4095))
    assert odd[LEARNED] > whole[LEARNED] + 0.3
    assert odd[LEARNED] == pytest.approx(_product(4095, 4097, 2048)[LEARNED], abs=1e-3)


@pytest.mark.parametrize("right", [False, True])
def test_along_a_side_of_one_a_matrix_is_stored_either_way(right: bool) -> None:
    column, row = _product(1024, 1, 512, right=right), _product(1, 1024, 512, right=True)
    assert column[LEARNED] == pytest.approx(row[LEARNED], abs=1e-3)


def test_a_vector_is_added_on_the_way_where_rows_follow_one_another_and_behind_where_they_do_not() -> None:
    factors = _matrix("a", (2048, 512)), _matrix("b", (512, 4096), across=True)
    bias = make_buffer(name="bias", role="input", dtype="bfloat16", shape=(4096,), stride=(1,), bytes_written=0)
    dense, padded = _matrix("out", (2048, 4096)), _matrix("out", (2048, 4096), stride=4160)
    plain = _asked(*factors, dense)
    assert _asked(bias, *factors, dense, operator="addmm")[LEARNED] == pytest.approx(plain[LEARNED])
    behind = _asked(bias, *factors, padded, operator="addmm")
    twice_us = H200.floor_us + 2 * 2048 * 4096 * 2 / H200.bytes_per_us
    assert math.exp(behind[LEARNED]) - math.exp(plain[LEARNED]) == pytest.approx(twice_us, rel=0.02)
    assert math.exp(behind[TILED]) - math.exp(plain[TILED]) == pytest.approx(twice_us, rel=0.02)


def test_a_vector_is_added_on_the_way_of_a_rounded_product_too() -> None:
    factors = _matrix("a", (256, 512), dtype="float32"), _matrix("b", (512, 1024), across=True, dtype="float32")
    bias = make_buffer(name="bias", role="input", shape=(1024,), stride=(1,), device="cuda:0", bytes_written=0)
    out = _matrix("out", (256, 1024), dtype="float32")
    rounded = [as_bfloat16(_launch(*bias_or_none, *factors, out, operator=operator))
               for bias_or_none, operator in (((), "mm"), ((bias,), "addmm"))]  # fmt: skip
    plain, added = expected_columns(rounded, H200)
    assert added[TILED] == pytest.approx(plain[TILED])


def test_a_matrix_is_added_behind() -> None:
    factors = _matrix("a", (2048, 512)), _matrix("b", (512, 4096), across=True)
    added, out = _matrix("c", (2048, 4096)), _matrix("out", (2048, 4096))
    assert _asked(added, *factors, out, operator="addmm")[LEARNED] > _asked(*factors, out)[LEARNED]
