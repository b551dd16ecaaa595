"""A profile of a real program on the CPU: every C++ kernel has a time, and it belongs to an entry."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import torchledger
from captured import read
from torchledger.errors import MeasureError, UsageError
from torchledger.nouns import Breakdown, Gap, Launch, Measurement, Profile, Step, StepCall, StepKind
from torchledger.profiling.profile import attach, why_no_step
from torchledger.profiling.records import over_steps, pair_with_ledger
from torchledger.profiling.steps import Steps
from torchledger.reporting.time_breakdown import breakdown_document
from torchledger.stepping.recording import StepRecording
from torchledger.stepping.states import TOO_SOON
from torchledger.store import open_ledger
from torchledger.traces.reading import read_trace, trace_from_events
from trace_factories import kernel_event
from warm import WarmProcess


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small training loop that never heard of profiles, profiled."""
    path = tmp_path_factory.mktemp("profile") / "a.ledger"
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
    with torchledger.capture(path) as run:
        attach(run, {"warmup": 2, "repeats": 3})
        compiled = torch.compile(model)
        for _ in range(11):
            compiled(torch.randn(16, 32)).sum().backward()
    return path


def test_every_launch_has_a_time_for_each_profiled_step(profiled: Path) -> None:
    captured = read(profiled)
    with open_ledger(profiled) as ledger:
        measured = {each.subject: each for each in ledger.read(Measurement)}
    assert set(measured) == {launch.launch_id for launch in captured.calls}
    for each in measured.values():
        assert each.repeats == 3
        assert min(each.samples_us) > 0


def test_categories_graphs_and_kernels_each_add_up_to_the_total(profiled: Path) -> None:
    with open_ledger(profiled) as ledger:
        (breakdown,) = ledger.read(Breakdown)
        (profile,) = ledger.read(Profile)
        measured = ledger.read(Measurement)
    for table in (breakdown.categories, breakdown.graphs, breakdown.kernels, breakdown.modules, breakdown.lines):
        assert sum(row.total_us for row in table) == pytest.approx(breakdown.device_us if table else 0)
    assert breakdown.categories
    assert breakdown.graphs
    assert breakdown.modules
    assert sum(sum(each.samples_us) for each in measured) == pytest.approx(profile.matched_us)
    assert breakdown.steps == 1
    assert breakdown.busy_us <= breakdown.wall_us


def test_the_profile_says_what_it_cost_and_what_it_missed(profiled: Path) -> None:
    with open_ledger(profiled) as ledger:
        (profile,) = ledger.read(Profile)
        (breakdown,) = ledger.read(Breakdown)
    assert profile.matched_share == 1
    assert profile.entries_seen == profile.entries
    assert profile.plain_step_us is not None
    assert profile.profiled_step_us is not None
    assert any("without the profiler" in note for note in breakdown.notes)


def test_the_trace_beside_the_ledger_carries_its_facts(profiled: Path) -> None:
    with open_ledger(profiled) as ledger:
        (profile,) = ledger.read(Profile)
    assert profile.trace is not None
    trace = read_trace(profiled.with_name(profile.trace))
    facts = [trace.arguments(row) for row in range(len(trace.events))]
    marked = [each for each in facts if "torchledger launch" in each]
    assert {str(each["torchledger launch"]) for each in marked} == {launch.launch_id for launch in read(profiled).calls}
    assert any("module" in each or "source line" in each for each in marked)


