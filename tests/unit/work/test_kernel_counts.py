"""How many kernels a call of PyTorch's own runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchledger.work.kernel_counts import kernel_count


def test_what_is_not_counted_is_one_kernel() -> None:
    assert kernel_count("aten::mm") == kernel_count("my_library::sort_of") == 1


def test_a_name_counts_with_or_without_namespace_overload_and_mark() -> None:
    assert kernel_count("aten::index_put_") == kernel_count("index_put.default") == kernel_count("aten::index_put") > 1


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_more_indices_never_take_fewer_kernels(one: int, other: int) -> None:
    few, many = sorted((one, other))

    def counted(indices: int) -> int:
        return kernel_count("aten::_embedding_bag_backward", [("float32", (64, 8)), ("int64", (indices,))])

    assert 1 < counted(few) <= counted(many)


def test_gradients_of_the_largest_of_each_bag_sort_nothing() -> None:
    tensors = [("float32", (64, 8)), ("int64", (100_000,))]
    assert kernel_count("aten::_embedding_bag_backward", tensors, ["1000", "False", "2"]) == 2
    assert kernel_count("aten::_embedding_bag_backward", tensors, ["1000", "False", "0"]) == 31


def test_what_overwrites_places_or_keeps_gradients_sparse_sorts_nothing() -> None:
    tensors = [("float32", (64, 8)), ("int64", (100_000,)), ("float32", (100_000, 8))]
    assert (
        kernel_count("aten::index_put_", tensors, ["False"]) == 1 < kernel_count("aten::index_put_", tensors, ["True"])
    )
    narrow = [tensors[0], ("int32", (8,)), tensors[2]]
    assert kernel_count("aten::index_put_", narrow, ["False"]) == 2
    assert kernel_count("aten::_index_put_impl_", tensors, ["False", "True"]) == 1
    assert kernel_count("aten::_index_put_impl_", tensors, ["True", "True"]) == kernel_count(
        "aten::index_put_", tensors, ["True"]
    )
    assert kernel_count("aten::_embedding_bag_backward", tensors[:2], ["1000", "False", "0", "True"]) == 1


def test_one_number_is_filled_in_where_a_mask_says() -> None:
    rows, mask = ("float32", (64, 8)), ("bool", (64, 8))
    assert kernel_count("aten::index_put_", [rows, mask, ("float32", ())], ["False"]) == 1
    assert kernel_count("aten::index_put", [rows, mask, ("float32", ())], ["False"]) == 2
    assert kernel_count("aten::index_put_", [rows, mask, ("float32", (9,))], ["False"]) == 6


def test_sorting_goes_by_the_length_of_a_row() -> None:
    assert kernel_count("aten::sort", [("float32", (100_000, 64))]) < kernel_count(
        "aten::sort", [("float32", (1, 6400))]
    )


def test_a_wait_launches_nothing() -> None:
    assert kernel_count("_c10d_functional::wait_tensor") == 0
