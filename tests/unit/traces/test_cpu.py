"""Traces in which nothing ran on a device: the CPU's operators, each with its own time and its own work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from torchledger.errors import MeasureError
from torchledger.reporting.terminal import render
from torchledger.reporting.time_breakdown import breakdown_document
from torchledger.traces.breakdown import import_trace
from torchledger.traces.cpu import COUNTED_INSIDE, cpu_breakdown, cpu_events
from torchledger.traces.reading import trace_from_events
from trace_factories import op_event

MATRICES = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["float", "float"]}


def linear() -> list[dict[str, Any]]:
    """``aten::linear`` calls ``aten::t`` and ``aten::mm``; 2 us later an operator without formula runs."""
    return [
        op_event(name="aten::linear", ts=100, dur=20, **{"Input Dims": [[4, 8], [16, 8]], "Input type": ["float"] * 2}),
        op_event(name="aten::t", ts=102, dur=1, **{"Input Dims": [[16, 8]], "Input type": ["float"]}),
        op_event(name="aten::mm", ts=104, dur=10, **MATRICES),
        op_event(name="mine::op", ts=122, dur=3, **MATRICES),
    ]


def test_own_times_add_up_to_the_time_in_which_any_operator_ran() -> None:
    trace = trace_from_events(linear())
    events = cpu_events(trace)
    assert {event.name: event.duration_us for event in events} == {
        "aten::linear": 9, "aten::t": 1, "aten::mm": 10, "mine::op": 3,
    }  # fmt: skip
    breakdown = cpu_breakdown(trace, events)
    assert breakdown.kernel_us == breakdown.busy_us == 23
    assert breakdown.wall_us == 25
    assert sum(breakdown.idle_causes.values()) == 2


def test_the_time_of_a_cpu_is_called_no_devices(tmp_path: Path) -> None:
    breakdown = cpu_breakdown(trace := trace_from_events(linear()), cpu_events(trace))
    shown = render(breakdown_document(breakdown))
    assert breakdown.verdict[0].startswith("Of 23.0 us CPU time 83% is matrix products and 17% is other operators")
    assert "No operator runs for 8% of 25.0 us." in breakdown.verdict
    assert "CPU time  23.0 us in 4 calls of operators" in shown and "Time by kernel" not in shown
    assert "device" not in shown.partition("What is not known")[0] and "kernel" not in shown.partition("In short")[0]


def test_the_work_of_a_call_is_counted_once_at_the_operator_that_does_it() -> None:
    costs = {event.name: event.cost for event in cpu_events(trace_from_events(linear()))}
    assert costs["aten::mm"].flops == 2 * 4 * 8 * 16
    assert costs["aten::mm"].bytes_moved == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    assert costs["aten::linear"].reason == COUNTED_INSIDE
    assert costs["mine::op"].reason == "no formula for mine::op"


def test_a_recorded_training_step_has_the_flops_that_torch_counts(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 5))

    def step() -> None:
        model(torch.randn(2, 3, 8, 8)).softmax(-1).sum().backward()

    with FlopCounterMode(display=False) as counter:
        step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        step()
    recorded.export_chrome_trace(str(tmp_path / "a.json"))
    breakdown, events = import_trace(tmp_path / "a.json")
    assert sum(row.flops or 0 for row in breakdown.kernels) == counter.get_total_flops()
    assert breakdown.busy_us <= breakdown.wall_us
    assert sum(row.total_us for row in breakdown.categories) == pytest.approx(breakdown.device_us)
    assert all(event.cost.is_known or event.cost.reason for event in events)


def test_a_trace_without_operators_either_is_refused_and_a_cut_one_says_so(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "a", "ts": 1, "dur": 1}] * 9})
    (tmp_path / "whole.json").write_text(text)
    (tmp_path / "cut.json").write_text(text[:-40])
    with pytest.raises(MeasureError, match=r"holds no kernel: 9 events, none of them on a device\. Record"):
        import_trace(tmp_path / "whole.json")
    with pytest.raises(MeasureError, match="and the file is cut off"):
        import_trace(tmp_path / "cut.json")
