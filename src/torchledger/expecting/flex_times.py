"""What kernels of ``flex_attention`` take: by the blocks that their mask leaves, and what is done with each score.

Inductor writes such a kernel for each score and mask (Triton), so that no library's schedule is theirs. Their time
grows with the pairs of queries and keys in the blocks that are visited, by what a pair costs: products over the width
of a head, the exponential, operations of the program's own on scores, and the mask where a block is partly masked.
Constants are fitted to 176 drawn configurations on an H100 (``benchmarks/launches/flex_cuda.py``); they scale with the
number of multiprocessors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_BLOCK = 128
_WIDTHS = (32, 64, 128, 256)
COMPUTE_CAPABILITY, _MULTIPROCESSORS = (9, 0), 132
"""Of the device that the constants are of."""


@dataclass(frozen=True)
class FlexCall:
    """One call: ``visited`` and ``partial`` are shares of its blocks, of which any pairs attend and of which some do
    not; ``simple`` operations and ``hard`` ones (exponentials, tangents) are done with each score."""

    backward: bool
    is_float32: bool
    batch: int
    heads: int
    length: int
    length_kv: int
    d: int
    visited: float = 1.0
    partial: float = 0.0
    simple: int = 0
    hard: int = 0
    heads_kv: int = 0

    @property
    def pairs(self) -> float:
        """Pairs of queries and keys in visited blocks, of all heads."""
        return self.batch * self.heads * self.length * self.length_kv * self.visited


FORWARD: Mapping[str, float] = {
    "floor": 6.9116,
    "product 32": 0.4562,
    "product 64": 0.8335,
    "product 128": 1.0643,
    "product 256": 1.907,
    "single 32": 29.23,
    "single 64": 49.82,
    "single 128": 98.92,
    "single 256": 145.17,
    "pair": 11.08,
    "simple": 4.8328,
    "hard": 223.36,
    "partial": 34.19,
    "masked": 23.59,
    "odd": 32.67,
    "grouped": 0.9914,
    "waves": 0.9431,
    "task": 2.7251,
}
BACKWARD: Mapping[str, float] = {
    "floor": 11.03,
    "product 32": 1.2095,
    "product 64": 2.2353,
    "product 128": 2.7412,
    "product 256": 11.44,
    "single 32": 319.03,
    "single 64": 313.88,
    "single 128": 315.13,
    "single 256": 358.95,
    "pair": 88.66,
    "simple": 10.15,
    "hard": 405.81,
    "partial": 55.45,
    "masked": 29.32,
    "odd": 68.87,
    "grouped": 1.0665,
    "waves": 0.6765,
    "task": 6.2271,
}
"""In microseconds for each call (``floor``), for each block of queries (``task``), and for a million pairs on one
multiprocessor; ``product`` and ``single`` (float32) are by the width of a head, for each of its elements."""


def flex_us(
    call: FlexCall, constants: Mapping[str, float] | None = None, *, multiprocessors: int | None = None
) -> float:
    """The time of a call on the device, in microseconds; constants are of ``fit_flex`` (``None``: as shipped), and
    ``multiprocessors`` the device's (``None``: as many as theirs)."""
    known = constants or (BACKWARD if call.backward else FORWARD)
    costs = np.array([known[name] for name in _names()])
    return float(_times(_columns([call]), costs)[0]) * _MULTIPROCESSORS / (multiprocessors or _MULTIPROCESSORS)


def fit_flex(measured: Sequence[tuple[FlexCall, float]]) -> dict[str, float]:
    """Costs of calls of one direction, from their times in microseconds."""
    from scipy.optimize import least_squares

    columns = _columns([call for call, _ in measured])
    logs = np.log([us for _, us in measured])
    start = np.log([_START[name.partition(" ")[0]] for name in _names()])

    def off(logarithms: np.ndarray) -> np.ndarray:
        errors = np.log(_times(columns, np.exp(logarithms))) - logs
        return np.concatenate([errors, 0.05 * (logarithms - start)])

    found = least_squares(off, start, loss="soft_l1", f_scale=0.1).x
    return {name: float(value) for name, value in zip(_names(), np.exp(found), strict=True)}


_START: Mapping[str, float] = {
    "floor": 5.0,
    "product": 1.0,
    "single": 30.0,
    "pair": 20.0,
    "simple": 5.0,
    "hard": 30.0,
    "partial": 30.0,
    "masked": 5.0,
    "odd": 30.0,
    "grouped": 1.0,
    "waves": 0.5,
    "task": 0.5,
}


def _names() -> tuple[str, ...]:
    products = (f"{kind} {width}" for kind in ("product", "single") for width in _WIDTHS)
    return ("floor", *products, "pair", "simple", "hard", "partial", "masked", "odd", "grouped", "waves", "task")


def _columns(calls: Sequence[FlexCall]) -> dict[str, np.ndarray]:
    """What a call costs in millionths of microseconds of one multiprocessor, by kind."""

    def column(value: object) -> np.ndarray:
        return np.array([float(value(call)) for call in calls])  # type: ignore[operator]

    found = {
        "pairs": column(lambda call: call.pairs / _MULTIPROCESSORS / 1e6),
        "tasks": column(lambda call: call.batch * call.heads * math.ceil(call.length / _BLOCK)),
        "partial": column(lambda call: call.partial / max(call.visited, 1e-9)),
        "masked": column(lambda call: call.visited < 1 or call.partial > 0),
        "odd": column(lambda call: call.length % _BLOCK != 0 or call.length_kv % _BLOCK != 0),
        "simple": column(lambda call: call.simple),
        "hard": column(lambda call: call.hard),
        "grouped": column(lambda call: 0 < call.heads_kv < call.heads),
    }
    for width in _WIDTHS:
        is_width = column(lambda call, width=width: min(_WIDTHS, key=lambda one: abs(math.log(one / call.d))) == width)
        single = column(lambda call: call.is_float32)
        d = column(lambda call: call.d)
        found[f"product {width}"] = is_width * (1 - single) * d
        found[f"single {width}"] = is_width * single * d
    return found


def _times(columns: Mapping[str, np.ndarray], costs: np.ndarray) -> np.ndarray:
    at = dict(zip(_names(), costs, strict=True))
    pair = at["pair"] + sum(at[name] * columns[name] for name in ("simple", "hard", "partial", "masked", "odd"))
    for name in at:
        if name.startswith(("product", "single")):
            pair = pair + at[name] * columns[name]
    rounds = np.ceil(columns["tasks"] / _MULTIPROCESSORS) * _MULTIPROCESSORS / columns["tasks"]
    slower = at["grouped"] ** columns["grouped"]
    work = columns["pairs"] * pair + at["task"] * columns["tasks"] / _MULTIPROCESSORS
    result: np.ndarray = at["floor"] + work * rounds ** at["waves"] * slower
    return result
