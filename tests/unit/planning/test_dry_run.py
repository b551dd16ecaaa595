"""Programs that run without their device. Nothing here compiles, so that Triton is not needed."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchledger
from torchledger.books import read_memory
from torchledger.errors import PlanError, UsageError
from torchledger.memory.elsewhere import memory_on
from torchledger.nouns import Device, DryRun, LiveStorage, Run, Step, StepCall
from torchledger.planning.dry_run import DryRunOutcome, run_without_device, script_program
from torchledger.planning.plan import as_planned
from torchledger.predicting.bus_copies import is_pinned
from torchledger.predicting.devices import find_model
from torchledger.predicting.step import predict_ledger
from torchledger.reporting.overview import verdict
from torchledger.reporting.plan import plan_as_plain
from torchledger.reporting.summary import summarize_ledger
from torchledger.store import open_ledger

pytestmark = pytest.mark.usefixtures("no_optimizer_stays")

H200 = Device(
    name="NVIDIA H200",
    kind="cuda",
    compute_capability=(9, 0),
    total_memory_bytes=141 * 10**9,
    num_multiprocessors=132,
    l2_cache_bytes=60 << 20,
)
WIDTH = 60_000
"""One weight of 14 GB, of which this machine has less to spare than three."""


def training() -> Callable[[], None]:
    """A model that is made on the host, moved, and trained by a script that wants to go on for ever."""

    def program() -> None:
        assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, 8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        best = float("inf")
        while True:
            inputs, labels = torch.randn(16, WIDTH), torch.randint(0, 8, (16,))
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(inputs.cuda()), labels.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
            best = min(best, loss.item())

    return program


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> DryRunOutcome:
    path = tmp_path_factory.mktemp("dry") / "training.ledger"
    return run_without_device(training(), path, H200, argv=("train.py",))


def read(outcome: DryRunOutcome) -> tuple[Step, list[StepCall]]:
    with open_ledger(outcome.path) as reader:
        (step,) = reader.read(Step)
        return step, list(reader.read(StepCall))


def test_a_whole_step_is_recorded_and_ends_the_program(outcome: DryRunOutcome) -> None:
    step, calls = read(outcome)
    assert step.found_by == "optimizer" and not step.is_measured
    assert {call.phase for call in calls} >= {"forward", "loss", "backward", "optimizer"}
    assert [call.order for call in calls] == list(range(len(calls)))
    assert step.operators == step.operators_heard


def test_flops_are_those_of_the_products(outcome: DryRunOutcome) -> None:
    _, calls = read(outcome)
    # The first layer's input needs no gradient: two products of it, three of the second.
    assert sum(call.flops or 0 for call in calls) == 2 * 16 * WIDTH * (2 * WIDTH + 3 * 8)


def test_products_run_in_the_dtype_of_autocast_on_the_device(outcome: DryRunOutcome) -> None:
    _, calls = read(outcome)
    products = [call for call in calls if call.flops]
    assert {call.device for call in products} == {"cuda:0"}
    assert {argument.dtype for call in products for argument in call.arguments} == {"bfloat16"}


def test_operators_that_work_launch_kernels_and_views_do_not(outcome: DryRunOutcome) -> None:
    _, calls = read(outcome)
    kernels = {call.name: call.kernels for call in calls if call.kind == "operator" and call.device == "cuda:0"}
    assert kernels["aten::mm"] == 1 and kernels["aten::t"] == 0
    fused = next(call for call in calls if call.name == "aten::_fused_adamw_")
    # 3.6 G elements in chunks of 65,536, 320 of which go into a launch.
    assert fused.tensors == 3 and fused.kernels == pytest.approx(WIDTH * WIDTH / 65536 / 320, rel=0.02)


def test_memory_is_that_of_the_device(outcome: DryRunOutcome) -> None:
    with open_ledger(outcome.path) as reader:
        storages = reader.read(LiveStorage)
    weights = {each.name: each for each in storages if each.category == "parameters"}
    assert weights["0.weight"].nbytes == 4 * WIDTH * WIDTH and weights["0.weight"].device == "cuda:0"
    assert sum(each.nbytes for each in storages if each.category == "optimizer_state") >= 8 * WIDTH * WIDTH


def test_the_ledger_holds_the_workspaces_that_its_price_counts(outcome: DryRunOutcome) -> None:
    with open_ledger(outcome.path) as reader:
        (step,) = reader.read(Step)
        kept = read_memory(reader, step.name)
        assert kept is not None
        there = memory_on(H200, kept, reader.read(StepCall), [])
    assert kept.by_category["workspaces"] == 2 * 32 << 20
    assert kept.peak_allocated_bytes == there.peak_allocated_bytes


def test_the_ledger_says_that_there_was_no_device_and_what_the_program_was_told(outcome: DryRunOutcome) -> None:
    with open_ledger(outcome.path) as reader:
        (dry_run,) = reader.read(DryRun)
        (run,) = reader.read(Run)
    assert dry_run == outcome.dry_run and dry_run.device == "NVIDIA H200"
    assert [device.name for device in run.devices] == ["NVIDIA H200"] and run.exit_code == 0
    assert any("without a device" in note for note in run.notes)
    (asked,) = dry_run.stand_ins
    assert asked.value.startswith("1.0") and asked.source.startswith(f"{Path(__file__)}:")


def test_a_solver_makes_the_turns_that_it_was_given_and_it_is_said_that_values_decide_them(tmp_path: Path) -> None:
    evaluations = []

    def solving() -> None:
        model = nn.Linear(WIDTH, 1, device="cuda")
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
        inputs = torch.randn(4, WIDTH, device="cuda")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            evaluations[-1] += 1
            return loss

        while True:
            evaluations.append(0)
            optimizer.step(closure)

    outcome = run_without_device(solving, tmp_path / "plan.ledger", H200)
    assert set(evaluations) == {5}
    step, calls = read(outcome)
    assert sum(call.name == "aten::dot" for call in calls) > 2 * 5 * 3, "it works with the steps that it has kept"
    (note,) = (each for each in step.notes if "where they decide how often a loop goes round" in each)
    assert f"{Path(__file__)}:" in note


def test_steps_of_a_search_for_what_fits_are_not_the_step_and_the_search_ends_as_on_the_device(tmp_path: Path) -> None:
    found: list[int] = []

    def searching() -> None:
        model = nn.Linear(1 << 10, 1 << 10).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(size: int) -> None:
            model(torch.zeros(size, 1 << 10, device="cuda")).sum().backward()
            optimizer.step()

        size = 1 << 20
        while True:
            try:
                step(size)
                size *= 2
            except torch.cuda.OutOfMemoryError:
                break
        found.append(size // 2)
        while True:
            step(64)

    outcome = run_without_device(searching, tmp_path / "search.ledger", device=H200)
    step, calls = read(outcome)
    assert found == [1 << 23], "two of 34 GB fit into 141 GB, and two of 69 do not"
    assert any(call.arguments and call.arguments[-2].shape == (64, 1 << 10) for call in calls if "addmm" in call.name)
    assert any("are not priced: the step is one behind them" in note for note in step.notes)


def test_a_step_that_only_a_search_makes_is_the_step_and_it_is_said(tmp_path: Path) -> None:
    def searching() -> None:
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for size in (1, 2, 4, 8):
            try:
                model(torch.zeros(size, 8, device="cuda")).sum().backward()
                optimizer.step()
            except torch.cuda.OutOfMemoryError:
                break

    step, _ = read(run_without_device(searching, tmp_path / "tried.ledger", device=H200))
    assert any("are priced: none outside it was found" in note for note in step.notes)


def test_a_loop_over_a_range_is_not_left_early_by_a_value_and_it_is_said_that_it_may_be(tmp_path: Path) -> None:
    def training() -> None:
        policy = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
        while True:
            found: list[float] = []
            for _ in range(4):
                torch.relu(policy(torch.zeros(4, 8, device="cuda")))
                found.append(policy.weight.mean().item())
                if sum(found) / len(found) > 0.05:
                    break
            policy(torch.zeros(4, 8, device="cuda")).sum().backward()
            optimizer.step()

    outcome = run_without_device(training, tmp_path / "early.ledger", device=H200)
    step, calls = read(outcome)
    assert sum(call.name == "aten::relu" for call in calls) == 4
    assert any(
        "a loop that may be left early by what" in note and "(4 times in the step) goes round to its own end" in note
        for note in step.notes
    )


def test_a_mask_of_random_numbers_takes_its_share_of_the_rows_and_moves_no_others(tmp_path: Path) -> None:
    def predicting() -> None:
        head = nn.Linear(8, 512).cuda()
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        while True:
            mask = torch.rand(4, 250, device="cuda") < 0.25
            logits = head(torch.randn(4, 250, 8, device="cuda"))
            optimizer.zero_grad()
            logits[mask].sum().backward()
            optimizer.step()

    outcome = run_without_device(predicting, tmp_path / "masked.ledger", device=H200)
    (call,) = (call for call in read(outcome)[1] if call.name == "aten::index")
    assert call.settings == (("taken", (250,)),) and call.bytes_moved is not None
    assert call.bytes_moved < 1.1 * 2 * 250 * 512 * 4


def test_an_optimizer_of_a_program_that_was_planned_before_is_not_waited_for(tmp_path: Path) -> None:
    def training() -> None:
        model = nn.Linear(WIDTH, 1, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        left.append(optimizer)
        while True:
            steps.append(len(left))
            model(torch.randn(4, WIDTH, device="cuda")).sum().backward()
            optimizer.step()

    left: list[torch.optim.Optimizer] = []
    steps: list[int] = []
    for place in range(2):
        run_without_device(training, tmp_path / f"{place}.ledger", H200)
    assert steps.count(1) == steps.count(2)


def test_a_step_that_solves_as_long_as_values_say_is_planned_with_one_round_and_it_is_said(tmp_path: Path) -> None:
    def solving() -> None:
        layer = nn.Linear(WIDTH, WIDTH, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        while True:
            x = given = torch.randn(4, WIDTH, device="cuda")
            while (layer(x) - x).norm() > 1e-3:
                x = layer(x).tanh()
            (x - given).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    outcome = run_without_device(solving, tmp_path / "plan.ledger", H200)
    step, calls = read(outcome)
    assert sum(call.name in ("aten::addmm", "aten::linear") for call in calls) == 3, "two conditions and one round"
    assert any("is not known without values" in note and f"{Path(__file__)}:" in note for note in step.notes)


@pytest.mark.parametrize("is_solved", [True, False])
def test_values_are_said_to_decide_a_loop_where_it_may_end_by_them_not_where_they_are_logged(
    tmp_path: Path, is_solved: bool
) -> None:
    def program() -> None:
        weight = torch.nn.Parameter(torch.zeros(64, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        for _ in range(6):
            for _ in range(5):
                loss = weight.square().sum()
                if not torch.isfinite(loss).all():
                    raise ValueError("the loss is not finite")
                if is_solved:
                    if loss.item() < 0.5:
                        break
                else:
                    print(loss.item())
            loss.backward()
            optimizer.step()

    step, _ = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    assert ["(5 times in the step) goes round to its own end" in note for note in step.notes] == [True] * is_solved


def test_torch_is_as_before_when_the_program_has_ended(outcome: DryRunOutcome) -> None:
    assert outcome.path.exists()
    assert not torch.cuda.is_available() and not torch.ones(2).is_cuda
    weight = torch.ones(3, requires_grad=True)
    (weight * 2).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 2.0, 2.0]
    assert torch.nn.Parameter(torch.ones(2)).numpy(force=True).tolist() == [1.0, 1.0]


def test_a_program_that_fails_is_told_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import torch\nx = torch.ones(4, device='cuda')\nx.reshape(3)\n")
    with pytest.raises(PlanError, match=r"broken\.py:3: RuntimeError"):
        run_without_device(script_program(str(script), ()), tmp_path / "broken.ledger", H200)


def test_the_host_waits_for_an_event_of_the_program_s_own_and_for_what_lies_before_it(tmp_path: Path) -> None:
    def limited() -> None:
        layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()
        optimizer = torch.optim.SGD(layers.parameters(), 0.1)
        while True:
            done: list[torch.cuda.Event] = []
            x = torch.randn(64, 512, device="cuda")
            for layer in layers:
                x = layer(x)
                done.append(torch.cuda.Event())
                done[-1].record()
                if len(done) > 2:
                    done.pop(0).synchronize()
            x.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()

    _, calls = read(run_without_device(limited, tmp_path / "limited.ledger", H200))
    waits = [call for call in calls if call.kind == "synchronization"]
    assert [call.name for call in waits] == ["cudaEventSynchronize"] * 2
    products = [call.order for call in calls if call.name == "aten::addmm"]
    assert [call.waits_for for call in waits] == [(products[0],), (products[1],)]
    assert [call.order for call in waits] == [products[2] + 1, products[3] + 1]
    assert all(call.sources[-1].startswith(__file__) for call in waits)


def test_the_host_waits_for_copies_to_and_from_the_device_as_there(tmp_path: Path) -> None:
    def serving() -> None:
        layer = nn.Linear(512, 512).cuda()
        while True:
            asked = torch.zeros(64, 512).to("cuda", non_blocking=True)
            layer(asked).sum().cpu()
            torch.zeros(3).cuda()
            torch.zeros(3, device="cuda").sum().item()
            torch.zeros(3).sum().item()

    _, calls = read(run_without_device(serving, tmp_path / "serving.ledger", H200))
    kinds = [call.kind for call in calls if call.kind in ("copy", "synchronization")]
    # From one call of the layer to the next; the first copy of a turn is asked not to block.
    assert kinds == ["copy", "synchronization"] * 3 + ["copy"]
    assert [call.order for call in calls] == list(range(len(calls)))
    predicted, *_ = predict_ledger(find_model("H200"), tmp_path / "serving.ledger")
    assert any(note.startswith("the host waits for the device 3 times") for note in predicted.notes)
    assert predicted.duration_us > max(predicted.device_us, predicted.host_us)
    assert any("Linear.forward x1" in note or "what repeats among the calls" in note for note in predicted.notes)


def adversaries(turns: int, fails: bool = False) -> Callable[[], None]:
    """A critic that is updated three times for each update of the other."""

    def program() -> None:
        maker, critic = nn.Linear(32, 64).cuda(), nn.Linear(64, 1).cuda()
        of_maker, of_critic = (torch.optim.SGD(each.parameters(), 0.1) for each in (maker, critic))
        for _ in range(turns):
            for _ in range(3):
                critic(maker(torch.randn(8, 32, device="cuda")).detach()).mean().backward()
                of_critic.step()
            (-critic(maker(torch.randn(8, 32, device="cuda"))).mean()).backward()
            of_maker.step()
        if fails:
            raise RuntimeError("behind its last step")

    return program


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_is_the_whole_turn_of_two_optimizers(tmp_path: Path, fails: bool) -> None:
    step, calls = read(run_without_device(adversaries(4, fails=fails), tmp_path / "gan.ledger", H200))
    assert len(step.optimizers) == 2
    assert sum(call.name == "aten::addmm" for call in calls) == 3 * 2 + 2


def test_a_step_that_the_program_ends_itself_is_whole(tmp_path: Path) -> None:
    """Four updates of one optimizer are a turn, and the first mark comes behind the first of them."""

    def program() -> None:
        policy = nn.Linear(32, 4).cuda()
        idle = nn.Linear(4, 4).cuda()
        optimizer, _later = torch.optim.SGD(policy.parameters(), 0.1), torch.optim.SGD(idle.parameters(), 0.1)
        for _ in range(6):
            for _ in range(4):
                policy(torch.randn(8, 32, device="cuda")).mean().backward()
                optimizer.step()
            torchledger.step()

    step, calls = read(run_without_device(program, tmp_path / "marked.ledger", H200))
    assert step.found_by == "torchledger.step"
    assert sum(call.name == "aten::addmm" for call in calls) == 4


def test_a_turn_that_the_program_does_not_end_leaves_the_step_that_was_heard(tmp_path: Path) -> None:
    step, calls = read(run_without_device(adversaries(1), tmp_path / "gan.ledger", H200))
    assert len(step.optimizers) == 1 and sum(call.name == "aten::addmm" for call in calls) == 2


def test_a_program_that_ends_too_soon_is_told(tmp_path: Path) -> None:
    script = tmp_path / "short.py"
    script.write_text("import sys, torch\nassert sys.argv[1:] == ['--steps', '1']\n(torch.ones(4).cuda() * 2).sum()\n")
    with pytest.raises(PlanError, match="no step was recorded"):
        run_without_device(script_program(str(script), ("--steps", "1")), tmp_path / "short.ledger", H200)


def _tried_on_the_host(fails: bool) -> Callable[[], None]:
    """A model is called alike on the host, as what sets up its weights there is, before it comes near the device."""

    def program() -> None:
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        with torch.no_grad():
            for _ in range(80):
                model(torch.randn(8, 16))
        model.cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            model(torch.randn(8, 16, device="cuda")).mean().backward()
            if fails:
                raise RuntimeError("in its first step")
            optimizer.step()

    return program


def test_calls_on_the_host_alone_are_no_step_of_a_program_that_trains_on_the_device(tmp_path: Path) -> None:
    step, calls = read(run_without_device(_tried_on_the_host(False), tmp_path / "tried.ledger", H200))
    assert step.found_by == "optimizer" and {call.device for call in calls} == {"cuda:0"}


def test_a_program_that_fails_behind_calls_on_the_host_alone_has_no_step(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="in its first step"):
        run_without_device(_tried_on_the_host(True), tmp_path / "failed.ledger", H200)


def _counted(turns: list[int]) -> Callable[[], None]:
    """Trains for 40 steps, which it counts."""

    def program() -> None:
        layer = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for turn in range(40):
            turns.append(turn)
            layer(torch.zeros(4, 8, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return program


def test_a_step_that_was_not_heard_as_a_plan_needs_it_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a tensor that says nothing of itself")

    monkeypatch.setattr("torchledger._torch.storages._names", fail)
    with pytest.raises(PlanError, match=r"not heard as a plan needs it: .*KeyError: 'a tensor that says nothing"):
        run_without_device(_counted([]), tmp_path / "plan.ledger", H200)


def test_a_step_that_cannot_be_written_down_is_told_with_the_reason_and_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("no such operator")

    monkeypatch.setattr("torchledger.planning.later_steps._MOST", 0)
    monkeypatch.setattr("torchledger.planning.step_hearing.record_heard_step", fail)
    turns: list[int] = []
    with pytest.raises(PlanError, match="could not be written down: KeyError: 'no such operator'"):
        run_without_device(_counted(turns), tmp_path / "plan.ledger", H200)
    assert len(turns) < 40


def test_a_script_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.py is not a file"):
        script_program("nowhere.py", ())


def test_what_would_compile_asks_for_triton_where_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)

    def program() -> None:
        torch.compile(nn.Linear(4, 4).cuda())(torch.ones(2, 4, device="cuda"))

    with pytest.raises(PlanError, match="pip install triton"):
        run_without_device(program, tmp_path / "compiled.ledger", H200)


def test_our_words_are_told_without_the_graph_that_a_compiler_writes_behind_them(tmp_path: Path) -> None:
    def program() -> None:
        raise RuntimeError("backend failed") from PlanError("install it.\n\nWhile executing %submod_0 : call_module")

    with pytest.raises(PlanError) as told:
        run_without_device(program, tmp_path / "split.ledger", H200)
    assert str(told.value) == "install it."


def test_what_shows_the_ledger_says_that_nothing_was_measured(outcome: DryRunOutcome) -> None:
    with open_ledger(outcome.path) as reader:
        first, second, third = verdict(summarize_ledger(reader))
    assert "nothing of it was measured" in first
    assert "no call of a compiled graph" in second and "230 GFLOP" in second
    assert "predict-step" in third


def test_a_plan_has_the_keys_that_scripts_read(outcome: DryRunOutcome) -> None:
    step, *_ = predict_ledger(find_model("H200"), outcome.path)
    plain = plan_as_plain(as_planned(step), outcome.dry_run)
    keys = {"step", "communication", "memory", "ranks", "launches", "kernel_launches", "rarer_steps"}
    keys |= {"notes", "stand_ins"}
    assert set(plain) == keys | {"decisions"}
    assert set(plain["memory"]) == {"peak_allocated_bytes", "fits"}
    assert plain["notes"] == list(as_planned(step).notes)
    times = {"duration_us", "low_us", "high_us", "device_us", "host_us", "host_work_us"}
    assert set(plain["step"]) == times | {"decided_by", "mean_us"}
    assert 0 <= plain["step"]["low_us"] < plain["step"]["duration_us"] < plain["step"]["high_us"]
    assert plain["step"]["decided_by"] == "compute" and plain["ranks"] == 1
    # The parameters, their gradients and both moments, in single precision.
    assert 16 * WIDTH * WIDTH < plain["memory"]["peak_allocated_bytes"] < 20 * WIDTH * WIDTH


def test_a_list_of_a_tensors_values_is_waited_for_at_its_line(tmp_path: Path) -> None:
    def program() -> None:
        weight = torch.nn.Parameter(torch.zeros(64, 64, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        for _ in range(6):
            chosen = torch.zeros(4, device="cuda", dtype=torch.int64)
            chosen.tolist()
            weight.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    _, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    (copied, waited) = [call for call in calls if call.kind in ("copy", "synchronization")]
    assert (copied.name, copied.bytes_moved) == ("aten::_to_copy", 4 * 8)
    assert waited.order == copied.order + 1 and waited.sources == copied.sources
    assert [line for line in waited.sources if not line.startswith(__file__)] == [], (
        "what runs the program is no part of it"
    )


def test_garbage_that_nothing_has_collected_yet_is_not_in_a_steps_memory(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """When Python next looks for cycles is chance: it depends on all that the process did before."""

    def program() -> None:
        layer = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        held: dict[str, object] = {"tensor": torch.zeros(12_345, device="cuda")}
        held["itself"] = held
        del held
        while True:
            layer(torch.zeros(4, 8, device="cuda")).sum().backward()
            optimizer.step()

    gc.disable()
    request.addfinalizer(gc.enable)
    with open_ledger(run_without_device(program, tmp_path / "plan.ledger", H200).path) as reader:
        assert 4 * 12_345 not in {each.nbytes for each in reader.read(LiveStorage)}


def test_copies_over_the_bus_are_priced_by_the_memory_that_they_read_or_fill(tmp_path: Path) -> None:
    def program() -> None:
        weight = torch.nn.Parameter(torch.zeros(1 << 24, device="cuda"))
        optimizer = torch.optim.SGD([weight], 0.1)
        pinned, pageable = torch.empty(1 << 24, pin_memory=True), torch.empty(1 << 24)
        for _ in range(3):
            (weight * pinned.cuda() * pageable.cuda()).sum().backward()
            pageable.copy_(weight.detach())
            pinned[: 1 << 23].copy_(weight.detach()[: 1 << 23])
            optimizer.step()

    outcome = run_without_device(program, tmp_path / "copies.ledger", H200)
    with open_ledger(outcome.path) as reader:
        copies = [call for call in reader.read(StepCall) if call.kind == "copy"]
    assert [call.bytes_moved for call in copies] == [1 << 26, 1 << 26, 1 << 26, 1 << 25]
    assert [is_pinned(call) for call in copies] == [True, False, False, True]
    step, *_ = predict_ledger(find_model("H200"), outcome.path)
    size = (3 << 26) + (1 << 25)
    assert any(f"copies between host and device (4, {size:,} bytes) take" in note for note in step.notes)
    assert step.device_us > (1 << 27) / 7_000 + (3 << 25) / 55_000 - (1 << 20) / 7_000


def test_recurrent_layers_are_priced_by_their_time_steps_or_it_is_said_that_they_are_not(tmp_path: Path) -> None:
    def program() -> None:
        layer = nn.LSTM(64, 128).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            layer(torch.zeros(9, 4, 64, device="cuda"))[0].sum().backward()
            optimizer.step()

    outcome = run_without_device(program, tmp_path / "recurrent.ledger", H200)
    with open_ledger(outcome.path) as reader:
        calls = {call.name: call for call in reader.read(StepCall)}
    products = 2 * 9 * 4 * 4 * 128 * (64 + 128)
    assert (calls["aten::_cudnn_rnn"].flops, calls["aten::_cudnn_rnn_backward"].flops) == (products, 2 * products)
    step, *_ = predict_ledger(find_model("H200"), outcome.path)
    assert not as_planned(step).notes
    model = find_model("H200")
    unlearned = {name: us for name, us in model.extras.items() if "_rnn" not in name}
    step, *_ = predict_ledger(replace(model, extras=unlearned), outcome.path)
    waits, roofline = as_planned(step).notes
    assert "recurrent layers (2 calls) wait for each other" in waits
    assert "roofline alone" in roofline and "aten::_cudnn_rnn (1)" in roofline


def test_a_view_is_taken_over_by_a_compilers_own_mode(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    taken = []

    def program() -> None:
        windows = torch.randint(0, 8, (4, 9)).cuda()
        model = nn.Linear(8, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        while True:
            mode = FakeTensorMode()
            taken.append(mode.from_tensor(windows[:, :-1], static_shapes=True).fake_mode is mode)
            model(windows[:, :-1].float()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run_without_device(program, tmp_path / "view.ledger", H200)
    assert taken and all(taken)


@pytest.mark.parametrize("kind", ["SGD", "SparseAdam", "Adagrad"])
def test_sparse_gradients_take_what_they_hold_whatever_their_table_is(kind: str, tmp_path: Path) -> None:
    found = []
    for rows in (100_000, 50_000_000):

        def program(rows: int = rows) -> None:
            bags = nn.EmbeddingBag(rows, 32, mode="sum", sparse=True).cuda()
            optimizer = getattr(torch.optim, kind)(bags.parameters(), lr=0.1)
            for _ in range(6):
                optimizer.zero_grad()
                bags(torch.randint(0, rows, (512, 4), device="cuda")).sum().backward()
                optimizer.step()

        outcome = run_without_device(program, tmp_path / f"{rows}.ledger", H200)
        _, calls = read(outcome)
        held = {each.held_bytes for call in calls for each in call.arguments if each.held_bytes is not None}
        assert held == {512 * 4 * (32 * 4 + 8)}
        names = [call.name for call in calls]
        waited = [names[place - 1] for place, call in enumerate(calls) if call.kind == "synchronization"]
        assert waited == ([] if kind == "SGD" else ["aten::_coalesce"])
        step, *_ = predict_ledger(find_model("H200"), outcome.path)
        found.append(step.device_us)
    # Words of a table that no cache holds come from memory, which costs these few hardly anything.
    assert found[0] == pytest.approx(found[1], rel=0.005) and found[1] < 300


def test_what_reads_the_length_of_its_result_is_waited_for_at_its_line(tmp_path: Path) -> None:
    def program() -> None:
        weight = torch.nn.Parameter(torch.zeros(64, 64, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        for _ in range(6):
            mask = torch.rand(64, device="cuda") > 0.5
            mask.nonzero()
            torch.ones(64, device="cuda")[mask] = 1.0
            weight.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    _, calls = read(run_without_device(program, tmp_path / "plan.ledger", H200))
    waited = [call for call in calls if call.kind == "synchronization"]
    assert [calls[call.order - 1].name for call in waited] == ["aten::nonzero"]
    assert waited[0].sources == calls[waited[0].order - 1].sources


def test_a_size_that_the_program_gives_is_no_stand_in(tmp_path: Path) -> None:
    def program() -> None:
        weight = torch.nn.Parameter(torch.zeros(64, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        for _ in range(6):
            repeats = torch.full((8,), 2, device="cuda", dtype=torch.int64)
            torch.repeat_interleave(weight[:8], repeats, output_size=16).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert run_without_device(program, tmp_path / "plan.ledger", H200).dry_run.stand_ins == ()


def test_a_program_that_values_may_have_ended_is_told_where_it_asked_for_them(tmp_path: Path) -> None:
    def program() -> None:
        layer, go_on = nn.Linear(8, 8).cuda(), True
        while go_on:
            go_on = bool((layer(torch.zeros(2, 8, device="cuda")) > 0).any())

    asked = r"may have ended it, the last of them first: at .*test_dry_run\.py:\d+ \(False\)\. A loop .*planned\.$"
    with pytest.raises(PlanError, match=asked):
        run_without_device(program, tmp_path / "short.ledger", H200)


def test_the_value_that_was_asked_last_is_named_before_those_that_were_asked_more_often(tmp_path: Path) -> None:
    def program() -> None:
        layer, gap = nn.Linear(8, 8).cuda(), 2.0
        given = torch.rand(2, 8, device="cuda")
        for _ in range(4):
            print((given > 0).any().item())
        while gap > 1.0:
            gap = layer(given).norm().item()
            if (layer.weight > 9).all():
                return

    with pytest.raises(PlanError, match=r"first: at \S+:(\d+) \(True\), \S+:(\d+) \(False\), \S+ \(1\.0\)\.") as error:
        run_without_device(program, tmp_path / "short.ledger", H200)
    lines = [int(each) for each in re.findall(r"\.py:(\d+) ", str(error.value))]
    assert lines[0] > lines[2] > lines[1]


def test_a_cuda_graph_of_the_programs_own_is_priced_launch_by_launch_and_that_is_said(tmp_path: Path) -> None:
    def program() -> None:
        layer = nn.Linear(8, 8).cuda()
        given = torch.zeros(2, 8, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            layer(given)
        for _ in range(6):
            layer(given)

    decisions = run_without_device(program, tmp_path / "plan.ledger", H200).dry_run.decisions
    assert [count for what, count in decisions.items() if "a CUDA graph that the program captures" in what] == [1]


def test_inference_runs_what_the_device_would_and_not_what_torch_writes_for_tracing(tmp_path: Path) -> None:
    def program() -> None:
        layer, drop, model = nn.LSTM(8, 8).cuda(), nn.Dropout(0.5).eval(), nn.Linear(8, 8).cuda()
        with torch.inference_mode():
            for _ in range(100):
                x = torch.zeros(4, 2, 8, device="cuda")
                layer(drop(model(x)))

    run_without_device(program, tmp_path / "infer.ledger", H200)
    with open_ledger(tmp_path / "infer.ledger") as reader:
        work = [call.name for call in reader.read(StepCall) if call.kernels]
    assert sorted(work) == ["aten::_cudnn_rnn", "aten::addmm", "aten::zeros", "aten::zeros", "aten::zeros"]


def test_batches_that_a_program_loads_on_its_own_thread_are_told(tmp_path: Path) -> None:
    class Slow(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, place: int) -> torch.Tensor:
            return torch.ones(8) * float(sum(number % 7 for number in range(100_000)))

    def program() -> None:
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in torch.utils.data.DataLoader(Slow(), batch_size=4):
            model(batch.cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run_without_device(program, tmp_path / "loads.ledger", H200)
    with open_ledger(tmp_path / "loads.ledger") as reader:
        (step,) = reader.read(Step)
    assert any("loaded on the thread that launches" in note for note in step.notes)


def test_zeros_are_as_wide_as_the_program_says(tmp_path: Path) -> None:
    def program() -> None:
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            torch.zeros(64, 64, dtype=torch.bfloat16, device="cuda")
            torch.full((64, 64), 1.0, dtype=torch.float16, device="cuda")
            model(torch.zeros(8, 8, device="cuda")).sum().backward()
            optimizer.step()

    run_without_device(program, tmp_path / "zeros.ledger", H200)
    with open_ledger(tmp_path / "zeros.ledger") as reader:
        moved = [call.bytes_moved for call in reader.read(StepCall) if call.name in ("aten::zeros", "aten::full")]
    assert moved.count(64 * 64 * 2) == 2 and moved.count(8 * 8 * 4) >= 1