def test_profiling_a_step_function_returns_its_breakdown(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = torch.compile(nn.Linear(16, 16))
    with torchledger.capture(tmp_path / "a.ledger", profile=True) as run:
        model(torch.randn(4, 16)).sum().backward()
        breakdown = run.profile(lambda: model(torch.randn(4, 16)).sum().backward(), warmup=2, repeats=4)
    assert breakdown.steps == 1
    assert breakdown.kernel_us > 0
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (step,) = ledger.read(Step)
    assert (step.found_by, step.recorded) == ("call", 4)


@pytest.mark.parametrize("settings", [{"warmup": -1}, {"repeats": 0}])
def test_a_profile_of_no_steps_is_refused(tmp_path: Path, settings: dict[str, int]) -> None:
    with (
        torchledger.capture(tmp_path / "a.ledger") as run,
        pytest.raises(ValueError, match=r"warmup >= 0 and repeats >= 1"),
    ):
        run.profile(lambda: torch.randn(3).sum(), **settings)


def test_a_capture_that_has_ended_is_asked_no_more_and_keeps_its_ledger(tmp_path: Path) -> None:
    torch._dynamo.reset()
    (tmp_path / "a.ledger").touch()
    with torchledger.capture(tmp_path / "a.ledger", force=True) as run:
        torch.compile(nn.Linear(4, 4))(torch.randn(2, 4))
    for ask in (run.profile, run.count_eager):
        with pytest.raises(UsageError, match="has ended: ask it inside its with block"):
            ask(lambda: torch.randn(3).sum())
    assert read(tmp_path / "a.ledger").graphs


def test_a_capture_that_was_to_be_profiled_and_was_not_says_so(tmp_path: Path) -> None:
    with torchledger.capture(tmp_path / "a.ledger", profile=True):
        torch.randn(3).sum()
    with open_ledger(tmp_path / "a.ledger") as ledger:
        assert any("run.profile(step) does, and was not called" in note for note in ledger.run().notes)


def test_a_step_that_compiles_nothing_has_its_operators(tmp_path: Path) -> None:
    with torchledger.capture(tmp_path / "a.ledger") as run:
        breakdown = run.profile(lambda: torch.randn(3).sum(), warmup=1, repeats=1)
    assert {row.name for row in breakdown.kernels} == {"aten::randn", "aten::sum"}


def test_a_program_that_ends_too_soon_says_how_many_steps_it_takes(tmp_path: Path) -> None:
    torch._dynamo.reset()
    with torchledger.capture(tmp_path / "a.ledger") as run:
        attach(run, {})
        torch.compile(nn.Linear(4, 4))(torch.randn(2, 4))
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (gap,) = ledger.read(Gap)
    assert gap.account == "device_time"
    assert gap.reason == (
        "the program ended after 1 step without compilation, and the profile needs 7. "
        "Run more steps: 4 at least, with --warmup 0"
    )


@pytest.mark.parametrize(
    ("ran", "warmup", "said"),
    [
        (7, 3, "and the profile needs 8. Run more steps, or profile with --warmup 1"),
        (7, 1, None),
        (5, 3, "and the profile needs 8. Run more steps: 5 at least, with --warmup 0"),
    ],
)
def test_the_warmup_that_would_do_is_named_and_does(ran: int, warmup: int, said: str | None, tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torchledger.capture(tmp_path / "a.ledger") as run:
        attach(run, {"warmup": warmup, "timed": 3, "repeats": 1})
        compiled = torch.compile(model)
        for _ in range(ran):
            compiled(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    with open_ledger(tmp_path / "a.ledger") as ledger:
        reasons = [gap.reason for gap in ledger.read(Gap)]
        assert bool(ledger.read(Step)) == (said is None)
    assert not reasons if said is None else reasons[0].endswith(said)


def test_steps_of_a_kind_that_did_not_come_again_are_counted() -> None:
    kinds = (StepKind(5, {"forward_0": 1}), StepKind(4, {"forward_0": 1, "forward_1": 1}))
    said = why_no_step(StepRecording(begun=12, kinds=kinds, why_not=TOO_SOON), graphs=1, warmup=3, needed=8)
    assert said.startswith("the program ended after 12 steps without compilation, 5 of them of the most frequent kind")
    assert "(they differ in how often one calls: forward_1 0 or 1 times)" in said


def test_a_program_that_compiles_in_every_step_is_told_so(tmp_path: Path) -> None:
    torch._dynamo.reset()
    with torchledger.capture(tmp_path / "a.ledger") as run:
        attach(run, {})
        model = torch.compile(nn.Linear(4, 4), dynamic=False)
        for rows in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11):
            model(torch.randn(rows, 4))
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (gap,) = ledger.read(Gap)
    assert gap.reason.startswith("the program compiled to its end (8 graphs)")


@pytest.mark.parametrize(
    ("ran", "profiled", "said"),
    [
        (2, 0, "needs 2"),
        (3, 1, "first step under the profiler"),
        (4, 1, "its time on the host is not known"),
        (6, 2, "ended after 2 of 3 steps"),
        (7, 3, None),
    ],
)
def test_a_program_that_ends_in_the_middle_keeps_the_steps_that_were_profiled(
    tmp_path: Path, ran: int, profiled: int, said: str | None
) -> None:
    torch._dynamo.reset()
    with torchledger.capture(tmp_path / "a.ledger") as run:
        attach(run, {"warmup": 0, "timed": 1, "repeats": 3})
        model = torch.compile(nn.Linear(4, 4))
        for _ in range(ran):
            model(torch.randn(2, 4))
    with open_ledger(tmp_path / "a.ledger") as ledger:
        breakdowns, gaps, recorded = ledger.read(Breakdown), ledger.read(Gap), ledger.read(Step)
        samples = [each.repeats for each in ledger.read(Measurement)]
    assert [step.recorded for step in recorded] == [profiled] * (ran > 3)  # of three, no step was whole
    assert set(samples) == {profiled} - {0}
    notes = [note for each in (*recorded, *breakdowns) for note in each.notes]
    assert any(said in text for text in [*notes, *(gap.reason for gap in gaps)]) if said else not gaps
    for breakdown in breakdowns:
        assert breakdown_document(breakdown, top=3)


def test_a_graph_compiled_on_another_thread_has_times_too(tmp_path: Path) -> None:
    torch._dynamo.reset()
    with torchledger.capture(tmp_path / "a.ledger") as run:
        attach(run, {"warmup": 0, "timed": 1, "repeats": 1})
        model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU()))
        worker = threading.Thread(target=lambda: [model(torch.randn(2, 4)) for _ in range(4)])
        worker.start()
        worker.join()
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (profile,) = ledger.read(Profile)
        assert not ledger.read(Gap)
    assert profile.entries_seen == profile.entries == 2


