"""The HTML report as a file: what is in it, how large it is, and what hostile data cannot do to it."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import torchledger
from factories import make_buffer, make_graph, make_kernel, make_launch, make_run, make_step, make_step_call
from synthetic import write_ledger
from torchledger.cli import cli
from torchledger.comparing.run_diff import diff_runs, read_run
from torchledger.errors import PredictError, StoreError, UsageError
from torchledger.nouns import (
    Breakdown,
    Measurement,
    Prediction,
    Profile,
    SourceLine,
    StepPrediction,
    Timeline,
    TimeRow,
    ValueStats,
)
from torchledger.reporting.html import render_report
from torchledger.reporting.html_page import embed_json
from torchledger.reporting.html_texts import LONGEST_LINE, cut_source
from torchledger.store import LedgerWriter, open_ledger

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\"'`${1}\u202e"


def read_page(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data and the details out of a page."""
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    details = re.search(r'<script type="text/plain" id="details">(.*?)</script>', text, re.S)
    assert data and details
    return json.loads(data[1]), json.loads(zlib.decompress(base64.b64decode(details[1])))


def write_hostile_ledger(path: Path) -> Path:
    """A ledger in which every text tries to run."""
    launch = make_launch(
        kernel_name=HOSTILE,
        aten_ops=(HOSTILE,),
        sources=(SourceLine(HOSTILE, 3, HOSTILE, HOSTILE),),
        modules=(HOSTILE,),
        buffers=(make_buffer(name=HOSTILE),),
        flops=10,
        call=HOSTILE,
    )
    kernel = make_kernel(name=HOSTILE, source=f"{HOSTILE}\n" + "x" * 1_000_000, path=HOSTILE)
    with LedgerWriter(path) as writer:
        writer.add(
            make_run(argv=(HOSTILE,), notes=(HOSTILE,)),
            make_graph(wrapper_source=HOSTILE, wrapper_calls=(HOSTILE,)),
            kernel,
            launch,
            Measurement("forward_0#0", "profile", "host", (1.0, 2.0), symbols=(HOSTILE,), note=HOSTILE),
            ValueStats("forward_0#0", 0, HOSTILE, "after", "float32", (2,), n_nan=1, mean=float("nan"), note=HOSTILE),
            Prediction("forward_0#0", 1.5, 1.0, 2.0, 0.9, "inside", HOSTILE, HOSTILE, note=HOSTILE),
        )
    return path


def test_a_report_is_one_file_that_names_no_address_to_load_from(tmp_path: Path) -> None:
    text = render_report(write_ledger(tmp_path / "a.ledger"))
    assert not re.search(
        r"<(?:script|img|iframe)[^>]+src=|<link[^>]+href=\"(?!data:)|@import|url\(", text.split("<script>")[0]
    )
    assert "default-src 'none'" in text


def test_the_page_holds_every_launch_with_its_costs(tmp_path: Path) -> None:
    data, details = read_page(render_report(write_ledger(tmp_path / "a.ledger", launches=60)))
    with open_ledger(tmp_path / "a.ledger") as reader:
        from torchledger.store.rows import read_launch_rows

        rows = read_launch_rows(reader)
    assert data["launches"]["flops"] == [row.flops for row in rows]
    assert data["launches"]["bytes_moved"] == [row.bytes_moved for row in rows]
    assert len(details["launches"]) == len(rows) == 60


def test_a_report_of_a_thousand_launches_stays_below_three_megabytes(tmp_path: Path) -> None:
    assert len(render_report(write_ledger(tmp_path / "a.ledger", launches=1000)).encode()) < 3e6


def test_hostile_text_stays_inside_its_data(tmp_path: Path) -> None:
    text = render_report(write_hostile_ledger(tmp_path / "hostile.ledger"))
    assert text.count("<script") == 4  # data, details, the plot library and the page's own
    assert "<img src=x" not in text
    data, details = read_page(text)
    assert "\x1b" not in json.dumps(data, ensure_ascii=False)
    assert "\u202e" not in json.dumps([data, details], ensure_ascii=False)
    assert "characters" in details["kernels"][0]["note"]
    assert len(details["kernels"][0]["source"]) < 300_000


