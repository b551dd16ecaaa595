"""How long a library's attention takes by its schedule: blocks of queries (or keys), how many run at once, what each
goes through.

The kernels of PyTorch 2.11 on Hopper, by their names in traces: FlashAttention 2 (blocks of 128 queries forward, of 128
or 64 keys backward; a short grid splits the keys, by the rule of ``set_params_splitkv`` in FlashAttention's
``flash_api.cpp``), cuDNN's (128 queries, 128 keys) and the memory-efficient ones of CUTLASS (64). Costs are constants
of a generation (``Constants.attention``). Models made before kernels had schedules of their own
(``attention_schedules.py``) are asked beside this time.
"""

from __future__ import annotations

import functools
import math
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.constants import AttentionCosts
from torchledger.expecting.machine import Machine

Array = NDArray[np.float64]

_NARROW = 64
"""Elements of a head in which widths are counted."""
_LOADED = 1e4
"""Elements in which what is read and written is counted."""


@dataclass(frozen=True)
class AttentionCall:
    """One call: its library (``"flash"``, ``"cudnn"``, ``"efficient"``) and direction, sizes, and what makes it dearer.

    ``is_strided`` says that the gradient does not lie as (batch, length, heads, d), ``is_bias_odd`` that rows of the
    bias do not begin where sixteen bytes do; ``bias_elements`` lie in memory.
    """

    library: str
    is_backward: bool
    is_single: bool
    batch: int
    heads: int
    heads_kv: int
    length: int
    length_kv: int
    d: int
    is_causal: bool
    has_bias: bool = False
    is_strided: bool = False
    has_dropout: bool = False
    is_bias_odd: bool = False
    is_float16: bool = False
    bias_elements: int = 0

    @property
    def kind(self) -> str:
        """The key of its costs: ``"flash/forward"``, ``"efficient/backward/float32"``; ``"cudnn/one"`` and
        ``"cudnn/one at once"`` for the kernels that cuDNN has for a single query."""
        if self.is_of_one:
            return "cudnn/one at once" if self.length_kv <= AT_ONCE else "cudnn/one"
        direction = "backward" if self.is_backward else "forward"
        return f"{self.library}/{direction}{'/float32' if self.is_single else ''}"

    @property
    def is_of_one(self) -> bool:
        """Whether cuDNN is asked for a single query of each head, forward: short keys by one block, longer ones by
        several at a time, whose parts a second kernel adds up where heads do not fill the device."""
        return self.library == "cudnn" and not self.is_backward and self.length == 1


AT_ONCE = 128
"""Keys that one block of cuDNN's kernels of one query goes through at most."""

_WHOLE_KEYS = 512
"""So many keys of one query are not split, as the kernels' names tell."""

_WIDTHS = {"flash": (32, 64, 96, 128, 192, 256), "cudnn": (64, 128, 192, 256), "efficient": (64, 128, 256)}