def test_a_step_is_the_period_of_all_calls_and_not_those_of_the_first_graph(tmp_path: Path) -> None:
    torch._dynamo.reset()
    with torchledger.capture(tmp_path / "a.ledger") as run, torch.no_grad():
        attach(run, {"warmup": 0, "timed": 1, "repeats": 3})
        first, second = torch.compile(nn.Linear(4, 4)), torch.compile(nn.Linear(4, 3))
        for _ in range(9):
            second(first(first(torch.randn(2, 4))))
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (profile,), (step,) = ledger.read(Profile), ledger.read(Step)
    assert profile.steps == step.recorded == 3
    assert step.graph_calls == {"inference_0": 2, "inference_1": 1}
    assert step.found_by == "period"


def test_steps_that_differ_are_said_with_how_many_of_which_kind(tmp_path: Path) -> None:
    torch._dynamo.reset()
    with torchledger.capture(tmp_path / "a.ledger") as run, torch.no_grad():
        attach(run, {"warmup": 2, "timed": 1, "repeats": 1})
        model = torch.compile(nn.Linear(4, 4))
        for number in range(12):
            model(torch.randn(2, 4))
            if number == 3:
                model(torch.randn(2, 4))
            torchledger.step()
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (step,) = ledger.read(Step)
    assert any("steps differ" in note and "1 with inference_0 x2" in note for note in step.notes)


def test_a_trace_of_other_code_is_refused_by_name(profiled: Path, tmp_path: Path) -> None:
    captured = read(profiled)
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "## Call CompiledFxGraph fother ##",
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "dur": 9,
        }
    ]
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    with pytest.raises(MeasureError, match="fother"):
        pair_with_ledger(read_trace(path), captured.launches, captured.graphs, ())


