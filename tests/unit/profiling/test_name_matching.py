"""Names in order, and the entries that they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import make_launch
from torchledger.capturing.conditionals import Loop, Regions
from torchledger.profiling.name_matching import match_operators


@pytest.mark.parametrize(
    ("kernel_name", "operator"),
    [
        ("extern_kernels.addmm", "aten::addmm"),
        ("torch.ops.aten.sort.stable", "aten::sort"),
        ("aten.index_put_", "aten::index_put_"),
        ("torch.ops.mylib.mine.default", "mylib::mine"),
        ("torch.ops.aten._scaled_dot_product_flash_attention_backward.default",
         "aten::_scaled_dot_product_flash_attention_backward"),
    ],
)  # fmt: skip
def test_a_library_call_is_known_by_its_operator(kernel_name: str, operator: str) -> None:
    entry = make_launch(kernel_name=kernel_name, call=kernel_name, category="extern")
    assert match_operators(["aten::empty_strided", operator], [entry]) == {1: 0}


@given(st.lists(st.sampled_from(["aten::mm", "aten::addmm", "triton_a", "triton_b"]), max_size=12), st.data())
def test_operators_that_run_in_order_are_all_matched_whatever_stands_between(
    names: list[str], data: st.DataObject
) -> None:
    entries = [
        make_launch(order=place, kernel_name=name.replace("aten::", "extern_kernels."),
                    category="extern" if "::" in name else "pointwise")
        for place, name in enumerate(names)
    ]  # fmt: skip
    noisy: list[str] = []
    expected = {}
    for place, name in enumerate(names):
        noisy += data.draw(st.lists(st.just("aten::empty"), max_size=2))
        expected[len(noisy)] = place
        noisy.append(name)
    assert match_operators(noisy, entries) == expected


@pytest.mark.parametrize("taken", [0, 1])
def test_operators_of_the_way_that_a_conditional_takes_are_not_given_to_the_other(taken: int) -> None:
    kernels = ("triton_before", "extern_kernels.mm", "triton_relu", "extern_kernels.mm", "triton_tanh", "triton_after")
    entries = [
        make_launch(order=place, kernel_name=name, wrapper_line=10 * place,
                    category="extern" if "extern" in name else "pointwise")
        for place, name in enumerate(kernels)
    ]  # fmt: skip
    names = ["triton_before", "aten::mm", ("triton_relu", "triton_tanh")[taken], "triton_after"]
    conditional = (((10, 20),), ((30, 40),))
    first = 1 + 2 * taken
    assert match_operators(names, entries, [conditional]) == {0: 0, 1: first, 2: first + 1, 3: 5}


@pytest.mark.parametrize("turns", [0, 1, 2, 40])
def test_operators_of_a_loop_are_given_to_its_entries_turn_by_turn(turns: int) -> None:
    kernels = ("cpp_before", "cpp_check", "extern_kernels.mm", "cpp_body", "extern_kernels.mm")
    entries = [
        make_launch(order=place, kernel_name=name, wrapper_line=10 * place,
                    category="extern" if "extern" in name else "pointwise")
        for place, name in enumerate(kernels)
    ]  # fmt: skip
    turn = ["aten::mm", "cpp_body", "cpp_check", "aten::is_nonzero"]
    names = ["cpp_before", "cpp_check", "aten::is_nonzero", *turns * turn, "aten::mm"]
    found = match_operators(names, entries, [Loop(check=((10, 10),), body=((20, 30),))])
    assert [found.get(place) for place in range(len(names))] == [0, 1, None, *turns * [2, 3, 1, None], 4]


def test_operators_of_a_region_are_given_to_its_entries_at_each_of_its_calls() -> None:
    kernels = ("cpp_region", "extern_kernels.mm", "cpp_outside", "cpp_last")
    lines = (2, 3, 11, 13)
    entries = [
        make_launch(order=place, kernel_name=name, wrapper_line=line,
                    category="extern" if "extern" in name else "pointwise")
        for place, (name, line) in enumerate(zip(kernels, lines, strict=True))
    ]  # fmt: skip
    regions = Regions(((10, (1, 3)), (12, (1, 3))))
    names = ["cpp_region", "aten::mm", "cpp_outside", "cpp_region", "aten::mm", "cpp_last"]
    found = match_operators(names, entries, [regions])
    assert [found.get(place) for place in range(len(names))] == [0, 1, 2, 0, 1, 3]


@pytest.mark.parametrize("trials", [3, 500])
def test_an_entry_is_found_behind_any_number_of_trials_of_the_one_before(trials: int) -> None:
    entries = [make_launch(order=place, kernel_name=name) for place, name in enumerate(("triton_a", "triton_b"))]
    names = [*["aten::zero_", "triton_a"] * trials, "triton_b", "triton_a"]
    assert match_operators(names, entries) == {1: 0, 2 * trials: 1}
