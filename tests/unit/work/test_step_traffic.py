"""What a step moves."""

from __future__ import annotations

from typing import Literal

from factories import make_buffer, make_launch, make_step_call
from torchledger.nouns import Buffer
from torchledger.work.step_traffic import step_traffic, step_trains


def test_graphs_count_as_often_as_they_are_called_and_the_optimizer_apart() -> None:
    launches = [
        make_launch(graph=graph, buffers=(make_buffer(bytes_read=60, bytes_written=40),))
        for graph in ("forward_0", "forward_0", "backward_0", "stale_0")
    ]
    calls = [
        make_step_call(kind="operator", phase="optimizer", bytes_moved=7),
        make_step_call(kind="operator", phase="loss", bytes_moved=None),
        make_step_call(kind="graph", phase="forward", bytes_moved=10**6),
    ]
    found = [
        step_traffic(launches, {"forward_0": 3, "backward_0": 1}, calls),
        step_traffic(launches, {"forward_0": 1}),
        step_traffic(launches, {"forward_0": 1}, [make_step_call(kind="operator", phase="backward", bytes_moved=1)]),
    ]
    assert [(each.bytes_moved, each.optimizer_bytes) for each in found] == [(707, 7), (200, None), (201, 0)]


def test_a_step_holds_what_it_is_given_and_the_most_that_is_alive_at_once() -> None:
    weight = make_buffer(name="primals_1", role="input", bytes_read=1000, bytes_written=0)

    def made(name: str, role: Role) -> Buffer:
        read, written = (100, 0) if role == "input" else (0, 100)
        return make_buffer(name=name, role=role, bytes_read=read, bytes_written=written)

    # A chain of ten buffers, two of them alive at a time, over one weight.
    chain = [
        make_launch(
            graph="forward_0", buffers=(weight, made(f"buf{place}", "input"), made(f"buf{place + 1}", "output"))
        )
        for place in range(10)
    ]
    assert step_traffic(chain, {"forward_0": 1}).held_bytes == 1000 + 200
    back = [make_launch(graph="backward_0", buffers=(weight,))]
    assert step_traffic([*chain, *back], {"forward_0": 1, "backward_0": 1}).held_bytes == 1000 + 200
    assert step_traffic([*chain, *back], {"backward_0": 1}).held_bytes == 1000
    loss = make_step_call(kind="operator", phase="loss", bytes_moved=10)
    optimizer = [make_step_call(kind="operator", phase="optimizer", bytes_moved=moved) for moved in (30, 40)]
    assert step_traffic(back, {"backward_0": 1}, [loss, *optimizer]).held_bytes == 1000 + 5 + 40


def test_a_step_trains_that_has_anything_in_its_backward() -> None:
    assert step_trains({"backward_0": 1}, [])
    assert step_trains({}, [make_step_call(kind="collective", phase="backward")])
    assert not step_trains({"backward_0": 0, "forward_0": 2}, [make_step_call(phase="forward")])
    assert step_traffic([], {"backward_0": 1}).trains and not step_traffic([], {"forward_0": 1}).trains


Role = Literal["input", "output"]