def test_only_the_two_scripts_of_the_page_may_run(tmp_path: Path) -> None:
    import hashlib

    text = render_report(write_ledger(tmp_path / "a.ledger"))
    allowed = set(re.findall(r"'sha256-([^']+)'", text.split("</head>")[0]))
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert {base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts} == allowed


@given(st.recursive(st.text() | st.none() | st.integers(-(2**50), 2**50), lambda inner: st.lists(inner, max_size=3)))
def test_embedded_json_reads_back_and_closes_no_element(plain: Any) -> None:
    try:
        text = embed_json(plain)
    except TypeError:  # half of a surrogate pair: `printable` takes those out before
        return
    assert "<" not in text
    assert json.loads(text) == plain


def test_a_cut_source_says_so_and_a_short_one_is_whole() -> None:
    assert cut_source("a\nb") == ("a\nb", "")
    text, note = cut_source("y" * (LONGEST_LINE + 100))
    assert text is not None and len(text) < LONGEST_LINE + 60
    assert "cut" in note
    assert cut_source("z" * 100, room=10)[0] == "z" * 10


def test_time_of_entries_adds_up_to_a_step(tmp_path: Path) -> None:
    from torchledger.nouns import Profile

    path = write_ledger(tmp_path / "a.ledger", launches=6)
    with LedgerWriter(path, append=True) as writer:
        writer.add(Profile("cupti", 2, plain_step_us=30.0, inside_us=40.0, matched_us=40.0))
        writer.add(Measurement("forward_0#0", "profile", "cupti", (10.0, 10.0)))
        writer.add(Measurement("backward_0#0", "profile", "cupti", (9.0, 11.0)))
    data, _ = read_page(render_report(path))
    assert data["weight"] == "time"
    assert sum(value or 0 for value in data["launches"]["step_us"]) == 20.0
    assert data["sentences"][0].startswith("One step takes 30.0 µs: its 6 launches")


def test_a_recorded_step_counts_the_calls_of_its_graphs_and_leaves_stale_ones_out(tmp_path: Path) -> None:
    launches = [make_launch(graph=name, wrapper_line=1, flops=100) for name in ("forward_0", "forward_1")]
    calls = [make_step_call(kind="graph", name="forward_0", order=n, phase="forward") for n in range(12)]
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run(), *(make_graph(name=name) for name in ("forward_0", "forward_1")), *launches)
        writer.add(make_step(graph_calls={"forward_0": 12}), *calls)
        writer.add(make_step_call(order=12, kind="synchronization", samples_us=()))
    data, _ = read_page(render_report(tmp_path / "a.ledger"))
    assert data["launches"]["calls"] == [12, 0]
    assert sum(row["flops"] for row in data["categories"]) == 12 * 100
    recorded = data["recorded"]
    assert recorded["stale"] == ["forward_1"] and len(recorded["calls"]) == 12
    assert sum(phase["us"] for phase in recorded["phases"]) == recorded["total"]["us"] == 120
    assert data["sentences"] == recorded["verdict"] and len(recorded["verdict"]) == 3


def test_an_imported_trace_has_a_page_too(tmp_path: Path) -> None:
    row = TimeRow("ampere_sgemm", 4, 40.0, 1.0, 10.0, category="gemm", flops=400, bytes_moved=80)
    timeline = Timeline(
        "trace",
        (0, 20),
        (10, 10),
        (0, 0),
        (0, 0),
        (None, None),
        (0, 0),
        ("ampere_sgemm",),
        ("gemm",),
        (),
        ("device 0",),
    )
    with LedgerWriter(tmp_path / "t.ledger") as writer:
        writer.add(make_run(), Breakdown("t.json", "trace", 40.0, 0.0, 0.0, 50.0, 40.0, 4, kernels=(row,)), timeline)
    data, _ = read_page(render_report(tmp_path / "t.ledger"))
    assert data["kernel_names"] == ["ampere_sgemm"]
    assert data["launches"]["flops"] == [100]
    assert data["timeline"]["start_ns"] == [0, 20]


