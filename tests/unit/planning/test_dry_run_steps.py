"""Where the steps of programs that run without their device end, and what is said of what is around them."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from torchledger.books import read_memory
from torchledger.errors import PlanError
from torchledger.nouns import Device, Step, StepCall
from torchledger.planning import step_hearing
from torchledger.planning.dry_run import DryRunOutcome, run_without_device
from torchledger.predicting.devices import find_model
from torchledger.predicting.host_steps import replays_us
from torchledger.predicting.replays import replays_in
from torchledger.predicting.step import predict_ledger
from torchledger.store import LedgerWriter, open_ledger

H200 = Device(name="NVIDIA H200", kind="cuda", compute_capability=(9, 0), total_memory_bytes=141 * 10**9)


_OPTIMIZERS: dict[nn.Parameter, torch.optim.Optimizer] = {}
"""Of each parameter that is updated in a backward its own. Hooks that hold them would keep them alive."""


@pytest.fixture(autouse=True)
def _none_stays_of_these(no_optimizer_stays: None) -> Iterator[None]:
    """One that lives on would be waited for in the next test's program."""
    yield
    _OPTIMIZERS.clear()
    gc.collect()


def read(outcome: DryRunOutcome) -> tuple[Step, list[StepCall]]:
    with open_ledger(outcome.path) as reader:
        (step,) = reader.read(Step)
        return step, list(reader.read(StepCall))


def updated_in_backward(parameters: Iterable[nn.Parameter]) -> None:
    """Each parameter has an optimizer, which steps once its gradient is there."""

    def update(parameter: nn.Parameter) -> None:
        _OPTIMIZERS[parameter].step()
        parameter.grad = None

    for each in parameters:
        _OPTIMIZERS[each] = torch.optim.SGD([each], 0.1)
        each.register_post_accumulate_grad_hook(update)


@pytest.mark.parametrize("layers", [2, 15])
def test_a_step_whose_optimizers_step_inside_its_backward_ends_with_the_last_of_them(
    tmp_path: Path, layers: int
) -> None:
    def program() -> None:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers))).cuda()
        updated_in_backward(model.parameters())
        for _ in range(6):
            model(torch.randn(4, 8, device="cuda")).sum().backward()

    step, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert step.found_by == "optimizer"
    assert sum(each.phase == "optimizer" and each.name == "aten::_foreach_add_" for each in calls) == 2 * layers
    assert sum(each.phase == "forward" and each.name == "aten::addmm" for each in calls) == layers
    assert [kind.calls for kind in step.kinds] == [{"SGD.step": 2 * layers}]


