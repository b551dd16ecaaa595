"""Counting the FLOPs of a part of a program while nothing of it is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from torchledger._torch.eager_calls import keep_modes_over_compiled_calls
from torchledger._torch.eager_flops import EagerFlops, watch_compiled_functions

compiled_runs: list[int] = []


def backend(module: torch.fx.GraphModule, _: Any) -> Any:
    def run(*inputs: Any) -> Any:
        compiled_runs.append(1)
        return module(*inputs)

    return run


@pytest.fixture
def compiled() -> Any:
    torch._dynamo.reset()
    model = nn.Linear(8, 16, bias=False)
    function = torch.compile(model, backend=backend, fullgraph=True)
    function(torch.ones(4, 8))
    compiled_runs.clear()
    return function


def test_what_runs_between_start_and_stop_is_not_compiled_and_counted_to_the_digit(compiled: Any) -> None:
    counter = EagerFlops()
    assert counter.start()
    compiled(torch.ones(4, 8)).sum().backward()
    assert counter.stop() and compiled_runs == []
    compiled(torch.ones(4, 8))
    assert compiled_runs == [1]
    assert counter.by_operator() == {"aten.mm": 2 * 2 * 4 * 8 * 16}


def test_inside_another_mode_nothing_is_counted_and_compiled_code_stays(compiled: Any) -> None:
    with FlopCounterMode(display=False):
        counter = EagerFlops()
        assert not counter.start()
    compiled(torch.ones(4, 8))
    assert compiled_runs == [1] and counter.by_operator() == {}


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_of_a_conditional_the_way_taken_is_counted_and_gives_its_result(sign: float) -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x @ x @ x, (x,))

    x = sign * torch.eye(4)
    counter = EagerFlops()
    counter.start()
    result = branch(x)
    counter.stop()
    assert torch.equal(result, x @ x if sign > 0 else x @ x @ x)
    assert counter.by_operator() == {"aten.mm": (1 if sign > 0 else 2) * 2 * 4**3}


def test_of_a_loop_each_turn_is_counted() -> None:
    counter = EagerFlops()
    counter.start()
    at, _ = while_loop(lambda at, _: at < 3, lambda at, x: (at + 1, x @ x), (torch.tensor(0), torch.eye(4)))
    counter.stop()
    assert int(at) == 3 and counter.by_operator() == {"aten.mm": 3 * 2 * 4**3}


def test_a_formula_that_fails_fails_the_count_and_not_the_program() -> None:
    counter = EagerFlops()
    counter.flop_registry[torch.ops.aten.mm] = lambda *_, **__: 1 // 0
    counter.start()
    product = torch.ones(2, 2) @ torch.ones(2, 2)
    counter.stop()
    assert product.sum() == 8 and "ZeroDivisionError" in counter.faults[0]


def test_a_count_may_begin_where_a_compiled_function_is_called_and_hears_that_call(compiled: Any) -> None:
    counter = EagerFlops()
    heard: list[Any] = []

    def entered(function: Any) -> None:
        heard.append(function)
        counter.start() if len(heard) == 1 else counter.stop()

    guard, patches = keep_modes_over_compiled_calls(), watch_compiled_functions(entered)
    try:
        compiled(torch.ones(4, 8))
        compiled(torch.ones(4, 8))
    finally:
        patches.undo()
        guard.undo()
    assert counter.by_operator() == {"aten.mm": 2 * 4 * 8 * 16}
    assert compiled_runs == [1] and heard[0] is heard[1]


@pytest.fixture
def own_operators() -> Any:
    library = torch.library.Library("torchledger_tests", "FRAGMENT")
    library.define("project(Tensor x, Tensor weight) -> Tensor")
    library.define("twice(Tensor x, Tensor weight) -> Tensor")
    library.define("formula(Tensor x) -> Tensor")
    library.define("dense(Tensor x) -> Tensor")
    own = torch.ops.torchledger_tests
    library.impl("project", lambda x, weight: (x @ weight).relu(), "CPU")
    library.impl("twice", lambda x, weight: own.project(own.project(x, weight), weight), "CompositeExplicitAutograd")
    library.impl("formula", lambda x: x @ x, "CPU")
    library.impl("dense", lambda x: x.to_dense(), "CompositeExplicitAutograd")
    yield own
    library._destroy()


def test_an_operator_of_the_programs_own_is_counted_by_its_formula_or_else_by_what_it_is_made_of(
    own_operators: Any,
) -> None:
    register_flop_formula(own_operators.formula)(lambda shape, *args, **kwargs: 1000 * shape[0])
    try:
        counter = EagerFlops()
        counter.start()
        x = torch.eye(4)
        result = own_operators.twice(x, 2 * x) + own_operators.formula(x) + own_operators.dense(x.to_sparse())
        counter.stop()
    finally:
        flop_registry.pop(own_operators.formula)
    assert torch.equal(result, 6 * x)
    assert counter.by_operator() == {"aten.mm": 2 * 2 * 4**3, "torchledger_tests.formula": 4000}
    assert not counter.faults