def test_kernels_of_steps_without_a_compiled_graph_count_once_a_step_and_are_no_imported_trace(tmp_path: Path) -> None:
    row = TimeRow("aten::mm", 4, 40.0, 1.0, 10.0, category="gemm")
    with LedgerWriter(tmp_path / "e.ledger") as writer:
        one_step = Breakdown("cpu profile", "cpu_profiler", 40.0, 0.0, 0.0, 50.0, 40.0, 4, steps=1, kernels=(row,))
        writer.add(make_run(), one_step, Profile("cpu_profiler", 3))
    data, _ = read_page(render_report(tmp_path / "e.ledger"))
    assert (data["launches"]["step_us"], data["launches"]["calls"]) == ([40.0], [4.0])
    assert data["balance"]["is_imported"] is False


def test_a_ledger_without_launches_has_a_page_that_says_so(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "e.ledger") as writer:
        writer.add(make_run())
    data, _ = read_page(render_report(tmp_path / "e.ledger"))
    assert data["sentences"] == ["Nothing was compiled in this run, so the ledger holds no launches."]


def test_two_ledgers_are_aligned_as_diff_aligns_them_and_add_up(tmp_path: Path) -> None:
    first = write_ledger(tmp_path / "a.ledger", launches=60)
    second = write_ledger(tmp_path / "b.ledger", launches=120)
    data, _ = read_page(render_report(first, against=second))
    comparison = data["comparison"]
    assert data["title"] == "a.ledger and b.ledger"
    assert comparison["sentences"][-1] == f"A is {first}, B is {second}."
    totals = {name: (a, b) for name, _, a, b in comparison["totals"]}
    assert totals["launches"] == (60, 120)
    assert [sum(row[place] for row in comparison["rows"]) for place in (3, 4)] == [60, 120]
    assert [sum(row[place] for row in comparison["rows"]) for place in (5, 6)] == list(totals["minimum bytes"])
    with open_ledger(first) as one, open_ledger(second) as other:
        groups = diff_runs(read_run(one), read_run(other)).groups
    told = [(data["texts"][row[0]], row[3], row[4], row[7]) for row in comparison["rows"]]
    assert told == [(g.kind, len(g.first.launches), len(g.second.launches), g.delta_bytes) for g in groups]


def test_a_renamed_kernel_of_the_same_work_is_the_same_in_a_comparison(tmp_path: Path) -> None:
    for name in ("old", "new"):
        launch = make_launch(kernel_name=f"triton_poi_{name}", fx_nodes=("mul",), aten_ops=("aten.mul",), call="k()")
        with LedgerWriter(tmp_path / f"{name}.ledger") as writer:
            writer.add(make_run(), make_graph(), make_kernel(), launch)
    data, _ = read_page(render_report(tmp_path / "old.ledger", against=tmp_path / "new.ledger"))
    (row,) = data["comparison"]["rows"]
    assert [data["texts"][place] for place in row[:2]] == ["same", "triton_poi_old -> triton_poi_new"]
    assert data["comparison"]["changes"] == []


def test_imported_traces_have_no_launches_and_are_compared_by_name(tmp_path: Path) -> None:
    for name, us in (("a", 40.0), ("b", 60.0)):
        row = TimeRow("ampere_sgemm", 4, us, 1.0, us / 4, category="gemm")
        with LedgerWriter(tmp_path / f"{name}.ledger") as writer:
            writer.add(make_run(), Breakdown("t.json", "trace", us, 0.0, 0.0, us, us, 4, kernels=(row,)))
    data, _ = read_page(render_report(tmp_path / "a.ledger", against=tmp_path / "b.ledger"))
    (row,) = data["comparison"]["rows"]
    assert data["texts"][row[1]] == "ampere_sgemm" and row[5:7] == [40.0, 60.0]
    assert any("by name" in sentence for sentence in data["comparison"]["sentences"])


