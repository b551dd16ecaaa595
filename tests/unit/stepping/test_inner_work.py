"""FLOPs of launches for whose operator there is no formula: what ran inside them."""

from __future__ import annotations

from typing import Any

from tests.factories import make_launch, make_step_call
from tests.trace_factories import op_event

from torchledger.nouns import Launch
from torchledger.stepping.entries import Entry, read_entries
from torchledger.stepping.inner_work import InnerWork, inner_work, with_inner_work
from torchledger.store.rows import LaunchRow
from torchledger.traces.reading import trace_from_events
from torchledger.traces.trace import Trace

SHAPES: dict[str, Any] = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["float", "float"]}
PRODUCT = 2 * 4 * 8 * 16
OWN: dict[str, Any] = {"category": "extern", "aten_ops": ("mine.project",), "flops": None, "call": "mine.project()"}
LAUNCHES = [make_launch(**OWN), make_launch(order=1, flops=7, call="mm()"), make_launch(order=2, **OWN)]


def own_operator(ts: int, *parts: str) -> list[dict[str, Any]]:
    inside = [op_event(name=name, ts=ts + 2 + 10 * place, dur=8, **SHAPES) for place, name in enumerate(parts)]
    return [op_event(name="mine::project", ts=ts, dur=100), *inside]


def call_of(*events: list[dict[str, Any]]) -> tuple[Trace, Entry]:
    """A trace of one call of a graph with these events in it, and that call."""
    mark = op_event(name="forward_0", cat="user_annotation", ts=0, dur=1000)
    trace = trace_from_events([mark, *(event for group in events for event in group)])
    (entry,) = read_entries(
        trace,
        (0, 10**9),
        (),
        graph_of=lambda name: name if name == "forward_0" else None,
        is_composite=lambda name: False,
    )
    return trace, entry


def work_of(launches: list[Launch], *events: list[dict[str, Any]]) -> dict[str, InnerWork]:
    trace, entry = call_of(*events)
    return inner_work(trace, entry, launches, is_composite=lambda name: False)


def test_an_operator_of_ones_own_does_what_ran_inside_it() -> None:
    product = op_event(name="aten::mm", ts=300, dur=8, **SHAPES)  # that of the launch between the two
    found = work_of(LAUNCHES, own_operator(100, "aten::mm", "aten::relu"), [product], own_operator(400, "aten::relu"))
    assert found == {"forward_0#0": InnerWork(PRODUCT, "exact"), "forward_0#2": InnerWork(0, "exact")}


def test_an_operator_in_which_nothing_ran_that_is_known_stays_unknown() -> None:
    found = work_of(LAUNCHES, own_operator(100), own_operator(400, "theirs::secret", "aten::mm"))
    assert found == {}


def test_calls_that_are_not_as_many_as_their_launches_belong_to_none_of_them() -> None:
    assert work_of(LAUNCHES, own_operator(100, "aten::mm")) == {}


def row_of(launch: Launch) -> LaunchRow:
    return LaunchRow._make(getattr(launch, field) if hasattr(launch, field) else None for field in LaunchRow._fields)


def test_a_launch_has_the_flops_that_all_calls_of_its_graph_agree_on() -> None:
    rows = [row_of(launch) for launch in LAUNCHES]
    first = make_step_call(kind="graph", name="forward_0", inside=((0, 64), (2, 8)))
    second = make_step_call(kind="graph", name="forward_0", inside=((0, 64), (2, 16)))
    found = with_inner_work(rows, [first, second])
    assert [(row.flops, row.flops_quality) for row in found] == [(64, "measured"), (7, "exact"), (None, "exact")]
