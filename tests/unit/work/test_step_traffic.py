"""What a step moves."""

from __future__ import annotations

from factories import make_buffer, make_launch, make_step_call
from torchledger.work.step_traffic import StepTraffic, step_traffic, step_trains


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
    assert step_traffic(launches, {"forward_0": 3, "backward_0": 1}, calls) == StepTraffic(707, 7)
    assert step_traffic(launches, {"forward_0": 1}) == StepTraffic(200, None)
    eager = make_step_call(kind="operator", phase="backward", bytes_moved=1)
    assert step_traffic(launches, {"forward_0": 1}, [eager]) == StepTraffic(201, 0)


def test_a_step_trains_that_has_anything_in_its_backward() -> None:
    assert step_trains({"backward_0": 1}, [])
    assert step_trains({}, [make_step_call(kind="collective", phase="backward")])
    assert not step_trains({"backward_0": 0, "forward_0": 2}, [make_step_call(phase="forward")])
    assert step_traffic([], {"backward_0": 1}).trains and not step_traffic([], {"forward_0": 1}).trains
