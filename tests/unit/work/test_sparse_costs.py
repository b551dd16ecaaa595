"""Costs of operators on sparse tensors, which have nothing to do with their shape."""

from __future__ import annotations

import pytest

from torchledger.nouns import Cost
from torchledger.work.op_costs import op_cost
from torchledger.work.op_shapes import Argument, OpCall, Tensor

NUMBER = Tensor((), "float32", ())
VALUES, PLACES = 1_000 * 32 * 4, 1_000 * 8


def table(rows: int) -> Tensor:
    return Tensor((rows, 32), "float32", (32, 1))


def gradient(rows: int) -> Tensor:
    """Of a thousand rows of a table."""
    return Tensor((rows, 32), "float32", None, VALUES + PLACES, VALUES)


def cost(name: str, *arguments: Argument, constants: tuple[str, ...] = ()) -> Cost:
    return op_cost(OpCall(name, arguments, constants))


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("aten::add_", 3 * VALUES + PLACES),
        ("aten::sparse_mask", 2 * (VALUES + PLACES)),
        ("aten::mul", 3 * VALUES + 2 * PLACES),
    ],
)
def test_a_table_beside_a_sparse_gradient_counts_for_the_rows_that_this_one_has(name: str, moved: int) -> None:
    for rows in (10_000, 20_000_000):
        assert cost(name, table(rows), gradient(rows)).bytes_moved == moved


def test_a_new_table_is_written_whole() -> None:
    assert cost("aten::add", table(10_000), gradient(10_000)).bytes_moved == 2 * 10_000 * 32 * 4 + 3 * VALUES + PLACES
    assert cost("aten::to_dense", gradient(10_000)).bytes_moved == 10_000 * 32 * 4 + 3 * VALUES + PLACES


@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("aten::clone", 2 * (VALUES + PLACES)),
        ("aten::_coalesce", 2 * (VALUES + PLACES)),
        ("aten::mul", 2 * (VALUES + PLACES) + 4),
        ("aten::mul_", 2 * VALUES + 4),
        ("aten::zero_", 0),
        ("aten::_values", 0),
        ("aten::is_coalesced", 0),
    ],
)
def test_a_sparse_tensor_alone_counts_for_what_it_holds(name: str, moved: int) -> None:
    others = (NUMBER,) if "mul" in name else ()
    assert cost(name, gradient(20_000_000), *others).bytes_moved == moved


def test_two_gradients_are_put_one_behind_the_other() -> None:
    assert cost("aten::add", gradient(10_000), gradient(10_000)).bytes_moved == 4 * (VALUES + PLACES)


def test_what_an_unknown_operator_holds_is_an_estimate_and_beside_a_dense_tensor_unknown() -> None:
    alone = cost("aten::_sparse_log_softmax", gradient(10_000))
    assert (alone.bytes_moved, alone.bytes_quality) == (2 * (VALUES + PLACES), "estimated") and alone.flops is None
    beside = cost("aten::_sparse_wonder", table(10_000), gradient(10_000))
    assert beside.bytes_moved is None and beside.flops is None and "beside a sparse one" in (beside.reason or "")


def test_a_product_multiplies_values_alone() -> None:
    matrix = Tensor((4_000, 2_000), "float32", None, 500 * 20, 500 * 4)
    other = Tensor((2_000, 16), "float32", (16, 1))
    for name, biases in (("aten::mm", ()), ("aten::_sparse_addmm", (Tensor((4_000, 16), "float32", (16, 1)),))):
        found = cost(name, *biases, matrix, other)
        assert (found.flops, found.flops_quality) == (2 * 500 * 16, "exact")
        assert found.bytes_moved == 500 * 20 + 500 * 16 * 4 + (1 + len(biases)) * 4_000 * 16 * 4
    assert cost("aten::mm", matrix, matrix).bytes_moved is None
    assert cost("aten::mv", matrix, Tensor((2_000,), "float32", (1,))).flops == 2 * 500


def test_a_sparse_gradient_of_bags_has_a_row_for_each_index() -> None:
    given = (
        Tensor((16, 32), "float32", (32, 1)),
        *(Tensor((size,), "int64", (1,)) for size in (64, 16, 64)),
        *(None for _ in range(6)),
    )
    for is_sparse, moved in (("True", (16 + 64) * 32 * 4 + 64 * 8), ("False", None)):
        constants = ("",) * 6 + ("20000000", "False", "0", is_sparse)
        found = cost("aten::_embedding_bag_backward", *given, constants=constants).bytes_moved
        assert found == moved if moved is not None else (found or 0) > 20_000_000 * 32 * 4
