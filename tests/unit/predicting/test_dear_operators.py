"""Eager operators that need far more of the host than others do."""

from __future__ import annotations

import pytest

from torchledger.nouns import StepCall, TensorArgument
from torchledger.predicting.dear_operators import dear_us
from torchledger.predicting.host_steps import STEP_COSTS, launching_us, shape_with_calls, work_of_host
from torchledger.predicting.overheads import StepShape

ROWS = TensorArgument((8, 16), "float32", (16, 1))
MASK = TensorArgument((8,), "bool", (1,))
PLACES = TensorArgument((3,), "int64", (1,))


def call(name: str, *arguments: TensorArgument, accumulate: int | None = None) -> StepCall:
    settings = () if accumulate is None else (("accumulate", (accumulate,)),)
    return StepCall("", 0, "operator", name, "forward", kernels=1, arguments=arguments, settings=settings)


def test_most_operators_need_what_any_other_does() -> None:
    assert [dear_us(call(name, ROWS)) for name in ("aten::mul", "aten::sum", "aten::cat", "aten::mm")] == [0.0] * 4


def test_what_asks_a_solver_or_waits_for_a_number_needs_more() -> None:
    decomposed, ordered = dear_us(call("aten::_linalg_svd", ROWS)), dear_us(call("aten::sort", ROWS))
    assert decomposed > ordered > 0
    assert dear_us(call("aten::linalg_qr", ROWS)) > STEP_COSTS["launching_calls"]


@pytest.mark.parametrize("name", ["aten::index", "aten::index_put_", "aten::_index_put_impl_"])
def test_places_by_truth_values_are_counted_first_and_numbers_are_not(name: str) -> None:
    assert dear_us(call(name, ROWS, MASK)) > 0
    assert dear_us(call(name, ROWS, PLACES)) == 0


def test_values_that_are_added_up_are_sorted_first() -> None:
    added, put = (dear_us(call("aten::_index_put_impl_", ROWS, ROWS, accumulate=each)) for each in (1, 0))
    assert added > 0 == put


def test_a_step_and_a_rank_take_them_alike() -> None:
    calls = [call("aten::mul", ROWS), call("aten::linalg_qr", ROWS), call("aten::index", ROWS, MASK)]
    shape = shape_with_calls(StepShape(0, 0, 0), (), calls, ran_on_cpu=False)
    assert shape.dear_calls_us == pytest.approx(sum(map(dear_us, calls)))
    assert work_of_host(shape, "eager", trains=False)["dear_calls_us"] == shape.dear_calls_us
    usual, qr = (launching_us(each, is_new=False) for each in calls[:2])
    assert qr - usual == pytest.approx(dear_us(calls[1]))
