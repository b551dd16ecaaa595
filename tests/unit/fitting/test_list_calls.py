"""Costs of calls over lists of tensors: found again from calls that obey them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torchledger.fitting.call_costs import cost_keys, cost_of, fit_call_costs, launches_of_call
from torchledger.fitting.list_calls import ListCost, fit_list_calls, list_us
from torchledger.nouns import TensorArgument
from torchledger.work.list_costs import CHUNK_ELEMENTS, ListLaunches, launches_of_list, works_on_lists

_BYTES_PER_US = 4e6


@pytest.mark.parametrize("norm", [1.0, 4.0])
def test_a_cost_is_found_again_from_calls_that_obey_it(norm: float) -> None:
    true = ListCost(2.0, 30.0, 1.2, norm)
    launches = [launches_of_list(20, size, -(-size // 2**24)) for size in 2 ** np.arange(10, 29)]
    memory_us = [28 * float(size) / _BYTES_PER_US for size in 2 ** np.arange(10, 29)]
    us = np.array([list_us(true, *each) for each in zip(launches, memory_us, strict=True)])
    found, off = fit_list_calls(launches, memory_us, np.log(us), np.ones(len(us)))
    assert found.norm == norm and off.max() < 0.12
    assert found.chunk_us == pytest.approx(30.0, rel=0.1) and found.slowness == pytest.approx(1.2, rel=0.1)


def test_launches_of_a_list_share_all_of_it() -> None:
    for tensors, elements, kernels in ((4, 400 * CHUNK_ELEMENTS, 2), (70, 10**6, 2), (37, 1584 * CHUNK_ELEMENTS, 6)):
        each = launches_of_list(tensors, elements, kernels)
        assert each.full * each.full_share + each.last_share == pytest.approx(1.0)
        assert each.full == kernels - 1 and 0 < each.last_share <= each.full_share


def test_the_largest_tensor_that_is_known_fills_a_chunk() -> None:
    assert launches_of_list(64, 6400, 1).fill < 0.02
    assert launches_of_list(64, 2 * CHUNK_ELEMENTS, 1, largest=CHUNK_ELEMENTS).fill == 1.0
    assert launches_of_list(50, 10**7, 50).fill == 0.0, "each tensor has a kernel of its own"


def test_a_call_waits_for_the_chunk_of_each_of_its_kernels() -> None:
    cost = ListCost(2.0, 30.0, 1.0, 4.0)
    one, two = (ListLaunches(full, 0.5 * full, 1 - 0.5 * full, 1.0) for full in (0, 1))
    assert list_us(cost, two, 1.0) == pytest.approx(2 * list_us(cost, one, 1.0), rel=0.01)
    assert list_us(cost, two, 1e4) == pytest.approx(1e4, rel=0.01)


def test_calls_over_lists_are_learned_by_the_kernels_that_they_take() -> None:
    true = ListCost(2.0, 30.0, 1.0, 2.0)

    def row(size: int, kernels: int, program: str) -> dict[str, Any]:
        us = list_us(true, launches_of_list(20, size, kernels), 28 * size / _BYTES_PER_US)
        fields = {"name": "aten::_fused_adamw_", "kernels": kernels, "bytes_moved": 28 * size, "us": us}
        arguments = [((64, 64), "float32", (64, 1))]
        return fields | {"tensors": 20, "elements": size, "arguments": arguments, "program": program}

    rows = [row(2**place, 1 + 2**place // 2**24, "sealed-1") for place in range(20, 29)]
    rows += [row(2**place, 1, "battery-1") for place in range(10, 17)]
    tensor = TensorArgument((64, 64), "float32", (64, 1))
    cost = cost_of(cost_keys("aten::_fused_adamw_", [tensor]), fit_call_costs(rows, _BYTES_PER_US))
    assert cost is not None and cost.norm
    for each in rows:
        launches = launches_of_call(each["name"], [tensor], 20, each["elements"], each["kernels"])
        said = cost.duration_us(each["kernels"], each["bytes_moved"], _BYTES_PER_US, launches=launches)
        assert said == pytest.approx(each["us"], rel=0.15 if each["program"] == "sealed-1" else 0.8)


def test_what_works_on_lists_is_known_by_its_name_and_dtype_alone() -> None:
    turned = TensorArgument((8, 4, 3, 3), "float32", (36, 1, 12, 4))
    assert cost_keys("aten::_foreach_add_", [turned]) == ("aten::_foreach_add_ float32", "aten::_foreach_add_")
    assert works_on_lists("aten::_amp_foreach_non_finite_check_and_unscale_") and not works_on_lists("aten::cat")
    assert launches_of_call("aten::cat", [turned], 2, 100, 1) is None
