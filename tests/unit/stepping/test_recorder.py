"""The recording of steps, with a profiler and a clock of the test's own."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.recorded_program import Compiled, FakeTools, Program, in_thread

from torchledger.nouns import OptimizerFacts
from torchledger.stepping.marks import STEP_MARK
from torchledger.stepping.meeting import Meeting
from torchledger.stepping.recorder import StepRecorder
from torchledger.stepping.states import State
from torchledger.stepping.thread_end import AtThreadEnd
from torchledger.traces.graph_marks import GRAPH_MARK, parse_graph_mark


def test_steps_are_timed_recorded_heard_and_timed_again() -> None:
    program = Program()
    states = []
    for number in range(12):
        program.step(took_us=100.0 + number)
        states.append(program.recorder.state)
    result = program.result()
    assert list(dict.fromkeys(states)) == [
        State.WARMING,
        State.TIMING,
        State.SETTLING,
        State.RECORDING,
        State.HEARING,
        State.AFTER,
        State.DONE,
    ]
    assert result.found_by == "optimizer"
    assert result.plain_us == (102.0, 103.0, 104.0)
    assert result.profiled_us == (106.0, 107.0)
    assert result.plain_after_us == (109.0, 110.0)
    assert result.n_steps == 2
    assert result.times is not None
    assert result.heard is not None and [call.call.name for call in result.heard] == ["aten::mul"]
    assert result.optimizers == (OptimizerFacts("Compiled", 3, 12, ("float32",)),)
    assert result.why_not is None


@pytest.mark.parametrize("places", [4, 8, 9, 10, 60])
def test_a_function_that_is_given_no_parameters_is_part_of_the_training_around_it(places: int) -> None:
    """A compiled function between eager layers, called once for each place of a sequence."""
    program = Program()
    program.tools.has_optimizer = True
    for number in range(12):
        for name in ("forward_0", "backward_0"):
            if name == "backward_0" and not number:  # it is compiled when it is first asked for
                program.graphs.append(program.compile(name))
            for _ in range(places):
                program.call(name)
                program.tools.now_us += 1.0
        program.tools.now_us += 100.0
        program.recorder.optimizer_stepped(program.optimizer)
    result = program.result()
    assert result.found_by == "optimizer"
    assert result.kinds[0].calls == {"forward_0": places, "backward_0": places, "Compiled.step": 1}


@pytest.mark.parametrize(("is_each", "n_heard"), [(False, 2), (True, 5)])
def test_a_step_with_more_operators_than_the_recorded_ones_is_heard_again(is_each: bool, n_heard: int) -> None:
    program = Program()
    program.tools.heard = ["aten::mul", "aten::multinomial"]
    for _ in range(20):
        program.step()
        if program.tools.said.count("start listener") and not is_each:
            program.tools.heard = ["aten::mul"]
    result = program.result()
    assert program.tools.said.count("start listener") == n_heard
    assert result.heard is not None and len(result.heard) == len(program.tools.heard)


def test_ranks_of_a_job_hear_as_many_steps_whatever_each_of_them_hears(tmp_path: Path) -> None:
    program = Program(meeting=lambda: Meeting(tmp_path / "j.job", 0, 1))
    program.tools.heard = ["aten::mul", "aten::multinomial"]
    program.steps(20)
    assert program.tools.said.count("start listener") == 1


def test_what_compiles_after_the_recording_takes_no_step_and_no_rule_from_it() -> None:
    program = Program().steps(9)
    seen = program.recorder.result().seen
    program.compile("inference_0")
    result = program.result()
    assert (result.seen, result.found_by) == (seen, "optimizer") and seen > 5


@pytest.mark.parametrize(("n_later", "recorded"), [(3, {}), (9, {}), (30, {"forward_1": 1, "backward_1": 1})])
def test_steps_of_another_kind_are_recorded_once_they_are_more_than_those_of_before(
    n_later: int, recorded: dict[str, int]
) -> None:
    program = Program(after_us=1e6).steps(10)
    keep = [program.compile("forward_1"), program.compile("backward_1")]
    for _ in range(n_later):
        program.call("forward_1")
        program.call("backward_1")
        program.tools.now_us += 50.0
        program.recorder.optimizer_stepped(program.optimizer)
    result = program.result()
    first = dict(result.kinds[0].calls)
    assert first == (recorded or {"forward_0": 1, "backward_0": 1}) | {"Compiled.step": 1}
    assert result.times is not None and result.heard is not None and len(keep) == 2
    assert result.plain_us == ((50.0,) * 3 if recorded else (100.0,) * 3)
    assert program.tools.n_open == 0


def test_ranks_record_the_same_steps_whatever_each_of_them_compiles(tmp_path: Path) -> None:
    def rank(number: int) -> Program:
        return Program(warmup=2, meeting=lambda: Meeting(tmp_path / "j.job", number, 2))

    early, late, alone = rank(0), rank(1), Program(warmup=2)
    began: dict[str, int] = {}
    for step in range(20):
        if step == 1:
            late.compile("forward_1")
        for name, program in (("early", early), ("late", late), ("alone", alone)):
            program.step()
            if program.recorder.state is State.RECORDING:
                began.setdefault(name, step)
    assert began["early"] == began["late"] > began["alone"]


@pytest.mark.parametrize(("pattern", "recorded"), [((1, 1, 2), 2), ((4, 4, 4, 3), 2), ((1, 2, 3, 1, 4), 1)])
def test_of_kinds_that_take_turns_the_most_frequent_is_recorded_as_often_as_it_comes_in_a_row(
    pattern: tuple[int, ...], recorded: int
) -> None:
    program = Program()
    for _ in range(60):
        for forwards in pattern:
            program.step(forwards=forwards)
    result = program.result()
    assert result.n_steps == recorded and result.heard is not None and result.why_not is None
    assert pattern.count(result.kinds[0].calls["forward_0"]) == max(map(pattern.count, pattern))
    assert not any("another kind is recorded" in note for note in result.notes)


@pytest.mark.parametrize("pattern", [(1, 2), (2, 1), (1, 2, 3), (3, 1, 1, 2), (1, 2, 1, 3)])
def test_steps_of_an_optimizer_that_take_turns_are_one_step_that_begins_with_most(pattern: tuple[int, ...]) -> None:
    program = Program(warmup=3)
    for _ in range(20):
        for forwards in pattern:
            program.step(took_us=100.0 * forwards, forwards=forwards)
    result = program.result()
    assert (result.found_by, result.n_steps, result.why_not) == ("optimizer", 2, None)
    assert [kind.calls["forward_0"] for kind in result.kinds] == [sum(pattern)]
    assert result.kinds[0].calls["Compiled.step"] == len(pattern)
    assert result.plain_us == (100.0 * sum(pattern),) * 3
    assert any(f"every {len(pattern)} steps of the optimizer are one step" in note for note in result.notes)


def test_steps_of_an_eager_program_take_turns_by_the_modules_that_they_call() -> None:
    program, policy, judge = Program(warmup=3), Layer(), Judge()
    program.graphs.clear()
    for number in range(40):
        for module in (policy, judge, policy) if number % 2 else (policy,):
            program.recorder.module_called(module)
        program.tools.now_us += 300.0 if number % 2 else 100.0
        program.recorder.optimizer_stepped(program.optimizer)
    result = program.result()
    assert [kind.calls for kind in result.kinds] == [{"Compiled.step": 2}]
    assert result.n_steps == 2 and set(result.plain_us) == {400.0}


class UpdatesInBackward(Program):
    """A hook of the last parameter calls the optimizer: its step lies inside the backward."""

    def step(self, *, took_us: float = 100.0, forwards: int = 1) -> None:
        self.call("forward_0")
        self.tools.in_backward = True
        self.call("backward_0")
        self.recorder.optimizer_stepped(self.optimizer)
        self.tools.in_backward = False
        self.tools.now_us += took_us


def test_nothing_begins_or_ends_inside_a_backward_whose_optimizer_steps_there() -> None:
    result = UpdatesInBackward().steps(14).result()
    assert (result.found_by, result.n_steps, result.why_not) == ("optimizer", 2, None)
    assert result.plain_us == (100.0,) * 3
    assert result.heard is not None and [call.call.name for call in result.heard] == ["aten::mul"]


class Layer:
    """Stands for a module without parameters."""

    def parameters(self) -> tuple[()]:
        return ()


class Judge(Layer):
    """Stands for another module."""


def test_a_module_that_is_called_behind_the_backward_is_where_an_eager_step_ends_whose_optimizer_steps_in_it() -> None:
    program, layer = Program(), Layer()
    program.graphs.clear()
    for _ in range(14):
        program.recorder.module_called(layer)
        program.tools.in_backward = True
        assert program.recorder.is_in_backward
        program.recorder.optimizer_stepped(program.optimizer)
        program.tools.in_backward = False
        program.tools.now_us += 100.0
    result = program.result()
    assert (result.found_by, result.n_steps, result.why_not) == ("optimizer", 2, None)
    assert result.plain_us == (100.0,) * 3
    assert [kind.calls for kind in result.kinds] == [{"Compiled.step": 1}], "modules are of no kind of step"


def test_steps_that_end_in_a_backward_with_nothing_called_behind_it_are_said_to() -> None:
    program = UpdatesInBackward()
    program.graphs.clear()
    program.tools.in_backward = True
    for _ in range(9):
        program.recorder.optimizer_stepped(program.optimizer)
    result = program.result()
    assert result.why_not is not None and "inside a backward" in result.why_not


def test_an_eager_step_is_counted_from_one_optimizers_step_to_the_next_and_is_of_no_kind() -> None:
    program = Program(counts_eager=True)
    while program.recorder.state is not State.COUNTING:
        program.step()
    program.recorder.optimizer_stepped(Compiled())  # it is compiled at other times
    assert program.recorder.state is State.COUNTING
    program.step(forwards=0)
    result = program.steps(4).result()
    assert result.eager_flops == {"aten.mm": 12}
    assert len(result.kinds) == 1 and result.plain_after_us == (100.0, 100.0)
    assert program.tools.said[-2:] == ["start count", "stop count"] and program.tools.n_open == 0


def test_in_a_program_without_optimizer_the_calls_of_compiled_functions_bound_the_eager_step() -> None:
    recorder = StepRecorder(warmup=1, timed=1, repeats=1, counts_eager=True, tools=(tools := FakeTools()))
    first, second = Compiled(), Compiled()
    graph = Compiled()
    recorder.graph("inference_0", graph)

    def step() -> None:
        for function in (first, second, first):
            recorder.function_called(function)
            if "start count" not in tools.said or "stop count" in tools.said:
                recorder.around_call("inference_0", lambda: 7, identity=id(function))

    for _ in range(20):
        step()
    recorder.close()
    assert recorder.result().eager_flops == {"aten.mm": 12}
    assert recorder.result().kinds[0].calls == {"inference_0": 3}


def test_a_program_that_ends_before_an_eager_step_is_told_so() -> None:
    result = Program(counts_eager=True).steps(9).result()
    assert result.eager_flops is None
    assert result.notes == ("no eager step was counted: the program ended before one",)


def test_what_could_not_be_heard_of_a_step_is_said() -> None:
    program = Program()
    program.tools.faults["listener"] = ["storages: KeyError: 'planted'"]
    assert program.steps(12).result().notes == ("not heard of the step (1): storages: KeyError: 'planted'",)


def test_a_step_s_storages_are_heard_with_its_operators_and_its_allocations_recorded() -> None:
    program = Program()
    program.steps(12)
    said = program.tools.said[program.tools.said.index("start listener") :]
    assert said.index("storages of forward_0[]") < said.index("storages of 7") < said.index("gradients")
    result = program.result()
    assert result.memory == "storages"
    assert result.allocations == (((0, 8),), ((1, 8),))


def test_what_fails_while_storages_are_noted_costs_no_call_and_no_step() -> None:
    program = Program()
    program.tools.fails_to_hear = True
    program.steps(12)
    assert program.call("forward_0") == 7
    result = program.result()
    assert result.heard is not None and [call.call.name for call in result.heard] == ["aten::mul"]
    assert result.why_not is None


def test_recorded_steps_and_calls_in_them_are_marked_and_others_are_not() -> None:
    program = Program().steps(12)
    said = program.tools.said
    assert [text for text in said if text.startswith(STEP_MARK)] == [f"{STEP_MARK}#0", f"{STEP_MARK}#1"]
    first = said.index(f"{STEP_MARK}#0")
    assert said[first + 1 : first + 6] == [
        f"{GRAPH_MARK}forward_0",
        f"end {GRAPH_MARK}forward_0",
        f"{GRAPH_MARK}backward_0",
        f"end {GRAPH_MARK}backward_0",
        f"end {STEP_MARK}#0",
    ]
    assert said.count(f"{GRAPH_MARK}forward_0") == 4  # one to settle, two recorded, one heard


def test_a_plain_steps_calls_are_only_counted_once_an_optimizer_ends_the_steps() -> None:
    program = Program()
    quick = []

    def call(name: str) -> None:
        quick.append((program.recorder.state, program.recorder.tally(name)))
        if not quick[-1][1]:
            Program.call(program, name)

    program.call = call  # type: ignore[method-assign, assignment]
    kinds = program.steps(12).result().kinds
    assert [(kind.count, kind.calls) for kind in kinds] == [
        (kinds[0].count, {"Compiled.step": 1, "backward_0": 1, "forward_0": 1})
    ]
    told = {state for state, is_quick in quick if not is_quick}
    assert told >= {State.WARMING, State.SETTLING, State.RECORDING, State.HEARING}
    assert not told & {State.TIMING, State.AFTER}


def test_recorded_calls_of_a_dynamic_graph_are_marked_with_their_sizes() -> None:
    program = Program()
    asked = []

    def sizes() -> dict[str, int]:
        asked.append(program.recorder.state)
        return {"s0": 256}

    for _ in range(12):
        program.recorder.around_call("forward_0", lambda: 7, sizes=sizes)
        program.recorder.optimizer_stepped(program.optimizer)
    marks = [text for text in program.tools.said if text.startswith(GRAPH_MARK)]
    assert marks
    assert all(parse_graph_mark(mark) == ("forward_0", {"s0": 256}) for mark in marks)
    assert len(asked) == len(marks)


def test_sizes_that_cannot_be_read_leave_the_call_as_it_is() -> None:
    program = Program()
    for _ in range(12):
        assert program.recorder.around_call("forward_0", lambda: 7, sizes=lambda: {"s0": 1 // 0}) == 7
        program.recorder.optimizer_stepped(program.optimizer)
    assert f"{GRAPH_MARK}forward_0" in program.tools.said


def test_a_recorder_that_is_done_says_so_once_and_leaves_calls_alone() -> None:
    done = []
    program = Program(on_done=lambda: done.append(True)).steps(30)
    before = len(program.tools.said)
    assert program.call("forward_0") == 7
    assert len(program.tools.said) == before
    assert done == [True]


@pytest.mark.parametrize("at", range(2, 12))
def test_a_step_of_another_kind_is_neither_recorded_nor_averaged(at: int) -> None:
    program = Program()
    for number in range(30):
        program.step(took_us=900.0 if number == at else 100.0, forwards=2 if number == at else 1)
    result = program.result()
    assert set(result.plain_us) | set(result.plain_after_us) == {100.0}
    assert result.profiled_us == (100.0, 100.0)
    assert result.n_steps == 2
    assert result.kinds[0].calls == {"forward_0": 1, "backward_0": 1, "Compiled.step": 1}
    assert sum(kind.count for kind in result.kinds) == result.seen


def test_steps_that_never_come_twice_in_a_row_still_end_in_a_recording_that_says_so() -> None:
    program = Program(repeats=3)
    for number in range(60):
        program.step(forwards=1 + number % 5)
    result = program.result()
    assert result.n_steps == 1
    assert any("1 of 3" in note for note in result.notes)
    assert len(result.kinds) == 5


def test_of_steps_that_are_all_unlike_one_is_recorded_soon_and_the_times_of_all_are_kept() -> None:
    program = Program(warmup=3)
    for number in range(14):
        program.step(took_us=100.0 + number, forwards=number + 1)
    result = program.result()
    assert result.n_steps == 1
    assert result.plain_us == (106.0, 107.0, 108.0)
    assert "hardly two of 10 steps make the same calls: one of them is recorded, all are timed" in result.notes


def test_a_kind_that_turns_out_to_be_the_most_frequent_is_recorded() -> None:
    program = Program(warmup=3)
    for forwards in (1, 2, 3, 3, 4, 3, 5, 6, *(7, 7, 1) * 6):
        program.step(forwards=forwards)
    result = program.result()
    assert result.n_steps == 2 and result.kinds[0].calls["forward_0"] == 7


def test_what_a_program_captures_into_a_graph_of_its_own_is_left_alone_and_no_step() -> None:
    program = Program(warmup=0).steps(1)
    program.tools.captures = program.tools.on_gpu = True
    assert program.call("forward_0") == 7
    program.steps(9)
    program.tools.captures = False
    assert program.recorder.state is State.WARMING
    result = program.result()
    assert result.seen <= 1
    assert result.times is None
    assert "call torchledger.step() behind each replay" in (result.why_not or "")


def replay(program: Program, times: int, *, took_us: float = 100.0) -> None:
    """Replays of a graph that the program captured, and what is about them."""
    for _ in range(times):
        with program.recorder.replaying():
            assert program.recorder.is_replaying
        program.tools.now_us += took_us
    assert not program.recorder.is_replaying


def test_replays_of_a_programs_own_graph_are_calls_of_which_a_step_is_made() -> None:
    program = Program(warmup=3)
    replay(program, 16)
    result = program.result()
    assert result.found_by == "period" and result.n_steps == 2
    assert result.kinds[0].calls == {"CUDAGraph.replay": 1} and set(result.plain_us) == {100.0}


def test_an_optimizer_that_steps_no_more_where_replays_go_on_is_in_what_they_hold() -> None:
    program = Program(warmup=2).steps(2)
    replay(program, 30)
    result = program.result()
    assert result.found_by == "period" and result.kinds[0].calls == {"CUDAGraph.replay": 1}
    updating = Program(warmup=2)
    for _ in range(16):
        replay(updating, 1)
        updating.recorder.optimizer_stepped(updating.optimizer)
    assert updating.result().kinds[0].calls == {"CUDAGraph.replay": 1, "Compiled.step": 1}


@pytest.mark.parametrize("before", range(3, 9))
def test_steps_are_recorded_as_they_are_from_the_first_replay_on(before: int) -> None:
    program = Program(warmup=2).steps(before)
    for _ in range(12):
        replay(program, 1)
        program.step()
    result = program.result()
    assert result.times is not None and result.n_steps == 2 and result.heard is not None
    assert result.kinds[0].calls["CUDAGraph.replay"] == 1


def test_calls_that_were_recorded_before_the_first_replay_were_its_warm_up() -> None:
    program = Program(warmup=2)
    for _ in range(40):
        program.call("forward_0")
        program.tools.now_us += 1.0
    assert program.recorder.state is State.DONE
    replay(program, 16)
    assert program.result().kinds[0].calls == {"CUDAGraph.replay": 1}


@pytest.mark.parametrize("at", range(6, 11))
def test_what_compiles_meanwhile_begins_the_recording_anew(at: int) -> None:
    program = Program().steps(at)
    program.compile("forward_1")
    result = program.steps(20).result()
    assert result.n_steps == 2
    assert program.tools.n_open == 0
    assert result.times is not None


def test_a_program_that_compiles_in_every_step_is_given_up() -> None:
    program = Program(warmup=0, timed=1)
    for number in range(200):
        program.step()
        if number % 4 == 3:
            program.compile(f"forward_{number}")
    assert program.tools.n_open == 0
    assert "compiled" in str(program.result().why_not)


class Serves(Program):
    """A step is one call, and ends where the next begins."""

    def step(self, *, took_us: float = 100.0, forwards: int = 1) -> None:
        self.call("inference_0")
        self.tools.now_us += took_us


@pytest.mark.parametrize(
    ("state", "said"),
    [(State.SETTLING, "first step under the profiler"), (State.RECORDING, "its time on the host is not known")],
)
def test_a_program_that_ends_in_its_first_step_under_the_profiler_keeps_that(state: State, said: str) -> None:
    program = Serves()
    while program.recorder.state is not state:
        program.step()
    result = program.result()
    assert result.times is not None
    assert any(said in note for note in result.notes)
    assert program.tools.n_open == 0


@pytest.mark.parametrize("state", [State.SETTLING, State.RECORDING])
def test_what_a_program_does_behind_its_last_step_is_not_kept_for_one(state: State) -> None:
    program = Program()
    while program.recorder.state is not state:
        program.step()
    program.call("forward_0")
    result = program.result()
    assert result.times is None and result.why_not is not None and "ended before a step" in result.why_not
    assert program.tools.n_open == program.tools.n_held == 0


def test_a_program_that_ends_between_steps_to_record_keeps_those_that_there_are() -> None:
    program = Program().steps(7)
    result = program.result()
    assert result.times is not None and any("1 of 2 steps to profile" in note for note in result.notes)
    assert program.tools.n_open == 0


def test_a_step_that_was_heard_to_its_last_call_counts_though_the_program_ends() -> None:
    program = Program().steps(8)
    assert program.recorder.state is State.HEARING
    program.call("forward_0")
    assert program.result().heard is None
    (said,) = (note for note in program.result().notes if "no step was heard after the profiled ones" in note)
    assert said.endswith("counts as loss"), "without lines nothing tells a model's eager layers from its loss"
    whole = Program(timed=1)
    while whole.recorder.state is not State.HEARING:
        whole.call("forward_0")
        whole.call("backward_0")
    assert whole.result().heard


def test_a_profiler_that_does_not_start_costs_the_recording_and_no_call() -> None:
    program = Program()
    program.tools.fails_to_start = True
    program.steps(12)
    assert program.call("forward_0") == 7
    assert program.result().why_not == "RuntimeError: no profiler here"


def test_a_listener_that_does_not_start_is_said_beside_the_times_that_there_are() -> None:
    program = Program().steps(5)
    while program.recorder.state is not State.RECORDING:
        program.steps(1)
    program.tools.fails_to_start = True
    result = program.steps(12).result()
    assert result.times is not None and result.memory is None
    assert "after the profiled steps nothing was recorded: RuntimeError: no profiler here" in result.notes


def test_hooks_that_cannot_be_taken_out_cost_no_call_and_are_said() -> None:
    def fail() -> None:
        raise RuntimeError("planted")

    program = Program(on_done=fail)
    program.recorder.failed(ValueError("ours"))
    assert program.call("forward_0") == 7
    result = program.result()
    assert result.why_not == "ValueError: ours" and any("RuntimeError: planted" in note for note in result.notes)


def test_a_profiler_of_the_programs_own_keeps_the_device() -> None:
    program = Program()
    program.tools.is_taken = True
    result = program.steps(12).result()
    assert "another profiler is running" in str(result.why_not)
    assert result.plain_us


def test_a_profiler_that_the_program_starts_meanwhile_ends_ours() -> None:
    program = Program().steps(7)
    program.tools.last.is_lost = True
    result = program.steps(3).result()
    assert "profiler of its own" in str(result.why_not)
    assert program.tools.n_open == 0


def test_a_gpu_that_the_profiler_does_not_see_has_its_graphs_timed_by_events() -> None:
    program = Program()
    program.tools.on_gpu, program.tools.sees_device = True, False
    result = program.steps(20).result()
    assert [name for name, _, _ in result.spans] == 2 * ["forward_0", "backward_0"]
    assert result.n_steps == 2


def test_a_thread_that_ends_ends_the_session_that_it_began() -> None:
    program = Program()
    in_thread(lambda: program.steps(7))
    assert program.tools.n_open == 0
    result = program.result()
    assert result.times is not None
    assert any("1 of 2 steps to profile" in note for note in result.notes)


def test_a_session_of_a_thread_that_still_runs_is_ended_by_its_next_call() -> None:
    program = Program()
    stepped, closed = threading.Event(), threading.Event()

    def work() -> None:
        program.steps(8)
        stepped.set()
        closed.wait()
        program.call("forward_0")

    thread = threading.Thread(target=work)
    thread.start()
    stepped.wait()
    result = program.result()
    assert "still runs" in str(result.why_not)
    assert program.tools.n_open == 1
    closed.set()
    thread.join()
    assert program.tools.n_open == 0


def test_the_calls_of_a_second_thread_are_said_and_belong_to_no_step() -> None:
    program = Program()
    for _ in range(12):
        program.step()
        in_thread(lambda: program.call("forward_0"))
    result = program.result()
    assert result.kinds[0].calls["forward_0"] == 1
    assert any("other threads" in note for note in result.notes)
    assert result.allocations is None and any("no peak was counted" in note for note in result.notes)


def test_a_backward_on_a_thread_of_its_own_starts_and_stops_nothing() -> None:
    program = Program(warmup=1)
    for _ in range(14):
        program.call("forward_0")
        in_thread(lambda: program.call("backward_0"))
        in_thread(lambda: program.recorder.optimizer_stepped(program.optimizer))
    assert program.tools.n_open == 0
    assert program.result().n_steps == 2


@pytest.mark.parametrize(("n_before", "n_recorded"), [(5, 2), (6, 2), (7, 1), (8, 2)])
def test_a_fork_ends_what_is_open_and_it_begins_anew_but_for_steps_that_were_recorded(
    n_before: int, n_recorded: int
) -> None:
    program = Program(counts_eager=True).steps(n_before)
    program.call("forward_0")
    program.recorder.before_fork()
    assert program.tools.n_open == 0
    program.call("backward_0")
    program.recorder.optimizer_stepped(program.optimizer)
    result = program.steps(20).result()
    assert result.n_steps == n_recorded and result.heard is not None and result.why_not is None
    assert result.plain_us == (100.0, 100.0, 100.0) and result.eager_flops is not None
    assert result.times is not None and program.tools.n_open == 0


def test_epochs_of_three_steps_whose_workers_are_forked_have_a_step_after_all() -> None:
    program = Program()
    for number in range(24):
        if number % 3 == 0:
            program.recorder.before_fork()
        program.step()
    result = program.result()
    assert (result.n_steps, result.why_not) == (1, None) and result.heard is not None
    assert any("began a process after 1 of 2 steps" in note for note in result.notes)


def test_a_program_that_forks_in_each_step_is_told_so() -> None:
    program = Program()
    for _ in range(40):
        program.call("forward_0")
        program.recorder.before_fork()
        program.call("backward_0")
        program.recorder.optimizer_stepped(program.optimizer)
    result = program.result()
    assert result.times is None and "began a process in each of 8" in str(result.why_not)


def test_a_forked_child_has_no_recording_of_its_parents() -> None:
    program = Program().steps(10)
    program.recorder.after_fork()
    result = program.steps(3).result()
    assert result.times is None
    assert "forked" in str(result.why_not)


def test_graphs_that_are_gone_are_forgotten() -> None:
    program = Program()
    assert program.recorder.name_of(program.graphs[0]) == "forward_0"
    key = id(program.graphs[0])
    program.graphs.clear()
    assert key not in program.recorder._names


def test_an_action_at_a_threads_end_is_done_there_and_once() -> None:
    at_end = AtThreadEnd()
    done: list[int] = []
    threads: list[int] = []

    def work(cancels: bool) -> None:
        threads.append(threading.get_ident())
        at_end.do(lambda: done.append(threading.get_ident()))
        if cancels:
            at_end.cancel()

    in_thread(lambda: work(False))
    assert done == threads
    in_thread(lambda: work(True))
    assert len(done) == 1


def test_a_part_that_repeats_behind_a_compilation_is_not_heard_for_a_step() -> None:
    program = Program(only_hears=True)
    program.call("forward_0")
    program.compile("backward_0")
    states = []
    for name in (*3 * ("backward_0",), *20 * (3 * ("forward_0",) + 3 * ("backward_0",))):
        program.call(name)
        states.append(program.recorder.state)
    assert states[5] is State.WARMING
    result = program.result()
    assert result.heard is not None and result.why_not is None
    assert dict(result.kinds[0].calls) == {"forward_0": 3, "backward_0": 3}


def test_of_steps_that_are_all_unlike_one_is_heard_all_the_same() -> None:
    program = Program(only_hears=True)
    for number in range(14):
        program.call(f"forward_{number}")
        program.step(forwards=0)
    result = program.result()
    assert result.heard is not None and result.why_not is None
    assert any("was like the most frequent" in note for note in result.notes)


def test_a_recorder_that_heard_nothing_asks_nothing_of_torch_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: StepRecorder) -> None:
        raise AssertionError("torch's compiler would be imported to end a recording that never began")

    monkeypatch.setattr(StepRecorder, "_tools", property(refuse))
    recorder = StepRecorder(warmup=1, timed=1, repeats=1)
    recorder.close()
    assert recorder.result().times is None


class UpdatesInAGraph(Program):
    """Nothing but its optimizer is compiled, which lives and is never heard to step."""

    def step(self, *, took_us: float = 100.0, forwards: int = 1) -> None:
        self.recorder.updates("inference_0")
        self.call("inference_0")
        self.tools.now_us += took_us


def test_a_compiled_optimizer_ends_a_step_of_a_plan() -> None:
    program = UpdatesInAGraph(only_hears=True)
    program.tools.has_optimizer = True
    result = program.steps(4).result()
    assert (result.found_by, result.why_not) == ("optimizer", None)
    assert result.heard is not None and result.kinds[0].calls == {"inference_0": 1, "Optimizer.step": 1}


def test_a_compiled_optimizer_is_waited_for_no_longer_in_a_profile() -> None:
    program = UpdatesInAGraph()
    program.tools.has_optimizer = True
    result = program.steps(12).result()
    assert (result.found_by, result.n_steps) == ("period", 2)
