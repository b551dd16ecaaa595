"""How long a library's attention takes by what its multiprocessors go through, block after block.

``attention_times.py`` counts waves; here blocks are handed out one by one, as the device does it, so that the unequal
blocks under a causal mask come out as they end. Blocks by head dimension are those of FlashAttention 2's launch
templates for Hopper (128 queries and 128 or 64 keys forward, 64 and 64 at 256, where two blocks fit; 128 or 64 keys
backward) and, for cuDNN, those that its times show (128 by 128 forward; 128 keys by 64 queries backward, 64 by 64
beyond a head dimension of 128). Each kernel, that is each library, direction, width and mask, has costs of its own
(``Constants.attention_kernels``), fitted by ``fit_attention_kernels``.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.attention_times import AT_ONCE, AttentionCall, splits_of_keys, width_of
from torchledger.expecting.machine import Machine

Array = NDArray[np.float64]

SCHEDULED = "log scheduled"
"""The column of the logarithm of the time by this schedule."""

_FEWEST = 60
_FEWEST_OF_WIDTH = 30
_WAVES = 8
"""Waves that are handed out block by block; heads beyond them take their share of the device."""
_LOADED = 1e6
"""Elements, or bytes, in which what is read and written is counted."""
_STEADY_ROWS = 24
"""Blocks of a head from which on its uneven ones cost no more than even ones."""
_ROUNDS = 3
_SMALLEST_ERROR = 0.01

_OF_MEMORY = frozenset(
    [
        "query",
        "key",
        "heads_key",
        "query_64",
        "query_128",
        "key_64",
        "key_128",
        "cold",
        "bias_read",
        "grouped_key",
        "strided_query",
        "part_query",
    ]
)
_FIXED = frozenset(["launch", "split", "log_splits", "grouped", "strided", "odd", "cold_share"])


@dataclass(frozen=True)
class Tiling:
    """Length of a block and of its inner steps, blocks that a multiprocessor holds, whether blocks go over keys."""

    length: int
    step: int
    held: int
    over_keys: bool


def tiling_of(call: AttentionCall, splits: int = 1) -> Tiling:
    """How a call's kernel divides it."""
    width = width_of(call)
    if call.is_of_one:
        return Tiling(64, 64, 4, False) if call.length_kv <= AT_ONCE else Tiling(16, 128, 2, False)
    if splits > 1:
        return Tiling(64, 256 if width <= 64 else 128 if width <= 128 else 64, 2, False)
    if call.library == "flash":
        step = 128 if width <= 64 else 64
        if call.is_backward:
            return Tiling(128 if width <= 128 else 64, step, 1, True)
        return Tiling(64 if width == 256 else 128, step, 1 if width == 192 else 2, False)
    if call.library == "cudnn":
        return Tiling(128 if width <= 128 else 64, 64, 1, True) if call.is_backward else Tiling(128, 128, 1, False)
    held = 4 if width == 64 else 1 if width > 128 else 2 if call.is_backward else 3
    return Tiling(64, 64, held, call.is_backward)


