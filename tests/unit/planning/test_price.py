"""Steps of ranks as one price: what composition must keep to, on the shipped model of an H200."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.factories import make_buffer, make_launch, make_step_call

from torchledger.errors import PredictError
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Fabric, Host, PlannedStep, StepCall, TensorArgument
from torchledger.planning.fabric import find_fabric
from torchledger.planning.price import price_ranks
from torchledger.planning.rank_entries import RankProgram
from torchledger.planning.timeline import Sharing
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.operators import ROOFLINE, by_roofline, half_width_us
from torchledger.predicting.overheads import begins_backward

MODEL = find_model("H200")
FABRIC = find_fabric(device="NVIDIA H200")
MIB = 2**20
FREE = Sharing()


def plan_price(programs: list[RankProgram], model: TimeModel, fabric: Fabric | None, **how: Any) -> PlannedStep:
    """The step alone."""
    return price_ranks(programs, model, fabric, **how)[0]


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


def test_a_host_that_waits_in_the_middle_of_a_step_makes_it_longer_and_its_line_is_named() -> None:
    """Many small kernels behind a wait are launched while the device is idle."""

    def step(*waits: StepCall) -> PlannedStep:
        small = [product(order, n=64) for order in range(2, 60)]
        return plan_price([program(0, [product(0, n=8192), *waits, *small], groups={}, knows_waits=True)], MODEL, None)

    waits = make_step_call(order=1, kind="synchronization", name="cudaStreamSynchronize", sources=("moe.py:8",))
    waiting, at_once = step(waits), step()
    assert waiting.duration_us > 1.2 * at_once.duration_us
    assert waiting.duration_us > 1.2 * max(waiting.device_us, waiting.host_us)
    (said,) = [note for note in waiting.notes if "waits" in note]
    assert said.startswith("the host waits for the device once inside the step (moe.py:8), which takes ")
    assert not any("waits" in note for note in at_once.notes)
    assert set(waiting.decided_by) == {"compute", "host"}


def test_a_bucket_of_the_backward_is_hidden_behind_it_and_awaited_by_the_optimizer() -> None:
    calls = [product(0, "backward"), collective(1), product(2, "backward", 8192), product(3, "optimizer", 64)]
    step = plan_price([program(0, calls, stands_for=(0, 1))], MODEL, FABRIC, sharing=FREE)
    assert step.communication_us > 100
    assert step.exposed_us < 0.1 * step.communication_us
    at_once = plan_price([program(0, calls, stands_for=(0, 1), waits={2: (1,)})], MODEL, FABRIC, sharing=FREE)
    assert at_once.duration_us > step.duration_us
    assert at_once.exposed_us == pytest.approx(at_once.communication_us, rel=0.1)


def test_collectives_of_one_group_run_one_after_the_other_whatever_their_streams() -> None:
    def price(group: str) -> float:
        first = collective(1, nbytes=1024 * MIB, streams=("a",))
        calls = [product(0), first, replace(first, order=2, streams=("b",), group=group)]
        groups = {"0": (0, 1), "1": (0, 1)}
        ranks = [program(0, calls, groups=groups, stands_for=(0, 1), knows_waits=True)]
        return plan_price(ranks, MODEL, FABRIC, sharing=FREE).communication_us

    alone = [program(0, [collective(0, nbytes=1024 * MIB)], stands_for=(0, 1))]
    one = plan_price(alone, MODEL, FABRIC, sharing=FREE).communication_us
    assert price("0") == pytest.approx(2 * one, rel=1e-3)
    assert price("1") < 1.5 * one


def test_a_rank_that_comes_late_makes_the_other_wait() -> None:
    quick = program(0, [product(0, n=1024), collective(1, "forward"), product(2, n=1024)])
    slow = program(1, [product(0, n=8192), collective(1, "forward"), product(2, n=1024)])
    alone = plan_price([replace(quick, stands_for=(0, 1))], MODEL, FABRIC, sharing=FREE)
    both = plan_price([quick, slow], MODEL, FABRIC, sharing=FREE)
    assert both.world_size == 2
    assert both.duration_us > alone.duration_us
    assert both.ranks[0].bubble_us > both.ranks[1].bubble_us == 0
    assert both.ranks[0].exposed_us == pytest.approx(both.ranks[1].exposed_us)


def test_sends_meet_receives_in_order() -> None:
    send = {"name": "c10d::send", "group": "pp", "group_size": 2}
    receive = {**send, "name": "c10d::recv_"}
    first = program(0, [product(0), collective(1, "forward", **send)], groups={"pp": (0, 1)}, peers={1: 1})
    second = program(1, [collective(0, "forward", **receive), product(1)], groups={"pp": (0, 1)}, peers={0: 0})
    step = plan_price([first, second], MODEL, FABRIC, sharing=FREE)
    assert step.ranks[1].bubble_us > 0
    assert step.duration_us > plan_price([program(0, [product(0)])], MODEL, FABRIC).duration_us * 1.1


def test_messages_of_one_batch_to_one_rank_share_its_link_and_what_comes_in_runs_beside_them() -> None:
    def moving_us(parts: int) -> float:
        calls = [product(0, n=16384)]
        for order, what in enumerate(("send", "recv_") * parts, 1):
            lane, nbytes = f"communication 0 #{order}", 256 * MIB // parts
            calls.append(collective(order, "forward", nbytes, name=f"c10d::{what}", streams=(lane,)))
        messages = range(1, 2 * parts + 1)
        ranks = program(
            *(0, calls),
            stands_for=(0, 1),
            peers=dict.fromkeys(messages, 1),
            waits=dict.fromkeys(messages, (0,)),
            by_hand=frozenset(messages),
            knows_waits=True,
        )
        return plan_price([ranks], MODEL, FABRIC).communication_us

    whole_us = moving_us(1)
    assert whole_us == pytest.approx(256 * MIB / 370e3, rel=0.05)
    assert [moving_us(parts) for parts in (2, 8)] == pytest.approx([whole_us, whole_us], rel=0.02)


@pytest.mark.parametrize("received", [2, 1])
def test_messages_that_the_other_rank_does_not_receive_are_named(received: int) -> None:
    send = {"name": "c10d::send", "group": "pp"}
    receive = {"name": "c10d::recv_", "group": "pp"}
    sends = [collective(order, "forward", **send) for order in range(2)]
    receives = [collective(order, "forward", **receive) for order in range(received)]
    first = program(0, sends, groups={"pp": (0, 1)}, peers={0: 1, 1: 1})
    second = program(1, [*receives, product(5)], groups={"pp": (0, 1)}, peers=dict.fromkeys(range(received), 0))
    said = [note for note in plan_price([first, second], MODEL, FABRIC).notes if "wait for ever" in note]
    told = "rank 0 sends rank 1 2 messages in a step, of which that one receives 1: on the device one of them would"
    assert [note.startswith(told) for note in said] == [True] * (2 - received)


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
    outside = plan_price(given, MODEL, replace(fabric, ranks_per_node=1), sharing=FREE)
    assert outside.duration_us > inside.duration_us


def test_hooks_of_fsdp_cost_the_host_more_than_a_reducer_in_cpp() -> None:
    calls = [collective(0, "forward"), product(1, n=256)]
    plain = plan_price([program(0, calls, stands_for=(0, 1))], MODEL, FABRIC, sharing=FREE)
    hooked = plan_price([program(0, calls, stands_for=(0, 1), by_fsdp=frozenset({0}))], MODEL, FABRIC, sharing=FREE)
    assert hooked.host_us > 2 * plain.host_us
    assert hooked.communication_us == pytest.approx(plain.communication_us, rel=0.01)


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


def graph(order: int, name: str, phase: str) -> StepCall:
    return make_step_call(order=order, kind="graph", name=name, phase=phase)


def backwards(count: int, *, between: list[StepCall] | None = None) -> list[StepCall]:
    """Forward graphs, then as many of their backwards, with what lies between those."""
    calls = [graph(0, f"forward_{number}", "forward") for number in range(count)]
    for number in range(count):
        calls += [*(between or []), graph(0, f"backward_{number}", "backward")]
    return [replace(call, order=order) for order, call in enumerate(calls)]


def test_a_backward_of_many_graphs_wakes_autograd_once() -> None:
    """Those that a reducer or FSDP cut out of one model, with their collectives between them."""
    assert begins_backward(backwards(5)) == {5}
    assert begins_backward(backwards(3, between=[collective(0)])) == {4}


def test_each_microbatch_of_a_pipeline_wakes_autograd() -> None:
    receive = collective(0, name="c10d::recv_")
    assert begins_backward(backwards(3, between=[receive])) == {4, 6, 8}
    one_after_the_other = [each for number in (0, 4, 8) for each in (graph(number, "forward_0", "forward"),
                           graph(number + 1, "backward_0", "backward"))]  # fmt: skip
    assert begins_backward(one_after_the_other) == {1, 5, 9}


def test_a_forward_that_is_recomputed_in_a_backward_is_part_of_it() -> None:
    calls = [graph(0, "forward_0", "forward"), graph(1, "backward_1", "backward"), graph(2, "forward_0", "backward")]
    assert begins_backward([*calls, graph(3, "backward_0", "backward")]) == {1}


def test_a_host_whose_costs_spread_widens_the_interval_where_it_decides() -> None:
    steady = Host("Epyc 9", "NVIDIA H200", graph_call_us=500.0, operator_us=50.0)
    spread = replace(steady, spreads={"graph_call_us": 400.0, "operator_us": 40.0})
    few = [program(0, [product(order, n=64) for order in range(20)], groups={})]
    one, other = (plan_price(few, MODEL, None, host=host) for host in (steady, spread))
    assert one.duration_us == other.duration_us
    narrow, wide = (each.high_us - each.duration_us for each in (one, other))
    assert wide > 1.5 * narrow


def test_a_host_that_nobody_measured_widens_the_interval_more_than_one_that_was() -> None:
    few = [program(0, [product(order, n=64) for order in range(20)], groups={})]
    usual = plan_price(few, MODEL, None)
    known = plan_price(few, MODEL, None, host=Host("Epyc 9", "NVIDIA H200", operator_us=9.1))
    assert known.duration_us == pytest.approx(usual.duration_us)
    assert known.high_us - known.duration_us < usual.high_us - usual.duration_us


def test_however_fast_the_host_is_a_step_takes_what_its_device_needs() -> None:
    quick = Host("Epyc 9", "NVIDIA H200", graph_call_us=1.0, operator_us=0.1)
    slow = Host("Epyc 9", "NVIDIA H200", operator_us=40.0, spreads={"operator_us": 36.0})
    calls = [program(0, [product(order, n=2048) for order in range(20)], groups={})]
    by_device, by_host = (plan_price(calls, MODEL, None, host=host) for host in (quick, slow))
    assert by_host.decided_by["host"] > 0.9
    assert by_host.low_us == pytest.approx(by_device.low_us, rel=0.05)
    assert by_host.high_us - by_host.duration_us > by_host.duration_us - by_host.low_us


def test_collectives_beside_kernels_leave_a_device_at_its_power_limit_less() -> None:
    """Kernels and collectives share what the device may draw: hidden ones are not free."""
    products = [product(order, "backward", 8192) for order in range(1, 12)]
    calls = [product(0, "backward"), collective(20, nbytes=2048 * MIB), *products, product(30, "optimizer", 64)]
    beside, alone = (
        plan_price([program(0, each, stands_for=(0, 1))], MODEL, FABRIC, sharing=FREE)
        for each in (calls, [call for call in calls if call.kind != "collective"])
    )
    assert beside.exposed_us < 0.1 * beside.communication_us
    assert beside.duration_us > alone.duration_us + 0.1 * beside.communication_us


def test_no_entry_widens_a_sum_by_more_than_it_takes() -> None:
    found = replace(by_roofline(MODEL, "a", 50.0, 50.0, "unknown"), low_us=0.01, high_us=54_000.0)
    assert half_width_us(found) == 50.0
    assert half_width_us(replace(found, low_us=45.0, high_us=58.0)) == 8.0


def test_a_triton_kernel_of_the_program_is_priced_by_its_bytes() -> None:
    """What it computes is unknown: no other launches tell how long it takes."""
    n = 1 << 26
    shape = {"shape": (n,), "stride": (1,), "dtype": "bfloat16", "device": "cuda:0"}
    given = make_buffer(name="a", role="input", bytes_read=2 * n, bytes_written=0, **shape)
    made = make_buffer(name="b", bytes_written=2 * n, **shape)
    launch = make_launch(category="user_triton", device="cuda:0", buffers=(given, made))
    found = predict_launches(MODEL, [launch])[0]
    assert found.model == ROOFLINE
    assert found.duration_us == pytest.approx(4 * n / MODEL.machine.bytes_per_us, rel=0.1)


def test_a_collective_that_nobody_can_price_is_said_whatever_its_kind() -> None:
    put = collective(0, name="symm_mem::nvshmem_put", group=None, group_size=None, message_bytes=None)
    unsized = collective(1, name="c10d::scatter_", message_bytes=None)
    step = plan_price([program(0, [put, unsized, product(2)])], MODEL, FABRIC)
    assert "what nvshmem_put exchanges is not known: counted as nothing" in step.notes
    assert "the size of some scatter is not known: counted as nothing" in step.notes
    assert [each.duration_us for each in step.collectives] == [None, None]


def test_a_barrier_and_a_collective_of_one_rank_take_nothing_and_that_is_known() -> None:
    calls = [
        collective(0, name="c10d::barrier", message_bytes=None),
        collective(1, group="1", group_size=1),
        product(2),
    ]
    step = plan_price([program(0, calls, groups={"0": (0, 1), "1": (0,)})], MODEL, FABRIC)
    assert not any("counted as nothing" in note for note in step.notes)
    assert {each.operation: each.duration_us for each in step.collectives} == {"barrier": 0.0, "all_reduce": 0.0}


def test_a_gather_takes_longer_than_a_share_of_it_that_is_sent() -> None:
    gathered, sent = (
        plan_price([program(0, [collective(0, name=name, message_bytes=nbytes)])], MODEL, FABRIC).communication_us
        for name, nbytes in (("c10d::gather_", 512 * MIB), ("c10d::send", 128 * MIB))
    )
    assert gathered > sent > 0
