"""What each entry of a step is for."""

from __future__ import annotations

from typing import Any

from torchledger.nouns import CallKind
from torchledger.stepping.entries import Entry
from torchledger.stepping.phases import phases_of

ENGINE = ("autograd::engine::evaluate_function: MmBackward0",)


def entry(name: str, kind: CallKind = "operator", **changes: Any) -> Entry:
    return Entry(kind, name, row=0, lane=0, start_ns=0, end_ns=1, **changes)


def graph(name: str) -> Entry:
    return entry(name, "graph")


DIRECTIONS: dict[str, Any] = {"forward_0": "forward", "backward_0": "backward", "inference_1": "inference"}


def phases(*entries: Entry, **known: Any) -> list[str]:
    return list(phases_of(entries, directions=DIRECTIONS, **known))


def test_operators_between_the_forward_and_the_backward_are_the_loss() -> None:
    found = phases(
        graph("forward_0"), entry("aten::_log_softmax"), entry("aten::nll_loss_forward"), graph("backward_0")
    )
    assert found == ["forward", "loss", "loss", "backward"]


def test_what_compiled_autograd_calls_is_the_backward() -> None:
    whole, behind = "Torch-Compiled Region: 0/0", "Torch-Compiled Region: !0/1/0"
    called = entry("inference_1", "graph", around=(whole, behind))
    first = entry("forward_0", "graph", around=(whole, "CompiledFunction"))
    step = entry("aten::add_", around=("Optimizer.step#AdamW.step",))
    assert phases(first, entry("aten::detach"), called, step) == ["forward", "loss", "backward", "optimizer"]


def test_norms_between_the_backward_and_the_optimizer_are_clipping() -> None:
    step = entry("aten::add_", around=("Optimizer.step#AdamW.step",))
    found = phases(graph("backward_0"), entry("aten::_foreach_norm"), entry("aten::_foreach_mul_"), step)
    assert found == ["backward", "clipping", "clipping", "optimizer"]


def test_the_code_that_asked_decides_before_the_place() -> None:
    found = phases(
        graph("forward_0"),
        entry("aten::mul"),
        graph("backward_0"),
        code={1: ("torch/nn/utils/clip_grad.py:clip_grad_norm_",)},
    )
    assert found[1] == "clipping"


def test_what_a_backward_calls_when_its_nodes_are_over_is_the_backward() -> None:
    engine = "torch/autograd/graph.py:_engine_run_backward"
    last = "torch/distributed/fsdp/_fully_shard/_fsdp_state.py:_root_post_backward_final_callback"
    step = entry("aten::add_", around=("Optimizer.step#AdamW.step",))
    for code in ((engine,), (engine, last), (last,)):
        found = phases(graph("backward_0"), entry("aten::add_"), entry("aten::_foreach_norm"), step, code={1: code})
        assert found == ["backward", "backward", "clipping", "optimizer"]


def test_the_clipping_of_fsdp_and_of_the_programs_own_scales_gradients_one_by_one() -> None:
    clips = "torch/distributed/fsdp/fully_sharded_data_parallel.py:clip_grad_norm_"
    step = entry("aten::add_", around=("Optimizer.step#AdamW.step",))
    clipped = [graph("backward_0"), entry("aten::linalg_vector_norm"), entry("aten::mul_"), step]
    for code in ({}, {1: (clips,), 2: (clips,)}):
        assert phases(*clipped, code=code) == ["backward", "clipping", "clipping", "optimizer"]


def test_what_comes_before_the_first_forward_is_input() -> None:
    assert phases(entry("aten::_to_copy", "copy"), graph("forward_0"), graph("backward_0"))[0] == "input"


def test_with_accumulation_what_stands_between_two_microsteps_is_input() -> None:
    once = [graph("forward_0"), entry("aten::div"), graph("backward_0"), entry("aten::slice")]
    assert phases(*once, *once)[:7] == ["forward", "loss", "backward", "input", "forward", "loss", "backward"]


def test_an_eager_operator_of_a_module_between_compiled_blocks_is_forward() -> None:
    found = phases(
        graph("forward_0"), entry("aten::add"), graph("forward_0"), graph("backward_0"), modules={1: "blocks"}
    )
    assert found == ["forward", "forward", "forward", "backward"]


def test_a_graph_without_backward_that_runs_after_the_last_backward_is_the_optimizer() -> None:
    assert phases(graph("forward_0"), graph("backward_0"), graph("inference_1")) == ["forward", "backward", "optimizer"]


def test_an_inference_graph_without_a_backward_in_the_step_is_forward() -> None:
    assert phases(graph("inference_1"), entry("aten::argmax")) == ["forward", "other"]


def test_communication_hides_in_no_other_phase_and_makes_none() -> None:
    found = phases(
        entry("aten::mm", around=ENGINE),
        entry("c10d::allreduce_", "collective", around=ENGINE),
        entry("aten::mm", around=ENGINE),
    )
    assert found == ["backward", "communication", "backward"]


def test_every_entry_has_a_phase() -> None:
    assert len(phases(*[entry(f"aten::op_{number}") for number in range(5)])) == 5


IN_STEP = ("Optimizer.step#LBFGS.step",)


def test_a_closure_inside_an_optimizers_step_is_forward_loss_and_backward() -> None:
    found = phases(
        entry("aten::zero_", around=(*IN_STEP, "Optimizer.zero_grad#LBFGS.zero_grad")),
        entry("forward_0", "graph", around=IN_STEP),
        entry("aten::mean", around=IN_STEP),
        entry("aten::mm", around=(*IN_STEP, *ENGINE)),
        entry("backward_0", "graph", around=(*IN_STEP, *ENGINE)),
        entry("aten::dot", around=IN_STEP),
    )
    assert found == ["optimizer", "forward", "loss", "backward", "backward", "optimizer"]


def test_a_module_that_a_closure_calls_is_forward_and_its_loss_is_loss() -> None:
    code = ("torch/optim/lbfgs.py:step", "torch/nn/modules/module.py:_call_impl")
    found = phases(
        entry("aten::addmm", around=IN_STEP),
        entry("aten::mse_loss", around=IN_STEP),
        entry("aten::add_", around=IN_STEP),
        code={0: code, 1: (code[0], "torch/nn/functional.py:mse_loss"), 2: code[:1]},
        modules={0: "net.0"},
    )
    assert found == ["forward", "loss", "optimizer"]


def test_an_optimizer_in_a_hook_is_known_by_its_code_and_a_closures_backward_by_the_engines() -> None:
    step, engine = "torch/optim/adam.py:step", "torch/autograd/graph.py:_engine_run_backward"
    heard = [entry("aten::mul_", around=ENGINE) for _ in range(3)]
    code = {0: (engine, step), 1: (step, engine), 2: (engine,)}
    assert phases(*heard, code=code) == ["optimizer", "backward", "backward"]


def test_an_optimizer_that_a_hook_of_the_backward_calls_is_the_optimizer() -> None:
    step = entry("aten::addcdiv_", around=(*ENGINE, "Optimizer.step#Adam.step"))
    assert phases(graph("forward_0"), entry("aten::mm", around=ENGINE), step) == ["forward", "backward", "optimizer"]
