"""Steps of ranks as one price: what composition must keep to, on the shipped model of an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.factories import make_buffer, make_launch, make_step_call

from torchledger.errors import PredictError
from torchledger.nouns import Host, StepCall, TensorArgument
from torchledger.planning.fabric import find_fabric
from torchledger.planning.price import RankProgram, plan_price
from torchledger.planning.timeline import Sharing
from torchledger.predicting.devices import find_model
from torchledger.predicting.overheads import call_host_us

MODEL = find_model("H200")
FABRIC = find_fabric(device="NVIDIA H200")
MIB = 2**20
FREE = Sharing()


def product(order: int, phase: str = "forward", n: int = 4096) -> StepCall:
    arguments = (TensorArgument((n, n), "bfloat16", (n, 1)), TensorArgument((n, n), "bfloat16", (n, 1)))
    return make_step_call(
        order=order, name="aten::mm", phase=phase, kernels=1, arguments=arguments, flops=2 * n**3, bytes_moved=6 * n * n
    )


def collective(order: int, phase: str = "backward", nbytes: int = 64 * MIB, **changes: object) -> StepCall:
    fields = {"name": "c10d::allreduce_", "group": "0", "group_size": 2, "message_bytes": nbytes} | changes
    return make_step_call(order=order, kind="collective", phase=phase, **fields)


def program(rank: int, calls: list[StepCall], **changes: object) -> RankProgram:
    fields = {"rank": rank, "calls": calls, "launches": {}, "groups": {"0": (0, 1)}} | changes
    return RankProgram(**fields)  # type: ignore[arg-type]


def test_a_step_without_collectives_needs_no_fabric() -> None:
    step = plan_price([program(0, [product(0), product(1)], groups={})], MODEL, None)
    assert step.communication_us == 0
    assert step.low_us < step.duration_us < step.high_us
    assert step.launches == 2
    assert sum(step.decided_by.values()) == pytest.approx(1)


def test_a_bucket_of_the_backward_is_hidden_behind_it_and_awaited_by_the_optimizer() -> None:
    calls = [product(0, "backward"), collective(1), product(2, "backward", 8192), product(3, "optimizer", 64)]
    step = plan_price([program(0, calls, stands_for=(0, 1))], MODEL, FABRIC, sharing=FREE)
    assert step.communication_us > 100
    assert step.exposed_us < 0.1 * step.communication_us
    at_once = plan_price([program(0, calls, stands_for=(0, 1), waits={2: (1,)})], MODEL, FABRIC, sharing=FREE)
    assert at_once.duration_us > step.duration_us
    assert at_once.exposed_us == pytest.approx(at_once.communication_us, rel=0.1)


def test_a_rank_that_comes_late_makes_the_other_wait() -> None:
    quick = program(0, [product(0, n=1024), collective(1, "forward"), product(2, n=1024)])
    slow = program(1, [product(0, n=8192), collective(1, "forward"), product(2, n=1024)])
    alone = plan_price([replace(quick, stands_for=(0, 1))], MODEL, FABRIC, sharing=FREE)
    both = plan_price([quick, slow], MODEL, FABRIC, sharing=FREE)
    assert both.world_size == 2
    assert both.duration_us > alone.duration_us
    assert both.ranks[0].exposed_us > both.ranks[1].exposed_us


def test_sends_meet_receives_in_order() -> None:
    send = {"name": "c10d::send", "group": "pp", "group_size": 2}
    receive = {**send, "name": "c10d::recv_"}
    first = program(0, [product(0), collective(1, "forward", **send)], groups={"pp": (0, 1)}, peers={1: 1})
    second = program(1, [collective(0, "forward", **receive), product(1)], groups={"pp": (0, 1)}, peers={0: 0})
    step = plan_price([first, second], MODEL, FABRIC, sharing=FREE)
    assert step.ranks[1].bubble_us > 0
    assert step.duration_us > plan_price([program(0, [product(0)])], MODEL, FABRIC).duration_us * 1.1


def test_a_collective_inside_a_graph_is_priced_by_the_fabric() -> None:
    buffer = make_buffer(dtype="bfloat16", shape=(4096, 4096), stride=(4096, 1), device="cuda:0")
    call, wait = (f"torch.ops._c10d_functional.{name}.default" for name in ("all_reduce_", "wait_tensor"))
    extern = {"category": "extern", "device": "cuda:0", "buffers": (buffer,)}
    launches = (
        make_launch(order=0, kernel_name=call, call=call, kwargs={"reduce_op": "sum", "group_name": "0"}, **extern),
        make_launch(order=1, kernel_name=wait, call=wait, **extern),
    )
    graph = make_step_call(kind="graph", name="forward_0", phase="forward")
    step = plan_price([program(0, [graph], launches={"forward_0": launches}, stands_for=(0, 1))], MODEL, FABRIC)
    assert step.communication_us > 50
    assert step.communication_us == step.exposed_us


def test_a_collective_of_an_unknown_group_is_said_to_count_as_nothing() -> None:
    step = plan_price([program(0, [collective(0, group=None, group_size=None)])], MODEL, FABRIC)
    assert step.communication_us == 0
    assert any("group of some all_reduce is not known" in note for note in step.notes)


def test_collectives_without_a_fabric_say_what_is_missing() -> None:
    with pytest.raises(PredictError, match="--fabric"):
        plan_price([program(0, [collective(0)], stands_for=(0, 1))], MODEL, None)


def test_ranks_over_two_nodes_take_longer_than_on_one() -> None:
    calls = [collective(0, "forward", 512 * MIB), product(1)]
    given = [program(0, calls, stands_for=(0, 1))]
    fabric = find_fabric("h200+800gb")
    inside = plan_price(given, MODEL, fabric, sharing=FREE)
    outside = plan_price(given, MODEL, fabric, ranks_per_node=1, sharing=FREE)
    assert outside.duration_us > inside.duration_us


def test_hooks_of_fsdp_cost_the_host_more_than_a_reducer_in_cpp() -> None:
    calls = [collective(0, "forward"), product(1, n=256)]
    plain = plan_price([program(0, calls, stands_for=(0, 1))], MODEL, FABRIC, sharing=FREE)
    hooked = plan_price([program(0, calls, stands_for=(0, 1), by_fsdp=frozenset({0}))], MODEL, FABRIC, sharing=FREE)
    assert hooked.host_us > 2 * plain.host_us
    assert hooked.communication_us == pytest.approx(plain.communication_us, rel=0.01)


def test_operators_that_launch_nothing_cost_a_measured_host_less_than_those_that_do() -> None:
    host = Host("here", "NVIDIA H200", operator_us=8.0, autograd_node_us=16.0)
    view = make_step_call(order=0, name="aten::view", kernels=0, bytes_moved=0)
    works, views = (
        plan_price([program(0, [call] * 100, groups={})], MODEL, None, host=host) for call in (product(0, n=64), view)
    )
    assert 0 < views.host_us < works.host_us


def test_an_operator_that_was_recorded_without_kernels_costs_the_host_as_one_that_launches() -> None:
    on_cpu, on_gpu = (
        plan_price([program(0, [replace(product(0), kernels=count)], groups={}, ran_on_cpu=not count)], MODEL, None)
        for count in (0, 1)
    )
    assert on_cpu.host_us == on_gpu.host_us > 0


def test_a_plan_of_ranks_names_the_operators_that_are_priced_at_their_roofline() -> None:
    unknown = [
        make_step_call(order=order, name="aten::no_such_operator", bytes_moved=2**28, kernels=1) for order in range(3)
    ]
    step = plan_price([program(0, [product(0), *unknown], groups={})], MODEL, None)
    (said,) = [note for note in step.notes if "roofline" in note]
    assert "aten::no_such_operator (3)" in said and "% of the device's time" in said
    known = plan_price([program(0, [product(0)], groups={})], MODEL, None)
    assert not [note for note in known.notes if "roofline" in note]


def test_distributed_tensors_cost_the_host_more_than_their_parts() -> None:
    overheads = {"library launch host us": 8.0, "optimizer tensor host us": 2.0}
    plain = StepCall("s", 0, "operator", "aten::_foreach_mul_", "optimizer", kernels=1, tensors=20)
    given = replace(plain, distributed=20)
    for measured in ({}, {"eager call host us": 6.0}):
        assert call_host_us(given, overheads | measured) > 1.5 * call_host_us(plain, overheads | measured)
