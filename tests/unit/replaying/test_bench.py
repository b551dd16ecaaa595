"""Kernels of a ledger, run alone on a CPU."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import torchledger
from captured import Captured, capture_call, read
from factories import make_step
from torchledger.cli import cli
from torchledger.errors import MeasureError, StoreError, UsageError
from torchledger.nouns import Graph, Launch, Measurement
from torchledger.replaying.bench import bench
from torchledger.replaying.bench_report import gain
from torchledger.replaying.bench_timing import Budget, relative_interval
from torchledger.replaying.bench_worker import Job, Task
from torchledger.replaying.call_site import find_call_site
from torchledger.replaying.extract import extract_kernel, graph_module, kernel_module
from torchledger.replaying.index_bounds import checked_pointers
from torchledger.replaying.reference import find_reference
from torchledger.replaying.sizes import CannotReplay
from torchledger.reporting.benches import bench_as_plain, bench_document
from torchledger.reporting.terminal import render
from torchledger.store import LedgerWriter, open_ledger

QUICK = Budget(seconds=0.01, min_repeats=6, max_repeats=6)


class Small(nn.Module):
    """An index, a reduction, pointwise kernels, a convolution, and library calls with one and with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.stem = nn.Conv1d(8, 4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.nn.functional.gelu(self.up(self.norm(self.table(tokens))))
        ordered, places = torch.sort(self.stem(x), dim=-1)
        return ordered.softmax(-1) * places.float()


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        model = Small()
        path = tmp_path_factory.mktemp("bench") / "small.ledger"
        tokens = torch.randint(0, 50, (3, 8))
        return capture_call(path, lambda: torch.compile(model)(tokens).sum().backward(), builds=True)
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def ledger(captured: Captured, tmp_path: Path) -> Path:
    return Path(shutil.copy(captured.path, tmp_path / "small.ledger"))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of a worker that ran nothing: every call took 5 us."""

    def answer(job: Job, **limits: object) -> dict[str, dict[str, Any]]:
        samples = {"warm": [5.0] * 6, "cold": [9.0] * 6, "step": [7.0] * 6}
        return {
            task.task_id: {
                "status": "ok",
                "clock": "host",
                "warmup": 3,
                "samples_us": {state: samples[state] for state in task.states},
            }
            for task in job.tasks
        }

    monkeypatch.setattr("torchledger.replaying.bench.run_tasks", answer)


def test_every_entry_that_has_a_kernel_can_be_benched(ledger: Path, captured: Captured) -> None:
    report = torchledger.bench(ledger, all_kernels=True, budget=QUICK)
    assert {entry.launch.launch_id for entry in report.entries} == {launch.launch_id for launch in captured.calls}
    assert [
        (entry.launch.launch_id, entry.status, entry.reason) for entry in report.entries if entry.status != "ok"
    ] == []
    for entry in report.entries:
        assert entry.warm is not None and entry.cold is not None
        assert (entry.warm.clock, entry.warm.l2_state, entry.cold.l2_state) == ("host", "warm", "cold")
        assert entry.duration_us is not None and entry.duration_us > 0
        assert entry.placed is not None and entry.placed.l2_state == "step", entry.unplaced
        assert entry.placed.duration_us > 0 and entry.lead_in is not None
    assert {entry.lead_in for entry in report.entries} >= {0, 1, 2}
    assert len(read_measurements(ledger)) == 3 * len(report.entries)


def read_measurements(path: Path) -> list[Measurement]:
    with open_ledger(path) as reader:
        return reader.read(Measurement)


@pytest.mark.usefixtures("answered")
def test_the_heaviest_kernels_cover_the_time_inside_the_step(ledger: Path, captured: Captured) -> None:
    heavy, *others = [launch.launch_id for launch in captured.calls]
    with LedgerWriter(ledger, append=True) as writer:
        writer.add(Measurement(heavy, "profile", "cpu_profiler", (970.0,)))
        writer.add(*(Measurement(other, "profile", "cpu_profiler", (1.0,)) for other in others))
    report = bench(ledger, budget=QUICK, states=("warm",), save=False)
    assert heavy in {entry.launch.launch_id for entry in report.entries}
    assert len(report.entries) < len(captured.calls) / 2
    (entry,) = [entry for entry in report.entries if entry.launch.launch_id == heavy]
    assert entry.over_step is not None and entry.duration_us is not None
    assert entry.over_step == pytest.approx(entry.duration_us / 970.0)
    assert report.selection.endswith(f" {97_000 / (970 + len(others)):.0f} % of their time inside the step")


@pytest.mark.usefixtures("answered")
def test_a_launch_weighs_its_median_times_the_calls_of_a_step(ledger: Path, captured: Captured) -> None:
    graphs = list(dict.fromkeys(launch.graph for launch in captured.calls))
    looped, stale = graphs[0], graphs[-1]
    assert looped != stale
    called = [launch.launch_id for launch in captured.calls if launch.graph == looped]
    with LedgerWriter(ledger, append=True) as writer:
        writer.add(*(Measurement(launch.launch_id, "profile", "cpu_profiler", (5.0,)) for launch in captured.calls))
        writer.add(make_step(graph_calls={looped: 12}, device_us=12 * 5.0 * len(called)))
    report = bench(ledger, budget=QUICK, states=("warm",), save=False)
    assert {entry.launch.launch_id for entry in report.entries} <= set(called), (
        "a graph that is not called weighs nothing"
    )
    whole = bench(ledger, all_kernels=True, budget=QUICK, states=("warm",), save=False)
    uses = {entry.launch.launch_id: entry.use for entry in whole.entries}
    assert sum(use.share or 0.0 for use in uses.values() if use is not None) == pytest.approx(1.0)
    plain = {row["launch_id"]: row for row in bench_as_plain(whole)["entries"]}
    assert plain[called[0]]["step_calls"] == 12 and plain[called[0]]["time_share"] == pytest.approx(1 / len(called))
    assert {row["time_share"] for name, row in plain.items() if name.startswith(stale)} == {None}
    text = render(bench_document(whole))
    assert "did not run in the recorded step" in text and stale in text and "of time" in text


def test_index_buffers_stay_below_what_the_kernel_may_address(captured: Captured) -> None:
    (launch,) = [
        launch for launch in captured.calls if "embedding" in launch.kernel_name and launch.graph == "forward_0"
    ]
    graph = next(graph for graph in captured.graphs if graph.name == launch.graph)
    site = find_call_site(graph, launch, captured.launches, captured.kernels)
    highs = [step.high for step in site.setup if not isinstance(step, str) and step.dtype == "torch.int64"]
    assert highs == [50]


def test_a_bound_is_followed_back_to_its_pointer() -> None:
    triton = """
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp9 = tl.load(in_ptr1 + (x0), xmask)
    tmp1 = tl.full([XBLOCK], 50257, tl.int32)
    tmp2 = tmp0 + tmp1
    tmp3 = tmp0 < 0
    tmp4 = tl.where(tmp3, tmp2, tmp0)
    tl.device_assert(((0 <= tmp4) & (tmp4 < 50257)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 50257")
    """
    assert checked_pointers(triton, {}) == {"in_ptr0": 50257}
    cpp = (
        'auto tmp0 = in_ptr2[x];\nAOTI_TORCH_CHECK((0 <= tmp0) & (tmp0 < ks0), "index out of bounds: 0 <= tmp0 < ks0");'
    )
    assert checked_pointers(cpp, {"ks0": 7}) == {"in_ptr2": 7}


def test_launches_that_do_the_same_work_have_one_signature(captured: Captured) -> None:
    graph = captured.graphs[0]
    launch = next(launch for launch in captured.calls if launch.graph == graph.name)
    site = find_call_site(graph, launch, captured.launches, captured.kernels)
    renamed = dataclasses.replace(
        graph, wrapper_source=(graph.wrapper_source or "").replace("buf0", "buf900").replace("primals_1", "primals_901")
    )
    again = find_call_site(renamed, launch, captured.launches, captured.kernels)
    assert again.signature == site.signature


def test_a_kernel_that_kills_its_process_is_marked_and_the_others_go_on(
    ledger: Path, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = captured.calls[:2]
    from torchledger.replaying import bench as module

    original = module._tasks

    def deadly(site, *rest):  # type: ignore[no-untyped-def]
        for task in original(site, *rest):
            crash = "import os; os.kill(os.getpid(), 11)"
            is_first = site.launch_id == first.launch_id
            yield dataclasses.replace(task, body=f"{crash}\n{task.body}") if is_first else task

    monkeypatch.setattr(module, "_tasks", deadly)
    report = bench(ledger, [first.launch_id, second.launch_id], budget=QUICK, states=("warm",), save=False)
    assert [entry.status for entry in report.entries] == ["crashed", "ok"]
    assert "signal 11" in (report.entries[0].reason or "")


def test_tensors_that_do_not_fit_are_listed_with_their_sizes() -> None:
    from torchledger.replaying.bench_worker import OutOfMemory, _check_memory

    task = Task("forward_0#0", "cpu", "", "", {"buf0": 10**15, "buf1": 8})
    with pytest.raises(OutOfMemory, match=r"buf0 1000000.00 GB.*are free on cpu.*would fit"):
        _check_memory(task)


def test_captured_inputs_replace_made_up_ones(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from torchledger.replaying.bench_worker import _load_saved

    path = tmp_path / "launch.safetensors"
    save_file({"before.x": torch.full((2, 3), 7.0), "after.x": torch.zeros(2, 3), "before.other": torch.ones(1)}, path)
    inputs = {"x": torch.zeros(3, 2).t(), "number": 5}
    assert _load_saved(inputs, str(path)) == "on 1 captured inputs"
    assert torch.equal(inputs["x"], torch.full((2, 3), 7.0))
    assert "made-up" in _load_saved(inputs, str(tmp_path / "gone"))


def test_code_of_somebody_else_needs_trust(ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path / "another user"))
    with pytest.raises(MeasureError, match=r"runs with your rights.*--trust"):
        bench(ledger, all_kernels=True, budget=QUICK)


def test_code_of_another_torch_version_is_refused(ledger: Path) -> None:
    with open_ledger(ledger) as reader:
        run = reader.run()
    older = dataclasses.replace(run, environment=dataclasses.replace(run.environment, torch="2.7.1"))
    with LedgerWriter(ledger, append=True) as writer:
        writer.add(older, replace=True)
    with pytest.raises(MeasureError, match=r"recorded with torch 2\.7\.1"):
        bench(ledger, all_kernels=True, budget=QUICK)


def test_a_graph_with_a_cpp_wrapper_says_so(captured: Captured) -> None:
    graph = Graph("forward_0", "forward", wrapper_source="int main() {}", wrapper_language="cpp")
    with pytest.raises(CannotReplay, match="C\\+\\+ wrapper"):
        find_call_site(graph, captured.calls[0], captured.launches)


def test_a_name_that_is_not_there_is_a_usage_error(ledger: Path) -> None:
    with pytest.raises(UsageError, match="Near it"):
        bench(ledger, ["nothing_like_this"])


def test_the_interval_of_the_median_narrows_with_agreement() -> None:
    assert relative_interval([1.0] * 20) == 0.0
    assert relative_interval([1.0, 2.0]) == float("inf")
    assert relative_interval(list(range(1, 101))) > relative_interval([50 + i / 10 for i in range(100)])


@pytest.mark.usefixtures("answered")
def test_the_command_prints_json_and_c_kernels_have_one_configuration(ledger: Path, captured: Captured) -> None:
    fused = captured.fused[0]
    arguments = [
        "bench",
        str(ledger),
        fused.launch_id,
        "--max-autotune",
        "--seconds",
        "0.01",
        "--repeats",
        "6",
        "--json",
    ]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    plain = json.loads(result.stdout)
    assert plain["entries"][0]["status"] == "ok"
    assert "0 of 0 Triton launches gain" in plain["remarks"][0]


@pytest.mark.usefixtures("answered")
def test_a_gain_is_counted_against_the_run_s_own_configuration(ledger: Path, captured: Captured) -> None:
    report = bench(ledger, [captured.fused[0].launch_id], budget=QUICK, states=("warm",), save=False)
    (entry,) = report.entries
    assert entry.duration_us is not None
    slower = Measurement(entry.launch.launch_id, "bench", "cupti", (2 * entry.duration_us,))
    winners, choosable, before, after = gain(
        dataclasses.replace(report, entries=(dataclasses.replace(entry, as_run=slower),))
    )
    assert (winners, choosable) == (1, 1)
    assert before == pytest.approx(2 * after)


@pytest.mark.usefixtures("answered")
def test_a_ledger_read_twice_is_the_same_after_no_save(ledger: Path, captured: Captured) -> None:
    before = ledger.read_bytes()
    bench(ledger, [captured.calls[0].launch_id], budget=QUICK, states=("warm",), save=False)
    assert ledger.read_bytes() == before
    assert read(ledger).launches == captured.launches


# --- extracted files -------------------------------------------------------------------------------------------------


def _module(captured: Captured, launch: Launch) -> str:
    graph = next(graph for graph in captured.graphs if graph.name == launch.graph)
    others = [other for other in captured.launches if other.graph == launch.graph]
    return kernel_module(graph, launch, others, captured.kernels, title=launch.launch_id)[0]


def _check(text: str) -> bool | None:
    namespace: dict[str, Any] = {"__name__": "extracted"}
    with torch.no_grad():
        exec(compile(text, "<extracted>", "exec"), namespace)
        result: bool | None = namespace["check"]()
    return result


def test_every_extracted_kernel_agrees_with_eager_ops(captured: Captured) -> None:
    results = {launch.launch_id: _check(_module(captured, launch)) for launch in captured.calls}
    assert set(results.values()) <= {True, None}
    assert sum(result is True for result in results.values()) >= 10
    libraries = [launch for launch in captured.calls if launch.category == "extern"]
    assert sum(results[launch.launch_id] is True for launch in libraries) >= 2


def test_what_a_launch_changes_in_place_or_fills_itself_is_no_given_value(tmp_path: Path) -> None:
    def messages(h: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
        sender, receiver = edges
        scores = (torch.cat([h[sender], h[receiver]], 1) * weights).sum(1).relu()
        most = torch.full((h.shape[0],), -1e9).scatter_reduce(0, receiver, scores, "amax")
        return (scores - most[receiver]).exp()

    inputs = torch.randn(6, 16), torch.randint(0, 6, (2, 20)), torch.randn(32)
    captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(messages)(*inputs), builds=True)
    results = {launch.call: _check(_module(captured, launch)) for launch in captured.calls}
    assert len(results) >= 3
    assert set(results.values()) <= {True, None}
    assert results["aten.scatter_reduce_.two"] is True


def test_a_file_with_an_operator_of_the_users_own_says_what_to_import(captured: Captured) -> None:
    launch = next(launch for launch in captured.calls if launch.call == "torch.ops.aten.sort.stable")
    text = _module(captured, dataclasses.replace(launch, call="torch.ops.mine.sort.default"))
    assert "this launch calls torch.ops.mine.sort, which is not registered here: " in text
    assert "is not registered here" not in _module(captured, launch)


def test_a_kernel_made_wrong_fails_its_check(captured: Captured, capsys: pytest.CaptureFixture[str]) -> None:
    launch = next(launch for launch in captured.fused if "gelu" in launch.kernel_name and launch.graph == "forward_0")
    text = _module(captured, launch)
    wrong = text.replace("(0.5)", "(0.6)", 1)
    assert wrong != text
    assert _check(wrong) is False
    assert "WRONG" in capsys.readouterr().out


def test_an_extracted_file_runs_without_torchledger(ledger: Path, captured: Captured, tmp_path: Path) -> None:
    output = tmp_path / "k.py"
    arguments = ["extract", str(ledger), captured.fused[0].launch_id, "-o", str(output)]
    assert CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout == f"{output}\n"
    assert "import torchledger" not in output.read_text()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, str(output)], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "correct\n" in result.stdout and "time: " in result.stdout


def test_an_existing_file_is_kept(ledger: Path, captured: Captured, tmp_path: Path) -> None:
    output = tmp_path / "k.py"
    output.write_text("mine")
    with pytest.raises(StoreError, match="--force"):
        extract_kernel(ledger, captured.calls[0].launch_id, output)
    assert output.read_text() == "mine"


@pytest.mark.parametrize("direction", ["forward_0", "backward_0"])
def test_a_whole_graph_agrees_with_eager_ops(captured: Captured, direction: str) -> None:
    graph = next(graph for graph in captured.graphs if graph.name == direction)
    launches = [launch for launch in captured.launches if launch.graph == direction]
    text, reason = graph_module(graph, launches, captured.kernels, title=direction)
    assert reason is None
    assert _check(text) is True


def test_a_reference_says_what_it_cannot_compare() -> None:
    source = (
        "class GraphModule(torch.nn.Module):\n"
        '    def forward(self, a: "f32[4][1]cpu", b: "f32[4][1]cpu"):\n'
        '        noise: "f32[4][1]cpu" = torch.ops.aten.rand.default([4])\n'
        '        add: "f32[4][1]cpu" = torch.ops.aten.add.Tensor(a, b);  b = None\n'
        '        mul: "f32[4][1]cpu" = torch.ops.aten.mul.Tensor(add, noise);  add = noise = None\n'
        "        return (mul,)\n"
    )
    graph = Graph("forward_0", "forward", fx_source=source)
    found = find_reference(graph, ["a", "b"], [("buf0", "add"), ("buf1", "mul"), ("buf2", None)])
    assert dict(found.targets) == {"buf0": "add"}
    assert found.statements == ("add = torch.ops.aten.add.Tensor(a, b)",)
    assert "random" in found.unchecked["buf1"]
    assert "compiler's own" in found.unchecked["buf2"]
    assert "b, which this launch does not read" in find_reference(graph, ["a"], [("buf0", "add")]).unchecked["buf0"]
