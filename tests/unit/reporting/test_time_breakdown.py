"""The report of a breakdown: its wording is pinned, and its rows add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from torchledger.nouns import Breakdown, Ceilings, TimeRow
from torchledger.reporting.document import Table
from torchledger.reporting.terminal import render
from torchledger.reporting.time_breakdown import breakdown_as_plain, breakdown_document
from torchledger.traces.breakdown import breakdown_of_trace
from torchledger.traces.reading import trace_from_events
from trace_factories import kernel_event, memcpy_event, op_event, runtime_event, small_trace


def mixed_breakdown() -> Breakdown:
    """Products with shapes, an addition without, a copy, a graph's replay, and a pause."""
    document = small_trace(copies=4)
    events = [
        *document["traceEvents"],
        op_event(name="aten::add", ts=9000, dur=500, **{"External id": 90}),
        runtime_event(ts=9100, correlation=90),
        kernel_event(ts=9200, dur=8.0, correlation=90, name="some_elementwise_thing"),
        runtime_event(name="cudaGraphLaunch", ts=9300, correlation=91),
        kernel_event(ts=9400, dur=3.5, correlation=91, name="nvjet_product"),
        memcpy_event(ts=9500),
    ]
    return breakdown_of_trace(trace_from_events(events, document, source="mixed.json"))


def test_the_report_reads_as_pinned(golden: Callable[[str, str], None]) -> None:
    golden("import_mixed.txt", render(breakdown_document(mixed_breakdown(), top=3)))


def test_beside_a_ledgers_step_a_breakdown_tells_neither_idle_time_nor_what_to_look_at() -> None:
    idle = "Without the profiler the device is idle for 50% of a 3.60 ms step."
    breakdown = replace(mixed_breakdown(), verdict=("Of 1 ms all is products.", idle, "Look first at launching."))
    alone, beside = (render(breakdown_document(breakdown, is_of_step=is_of_step)) for is_of_step in (False, True))
    assert idle in alone and "Look first at launching." in alone
    assert "Of 1 ms all is products." in beside and idle not in beside and "Look first at launching." not in beside


@pytest.mark.parametrize("top", [1, 2, 50])
def test_rows_and_their_rest_add_up_to_the_total(top: int) -> None:
    breakdown = mixed_breakdown()
    tables = [
        block
        for section in breakdown_document(breakdown, top=top).sections
        for block in section.blocks
        if isinstance(block, Table) and block.total is not None and block.columns[0].key != "cause"
    ]
    assert len(tables) >= 3
    for table in tables:
        keys = [column.key for column in table.columns]
        place = keys.index("total_us")
        assert sum(row[place] for row in table.rows) == pytest.approx(breakdown.device_us)
        assert table.total[place] == pytest.approx(breakdown.device_us)


def test_unknown_is_a_question_mark_and_null() -> None:
    breakdown = mixed_breakdown()
    plain = breakdown_as_plain(breakdown)
    row = next(row for row in plain["kernels"] if row["name"] == "nvjet_product")
    assert row["flops"] is None
    assert row["reasons"] == {"replayed by a CUDA graph: the trace names no operator": 3.5}
    assert "nvjet_product" in render(breakdown_document(breakdown))


@pytest.mark.parametrize("ceilings", [None, Ceilings(copy_gb_per_s=1e-3, tflops_per_s={"float32": 1e-3})])
def test_shares_of_a_roofline_are_shown_or_said_to_be_unmeasured_and_never_both(ceilings: Ceilings | None) -> None:
    trace = trace_from_events(small_trace(copies=4)["traceEvents"])
    text = render(breakdown_document(breakdown_of_trace(trace, ceilings=ceilings)))
    assert ("of roofline" in text) == (ceilings is not None)
    assert ("nobody had measured" in text) == (ceilings is None)
    assert ("above the measured" in text) == (ceilings is not None)  # of so slow a device


def test_what_is_shown_cannot_command_the_terminal() -> None:
    trace = trace_from_events([kernel_event(name="evil\x1b[31m\nname")])
    assert "\x1b" not in render(breakdown_document(breakdown_of_trace(trace)))


def test_a_view_moves_nothing_and_that_is_exact() -> None:
    known = TimeRow("aten::t", 1, 2.0, 1.0, 2.0, flops=0, flops_us=2.0, bytes_moved=0, bytes_us=2.0, known_us=2.0)
    view = replace(known, flops_quality="exact", bytes_quality="exact")
    unknown = TimeRow("mine::op", 1, 2.0, 1.0, 2.0)
    plain = replace(mixed_breakdown(), ops=(view, unknown))
    lines = render(breakdown_document(plain)).splitlines()
    said = {line.split()[0]: line.split()[-1] for line in lines if line.split()[:1] in (["aten::t"], ["mine::op"])}
    assert said == {"aten::t": "exact", "mine::op": "unavailable"}
