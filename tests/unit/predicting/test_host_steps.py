"""What a measured host needs for a step: how slow it is, and how much work the step has for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchledger.nouns import Host, StepCall
from torchledger.predicting.host_steps import (
    _DOCTORS_OPTIMIZER,
    _DOCTORS_STEP,
    _USUAL,
    STEP_COSTS,
    USUAL_HOST_ERROR,
    expected_host,
    launching_us,
    measured_host_us,
    shape_with_calls,
    slowness_of,
    slowness_spread,
    work_of_host,
)
from torchledger.predicting.overheads import StepShape

USUAL = Host("usual", "TEST", **_USUAL)
SHAPE = StepShape(fused=100, library=80, graphs=2, tensors=40, optimizers=1, parameters=40)


def _slower(host: Host, times: float) -> Host:
    return replace(host, **{name: times * cost for name in _USUAL if (cost := getattr(host, name)) is not None})


def _call(name: str, phase: str, order: int, **more: object) -> StepCall:
    facts = {"step": "step", "order": order, "kind": "operator", "name": name, "phase": phase, "kernels": 1}
    return StepCall(**{**facts, **more})  # type: ignore[arg-type]


def test_a_host_is_as_slow_as_its_bursts_in_the_mean() -> None:
    assert slowness_of(USUAL) == pytest.approx(1.0)
    assert slowness_of(_slower(USUAL, 1.7)) == pytest.approx(1.7)
    assert slowness_of(Host("unmeasured", "TEST")) is None
    # One kind that is twice as slow is one of eleven; of two, it is half.
    assert slowness_of(replace(USUAL, operator_us=2 * _USUAL["operator_us"])) == pytest.approx(2 ** (1 / 11))
    two = Host("two", "TEST", operator_us=2 * _USUAL["operator_us"], graph_call_us=_USUAL["graph_call_us"])
    assert slowness_of(two) == pytest.approx(2**0.5)


def test_a_host_of_which_medians_over_rounds_are_kept_is_slower_in_steps_than_it_says() -> None:
    in_rounds = replace(USUAL, spreads={"operator_us": 0.1}, method="median of 12 rounds, torch 2.11.0")
    assert 1.1 < (slowness_of(in_rounds) or 0.0) < 1.25
    assert slowness_of(_slower(in_rounds, 1.7)) == pytest.approx(1.7 * (slowness_of(in_rounds) or 0.0))


def test_means_over_rounds_have_the_slow_moments_in_them() -> None:
    in_rounds = replace(USUAL, spreads={"operator_us": 0.1}, method="mean of 12 rounds, torch 2.11.0")
    assert slowness_of(in_rounds) == pytest.approx(1.0)


def test_a_training_step_counts_as_much_as_all_bursts() -> None:
    said_us = sum(_USUAL[name] * count for name, count in (_DOCTORS_STEP | _DOCTORS_OPTIMIZER).items())
    in_step = 2.0
    quick, slow = (replace(USUAL, in_step=each) for each in (in_step, 4 * in_step))
    assert slowness_of(slow) == pytest.approx(2 * (slowness_of(quick) or 0.0))
    # A host that is slow in all of them is as slow, however long its parts say.
    assert slowness_of(_slower(quick, 1.5)) == pytest.approx(1.5 * (slowness_of(quick) or 0.0))
    # The costs of steps were learned without that step; they say what it takes within a tenth.
    assert in_step * said_us == pytest.approx(
        measured_host_us(
            StepShape(
                fused=79, library=72, graphs=2, tensors=48, optimizers=1, parameters=48, launching_calls=1,
                distinct_calls=1,
            ),
            "eager", 1.0, trains=True,
        ),
        rel=0.1,
    )  # fmt: skip


def test_an_unmeasured_part_of_the_training_step_leaves_it_out() -> None:
    partly = Host("partly", "TEST", fused_launch_us=2 * _USUAL["fused_launch_us"], in_step=9.0)
    assert slowness_of(partly) == pytest.approx(2.0)


def test_a_spread_is_the_mean_over_kinds() -> None:
    assert slowness_spread(USUAL) == 0.0
    spreads = {"operator_us": 0.2 * _USUAL["operator_us"], "graph_call_us": 0.4 * _USUAL["graph_call_us"], "in_step": 9}
    assert slowness_spread(replace(USUAL, spreads=spreads)) == pytest.approx(0.3)


def test_a_step_costs_the_host_each_of_its_parts_and_a_slow_host_all_of_them_more() -> None:
    whole = measured_host_us(SHAPE, "eager", 1.0, trains=True)
    assert measured_host_us(SHAPE, "eager", 2.5, trains=True) == pytest.approx(2.5 * whole)
    assert measured_host_us(SHAPE, "eager", 1.0, trains=False) == pytest.approx(
        whole - STEP_COSTS["trains"] + STEP_COSTS["further_graphs"]
    )
    for name, more in (
        ("fused", replace(SHAPE, fused=101)),
        ("library", replace(SHAPE, library=81)),
        ("convolutions", replace(SHAPE, convolutions=1)),
        ("further_kernels", replace(SHAPE, further_kernels=1)),
        ("further_graphs", replace(SHAPE, graphs=3)),
        ("parameters", replace(SHAPE, parameters=41)),
        ("launching_calls", replace(SHAPE, launching_calls=1)),
        ("distinct_calls", replace(SHAPE, distinct_calls=1)),
        ("fused_tensors", replace(SHAPE, tensors=41)),
        ("listed_tensors", replace(SHAPE, listed_tensors=1)),
        ("scalers", replace(SHAPE, scalers=1)),
    ):
        assert measured_host_us(more, "eager", 1.0, trains=True) == pytest.approx(whole + STEP_COSTS[name])


def test_under_cuda_graphs_launches_cost_the_host_nothing() -> None:
    work = work_of_host(SHAPE, "graphs", trains=True)
    assert work["graphs replays"] == 2 and "fused" not in work
    assert measured_host_us(replace(SHAPE, fused=900), "graphs", 1.0, trains=True) == pytest.approx(
        measured_host_us(SHAPE, "graphs", 1.0, trains=True)
    )


def test_eager_calls_are_told_by_what_they_are_to_the_host() -> None:
    calls = (
        _call("aten::mul", "loss", 0),
        _call("aten::mul", "loss", 1),
        _call("aten::view", "loss", 2, kernels=0),
        _call("aten::nll_loss_backward", "backward", 3),
        _call("aten::detach", "backward", 4, kernels=0),
        _call("aten::detach", "backward", 5, kernels=0),
        _call("aten::_foreach_add_", "optimizer", 6, tensors=2),
        _call("aten::_foreach_mul_", "optimizer", 7, tensors=2),
        _call("aten::_amp_update_scale_", "optimizer", 8),
        _call("aten::reciprocal", "optimizer", 9),
    )
    shape = shape_with_calls(StepShape(1, 0, 2, optimizers=1), (), calls, ran_on_cpu=False)
    assert (shape.launching_calls, shape.distinct_calls) == (3, 2)
    assert (shape.parameters, shape.listed_tensors) == (2, 4)
    # What an optimizer does to one tensor after the other is eager work like any other.
    singly = shape_with_calls(StepShape(1, 0, 2), (), calls, ran_on_cpu=False)
    assert singly.launching_calls == 4


def test_an_eager_convolution_costs_the_host_what_one_in_a_graph_does_beside_its_call() -> None:
    names = ("aten::convolution", "aten::convolution_backward", "aten::mul", "aten::_convert_indices_from_coo_to_csr")
    calls = [StepCall("", order, "operator", name, "forward", kernels=1) for order, name in enumerate(names)]
    shape = shape_with_calls(StepShape(0, 0, 0), (), calls, ran_on_cpu=False)
    assert (shape.launching_calls, shape.convolving_calls) == (4, 2)
    for mode in ("eager", "graphs"):
        assert work_of_host(shape, mode, trains=False)["convolutions"] == 2
    one, other = (launching_us(call, is_new=False) for call in calls[1:3])
    assert one - other == STEP_COSTS["convolutions"]


def test_a_host_that_takes_twice_as_long_for_everything_does_so_for_a_step() -> None:
    slowness, _ = expected_host(_slower(USUAL, 2.0))
    quick, _ = expected_host(_slower(USUAL, 0.5))
    assert slowness / quick == pytest.approx(4.0)
    assert expected_host(None) == (1.0, USUAL_HOST_ERROR) == expected_host(Host("unmeasured", "TEST"))