def test_the_command_writes_beside_the_ledger_and_overwrites_nothing_by_accident(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "a.ledger")
    first = CliRunner().invoke(cli, ["report", str(path)])
    assert first.exit_code == 0, first.output
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    with pytest.raises(StoreError, match="--force"):
        torchledger.report(path)
    assert torchledger.report(path, force=True) == tmp_path / "a.html"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "a.ledger")
    with pytest.raises(StoreError, match="cannot write"):
        torchledger.report(path, tmp_path / "nowhere" / "a.html")


def test_predictions_stand_in_no_comparison(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "a.ledger")
    with pytest.raises(UsageError, match="side by side"):
        render_report(path, against=path, predict="H200")


def test_a_model_that_is_not_at_hand_is_named(tmp_path: Path) -> None:
    with pytest.raises(PredictError, match="no such device"):
        render_report(write_ledger(tmp_path / "a.ledger"), predict="no such device")


def test_step_predictions_are_shown_with_what_was_measured(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "a.ledger")
    with LedgerWriter(path, append=True) as writer:
        writer.add(StepPrediction("step", "eager", 11.0, 9.0, 14.0, 0.9, "H200", 8.0, 1.0, 10.0, measured_us=10.0))
    data, _ = read_page(render_report(path))
    (step,) = data["predictions"]["steps"]
    assert (step["us"], step["measured_us"], step["is_host_bound"]) == (11.0, 10.0, True)


def test_what_a_cpu_measured_is_no_measure_of_a_price_on_a_gpu(tmp_path: Path) -> None:
    launches = [make_launch(flops=2 * 64**3, device="cpu", category="cpp")]
    with LedgerWriter(tmp_path / "cpu.ledger") as writer:
        writer.add(make_run(), *launches, make_kernel(), Measurement("forward_0#0", "profile", "cpu_profiler", (40.0,)))
    data, _ = read_page(render_report(tmp_path / "cpu.ledger", predict="H200"))
    predictions = data["predictions"]
    assert [row[8] for row in predictions["rows"]] == [None] and predictions["elsewhere"] == 1
    assert not any(step["is_comparable"] for step in predictions["steps"])
    assert [(step["extrapolated"], step["priced"]) for step in predictions["steps"]] == [(1, 1), (1, 1)]


def test_a_step_is_predicted_launched_one_by_one_and_as_graphs(tmp_path: Path) -> None:
    data, _ = read_page(render_report(write_ledger(tmp_path / "a.ledger"), predict="H200"))
    steps = {step["mode"]: step["us"] for step in data["predictions"]["steps"]}
    assert set(steps) == {"eager", "graphs"} and steps["graphs"] <= steps["eager"]
    assert len(data["predictions"]["rows"]) == 60


def test_kernels_that_take_longer_than_the_step_raise_a_doubt(tmp_path: Path) -> None:
    from torchledger.nouns import Profile

    path = write_ledger(tmp_path / "a.ledger", launches=6)
    with LedgerWriter(path, append=True) as writer:
        writer.add(
            Profile("cpu_profiler", 1, plain_step_us=30.0, profiled_step_us=90.0, inside_us=80.0, matched_us=80.0)
        )
        writer.add(Measurement("forward_0#0", "profile", "cpu_profiler", (80.0,)))
    data, _ = read_page(render_report(path))
    assert "more than the step itself" in data["sentences"][1]
    assert "90.0 µs a step" in data["sentences"][1]


def test_categories_are_of_one_step_however_many_the_breakdown_holds(tmp_path: Path) -> None:
    row = TimeRow("gemm", 6, 600.0, 600.0, 100.0)
    breakdown = Breakdown("trace", "cupti", 600.0, 0.0, 0.0, 600.0, 600.0, 6, categories=(row,))
    for steps in (None, 1, 3):
        path = tmp_path / f"{steps}.ledger"
        with LedgerWriter(path) as writer:
            writer.add(make_run(), make_graph(), make_launch(wrapper_line=1), Profile("cupti", 3))
            writer.add(replace(breakdown, steps=steps))
        data, _ = read_page(render_report(path))
        assert [each["us"] for each in data["categories"]] == [600.0 / (steps or 1)]
