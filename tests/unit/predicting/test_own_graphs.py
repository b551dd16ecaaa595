"""What replays of a program's own CUDA graphs hold of a step, and what they cost the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import make_step, make_step_call
from torchledger.nouns import StepCall
from torchledger.planning.rank_host import RankHost
from torchledger.predicting.host_steps import replays_us
from torchledger.predicting.replays import has_own_backward, replayed, replays_in, without_replays
from torchledger.predicting.waits import pieces_of_step
from torchledger.stepping.totals import total_step


def calls(*replays: int | None) -> list[StepCall]:
    made = make_step_call(kind="operator", name="aten::mul", kernels=1)
    return [replace(made, order=order, replay=replay) for order, replay in enumerate(replays)]


def test_a_step_is_what_replays_call_and_what_the_host_calls_itself() -> None:
    graph = make_step_call(kind="graph", name="forward_0")
    made = [*calls(None, 0, 0, 1), replace(graph, order=4), replace(graph, order=5, replay=1)]
    record = total_step(make_step(graph_calls={"forward_0": 2}), made, {})
    own, others = without_replays(record), replayed(record)
    assert replays_in(made) == 2
    assert sorted([*own.calls, *others.calls], key=lambda call: call.order) == made
    assert own.step.graph_calls == others.step.graph_calls == {"forward_0": 1}


def test_a_backward_that_replays_hold_is_none_of_the_hosts() -> None:
    held = replace(make_step_call(kind="operator", name="aten::mul"), phase="backward", replay=0)
    assert not has_own_backward([held, *calls(None)]) and has_own_backward([held, replace(held, replay=None)])


@pytest.mark.parametrize("slowness", [1.0, 2.0])
def test_a_replay_costs_the_host_one_call_whatever_it_holds(slowness: float) -> None:
    host = RankHost(slowness, "eager")
    spent = [host.operator_us(call, launches=True) for call in calls(0, 0, 0, 1, None)]
    assert spent[:4] == [slowness * replays_us(1), 0.0, 0.0, slowness * replays_us(1)]
    assert 0 < spent[4] < spent[0]


def test_what_replays_call_takes_no_share_of_the_host_but_their_own_call() -> None:
    pieces = pieces_of_step(
        calls(0, 0, 0, None),
        [],
        {},
        dict.fromkeys(range(4), 10.0),
        mode="eager",
        host_us=100.0,
        whole_device_us=40.0,
    )
    assert [piece.device_us for piece in pieces] == [10.0] * 4
    assert pieces[1].host_us == pieces[2].host_us == 0.0 < pieces[3].host_us < pieces[0].host_us
