"""Attention by blocks handed out one by one: who ends when, what a kernel costs, and what regressors see."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchledger.expecting.attention_schedules import (
    SCHEDULED,
    TimedCall,
    costs_for,
    counts_of,
    fit_attention_kernels,
    hand_out,
    kernel_columns,
    last_end,
    last_end_of_pairs,
    rescaled_kernel,
    schedule_of,
    scheduled_us,
    steps_of_blocks,
    tiling_of,
)
from torchledger.expecting.attention_times import AttentionCall
from torchledger.expecting.launch_features import baseline_column
from torchledger.expecting.machine import Machine
from torchledger.predicting.devices import find_model

MULTIPROCESSORS = 132

CALLS = st.builds(
    AttentionCall,
    library=st.sampled_from(["flash", "cudnn", "efficient"]),
    is_backward=st.booleans(),
    is_single=st.booleans(),
    batch=st.integers(1, 64),
    heads=st.sampled_from([1, 4, 12, 40]),
    heads_kv=st.just(1),
    length=st.integers(1, 5000),
    length_kv=st.integers(1, 5000),
    d=st.sampled_from([8, 48, 64, 80, 128, 160, 256, 320]),
    is_causal=st.booleans(),
    has_bias=st.booleans(),
    is_strided=st.booleans(),
    has_dropout=st.booleans(),
    is_bias_odd=st.booleans(),
    is_float16=st.booleans(),
    bias_elements=st.integers(0, 10**8),
)
BLOCKS = st.lists(st.integers(1, 20).map(float), min_size=1, max_size=60)


def call(library: str = "flash", **changes: Any) -> AttentionCall:
    sizes = {"batch": 4, "heads": 8, "heads_kv": 8, "length": 1024, "length_kv": 1024, "d": 64}
    return AttentionCall(library, **({"is_backward": False, "is_single": False, "is_causal": False} | sizes | changes))


@pytest.fixture(scope="module")
def machine() -> Machine:
    return find_model("H200").machine


@given(CALLS)
def test_every_call_has_counts_and_features_that_are_finite(each: AttentionCall) -> None:
    schedule = schedule_of(each, MULTIPROCESSORS)
    assert all(np.isfinite(count) and count >= 0 for count in schedule.counts.values())
    assert all(np.isfinite(value) for value in schedule.features.values())
    assert schedule.counts["wave"] >= 1


@given(CALLS)
def test_every_call_has_a_time_or_its_kind_has_no_costs(each: AttentionCall) -> None:
    machine = find_model("H200").machine
    time_us = scheduled_us(each, machine)
    assert time_us is None or time_us >= machine.floor_us
    assert (time_us is None) == (costs_for(each, machine.constants.attention_kernels or {}) is None)


@given(BLOCKS, st.integers(1, 7))
def test_blocks_end_when_servers_that_take_them_one_by_one_are_done(blocks: list[float], servers: int) -> None:
    free = [0.0] * servers
    for block in blocks:
        free[int(np.argmin(free))] += block
    assert last_end(blocks, servers) == pytest.approx(max(free))


def _watched(blocks: list[float], multiprocessors: int, *, first_is_served_first: bool) -> float:
    """When the last block ends, by a clock that watches each: two share a multiprocessor, each half as quick."""
    queue = list(blocks)
    held: list[list[float]] = [[] for _ in range(multiprocessors)]
    for _ in range(2):
        for each in held:
            if queue:
                each.append(queue.pop(0))
    now = 0.0
    while any(held):
        step = min(min(each) / (2 if len(each) == 1 else 1) for each in held if each)
        now += step
        for each in held:
            each[:] = [left - step * (2 if len(each) == 1 else 1) for left in each]
            each[:] = [left for left in each if left > 1e-9]
        for each in held if first_is_served_first else reversed(held):
            while queue and len(each) < 2:
                each.append(queue.pop(0))
    return now


@example(blocks=[1.0, 1.0, 5.0, 1.0, 4.0], multiprocessors=2)
@given(BLOCKS, st.integers(1, 7))
def test_pairs_end_when_a_clock_that_watches_every_block_says_so(blocks: list[float], multiprocessors: int) -> None:
    said = last_end_of_pairs(blocks, multiprocessors)
    # Multiprocessors that become free at once are served in either order.
    ends = [_watched(blocks, multiprocessors, first_is_served_first=first) for first in (True, False)]
    assert 0.65 * min(ends) <= said <= 1.35 * max(ends)
    if len(blocks) <= 2 * multiprocessors:
        assert said == pytest.approx(ends[0])


def test_equal_blocks_are_counted_as_they_would_be_handed_out() -> None:
    for heads in (1, 40, 132, 140, 264, 300, 500, 4000):
        handed = hand_out([3.0, 3.0], heads, MULTIPROCESSORS, 1)
        assert handed.steps == last_end([3.0] * 2 * heads, MULTIPROCESSORS)
        assert handed.waves == handed.steps / 3


def test_heads_beyond_some_waves_take_their_share_of_the_device() -> None:
    steps = [float(row + 1) for row in range(9)]
    handed = hand_out(steps, 3000, MULTIPROCESSORS, 1)
    free = [0.0] * MULTIPROCESSORS
    for block in steps * 3000:
        heapq.heapreplace(free, free[0] + block)
    assert handed.steps == pytest.approx(max(free), rel=0.01)


def test_a_causal_mask_leaves_each_block_what_it_sees() -> None:
    forward = call(is_causal=True, length=512, length_kv=512)
    assert steps_of_blocks(forward, tiling_of(forward)) == [1, 2, 3, 4]
    wide = replace(forward, d=128)
    assert steps_of_blocks(wide, tiling_of(wide)) == [2, 4, 6, 8]
    backward = replace(forward, is_backward=True)
    assert steps_of_blocks(backward, tiling_of(backward)) == [4, 3, 2, 1]
    ahead = replace(forward, length=256)
    assert steps_of_blocks(ahead, tiling_of(ahead)) == [3, 4]


@pytest.mark.parametrize(
    ("changes", "length", "step", "held"),
    [
        ({"d": 64}, 128, 128, 2),
        ({"d": 80}, 128, 64, 2),
        ({"d": 160}, 128, 64, 1),
        ({"d": 256}, 64, 64, 2),
        ({"d": 128, "is_backward": True}, 128, 64, 1),
        ({"d": 192, "is_backward": True}, 64, 64, 1),
        ({"library": "cudnn", "d": 192, "is_backward": True}, 64, 64, 1),
    ],
)
def test_blocks_go_by_the_width_of_a_head(changes: dict[str, Any], length: int, step: int, held: int) -> None:
    tiling = tiling_of(call(**changes))
    assert (tiling.length, tiling.step, tiling.held) == (length, step, held)


def test_a_length_that_is_no_multiple_of_a_block_takes_the_kernel_that_checks_bounds() -> None:
    assert "uneven_wave" not in schedule_of(call(length=1024), MULTIPROCESSORS).counts
    assert "uneven_wave" in schedule_of(call(length=1000), MULTIPROCESSORS).counts
    assert "uneven_wave" in schedule_of(call(d=48), MULTIPROCESSORS).counts


def test_costs_are_found_again_from_calls_that_obey_them(machine: Machine) -> None:
    true = {"launch": 3.0, "step": 2.0, "wave": 1.5, "query": 0.5, "cold": 0.03}
    pick = np.random.default_rng(0)
    timed = []
    for _ in range(120):
        length = int(pick.integers(1, 40)) * 128
        each = call("cudnn", batch=int(pick.integers(1, 40)), length=length, length_kv=length, is_causal=True)
        cold = float(pick.integers(0, 2)) * 1e7
        counts = counts_of(each, machine, cold_bytes=cold, read_bytes=1e7)
        timed.append(TimedCall(each, cold, 1e7, sum(cost * counts.get(name, 0.0) for name, cost in true.items())))
    costs = fit_attention_kernels(timed, machine)
    own = replace(machine, own_constants=replace(machine.constants, attention_kernels=costs))
    for each in timed:
        said = scheduled_us(each.call, own, cold_bytes=each.cold_bytes, read_bytes=each.read_bytes)
        assert said == pytest.approx(each.time_us, rel=0.01)


def test_few_calls_of_a_kernel_teach_nothing(machine: Machine) -> None:
    assert not fit_attention_kernels([TimedCall(call(), 0.0, 1.0, 5.0)] * 10, machine)


def test_a_width_without_costs_takes_those_of_the_nearest() -> None:
    known = {"flash/forward/64": {"launch": 1.0}, "flash/forward/256": {"launch": 2.0}}
    assert costs_for(call(d=192), known) == {"launch": 2.0}
    assert costs_for(call(d=96), known) == {"launch": 1.0}
    assert costs_for(call("cudnn"), known) is None


def test_what_the_cache_lost_takes_longer(machine: Machine) -> None:
    warm = scheduled_us(call(), machine)
    cold = scheduled_us(call(), machine, cold_bytes=5e7, read_bytes=5e7)
    assert warm is not None and cold is not None and cold > warm


def test_memory_and_multiprocessors_are_rescaled_each_by_its_own() -> None:
    costs = {"launch": 1.0, "step": 1.0, "query": 1.0}
    assert rescaled_kernel(costs, 2.0, 3.0) == {"launch": 1.0, "step": 2.0, "query": 3.0}


def test_a_library_without_costs_and_a_machine_of_unknown_multiprocessors_have_no_time(machine: Machine) -> None:
    without = replace(machine, own_constants=replace(machine.constants, attention_kernels=None))
    assert scheduled_us(call(), without) is None
    assert not kernel_columns(call(), without, cold_bytes=0.0, read_bytes=1.0)
    unknown = replace(machine, device=replace(machine.device, num_multiprocessors=None))
    assert scheduled_us(call(), unknown) is None


def test_a_regressor_is_asked_beside_the_schedule_that_it_learned_beside() -> None:
    assert baseline_column("launch:attention/forward", (SCHEDULED, "causal")) == SCHEDULED
    assert baseline_column("launch:attention/forward", ("log expected", "causal")) == "log expected"