def test_somebodys_trace_of_the_same_graphs_gives_its_times_and_names_what_it_cannot_show(tmp_path: Path) -> None:
    torch._dynamo.reset()
    with torchledger.capture(tmp_path / "a.ledger"):
        model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU()))
        model(torch.randn(2, 4))
    with torch.profiler.profile() as recorded:
        model(torch.randn(2, 4))
    recorded.export_chrome_trace(str(tmp_path / "a.json"))
    captured = read(tmp_path / "a.ledger")
    records = pair_with_ledger(read_trace(tmp_path / "a.json"), captured.launches, captured.graphs, ())
    assert [each.subject for each in records if isinstance(each, Measurement)] == ["forward_0#0"]
    assert any("no kernel was seen" in each.reason for each in records if isinstance(each, Gap))


def test_a_program_that_starts_its_own_profiler_keeps_it_and_ours_is_said_to_be_lost(tmp_path: Path) -> None:
    torch._dynamo.reset()
    with torchledger.capture(tmp_path / "a.ledger") as run:
        attach(run, {"warmup": 0, "timed": 1, "repeats": 3})
        model = torch.compile(nn.Linear(4, 4))
        for _ in range(3):
            model(torch.randn(2, 4))
        with torch.profiler.profile() as own:
            for _ in range(3):
                model(torch.randn(2, 4))
        for _ in range(3):
            model(torch.randn(2, 4))
    assert any("addmm" in event.name for event in own.events())
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (gap,) = ledger.read(Gap)
        assert not ledger.read(Breakdown)
    assert "profiler of its own" in gap.reason


