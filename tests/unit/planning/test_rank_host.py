"""What the host of a rank needs for each entry: more for what comes with ranks, and its own work by one slowness."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.factories import make_buffer, make_launch, make_step_call

from torchledger.nouns import StepCall
from torchledger.planning.rank_host import RANK_COSTS, RankHost, slowness_of_ranks
from torchledger.predicting.host_steps import STEP_COSTS, measured_host_us
from torchledger.predicting.overheads import StepShape

VIEW = make_step_call(name="aten::view", kernels=0, bytes_moved=0, phase="forward")
GRADIENT = replace(VIEW, phase="backward")
FORWARD = make_step_call(kind="graph", name="forward_0", phase="forward")
BACKWARD = make_step_call(kind="graph", name="backward_0", phase="backward")
REDUCE = make_step_call(kind="collective", name="c10d::allreduce_", phase="communication")
LIST = StepCall("s", 0, "operator", "aten::_foreach_mul_", "optimizer", kernels=1, tensors=100)
FUSED = make_launch(graph="forward_0")


def graph_us(host: RankHost, call: StepCall, *, wakes: bool = False, collectives: int = 0) -> float:
    return host.graph_us(call, (), wakes_autograd=wakes, collectives=collectives)


def test_what_python_does_goes_with_the_slowness() -> None:
    def costs(slowness: float) -> list[float]:
        host = RankHost(slowness, "eager")
        return [
            host.step_us(),
            graph_us(host, FORWARD, collectives=3),
            graph_us(host, BACKWARD, wakes=True),
            host.launch_us(FUSED),
            host.graph_collective_us(),
            host.collective_us(REDUCE, by_fsdp=False),
            host.operator_us(LIST, launches=True),
            host.operator_us(VIEW, launches=True),
            host.operator_us(GRADIENT, launches=False),
        ]

    assert all(cost > 0 for cost in costs(1.0))
    assert costs(1.7) == pytest.approx([1.7 * cost for cost in costs(1.0)])


def test_a_step_without_ranks_costs_what_a_step_of_one_process_does() -> None:
    host = RankHost(1.3, "eager")
    buffers = tuple(make_buffer(name=f"primals_{number}") for number in range(1, 5))
    launches = [make_launch(graph="forward_0", buffers=buffers)]
    entries = [
        host.step_us(),
        host.graph_us(FORWARD, launches, wakes_autograd=False, collectives=0),
        *(host.launch_us(launch) for launch in launches),
        graph_us(host, BACKWARD, wakes=True),
        *(host.operator_us(GRADIENT, launches=False) for _ in range(4)),
        *(host.operator_us(replace(VIEW, name="aten::mul"), launches=True) for _ in range(3)),
    ]
    shape = StepShape(fused=1, library=0, graphs=2, parameters=4, launching_calls=3, distinct_calls=1)
    assert sum(entries) == pytest.approx(measured_host_us(shape, "eager", 1.3, trains=True))


def test_operators_that_launch_nothing_cost_less_than_those_that_do() -> None:
    host = RankHost(1.0, "eager")
    assert host.operator_us(VIEW, launches=False) == 0
    assert 0 < host.operator_us(GRADIENT, launches=False) < host.operator_us(VIEW, launches=True)


def test_an_operator_that_comes_for_the_first_time_costs_more_than_the_next_one() -> None:
    host = RankHost(1.0, "eager")
    first, second = (host.operator_us(VIEW, launches=True) for _ in range(2))
    assert first - second == pytest.approx(STEP_COSTS["distinct_calls"])


def test_an_optimizers_tensors_cost_the_host_once_however_many_operators_go_over_them() -> None:
    host = RankHost(1.0, "eager")
    names = ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_")
    lists = sum(host.operator_us(replace(LIST, name=f"aten::_foreach_{name}"), launches=True) for name in names)
    tensor_us = STEP_COSTS["foreach_tensors"] + 8 * STEP_COSTS["listed_tensors"]
    assert lists == pytest.approx(STEP_COSTS["optimizers"] + 100 * tensor_us)
    fused = host.operator_us(replace(LIST, name="aten::_fused_adamw_"), launches=True)
    assert fused == pytest.approx(STEP_COSTS["optimizers"] + 100 * STEP_COSTS["fused_tensors"])


def test_distributed_tensors_cost_more_than_their_parts() -> None:
    host = RankHost(1.0, "eager")
    given = host.operator_us(replace(LIST, distributed=100), launches=True) - host.operator_us(LIST, launches=True)
    assert given == pytest.approx(100 * RANK_COSTS["distributed tensor"])
    host.operator_us(VIEW, launches=True)
    one = host.operator_us(replace(VIEW, distributed=1), launches=True) - host.operator_us(VIEW, launches=True)
    assert one == pytest.approx(RANK_COSTS["distributed call"])


def test_hooks_of_fsdp_cost_by_whether_the_step_is_in_its_backward() -> None:
    host = RankHost(1.0, "eager")
    before = host.collective_us(REDUCE, by_fsdp=True)
    graph_us(host, BACKWARD, wakes=True)
    behind = host.collective_us(REDUCE, by_fsdp=True)
    assert (before, behind) == (RANK_COSTS["fsdp forward"], RANK_COSTS["fsdp backward"])
    plain = host.collective_us(REDUCE, by_fsdp=False)
    assert plain < behind < before
    graph_us(host, FORWARD)
    assert host.collective_us(REDUCE, by_fsdp=True) == before


def test_a_replayed_graph_costs_the_host_once_whatever_it_launches() -> None:
    host = RankHost(1.0, "graphs")
    assert graph_us(host, BACKWARD, wakes=True, collectives=9) == STEP_COSTS["graphs replays"]
    assert host.launch_us(FUSED) == host.graph_collective_us() == 0
    assert host.step_us() == STEP_COSTS["graphs step"]


def test_a_message_between_stages_costs_a_slow_host_no_more() -> None:
    message = replace(REDUCE, name="c10d::send")
    quick, slow = (RankHost(slowness, "eager").collective_us(message, by_fsdp=False) for slowness in (1.0, 1.7))
    assert quick == slow == RANK_COSTS["message"]


def test_a_message_that_a_program_asks_for_itself_costs_what_any_collective_does() -> None:
    host = RankHost(1.0, "eager")
    message = replace(REDUCE, name="c10d::send")
    by_hand = host.collective_us(message, by_fsdp=False, by_hand=True)
    assert by_hand == host.collective_us(REDUCE, by_fsdp=False)
    assert by_hand < host.collective_us(message, by_fsdp=False)


def test_hosts_of_ranks_that_wait_for_each_other_are_slower_than_one_alone() -> None:
    assert slowness_of_ranks(1.3, 1) == 1.3
    assert slowness_of_ranks(1.3, 2) == slowness_of_ranks(1.3, 64) > 1.3
