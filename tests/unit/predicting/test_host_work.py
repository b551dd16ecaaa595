"""What the host computes itself in a planned step, and what that makes of its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.factories import make_step, make_step_call

from torchledger.nouns import Host, StepCall, StepPrediction, TensorArgument
from torchledger.predicting.devices import find_model
from torchledger.predicting.host_work import (
    MOVED_NS,
    NEW_BYTES,
    NEW_NS,
    RANDOM_NS,
    USUAL_SLOWNESS,
    host_work_notes,
    host_work_us,
    own_work_notes,
    own_work_us,
)
from torchledger.predicting.step import predict_step
from torchledger.predicting.waits import pieces_of_step
from torchledger.stepping.totals import total_step

MANY = 1_000_000
FLOATS = TensorArgument((MANY,), "float32")


def on_host(name: str, *arguments: TensorArgument, **changes: Any) -> StepCall:
    fields: dict[str, Any] = {"name": name, "device": "cpu", "samples_us": (), "arguments": arguments}
    return make_step_call(**(fields | changes))


RAND = on_host("aten::rand", settings=(("size", (MANY,)),))
ADD = on_host("aten::add_", FLOATS, FLOATS, bytes_moved=12 * MANY)
PRODUCT = make_step_call(
    order=9,
    name="aten::mul",
    device="cuda:0",
    samples_us=(),
    kernels=1,
    arguments=(TensorArgument((1 << 24,), "float32"),) * 2,
    flops=0,
    bytes_moved=3 << 26,
)
WAIT = make_step_call(order=10, kind="synchronization", name="cudaStreamSynchronize", samples_us=())


def us_of(call: StepCall) -> float:
    return sum(host_work_us([call]).values())


@pytest.mark.parametrize(
    ("call", "kind", "numbers"),
    [
        (RAND, "uniform", MANY),
        (on_host("aten::randn", settings=(("size", (1000, 1000)),)), "normal", MANY),
        (on_host("aten::randint", settings=(("high", (9,)), ("size", (MANY,)))), "integers", MANY),
        (on_host("aten::randperm", settings=(("n", (MANY,)),)), "permutation", MANY),
        (on_host("aten::randperm", settings=(("n", (5 * MANY,)),)), "long permutation", 5 * MANY),
        (on_host("aten::rand_like", FLOATS), "uniform", MANY),
        (on_host("aten::normal_", FLOATS), "normal", MANY),
        (on_host("aten::bernoulli", FLOATS), "bernoulli", MANY),
    ],
)
def test_random_numbers_take_their_time_one_by_one(call: StepCall, kind: str, numbers: int) -> None:
    assert us_of(call) == pytest.approx(numbers * RANDOM_NS[kind] * USUAL_SLOWNESS / 1e3)


def test_what_draws_no_numbers_takes_what_its_bytes_do() -> None:
    assert us_of(ADD) == pytest.approx(12 * MANY * MOVED_NS * USUAL_SLOWNESS / 1e3)
    assert us_of(on_host("aten::view", FLOATS, bytes_moved=0)) == 0
    one_chance = on_host("aten::bernoulli_", FLOATS, bytes_moved=12 * MANY)
    assert us_of(one_chance) == us_of(ADD)


def test_a_large_tensor_takes_longer_where_it_is_made_than_where_it_is_given() -> None:
    made = on_host("aten::rand", settings=(("size", (NEW_BYTES // 4,)),), bytes_moved=NEW_BYTES)
    given = replace(made, arguments=(TensorArgument((NEW_BYTES // 4,), "float32"),))
    assert us_of(made) - us_of(given) == pytest.approx(NEW_BYTES * NEW_NS * USUAL_SLOWNESS / 1e3)
    smaller = replace(made, bytes_moved=NEW_BYTES - 4)
    assert us_of(smaller) == us_of(given)
    copied = on_host("aten::clone", bytes_moved=2 * NEW_BYTES, arguments=given.arguments)
    written = replace(copied, name="aten::copy_")
    assert us_of(copied) - us_of(written) == pytest.approx(NEW_BYTES * NEW_NS * USUAL_SLOWNESS / 1e3)


def test_products_take_longer_than_their_bytes() -> None:
    product = on_host("aten::mm", bytes_moved=12 * MANY, flops=2 * 1000**3)
    assert us_of(product) > 5 * us_of(ADD)


def test_what_is_not_the_programs_own_work_on_the_host_of_a_plan_takes_nothing() -> None:
    assert us_of(RAND) > 0
    others = [
        replace(RAND, device="cuda:0"),
        replace(RAND, kind="copy"),
        replace(RAND, host_us=900.0),
        replace(RAND, samples_us=(900.0,)),
        replace(RAND, settings=(*(RAND.settings or ()), ("loaded", (1,)))),
    ]
    assert [us_of(call) for call in others] == [0] * len(others)


def test_little_of_it_is_in_what_every_step_costs() -> None:
    some = [on_host("aten::add_", bytes_moved=400_000, order=order) for order in range(6)]
    assert host_work_us(some[:5]) == {}
    assert len(host_work_us(some)) == 6
    assert len(host_work_us([*some, on_host("aten::add_", bytes_moved=400, order=6)])) == 6


def test_a_note_says_what_is_computed_and_which_lines_ask_for_most() -> None:
    calls = [
        replace(RAND, order=0, sources=("a.py:1", "/home/me/train.py:12")),
        *(replace(ADD, order=order, sources=(f"train.py:{order}",)) for order in (1, 2, 3)),
    ]
    work_us = host_work_us(calls)
    assert host_work_notes(calls, work_us) == (
        "the program computes on the host: 1.0 million random numbers and 36 MB read or written in 4 calls "
        "(train.py:12, train.py:1, train.py:2 and 1 more line), about 6.03 ms on a usual host, in the price",
    )
    (note,) = host_work_notes([RAND], host_work_us([RAND]))
    assert ": 1.0 million random numbers in 1 call, about" in note
    assert "2.4 GB read" in host_work_notes([large := replace(ADD, bytes_moved=2_400 * MANY)], host_work_us([large]))[0]
    assert host_work_notes(calls, {}) == ()


def planned(calls: Sequence[StepCall], host: Host | None = None, *, replays_step: bool = False) -> StepPrediction:
    record = total_step(make_step(clock="host", plain_us=(), device_us=None), calls, {})
    return predict_step(find_model("H200"), [], record=record, host=host, replays_step=replays_step)[0]


def test_a_host_that_computes_launches_so_much_later() -> None:
    alone, beside = planned([PRODUCT]), planned([RAND, PRODUCT])
    assert beside.host_us - alone.host_us == pytest.approx(beside.host_work_us) == pytest.approx(us_of(RAND))
    assert alone.host_work_us == 0
    assert beside.device_us == pytest.approx(alone.device_us)
    assert beside.duration_us == pytest.approx(beside.host_us, rel=0.01)
    assert next(iter(beside.decided_by)) == "host"
    assert beside.high_us - beside.low_us > alone.high_us - alone.low_us + us_of(RAND)
    assert any("computes on the host" in note for note in beside.notes)


def test_a_step_that_waits_for_its_device_is_longer_by_all_that_its_host_computes() -> None:
    alone, beside = planned([PRODUCT, WAIT]), planned([RAND, PRODUCT, WAIT])
    assert beside.duration_us - alone.duration_us == pytest.approx(us_of(RAND))


def test_a_replay_of_a_whole_step_computes_nothing_on_the_host() -> None:
    assert planned([RAND, PRODUCT], replays_step=True).host_work_us == 0


def test_a_slow_host_computes_as_slowly_as_it_launches() -> None:
    slow = Host("slow", "H200", graph_call_us=99.4, operator_us=18.2)
    assert planned([RAND, PRODUCT], slow).host_work_us == pytest.approx(2 * us_of(RAND))


def test_a_host_computes_where_the_program_asks_for_it() -> None:
    pieces = pieces_of_step(
        [replace(PRODUCT, order=0), replace(RAND, order=1), replace(PRODUCT, order=2), WAIT],
        [],
        {},
        {0: 1.0, 2: 1.0},
        mode="eager",
        host_us=10.0,
        whole_device_us=2.0,
        work_us={1: 500.0},
    )
    assert [piece.host_us >= 500 for piece in pieces] == [False, True, False, False]
    assert sum(piece.host_us for piece in pieces) == pytest.approx(510.0)


def test_what_a_program_computes_beside_torch_is_told_with_its_lines() -> None:
    calls = [
        StepCall("s", place, "copy", "aten::_to_copy", "input", own_us=3e4, own_source="/a/b.py:3") for place in (0, 1)
    ]
    assert own_work_us(calls) == 6e4
    (note,) = own_work_notes(calls)
    assert "(b.py:3): 60 ms on the machine that plans" in note
    assert own_work_notes([]) == ()