def test_a_step_that_raises_does_not_spoil_the_next_profile(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = torch.compile(nn.Linear(4, 4))
    calls = iter(range(100))

    def step() -> None:
        model(torch.randn(2, 4))
        if next(calls) == 5:  # when the profiler is on
            raise KeyError("the program's own")

    with torchledger.capture(tmp_path / "a.ledger") as run:
        with pytest.raises(KeyError):
            run.profile(step, warmup=1, repeats=2)
        run.profile(step, warmup=1, repeats=2)
    with open_ledger(tmp_path / "a.ledger") as ledger:
        assert not ledger.read(Gap)
        assert [record.recorded for record in ledger.read(Step)] == [2]


def test_run_with_profile_records_an_unmodified_script(tmp_path: Path, warm: WarmProcess) -> None:
    script = tmp_path / "loop.py"
    script.write_text(
        "import torch\nfrom torch import nn\n"
        "model = torch.compile(nn.Linear(8, 8))\n"
        "for _ in range(12):\n    model(torch.randn(2, 8)).sum().backward()\n"
    )
    code, _, told = warm.run(tmp_path, "run", "--profile", "loop.py")
    assert code == 0, told
    assert sorted(path.name for path in tmp_path.glob("loop.*")) == ["loop.ledger", "loop.py", "loop.trace.json.gz"]
    with open_ledger(tmp_path / "loop.ledger") as ledger:
        calls = [launch for launch in ledger.read(Launch) if launch.category != "nop"]
        assert {each.subject for each in ledger.read(Measurement)} == {launch.launch_id for launch in calls}


def test_after_the_recording_nothing_of_ours_runs_in_a_step(tmp_path: Path) -> None:
    torch._dynamo.reset()
    home = str(Path(torchledger.__file__).parent)
    called: Counter[str] = Counter()

    def hear(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(home):
            called[frame.f_code.co_qualname.rpartition(".")[2]] += 1

    model = nn.Linear(8, 8)
    compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        compiled(torch.randn(4, 8)).sum().backward()
        optimizer.step()

    with torchledger.capture(tmp_path / "a.ledger") as run:
        profiler = attach(run, {"warmup": 1, "timed": 1, "repeats": 1, "after_us": 0})
        while not profiler.is_done:
            step()
        for further in (step, torchledger.step):
            sys.setprofile(hear)
            for _ in range(5):
                further()
            sys.setprofile(None)
    # The hook that Dynamo may have traced stays, and asks one thing; the program's own calls are its own.
    assert called == {"hook": 5, "step": 5}


@pytest.mark.slow
def test_threads_that_end_under_the_profiler_end_as_without_and_nothing_is_said_on_stderr(tmp_path: Path) -> None:
    script = tmp_path / "infer.py"
    script.write_text(
        "import threading, torch\nfrom torch import nn\n"
        "model = torch.compile(nn.Linear(8, 8), dynamic=True)\n"
        "def infer():\n    with torch.no_grad():\n"
        "        for number in range(7):\n            model(torch.randn(2 + number, 8))\n"
        "infer()\n"
        "threads = [threading.Thread(target=infer) for _ in range(2)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "print('done')\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "torchledger", "run", "--profile", "--warmup", "0", "infer.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    assert "rofiler" not in result.stderr


@pytest.mark.parametrize(("busy_us", "is_doubted"), [(90.0, False), (300.0, True)])
def test_kernels_that_outlast_their_step_are_doubted(busy_us: float, is_doubted: bool) -> None:
    breakdown = Breakdown("a", "cpu_profiler", busy_us, 0.0, 0.0, busy_us, busy_us, 1)
    steps = Steps(plain_us=(100.0,), profiled_us=(120.0,))
    notes = over_steps(breakdown, trace_from_events([kernel_event()]), steps, 1, "cpu_profiler").notes
    assert any("kernels outlast the step" in note for note in notes) is is_doubted


class HostCallTimer:
    """Stands for events on a GPU: the host's clock."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, int, int]] = []

    def call(self, name: str, proceed: Callable[[], Any]) -> Any:
        start = time.perf_counter_ns()
        result = proceed()
        self._spans.append((name, start, time.perf_counter_ns() - start))
        return result

    def spans(self) -> list[tuple[str, int, int]]:
        return self._spans


@pytest.mark.parametrize(("ran", "timed"), [(3, 1), (4, 2), (9, 3)])
def test_a_gpu_whose_profiler_is_taken_has_its_graphs_timed_by_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: int, timed: int
) -> None:
    from torchledger._torch import steps

    torch._dynamo.reset()
    monkeypatch.setattr(steps, "has_cuda", lambda: True)
    monkeypatch.setattr(steps, "synchronize", lambda: None)
    monkeypatch.setattr(steps, "call_timer", HostCallTimer)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)  # the clock uses no events then
    monkeypatch.setattr(steps, "is_capturing", lambda: False)
    with torchledger.capture(tmp_path / "a.ledger") as run, torch.profiler.profile():
        attach(run, {"warmup": 0, "timed": 1, "repeats": 3})
        model = torch.compile(nn.Linear(4, 4))
        for _ in range(ran):
            model(torch.randn(2, 4))
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (breakdown,), (gap,) = ledger.read(Breakdown), ledger.read(Gap)
        assert not ledger.read(Measurement)
    assert breakdown.clock == "cuda_event"
    assert breakdown.steps == timed
    assert [(row.name, row.calls) for row in breakdown.graphs] == [("forward_0", timed)]
    assert breakdown.graphs[0].flops == 64 * timed
    assert "by CUDA events" in gap.reason
    assert breakdown_document(breakdown, top=3)


def test_a_dynamic_graph_counts_at_the_sizes_that_it_ran_with(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = torch.compile(nn.Linear(64, 128), dynamic=True)
    with torchledger.capture(tmp_path / "a.ledger") as run, torch.no_grad():
        model(torch.randn(5, 64))
        breakdown = run.profile(lambda: model(torch.randn(256, 64)), warmup=1, repeats=1)
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (call,) = [each for each in ledger.read(StepCall) if each.kind == "graph"]
    (graph,) = [row for row in breakdown.graphs if row.name.startswith("inference")]
    assert call.flops == graph.flops == 2 * 256 * 64 * 128


def test_many_calls_without_a_period_are_not_taken_for_a_program_that_compiles() -> None:
    many = why_no_step(StepRecording(called=Counter(inference_0=20, inference_1=19)), graphs=4, warmup=3, needed=7)
    assert many.startswith("no step was found") and many.endswith("torchledger.step()")


def test_calls_that_repeat_and_wait_for_an_optimizer_that_never_steps_are_said_to() -> None:
    recording = StepRecording(called=Counter(inference_0=30), waited_for_optimizer=True)
    why = why_no_step(recording, graphs=1, warmup=0, needed=2, is_plan=True)
    assert "(inference_0 x30) repeats itself, and a plan waited for a step of the optimizer" in why
    few = why_no_step(StepRecording(called=Counter(inference_3=2)), graphs=4, warmup=3, needed=7)
    assert few.startswith("the program compiled to its end")


def test_a_plan_of_steps_that_are_all_unlike_does_not_say_that_they_are_too_few() -> None:
    kinds = tuple(StepKind(1, {"forward_0": turns, "SGD.step": 1}) for turns in range(3, 9))
    recording = StepRecording(found_by="optimizer", begun=6, kinds=kinds)
    said = why_no_step(recording, graphs=6, warmup=1, needed=2, is_plan=True, lines={"forward_0": "train.py:12"})
    assert "6 steps" in said and "needs 2" not in said
    assert "not alike: one calls forward_0 (of train.py:12) 3 to 8 times." in said


def test_a_plan_that_heard_no_step_to_its_end_does_not_say_that_they_were_unlike() -> None:
    recording = StepRecording(found_by="optimizer", begun=6, kinds=(StepKind(6, {"SGD.step": 1}),))
    said = why_no_step(recording, graphs=0, warmup=1, needed=2, is_plan=True)
    assert "6 steps" in said and "alike" not in said and "none to its end" in said


def test_a_rank_whose_profile_cannot_be_written_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written when all is recorded; the trace is gone when the program ends."""

    def fail(recording: StepRecording, *_: Any, **__: Any) -> Any:
        assert recording.times is not None
        recording.times.unlink()
        raise ValueError("no such operator")

    monkeypatch.setattr("torchledger.profiling.profile.records_of_recording", fail)
    monkeypatch.setattr("torchledger.profiling.profile.own_world_size", lambda: 2)
    monkeypatch.setattr("torchledger.profiling.profile.own_rank", lambda: 0)
    torch._dynamo.reset()
    with torchledger.capture(tmp_path / "a.ledger") as run:
        attach(run, {"warmup": 2, "repeats": 3})
        compiled = torch.compile(lambda x: x.sin() + 1)
        for _ in range(40):
            compiled(torch.randn(16, 32))
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (gap,) = [each for each in ledger.read(Gap) if (each.account, each.where) == ("device_time", "profile")]
    assert gap.reason == "ValueError: no such operator"


class OwnGraph(torch.cuda.graphs.CUDAGraph):
    """A CUDA graph of a program's own, on a machine without one: its replays call what it holds."""

    def __new__(cls, *_: object) -> OwnGraph:
        made: OwnGraph = object.__new__(cls)
        return made

    def __init__(self, held: Callable[[], None]) -> None:
        self.held, self._tracker = held, None


def test_steps_of_a_program_that_replays_a_graph_of_its_own_are_found_by_its_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replayed(graph: OwnGraph) -> None:
        graph.held()

    monkeypatch.setattr(torch.cuda.graphs.CUDAGraph.__bases__[0], "replay", replayed, raising=False)
    total = torch.zeros(8)

    def held() -> None:
        for _ in range(5):
            total.add_(1.0)

    graph = OwnGraph(held)
    with torchledger.capture(tmp_path / "a.ledger") as run:
        attach(run, {"warmup": 2, "timed": 2, "repeats": 2})
        for _ in range(20):
            total.mul_(0.5)
            graph.replay()
    with open_ledger(tmp_path / "a.ledger") as ledger:
        (step,), calls = ledger.read(Step), ledger.read(StepCall)
    assert [dict(kind.calls) for kind in step.kinds] == [{"CUDAGraph.replay": 1}]
    assert [call.name for call in calls] == ["aten::add_"] * 5 + ["aten::mul_"]
