"""What eager calls cost that no operator of the catalogue describes: for each, microseconds a kernel and a share of
the bandwidth, learned from calls inside recorded steps.

Enters: calls of batteries (``benchmarks/strangers_data.py``). Leaves: numbers by name, for ``TimeModel.extras``.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import FitError
from torchledger.fitting.learning import COVERAGE
from torchledger.work.list_costs import CHUNK_ELEMENTS

Array = NDArray[np.float64]

_FEWEST = 6
"""Calls below which an operator is left to its roofline."""

_ENOUGH = 8
"""Calls in steps of programs beyond which those of batteries are left out: one after another of their kind, these find
the cache in another state."""

_BATTERY = "battery"

_KERNEL_US = np.exp(np.linspace(np.log(0.8), np.log(40.0), 32))
_SLOWNESS = np.exp(np.linspace(np.log(0.4), np.log(80.0), 44))
_CHUNK_US = (0.0, *np.exp(np.linspace(np.log(1.0), np.log(60.0), 15)).tolist())
_NARROWEST = 0.1
"""Calls of a battery are repeated: what other sizes do is not in their spread."""


@dataclass(frozen=True)
class CallCost:
    """An eager call takes ``kernel_us`` a kernel, and ``slowness`` times what its bytes take at the device's bandwidth;
    90 % of calls lie within a factor ``exp(spread)``. ``kernels`` are those that it launches as a rule, for calls of
    which nothing but the operator was seen. Over a list of tensors a kernel takes ``chunk_us`` more for the chunk of a
    tensor that one of its blocks goes through, however few there are."""

    kernel_us: float
    slowness: float
    spread: float
    kernels: int = 1
    chunk_us: float = 0.0

    def duration_us(
        self, kernels: int, bytes_moved: int, bytes_per_us: float, *, chunk: float = 0.0, moves_all: bool = True
    ) -> float:
        """Time of a call in microseconds; ``chunk`` is of ``share_of_chunk``. ``moves_all`` says that it moves as many
        bytes as are counted, and not fewer."""
        memory_us = bytes_moved / bytes_per_us
        time_us = (self.kernel_us + self.chunk_us * chunk) * max(1, kernels) + self.slowness * memory_us
        is_beyond = moves_all and bytes_moved > _BEYOND_CACHES
        return max(time_us, _QUICKEST * memory_us) if is_beyond else time_us


_BEYOND_CACHES, _QUICKEST = 2**27, 0.87
"""Bytes of which a cache keeps nothing, and what they take at least of the time at the rate of a copy: nothing is
quicker than the memory."""


def share_of_chunk(tensors: int | None, elements: int | None) -> float:
    """How much of a chunk the mean tensor of a list fills, 1 at most; 0 of what is no list."""
    return min(1.0, elements / tensors / CHUNK_ELEMENTS) if tensors and elements else 0.0


def is_scaler(name: str) -> bool:
    """True for the operator with which a gradient scaler ends its work in a step."""
    return name.endswith("_amp_update_scale_")


def known_name(name: str, *, beside_scaler: bool) -> str:
    """What an operator is called whose costs are learned: a fused optimizer beside a gradient scaler is another one,
    since it divides the gradients itself and writes them."""
    return f"{name} scaled" if beside_scaler and "::_fused_" in name else name


_FEW_ROWS = 1024
"""Rows up to which one block of a loss over classes has a thread for each."""


def cost_keys(
    name: str, shape: Sequence[int] = (), dtype: str | None = None, stride: Sequence[int] | None = None
) -> tuple[str, ...]:
    """What a call is known by, the closest first: its operator with the first argument's layout and dtype, with the
    layout, and by itself. Over a tensor that does not lie along its last dimension an operator is another one, and over
    one whose rows do not follow one another; so is a softmax over rows of another length, which a warp, a block or a
    block with shared memory reads, and a loss over classes of many rows.

    >>> cost_keys("aten::clone", (64, 128), "float16", (1, 64))
    ('aten::clone across float16', 'aten::clone across')
    >>> cost_keys("aten::_log_softmax", (4096, 32000), "float32", (32000, 1))[0]
    'aten::_log_softmax of rows 2^15'
    """
    is_across = bool(shape) and bool(stride) and shape[-1] > 1 and (stride or (1,))[-1] != 1
    is_padded = not is_across and len(shape) > 1 and len(stride or ()) > 1 and (stride or (0, 0))[-2] > shape[-1]
    known = f"{name} across" if is_across else f"{name} padded" if is_padded else name
    keys = (f"{known} {dtype}", known) if dtype else (known,)
    if not shape or min(shape) < 1 or is_across:
        return keys
    if "softmax" in name:
        return (f"{name} of rows 2^{round(math.log2(shape[-1]))}", *keys)
    if "nll_loss" in name:
        return (f"{name} of {'few' if shape[0] <= _FEW_ROWS else 'many'} rows", *keys)
    return keys


def cost_of(keys: Sequence[str], extras: Mapping[str, float]) -> CallCost | None:
    """What a model has learned of a call, by the first of its ``cost_keys`` that it knows; ``None`` if nothing."""
    for key in keys:
        if f"{key} kernel us" in extras:
            kernel_us, slowness, spread = (extras[f"{key} {what}"] for what in ("kernel us", "slowness", "spread"))
            kernels, chunk_us = round(extras.get(f"{key} kernels", 1.0)), extras.get(f"{key} chunk us", 0.0)
            return CallCost(kernel_us, slowness, spread, kernels, chunk_us)
    return None


def fit_call_costs(rows: Sequence[Mapping[str, Any]], bytes_per_us: float) -> dict[str, float]:
    """The costs of each operator with enough calls, by least mean absolute logarithm, long calls
    counting more than short ones (by the fourth root of their time); as ``extras``.

    A row has ``name``, ``kernels``, ``bytes_moved``, ``us``, and ``arguments`` (shape, dtype, stride); ``program`` says
    by its name whether it is of a battery.
    """
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["bytes_moved"] is not None and row["us"] > 0:
            first = row["arguments"][0] if row["arguments"] else ((), None, None)
            for key in cost_keys(str(row["name"]), *first):
                by_name.setdefault(key, []).append(row)
    found: dict[str, float] = {}
    for name, rows_of_name in sorted(by_name.items()):
        in_steps = [row for row in rows_of_name if not str(row.get("program", _BATTERY)).startswith(_BATTERY)]
        own = in_steps if len(in_steps) >= _ENOUGH else rows_of_name
        if len(own) < _FEWEST:
            continue
        kernels = np.array([max(1, row["kernels"]) for row in own], dtype=np.float64)
        memory_us = np.array([row["bytes_moved"] / bytes_per_us for row in own])
        log_us = np.log([row["us"] for row in own])
        chunks = np.array([share_of_chunk(row.get("tensors"), row.get("elements")) for row in own])
        cost = _fit(kernels, memory_us, log_us, chunks)
        if cost.chunk_us:
            found[f"{name} chunk us"] = cost.chunk_us
        found |= {f"{name} kernel us": cost.kernel_us, f"{name} slowness": cost.slowness, f"{name} spread": cost.spread}
        if (usual := int(np.median(kernels))) > 1:
            found[f"{name} kernels"] = float(usual)
    return found


def _fit(kernels: Array, memory_us: Array, log_us: Array, chunks: Array) -> CallCost:
    best: tuple[float, float, float, float, float] | None = None
    for chunk_us in _CHUNK_US if chunks.any() else (0.0,):
        predicted = np.log(
            (_KERNEL_US[:, None, None] + chunk_us * chunks) * kernels + _SLOWNESS[None, :, None] * memory_us
        )
        off = np.abs(predicted - log_us)
        errors = np.average(off, axis=2, weights=np.exp(log_us / 4))
        place = np.unravel_index(int(errors.argmin()), errors.shape)
        if best is None or errors[place] < best[0]:
            spread = float(np.quantile(off[place], COVERAGE))
            best = float(errors[place]), float(_KERNEL_US[place[0]]), float(_SLOWNESS[place[1]]), spread, chunk_us
    assert best is not None
    _, kernel_us, slowness, spread, chunk_us = best
    return CallCost(kernel_us, slowness, max(spread, _NARROWEST), chunk_us=chunk_us)


def read_calls(path: Path) -> list[dict[str, Any]]:
    """The calls of a file of ``benchmarks/strangers_data.py``. Raises ``FitError`` if it is none."""
    try:
        rows = json.loads(zlib.decompress(path.read_bytes(), wbits=31))
    except (OSError, ValueError, zlib.error) as error:
        raise FitError(f"{path} is no file of eager calls ({error}).") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) and {"name", "us"} <= row.keys() for row in rows):
        raise FitError(f"{path} is no file of eager calls: each has a name and a time.")
    return rows