def width_of(call: AttentionCall) -> int:
    """Elements of a head that the kernel works on."""
    return next((width for width in _WIDTHS[call.library] if width >= call.d), -(-call.d // _NARROW) * _NARROW)


@dataclass(frozen=True)
class _Blocks:
    """Length of a block, blocks that a multiprocessor holds, whether blocks go over keys, length of an inner step."""

    length: int
    held: int
    over_keys: bool
    step: int


def _blocks(call: AttentionCall) -> _Blocks:
    width = width_of(call)
    if call.library == "flash":
        step = 128 if width <= 64 else 64
        if call.is_backward:
            return _Blocks(128 if width <= 128 else 64, 1, True, step)
        return _Blocks(64 if width == 256 else 128, 2 if width <= 128 else 1, False, step)
    if call.library == "cudnn":
        return _Blocks(128, 1, True, 64) if call.is_backward else _Blocks(128, 1, False, 128)
    held = 4 if width == 64 else 1 if width > 128 else 2 if call.is_backward else 3
    return _Blocks(64, held, call.is_backward, 64)


@functools.lru_cache(maxsize=4096)
def splits_of_keys(call: AttentionCall, multiprocessors: int) -> int:
    """Into how many parts the keys are split where blocks do not fill the device, by FlashAttention's forward and by
    cuDNN's kernels of one query; 1: none."""
    if call.is_of_one:
        blocks = call.batch * call.heads_kv
        is_split = call.length_kv > _WHOLE_KEYS and 2 * blocks <= multiprocessors
        return min(multiprocessors // blocks, -(-call.length_kv // 128)) if is_split else 1
    if call.library != "flash" or call.is_backward:
        return 1
    blocks, slots = call.batch * call.heads * -(-call.length // 64), 2 * multiprocessors
    if blocks >= 0.8 * slots:
        return 1
    parts = -(-call.length_kv // (256 if call.d <= 64 else 128 if call.d <= 128 else 64))
    efficiency = {}
    for count in range(1, min(128, slots, parts) + 1):
        if count == 1 or -(-parts // count) != -(-parts // (count - 1)):
            waves = blocks * count / slots
            efficiency[count] = waves / math.ceil(waves)
    best = max(efficiency.values(), default=1.0)
    return next((count for count, share in efficiency.items() if share >= 0.85 * best), 1)


@functools.lru_cache(maxsize=4096)  # a model's layers are alike, and time and features ask alike
def columns_of(call: AttentionCall, multiprocessors: int) -> tuple[float, ...]:
    """How much there is of each cost, in the order of ``AttentionCosts``."""
    blocks, splits = _blocks(call), splits_of_keys(call, multiprocessors)
    length = 64 if splits > 1 else blocks.length
    outer, inner = (call.length_kv, call.length) if blocks.over_keys else (call.length, call.length_kv)
    rows = -(-outer // length)
    count = call.batch * call.heads * rows * splits
    part = math.ceil(inner / splits)
    longest = math.ceil(part / blocks.step) * blocks.step
    if call.is_causal and splits == 1:
        alone, shared, waves, tail = _uneven(blocks, call, rows, longest, multiprocessors)
    else:
        full, rest = divmod(count, multiprocessors * blocks.held)
        last = -(-rest // multiprocessors)
        steps = [0.0, 0.0]
        steps[blocks.held > 1] += full * longest
        if last:
            steps[last > 1] += longest
        alone, shared, waves, tail = steps[0], steps[1], float(full + bool(last)), 0.0
    wide = width_of(call) / _NARROW
    queries = call.batch * call.heads * call.length * wide / _LOADED
    keys = call.batch * call.heads * call.length_kv * wide / _LOADED
    is_split, is_grouped = float(splits > 1), float(call.heads_kv < call.heads and call.is_backward)
    return (
        *(1.0, alone, shared, alone * wide, shared * wide, waves, waves * wide, queries, keys),
        call.has_bias * (alone + shared),
        *(is_split, is_split * splits * queries, is_grouped, is_grouped * keys),
        *(float(call.is_strided and call.is_backward) * queries, tail, tail * wide),
        *(call.has_dropout * (alone + shared), call.is_bias_odd * (alone + shared)),
    )


def _uneven(
    blocks: _Blocks, call: AttentionCall, rows: int, longest: int, multiprocessors: int
) -> tuple[float, float, float, float]:
    """Steps of blocks alone and beside others, waves, and steps of those that end last, where each block goes through
    more than the one before, as under a causal mask."""
    own = np.minimum(longest, -(-((np.arange(rows) + 1) * blocks.length) // blocks.step) * blocks.step)
    heads = call.batch * call.heads
    count = heads * rows
    held = min(blocks.held, -(-count // multiprocessors))
    share = heads * float(own.sum()) / (multiprocessors * held)
    last = float(own.max())
    steps, tail = max(share, last), min(share, last) if count > multiprocessors else 0.0
    waves = max(1.0, count / (multiprocessors * held))
    return (steps, 0.0, waves, tail) if held == 1 else (0.0, steps, waves, tail)


_OF_MEMORY = ("query", "key", "split_part", "grouped_key", "strided")
_FIXED = ("launch", "split", "grouped")


def attention_us(call: AttentionCall, machine: Machine) -> float | None:
    """Microseconds by the schedule, scaled from the device that the costs were fitted on by this one's rates; ``None``
    for a library that has no costs, or where it is unknown how many blocks run at once."""
    costs = (machine.constants.attention or {}).get(call.kind)
    if costs is None or not machine.has_tile_baseline:
        return None
    reference = machine.constants.reference
    there = reference.device.num_multiprocessors or machine.num_multiprocessors
    dtype = "float32" if call.is_single else "bfloat16"
    rate = reference.single_flops_per_us if call.is_single else reference.half_flops_per_us
    slower = (rate / there) / (machine.peak(dtype) / machine.num_multiprocessors)
    scale = _scales(slower, reference.bytes_per_us / machine.bytes_per_us)
    parts = columns_of(call, machine.num_multiprocessors)
    return max(float(np.dot(np.multiply(parts, scale), astuple(costs))), machine.floor_us)


def rescaled(costs: AttentionCosts, slower: float, slower_memory: float) -> AttentionCosts:
    """The costs on a device whose multiprocessors, and whose memory, take so many times as long."""
    return AttentionCosts(*(cost * by for cost, by in zip(astuple(costs), _scales(slower, slower_memory), strict=True)))


def _scales(slower: float, slower_memory: float) -> list[float]:
    return [slower_memory if name in _OF_MEMORY else 1.0 if name in _FIXED else slower for name in NAMES]


def schedule_columns(call: AttentionCall, machine: Machine) -> dict[str, float]:
    """What of a schedule its costs may not tell in full, as features."""
    parts = dict(zip(NAMES, columns_of(call, machine.num_multiprocessors), strict=True))
    blocks = _blocks(call)
    outer = call.length_kv if blocks.over_keys else call.length
    filled = call.batch * call.heads * (outer / blocks.length) / (machine.num_multiprocessors * blocks.held)
    return {
        "schedule waves": math.log(parts["wave"]),
        "schedule waste": math.log(parts["wave"] / filled),
        "schedule shared": parts["step_shared"] / (parts["step"] + parts["step_shared"]),
        "schedule splits": math.log(splits_of_keys(call, machine.num_multiprocessors)),
        "schedule width": math.log(width_of(call)),
        "schedule padding": math.log(width_of(call) / call.d),
        "schedule strided": float(call.is_strided),
    }


NAMES = tuple(AttentionCosts.__dataclass_fields__)