def steps_of_blocks(call: AttentionCall, tiling: Tiling, splits: int = 1) -> list[float]:
    """Inner steps of the blocks of one head, in the order in which they begin."""
    outer, inner = (call.length_kv, call.length) if tiling.over_keys else (call.length, call.length_kv)
    rows, most = -(-outer // tiling.length), -(-inner // tiling.step)
    if not call.is_causal:
        steps = [most] * rows
    elif tiling.over_keys:
        before = call.length - call.length_kv
        steps = [max(1, most - max(0, row * tiling.length + before) // tiling.step) for row in range(rows)]
    else:
        after = call.length_kv - call.length
        seen = (-(-((row + 1) * tiling.length + after) // tiling.step) for row in range(rows))
        steps = [min(max(each, 1), most) for each in seen]
    if splits == 1:
        return [float(each) for each in steps]
    part = -(-most // splits)
    return [
        # A part that the mask hides altogether ends at once.
        max(min(each, (number + 1) * part) - number * part, 0.3)
        for number in range(splits)
        for each in steps
    ]


@dataclass(frozen=True)
class Handed:
    """When the last block ends, in inner steps: if each takes its time whoever is beside it, and if those on one
    multiprocessor share what it does; ``waves`` and ``shared_waves`` are the same of blocks of one step."""

    steps: float
    shared_steps: float
    waves: float
    shared_waves: float


def hand_out(steps: Sequence[float], heads: int, multiprocessors: int, held: int) -> Handed:
    """The blocks of so many heads, one after the other, each to the multiprocessor that is free first."""
    slots = multiprocessors * held
    full, rest = divmod(len(steps) * heads, slots)
    waves, shared_waves = float(full + bool(rest)), full + -(-rest // multiprocessors) / held
    if min(steps) == max(steps):
        return Handed(waves * steps[0], shared_waves * steps[0] if held > 1 else 0.0, waves, shared_waves)
    kept = min(heads, -(-_WAVES * slots // len(steps)))
    more = (heads - kept) * sum(steps) / slots
    own = list(steps) * kept
    alone = last_end(own, slots) + more
    if held == 1:
        return Handed(alone, 0.0, waves, shared_waves)
    pairs = last_end_of_pairs(own, multiprocessors) if held == 2 else None
    shared = last_end([each / held for each in own], multiprocessors) if pairs is None else pairs
    return Handed(alone, shared + more, waves, shared_waves)


def last_end(blocks: Sequence[float], servers: int) -> float:
    """When the last of some blocks ends that are begun in order, each by the server that is free first."""
    free = list(blocks[:servers])
    heapq.heapify(free)
    for block in blocks[servers:]:
        heapq.heapreplace(free, free[0] + block)
    return max(free)


def last_end_of_pairs(blocks: Sequence[float], multiprocessors: int) -> float:
    """The same where a multiprocessor works on two blocks at a time, and on one alone twice as fast."""
    first, second = blocks[:multiprocessors], blocks[multiprocessors : 2 * multiprocessors]
    # When a multiprocessor ends a block next, and how much of its other one is left then.
    ends = [(min(pair), abs(pair[0] - pair[1])) for pair in zip(first, second, strict=False)]
    ends += [(one / 2, 0.0) for one in first[len(second) :]]
    heapq.heapify(ends)
    place, now = 2 * multiprocessors, 0.0
    while ends:
        now, left = ends[0]
        mine = [left] if left > 0 else []
        taken = blocks[place : place + 2 - len(mine)]
        place += len(taken)
        mine += taken
        if len(mine) == 2:
            heapq.heapreplace(ends, (now + min(mine), abs(mine[0] - mine[1])))
        elif mine:
            heapq.heapreplace(ends, (now + mine[0] / 2, 0.0))
        else:
            heapq.heappop(ends)
    return now


@dataclass(frozen=True)
class Schedule:
    """Of a call, how much there is of each cost by name, and what the regressors see of it."""

    counts: Mapping[str, float]
    features: Mapping[str, float]


@functools.lru_cache(maxsize=4096)  # a model's layers are alike, and both states of a timing ask alike
def schedule_of(call: AttentionCall, multiprocessors: int) -> Schedule:
    """How a call runs on a device of so many multiprocessors."""
    splits = splits_of_keys(call, multiprocessors)
    tiling = tiling_of(call, splits)
    # Queries that share keys are rows of one block, but where all keys are one block too.
    is_shared = call.is_of_one and call.length_kv > AT_ONCE
    steps, heads = steps_of_blocks(call, tiling, splits), call.batch * (call.heads_kv if is_shared else call.heads)
    handed = hand_out(steps, heads, multiprocessors, tiling.held)
    width, rows = width_of(call), len(steps)
    outer, inner = (call.length_kv, call.length) if tiling.over_keys else (call.length, call.length_kv)
    is_uneven = bool(outer % tiling.length or inner % tiling.step) or (
        # FlashAttention has kernels without checks of bounds for whole blocks of these widths alone.
        call.library == "flash" and (call.d < width or width > 128)
    )
    uneven, causal, split = float(is_uneven), float(call.is_causal), float(splits > 1)
    bias, odd, padded = float(call.has_bias), float(call.is_bias_odd), float(call.d < width)
    query, key = heads * call.length * call.d / _LOADED, heads * call.length_kv * call.d / _LOADED
    uneven_causal = uneven * causal * (1 - 1 / rows)
    later = max(handed.waves - 1, 0.0)
    counts = {
        "launch": 1.0,
        "step": handed.steps * (1 - split), "shared_step": handed.shared_steps * (1 - split),
        "wave": handed.waves, "shared_wave": handed.shared_waves if tiling.held > 1 else 0.0,
        "query": query, "key": key * call.heads_kv / call.heads, "heads_key": key,
        "uneven_wave": uneven * handed.waves, "uneven_step": uneven * handed.steps,
        "uneven_causal_wave": uneven_causal * handed.waves, "uneven_causal_later": uneven_causal * later,
        "uneven_causal_short": uneven_causal * later * max(1 - rows / _STEADY_ROWS, 0.0),
        "causal_wave": causal * handed.waves, "causal_step": causal * handed.steps, "longest": causal * max(steps),
        "bias_step": bias * handed.steps, "bias_wave": bias * handed.waves, "bias_read": call.bias_elements / _LOADED,
        "odd": odd, "odd_step": odd * handed.steps, "odd_wave": odd * handed.waves,
        "padded_step": padded * handed.steps, "padded_wave": padded * handed.waves,
        "float16_step": call.is_float16 * handed.steps, "dropout_step": call.has_dropout * handed.steps,
        "split": split, "split_step": split * handed.steps, "split_shared": split * handed.shared_steps,
        "log_splits": math.log(splits), "part_query": split * splits * query,
    }  # fmt: skip
    for block in (64, 128):
        counts[f"query_{block}"] = heads * -(-call.length // block) * block * call.d / _LOADED
        counts[f"key_{block}"] = heads * -(-call.length_kv // block) * block * call.d / _LOADED
    if call.is_backward:
        grouped, strided = float(call.heads_kv < call.heads), float(call.is_strided)
        counts |= {"grouped": grouped, "grouped_key": grouped * key}
        counts |= {"strided": strided, "strided_query": strided * query}
    filled = rows * heads / (multiprocessors * tiling.held)
    even = sum(steps) * heads / (multiprocessors * tiling.held)
    features = {
        "tiles rows": math.log(rows),
        "tiles waves": math.log(filled),
        "tiles waste": math.log(handed.waves / filled),
        "tiles last wave": filled - math.floor(filled),
        "tiles full waves": min(math.floor(filled), 4.0),
        "tiles steps": math.log(even / filled),
        "tiles unequal": math.log(handed.steps / even),
        "tiles uneven": uneven,
        "tiles uneven causal": uneven * causal,
        "tiles rest": outer % tiling.length / tiling.length,
        "tiles inner rest": inner % tiling.step / tiling.step,
        "tiles splits": math.log(splits),
        "tiles width": math.log(width),
        "tiles padded": padded,
        "tiles bias": math.log1p(call.bias_elements / _LOADED),
        "float16": float(call.is_float16),
    }
    return Schedule({name: count for name, count in counts.items() if count}, features)


def counts_of(call: AttentionCall, machine: Machine, *, cold_bytes: float, read_bytes: float) -> dict[str, float]:
    """How much there is of each cost, where so many bytes of those read are not in the cache."""
    counts = dict(schedule_of(call, machine.num_multiprocessors).counts)
    if cold_bytes > 0:
        counts |= {"cold": cold_bytes / _LOADED, "cold_share": cold_bytes / max(read_bytes, cold_bytes)}
    return counts


def scheduled_us(
    call: AttentionCall, machine: Machine, *, cold_bytes: float = 0.0, read_bytes: float = 0.0
) -> float | None:
    """Microseconds by the schedule, scaled from the device that the costs were fitted on by this one's rates; ``None``
    for a library that has no costs, or where it is unknown how many blocks run at once."""
    if not machine.has_tile_baseline:
        return None
    costs = costs_for(call, machine.constants.attention_kernels or {})
    if costs is None:
        return None
    counts = counts_of(call, machine, cold_bytes=cold_bytes, read_bytes=read_bytes)
    own = rescaled_kernel(costs, *_slower(machine, is_single=call.is_single))
    return max(sum(cost * counts.get(name, 0.0) for name, cost in own.items()), machine.floor_us)


def _slower(machine: Machine, *, is_single: bool) -> tuple[float, float]:
    """How many times as long a multiprocessor and the memory take as those of the device that costs were fitted on."""
    reference = machine.constants.reference
    there = reference.device.num_multiprocessors or machine.num_multiprocessors
    rate = reference.single_flops_per_us if is_single else reference.half_flops_per_us
    peak = machine.peak("float32" if is_single else "bfloat16")
    slower = (rate / there) / (peak / machine.num_multiprocessors)
    return slower, reference.bytes_per_us / machine.bytes_per_us


def kernel_columns(call: AttentionCall, machine: Machine, *, cold_bytes: float, read_bytes: float) -> dict[str, float]:
    """The time by the schedule and what it may not tell in full, as features; empty where it has no time."""
    time_us = scheduled_us(call, machine, cold_bytes=cold_bytes, read_bytes=read_bytes)
    if time_us is None:
        return {}
    features = schedule_of(call, machine.num_multiprocessors).features
    cold = math.log1p(cold_bytes / machine.bytes_per_us / time_us)
    return {SCHEDULED: math.log(time_us), "tiles cold": cold, **features}


def costs_for(call: AttentionCall, known: Mapping[str, Mapping[str, float]]) -> Mapping[str, float] | None:
    """A kernel's costs: those of its width and mask, of its width, or of the width nearest to its own."""
    width = width_of(call)
    own = known.get(_key(call, width, call.is_causal)) or known.get(_key(call, width))
    if own is not None:
        return own
    widths = [int(key.rpartition("/")[2]) for key in known if key.startswith(f"{call.kind}/") and key[-1].isdigit()]
    if not widths:
        return None
    return known[_key(call, min(widths, key=lambda each: abs(math.log(each / width))))]


def _key(call: AttentionCall, width: int, is_causal: bool | None = None) -> str:
    """``"flash/forward/128/causal"``; ``"flash/forward/128"`` with and without a mask."""
    mask = "" if is_causal is None else "/causal" if is_causal else "/whole"
    return f"{call.kind}/{width}{mask}"


def rescaled_kernel(costs: Mapping[str, float], slower: float, slower_memory: float) -> dict[str, float]:
    """The costs on a device whose multiprocessors, and whose memory, take so many times as long."""
    return {
        name: cost * (slower_memory if name in _OF_MEMORY else 1.0 if name in _FIXED else slower)
        for name, cost in costs.items()
    }


@dataclass(frozen=True)
class TimedCall:
    """A call, how many of the bytes that it reads were not in the cache, and its time."""

    call: AttentionCall
    cold_bytes: float
    read_bytes: float
    time_us: float


def fit_attention_kernels(timed: Sequence[TimedCall], machine: Machine) -> dict[str, dict[str, float]]:
    """Costs by kernel, none below zero, with the least mean relative error; kernels with few calls are left out.

    The times were measured on ``machine``; costs are of the device that its constants were fitted on.
    """
    groups: dict[str, list[TimedCall]] = defaultdict(list)
    for each in timed:
        width = width_of(each.call)
        groups[_key(each.call, width)].append(each)
        groups[_key(each.call, width, each.call.is_causal)].append(each)
    found = {}
    for key, own in sorted(groups.items()):
        if len(own) >= (_FEWEST_OF_WIDTH if key[-1].isdigit() else _FEWEST):
            found[key] = _fit_kernel(own, machine)
    return found


def _fit_kernel(timed: Sequence[TimedCall], machine: Machine) -> dict[str, float]:
    from scipy.optimize import nnls

    counts = [counts_of(each.call, machine, cold_bytes=each.cold_bytes, read_bytes=each.read_bytes) for each in timed]
    names = sorted({name for each in counts for name in each})
    slower = _slower(machine, is_single=timed[0].call.is_single)
    here = np.array(list(rescaled_kernel(dict.fromkeys(names, 1.0), *slower).values()))
    times = np.array([each.time_us for each in timed])
    relative = np.array([[each.get(name, 0.0) for name in names] for each in counts]) * here / times[:, None]
    # The solver ends at a tolerance that is the same for all: costs of a launch and of an element differ by 10^6.
    scale = np.linalg.norm(relative, axis=0)
    relative, weights = relative / scale, np.ones(len(times))
    for _ in range(_ROUNDS + 1):
        costs, _ = nnls(relative * weights[:, None], weights)
        # Least squares of errors over their own square roots: in the end the mean error itself.
        weights = 1 / np.sqrt(np.maximum(np.abs(relative @ costs - 1), _SMALLEST_ERROR))
    return {name: float(f"{cost:.5g}") for name, cost in zip(names, costs / scale, strict=True) if cost > 0}
