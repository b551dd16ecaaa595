"""The signals by which steps are found, on torch itself."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from torchledger._torch import optimizers
from torchledger._torch.optimizers import OptimizerWatch, facts_of_optimizer, holds_optimizer
from torchledger._torch.profiler import Recording
from torchledger._torch.steps import StepClock, identity_of, parameter_places, updates_parameters, watch_profiler_steps
from torchledger.nouns import OptimizerFacts


class Compiled:
    """Stands for a compiled graph, with what it was compiled with."""

    def __init__(self, **options: Any) -> None:
        self.fx_kwargs = options


def stepped(optimizer: Any, model: nn.Module) -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def test_every_optimizer_is_heard_until_the_hook_is_taken_out() -> None:
    model = nn.Linear(4, 4)
    heard: list[Any] = []
    patches = OptimizerWatch(heard.append, heard.append)
    optimizers = [torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters())]
    for optimizer in optimizers:
        stepped(optimizer, model)
    patches.undo()
    stepped(optimizers[0], model)
    assert heard == optimizers


def test_a_step_of_which_nobody_can_say_whose_it_is_is_a_fault_and_none_of_the_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> bool:
        raise RuntimeError("planted")

    monkeypatch.setattr(optimizers, "_is_inside_own_step", fail)
    model = nn.Linear(4, 4)
    heard: list[Any] = []
    faults: list[Exception] = []
    patches = OptimizerWatch(heard.append, faults.append)
    stepped(torch.optim.SGD(model.parameters()), model)
    patches.undo()
    assert heard == [] and list(map(str, faults)) == ["planted"]


class Lookahead(torch.optim.SGD):
    """An optimizer whose step calls its base class's."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return super().step(closure)


def test_an_optimizer_that_calls_its_base_class_steps_once() -> None:
    model = nn.Linear(4, 4)
    heard: list[Any] = []
    patches = OptimizerWatch(heard.append, heard.append)
    optimizer = Lookahead(model.parameters())
    stepped(optimizer, model)
    stepped(optimizer, model)
    patches.undo()
    assert heard == [optimizer] * 2


def graphs_of_compiled_step(*, is_watched: bool) -> list[int]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(len(module.graph.nodes))
        return module.forward

    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    compiled = torch.compile(optimizer.step, backend=backend)
    heard: list[Any] = []
    patches = OptimizerWatch(heard.append, heard.append) if is_watched else None
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        compiled()
    if patches is not None:
        patches.undo()
    model(torch.ones(2, 4)).sum().backward()
    compiled()
    assert heard == []
    return graphs


def test_a_compiled_optimizer_has_the_same_graphs_with_the_hook_and_is_not_compiled_again_without() -> None:
    assert graphs_of_compiled_step(is_watched=True) == graphs_of_compiled_step(is_watched=False)


def test_facts_of_an_optimizer_count_what_has_gradients() -> None:
    used, unused = nn.Linear(4, 4), nn.Linear(8, 8)
    optimizer = torch.optim.SGD([*used.parameters(), *unused.parameters()])
    used(torch.ones(2, 4)).sum().backward()
    assert facts_of_optimizer(optimizer) == OptimizerFacts("SGD", 2, 20, ("float32",))


def test_an_optimizer_is_found_by_the_parameters_that_it_holds() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    assert holds_optimizer({id(model.weight)})
    assert not holds_optimizer({id(other.weight)})
    del optimizer


def test_a_profilers_steps_are_heard() -> None:
    heard: list[bool] = []
    patches = watch_profiler_steps(lambda: heard.append(True))
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1)
    with torch.profiler.profile(schedule=schedule) as profile:
        profile.step()
        profile.step()
    patches.undo()
    assert len(heard) == 2


def test_calls_of_one_graph_with_other_parameters_differ_and_with_other_inputs_do_not() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    inputs = [first.weight, first.bias, torch.ones(2)]
    places = parameter_places(Compiled(static_input_idxs=[0]), inputs)
    assert identity_of(inputs, places) == identity_of([first.weight, first.bias, torch.ones(2)], places)
    assert identity_of(inputs, places) != identity_of([second.weight, second.bias, torch.ones(2)], places)


def test_without_parameters_the_inputs_that_stay_tell_calls_apart() -> None:
    buffer, other = torch.ones(2), torch.ones(2)
    places = parameter_places(Compiled(static_input_idxs=[1]), [torch.ones(2), buffer])
    assert places == (1,)
    assert identity_of([torch.ones(2), buffer], places) == identity_of([torch.ones(2), buffer.view(2)], places)
    assert identity_of([torch.ones(2), buffer], places) != identity_of([torch.ones(2), other], places)


def test_what_a_forward_saved_for_its_backward_tells_no_calls_apart() -> None:
    assert parameter_places(Compiled(static_input_idxs=[0], is_backward=True), [torch.ones(2)]) == ()


def test_a_clock_has_one_duration_fewer_than_ticks() -> None:
    clock = StepClock()
    for _ in range(3):
        clock.tick()
    durations = clock.durations_us()
    assert len(durations) == 2
    assert 0 <= sum(durations) <= clock.elapsed_us


def test_a_recording_is_not_stopped_by_another_thread() -> None:
    recording = Recording()
    recording.start()
    failed: list[str] = []

    def stop() -> None:
        with pytest.raises(RuntimeError, match="the thread that started it"):
            recording.stop()
        failed.append("yes")

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()
    assert failed
    assert recording.is_open
    recording.stop()
    assert not recording.is_open


@pytest.mark.parametrize("ends", [Recording.discard, lambda recording: recording.export().unlink()])
def test_what_was_recorded_is_freed_before_another_recording_takes_its_memory(ends: Any) -> None:
    recording = Recording(with_shapes=True, with_memory=True)
    recording.start()
    torch.ones(3).sum()
    recording.stop()
    profile = recording._profile.profiler
    assert profile.kineto_results is not None
    ends(recording)
    assert profile.kineto_results is None


def test_a_graph_that_writes_into_parameters_is_told_from_one_that_writes_into_buffers() -> None:
    inputs = [nn.Linear(2, 2).weight, torch.ones(2)]
    assert updates_parameters(SimpleNamespace(mutated_input_idxs={0, 1}), inputs)
    assert not updates_parameters(SimpleNamespace(mutated_input_idxs={1, 7}), inputs)
    assert not updates_parameters(SimpleNamespace(), inputs)


def test_a_graph_that_writes_into_what_lies_here_of_a_sharded_parameter_is_an_optimizers() -> None:
    parameter, other = nn.Parameter(torch.ones(4)), torch.ones(2)
    parameter._local_tensor = shard = torch.ones(4)[:2]  # type: ignore[attr-defined]
    writes_first = SimpleNamespace(mutated_input_idxs={0})
    assert not updates_parameters(writes_first, [shard])
    optimizer = torch.optim.SGD([parameter])
    assert updates_parameters(writes_first, [shard.view(2, 1)])
    assert not updates_parameters(writes_first, [other, shard])
    del optimizer