def test_an_optimizer_that_steps_behind_such_a_backward_belongs_to_the_step(tmp_path: Path) -> None:
    def program() -> None:
        body, head = nn.Linear(8, 8).cuda(), nn.Linear(8, 2).cuda()
        updated_in_backward(body.parameters())
        optimizer = torch.optim.Adam(head.parameters())
        for _ in range(6):
            head(body(torch.randn(4, 8, device="cuda"))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    step, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert {kind.calls["SGD.step"] for kind in step.kinds} == {2}
    assert {kind.calls["Adam.step"] for kind in step.kinds} == {1}
    assert sum(each.name == "aten::addmm" for each in calls) == 2


def test_a_program_that_calls_no_module_behind_such_a_backward_is_told_how_to_end_its_steps(tmp_path: Path) -> None:
    def program() -> None:
        weight = nn.Parameter(torch.zeros(8, 8, device="cuda"))
        updated_in_backward([weight])
        for _ in range(6):
            (torch.randn(4, 8, device="cuda") @ weight).sum().backward()

    with pytest.raises(PlanError, match=r"call torchledger\.step\(\) there"):
        run_without_device(program, tmp_path / "plan.ledger", H200)


def learning(rollout: int, updates: int, turns: int = 3) -> Callable[[], None]:
    """Each turn acts without gradients ``rollout`` times, and updates its network so many times."""

    def program() -> None:
        network = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda()
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        for _ in range(turns):
            state = torch.randn(4, 8, device="cuda")
            with torch.no_grad():
                for _ in range(rollout):
                    state = network(state)
            for _ in range(updates):
                network(state).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    return program


def test_several_steps_of_an_optimizer_in_a_turn_are_said_where_one_is_priced(tmp_path: Path) -> None:
    step, _ = read(run_without_device(learning(0, 4), tmp_path / "plan.ledger", H200))
    (note,) = step.notes
    assert step.found_by == "optimizer" and "makes 4 in each turn of the loop around it" in note


def test_work_between_the_steps_of_an_optimizer_is_said_not_to_be_in_the_price(tmp_path: Path) -> None:
    step, calls = read(run_without_device(learning(40, 6), tmp_path / "plan.ledger", H200))
    assert sum(each.name == "aten::addmm" for each in calls) == 1
    assert [note for note in step.notes if "not in the price: for each of its steps the program calls" in note]


def test_steps_of_an_optimizer_and_the_work_before_them_that_they_use_are_priced_as_one_turn(tmp_path: Path) -> None:
    step, calls = read(run_without_device(learning(40, 6, turns=8), tmp_path / "plan.ledger", H200))
    assert step.found_by == "turn" and step.notes[0].startswith("a step is one turn of the loop at")
    assert sum(each.name == "aten::addmm" for each in calls) == 40 + 6
    assert [kind.calls for kind in step.kinds] == [{"SGD.step": 6}]


def test_work_that_did_not_come_again_is_said_to_have_come_before_the_first_step(tmp_path: Path) -> None:
    step, _ = read(run_without_device(learning(40, 9, turns=1), tmp_path / "plan.ledger", H200))
    assert [note for note in step.notes if "none as long came again" in note]


@pytest.mark.parametrize(("rollout", "updates"), [(0, 4), (40, 1)])
def test_a_step_that_holds_all_of_its_turn_is_said_to_lack_nothing(tmp_path: Path, rollout: int, updates: int) -> None:
    step, _ = read(run_without_device(learning(rollout, updates, turns=6), tmp_path / "plan.ledger", H200))
    assert not [note for note in step.notes if "outside the recorded step" in note]


class Stately(torch.optim.SGD):
    """Its first step makes much of a state."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for each in self.param_groups[0]["params"] if not self.state else ():
            self.state[each]["powers"] = [torch.zeros_like(each) for _ in range(200)]
        super().step(closure)


def test_a_first_step_that_makes_its_optimizers_state_is_said_to_hold_no_other_work(tmp_path: Path) -> None:
    def program() -> None:
        model = nn.Linear(8, 8).cuda()
        optimizer = Stately(model.parameters(), 0.1)
        for _ in range(8):
            model(torch.randn(4, 8, device="cuda")).sum().backward()
            optimizer.step()

    step, _ = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert not [note for note in step.notes if "outside the recorded step" in note]


def replaying(warm_ups: int, *, captures_optimizer: bool = True, turns: int = 8) -> Callable[[], None]:
    """A step is captured as a CUDA graph behind its warm-up on a stream of its own, and replayed."""

    def program() -> None:
        layer, given = nn.Linear(8, 8).cuda(), torch.zeros(4, 8, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)

        def step(*, updates: bool = True) -> None:
            layer(given).sum().backward()
            if updates:
                optimizer.step()

        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(warm_ups):
                step()
        # Both names that torch has for them.
        graph, capture = torch.cuda.graphs.CUDAGraph(), torch.cuda.graphs.graph
        with torch.cuda.graph(graph) if captures_optimizer else capture(graph, pool=torch.cuda.graph_pool_handle()):
            step(updates=captures_optimizer)
        for _ in range(turns):
            given.normal_()
            graph.replay()
            if not captures_optimizer:
                optimizer.step()

    return program


@pytest.mark.parametrize("warm_ups", [1, 3, 11])
def test_a_step_that_is_captured_is_priced_as_a_replay_whatever_its_warm_up(tmp_path: Path, warm_ups: int) -> None:
    outcome = run_without_device(replaying(warm_ups), tmp_path / "plan.ledger", H200)
    _, calls = read(outcome)
    replayed = [call for call in calls if call.replay is not None]
    assert replays_in(calls) == 1 and {"aten::addmm", "aten::_foreach_add_"} <= {call.name for call in replayed}
    assert {call.name for call in calls if call.replay is None} == {"aten::normal_"}
    # Of what is replayed whoever captured it is told.
    assert {call.phase for call in replayed} >= {"forward", "backward", "optimizer"}
    (product,) = [call for call in replayed if call.name == "aten::addmm"]
    assert product.sources and Path(product.sources[-1].partition(":")[0]).name == Path(__file__).name
    assert any("at each of its replays" in what for what in outcome.dry_run.decisions)
    priced, *_ = predict_ledger(find_model("H200"), outcome.path)
    alone = run_without_device(replaying(3, turns=0), tmp_path / "alone.ledger", H200)
    with LedgerWriter(alone.path, append=True) as ledger:
        ledger.add(replace(alone.dry_run, decisions={}))
    launched, *_ = predict_ledger(find_model("H200"), alone.path)
    assert replays_us(1) < priced.host_us < launched.host_us / 2
    assert priced.eager_us > launched.eager_us and priced.duration_us < launched.duration_us


def test_a_step_whose_replays_do_not_come_is_priced_as_one_all_the_same(tmp_path: Path) -> None:
    outcome = run_without_device(replaying(3, turns=0), tmp_path / "plan.ledger", H200)
    priced, *_ = predict_ledger(find_model("H200"), outcome.path)
    assert outcome.dry_run.replays_step and priced.mode == "graphs" and priced.host_us == replays_us(1)


def test_a_graph_without_the_optimizer_is_a_part_of_its_step(tmp_path: Path) -> None:
    outcome = run_without_device(replaying(3, captures_optimizer=False), tmp_path / "plan.ledger", H200)
    step, calls = read(outcome)
    assert step.found_by == "optimizer" and not outcome.dry_run.replays_step and replays_in(calls) == 1
    assert {call.phase for call in calls if call.replay is None} >= {"optimizer"}


def test_what_a_replay_makes_is_gone_behind_it_as_it_was_when_it_was_captured(tmp_path: Path) -> None:
    """Twenty copies one after the other, of which two at a time are alive."""

    def program() -> None:
        given, graph = torch.zeros(1 << 20, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = given
            for _ in range(20):
                made = made + 1
        while True:
            given.zero_()
            graph.replay()

    outcome = run_without_device(program, tmp_path / "plan.ledger", H200)
    with open_ledger(outcome.path) as reader:
        memory = read_memory(reader, reader.read(Step)[0].name)
    assert memory is not None and 2 << 22 < memory.peak_allocated_bytes <= 5 << 22


def test_callables_that_torch_captures_are_replayed_forwards_and_backwards_within_the_optimizers_steps(
    tmp_path: Path,
) -> None:
    def program() -> None:
        layers = [nn.Sequential(nn.Linear(8, 8), nn.GELU()).cuda() for _ in range(6)]
        samples = tuple((torch.zeros(4, 8, device="cuda", requires_grad=True),) for _ in layers)
        graphed = torch.cuda.make_graphed_callables(tuple(layers), samples)
        optimizer = torch.optim.SGD([weight for layer in layers for weight in layer.parameters()], lr=0.1)
        while True:
            optimizer.zero_grad()
            x = torch.randn(4, 8, device="cuda", requires_grad=True)
            for layer in graphed:
                x = layer(x)
            x.sum().backward()
            optimizer.step()

    step, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert step.found_by == "optimizer" and replays_in(calls) == 12
    assert {call.phase for call in calls if call.name == "aten::addmm"} == {"forward"}
    assert {call.phase for call in calls if call.name == "aten::mm"} == {"backward"}
    assert all(call.replay is not None for call in calls if call.name in ("aten::addmm", "aten::mm", "aten::gelu"))


def test_calls_before_the_first_replay_are_no_steps(tmp_path: Path) -> None:
    def program() -> None:
        layer, given, graph = nn.Linear(8, 8).cuda(), torch.zeros(4, 8, device="cuda"), torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(30):
                layer(given)
        with torch.no_grad(), torch.cuda.graph(graph):
            for _ in range(20):
                layer(given)
        while True:
            given.normal_()
            graph.replay()

    step, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert [dict(kind.calls) for kind in step.kinds] == [{"CUDAGraph.replay": 1}]
    assert sum(call.name == "aten::addmm" for call in calls) == 20


@pytest.mark.slow
def test_a_program_that_evaluates_before_it_trains_is_planned_as_it_trains(tmp_path: Path) -> None:
    def program() -> None:
        layer, given = nn.Linear(8, 8).cuda(), torch.zeros(4, 8, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        with torch.no_grad():
            for _ in range(300):
                layer(given)
        while True:
            layer(given).sum().backward()
            optimizer.step()

    step, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert step.found_by == "optimizer"
    assert {call.phase for call in calls} >= {"forward", "backward", "optimizer"}


def test_an_optimizer_that_makes_no_step_is_waited_for_so_long_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_hearing, "_MOST_BEFORE_TRAINING", 20)

    def program() -> None:
        layer, given = nn.Linear(8, 8).cuda(), torch.zeros(4, 8, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        while optimizer.param_groups:
            layer(given)

    step, _ = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert step.found_by == "period"
    assert any("an optimizer that made no step in 21 such calls" in note for note in step.notes)


def test_an_optimizer_of_another_program_is_not_waited_for(tmp_path: Path) -> None:
    others = torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.1)

    def program() -> None:
        layer, given = nn.Linear(8, 8).cuda(), torch.zeros(4, 8, device="cuda")
        with torch.no_grad():
            for _ in range(3000):
                layer(given)
        raise AssertionError("the plan went on to the end")

    step, _ = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert step.found_by == "period" and others.param_groups


class Turned(nn.Module):
    """A transform of samples, as torchvision's are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Each is transformed by a module."""

    def __init__(self) -> None:
        self.transform, self.sample = Turned(), torch.zeros(8)

    def __len__(self) -> int:
        return 18000

    def __getitem__(self, place: int) -> torch.Tensor:
        sample: torch.Tensor = self.transform(self.sample)
        return sample


def test_modules_that_a_loaders_process_calls_are_no_steps(tmp_path: Path) -> None:
    def program() -> None:
        layer = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for batch in torch.utils.data.DataLoader(Samples(), batch_size=4500, num_workers=1):
            layer(batch.cuda()).sum().backward()
            optimizer.step()

    step, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert step.found_by == "optimizer" and any(call.name == "aten::addmm" for call in calls)


def test_parameters_of_the_device_are_shared_between_processes_as_they_are(tmp_path: Path) -> None:
    def program() -> None:
        layer = nn.Linear(8, 8).cuda().share_memory()
        for _ in range(100):
            layer(torch.zeros(4, 8, device="cuda"))

    step, _ = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert step.found_by == "period"


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_compiled_step_of_a_fused_optimizer_is_heard_where_nothing_else_compiles(
    tmp_path: Path, kind: type[torch.optim.Optimizer]
) -> None:
    def program() -> None:
        model = nn.Linear(64, 64).cuda()
        optimizer = kind(model.parameters(), lr=0.1, fused=True)  # type: ignore[call-arg]
        update = torch.compile(optimizer.step)
        for _ in range(6):
            model(torch.randn(8, 64, device="cuda")).sum().backward()
            update()
            optimizer.zero_grad()

    step, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert step.found_by == "optimizer"
    assert [call.name for call in calls if call.name.startswith("aten::_fused_")]


def test_a_copy_that_changes_the_dtype_moves_what_the_host_has_or_is_given(tmp_path: Path) -> None:
    """The host changes it before a copy to the device and behind one from there, unless it goes on meanwhile."""

    def program() -> None:
        pictures, there = torch.zeros(1000, dtype=torch.uint8), torch.zeros(1000, device="cuda")
        layer = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        while True:
            there.copy_(pictures)
            there.copy_(pictures, non_blocking=True)
            pictures.to("cuda", torch.float16)
            pictures.to("cuda", torch.float16, non_blocking=True)
            there.to("cpu", torch.float64)
            there.to("cpu", torch.float64, non_blocking=True)
            layer(there[:8]).sum().backward()
            optimizer.step()

    _, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    moved = [call.bytes_moved for call in calls if call.kind == "copy"]
    assert moved == [4000, 1000, 2000, 1000, 4000, 8000]


def test_graphs_of_a_dictionary_are_replayed_in_steps_of_one_kind(tmp_path: Path) -> None:
    """One for each size of a batch, in whatever order they come."""

    def program() -> None:
        layer, graphs = nn.Linear(8, 8).cuda(), {}
        with torch.no_grad():
            for size in (2, 4, 8):
                given = torch.zeros(size, 8, device="cuda")
                with torch.cuda.stream(torch.cuda.Stream()):
                    for _ in range(2):
                        layer(given)
                graphs[size] = given, torch.cuda.CUDAGraph()
                with torch.cuda.graph(graphs[size][1]):
                    layer(given)
        for place in itertools.count():
            given, graph = graphs[(2, 4, 8)[place * place % 7 % 3]]
            given.copy_(torch.zeros(given.shape))
            graph.replay()

    step, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert [dict(kind.calls) for kind in step.kinds] == [{"CUDAGraph.replay": 1}]
    assert [call.name for call in calls if call.kernels and call.kind != "copy"] == ["aten::addmm"]


def test_an_optimizers_step_is_the_step_of_a_plan_whatever_a_profiler_is_told(tmp_path: Path) -> None:
    def program() -> None:
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=2)) as profiler:
            for number in range(100):
                model(torch.randn(4, 8, device="cuda")).sum().backward()
                if number % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()
                profiler.step()

    run_without_device(program, tmp_path / "plan.ledger", H200)
    with open_ledger(tmp_path / "plan.ledger") as reader:
        (step,), calls = reader.read(Step), reader.read(StepCall)
    assert step.found_by == "optimizer"
    assert sum(call.name == "aten::randn" for call in calls) == 4
