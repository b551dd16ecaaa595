"""What batch norms of pictures cost whose channels lie one behind the other: cuDNN gives each channel a block.

A block goes through its channel of all pictures, as quickly as one can, until all blocks together ask for more than the
memory gives; channels of more blocks than run at once come in turns, and values that no longer fit into a block's
registers are read again. How quick all that is, is learned from calls inside recorded steps, for each direction and
dtype.

Enters: calls (rows as for ``fit_call_costs``). Leaves: numbers by name, for ``TimeModel.extras``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from torchledger.fitting.call_costs import tensors_of
from torchledger.fitting.learning import COVERAGE
from torchledger.nouns import TensorArgument
from torchledger.work.categories import operator_name
from torchledger.work.element_sizes import element_size

Array = NDArray[np.float64]

_FEWEST = 24
"""Calls of a kind below which it is not learned: eight numbers are."""

_CACHED_BYTES, _SHARPLY = 40e6, 4.0
"""How much is still in the cache that was written before, and how sharply more is not."""

_JOINED = 6.0
"""The power in which a channel's and the memory's time join: nearly the larger of both."""

_FROM_ITS_START = 0.0005
"""What keeps numbers that no call speaks of where they began."""

_STARTS = tuple((turns, held) for turns in (-1.0, 1.0) for held in (45e3, 65e3, 1e6))
_TURNS = 3
_WIDER, _SURELY = 1.3, 0.1


@dataclass(frozen=True)
class PictureNorm:
    """A call takes ``launch_us``, ``turn_us`` for each turn of its channels, and the longer of what a channel's block
    and what the memory need: ``cached_ns`` for each element of a channel, ``further_ns`` more beyond the cache,
    ``again`` times more where a channel has more than ``held`` elements, with ``at_once`` blocks on a multiprocessor;
    the memory at ``bytes_per_ns``."""

    launch_us: float
    turn_us: float
    cached_ns: float
    further_ns: float
    again: float
    held: float
    at_once: float
    bytes_per_ns: float

    def duration_us(
        self, elements: Array, channels: Array, nbytes: Array, *, multiprocessors: int, slower: float, memory: float
    ) -> Array:
        """Microseconds of calls, given the elements of one channel, how many channels there are, and the bytes of all
        that is read and written. ``slower`` is how much longer an element takes than on the device that was learned of,
        ``memory`` how many times its bandwidth there is."""
        beyond = 1 / (1 + np.exp(-_SHARPLY * np.log(nbytes / _CACHED_BYTES)))
        element_ns = self.cached_ns + self.further_ns * beyond
        element_ns = np.where(elements > self.held, element_ns * (1 + self.again), element_ns)
        blocks_us = slower * 1e-3 * elements * element_ns * np.maximum(1, channels / (multiprocessors * self.at_once))
        memory_us = 1e-3 * nbytes / (self.bytes_per_ns * memory)
        work_us = (blocks_us**_JOINED + memory_us**_JOINED) ** (1 / _JOINED)
        return np.asarray(self.launch_us + self.turn_us * np.ceil(channels / multiprocessors) + work_us)


@dataclass(frozen=True)
class _Size:
    """Elements of one channel, channels, and bytes of what is read and written."""

    elements: int
    channels: int
    nbytes: int


def key_of(name: str, arguments: Sequence[TensorArgument]) -> tuple[str, _Size] | None:
    """What a call is known by, and its size; ``None`` of any other call.

    >>> rows = [TensorArgument((8, 64, 7, 7), "float32", (3136, 49, 7, 1))]
    >>> key_of("aten::cudnn_batch_norm", rows)[0]
    'aten::cudnn_batch_norm by channels, float32'
    """
    bare = operator_name(name)[1]
    if bare not in _TENSORS or not arguments or len(arguments[0].shape) < _OF_PICTURES:
        return None
    batch, channels, *sides = arguments[0].shape
    stride, size = arguments[0].stride, element_size(arguments[0].dtype)
    if stride is None or not size or min(batch, channels, *sides) < 1 or (stride[1] == 1 < channels):
        return None
    elements = batch * math.prod(sides)
    nbytes = elements * channels * size * _TENSORS[bare]
    return f"{name} by channels, {arguments[0].dtype}", _Size(elements, channels, nbytes)


_TENSORS = {"cudnn_batch_norm": 2, "cudnn_batch_norm_backward": 3}
"""How many tensors of the pictures' size are read and written once."""

_OF_PICTURES = 4


def picture_norm_us(
    name: str,
    arguments: Sequence[TensorArgument],
    extras: Mapping[str, float],
    *,
    multiprocessors: int,
    slower: float,
    memory: float,
) -> tuple[float, float] | None:
    """Microseconds of a call and the logarithm of the factor within which 90 % of such calls lie; ``None`` if it is no
    such call or none was learned. The rest is of ``PictureNorm.duration_us``."""
    known = key_of(name, arguments)
    if known is None or f"{known[0]} spread" not in extras:
        return None
    key, size = known
    cost = PictureNorm(*(extras[f"{key} {each.name}"] for each in fields(PictureNorm)))
    (time_us,) = cost.duration_us(
        *(np.array([float(each)]) for each in (size.elements, size.channels, size.nbytes)),
        multiprocessors=multiprocessors,
        slower=slower,
        memory=memory,
    )
    return float(time_us), extras[f"{key} spread"]


def fit_picture_norms(rows: Sequence[Mapping[str, Any]], multiprocessors: int) -> dict[str, float]:
    """The costs of each kind with enough calls, by least mean absolute logarithm; as ``extras``. Rows are as for
    ``fit_call_costs``, of one device with so many ``multiprocessors``."""
    by_key: dict[str, list[tuple[_Size, float]]] = {}
    for row in rows:
        known = key_of(str(row["name"]), tensors_of(row)) if row["us"] > 0 else None
        if known is not None:
            by_key.setdefault(known[0], []).append((known[1], row["us"]))
    found: dict[str, float] = {}
    for key, own in sorted(by_key.items()):
        if len(own) >= _FEWEST:
            cost, off = _fit([size for size, _ in own], np.array([us for _, us in own]), multiprocessors)
            found |= {f"{key} {each.name}": getattr(cost, each.name) for each in fields(PictureNorm)}
            found[f"{key} spread"] = math.hypot(_WIDER * float(np.quantile(off, COVERAGE)), _SURELY)
    return found


def _fit(sizes: Sequence[_Size], us: Array, multiprocessors: int) -> tuple[PictureNorm, Array]:
    elements, channels, nbytes = (np.array(each, dtype=np.float64) for each in zip(*map(astuple, sizes), strict=True))

    def off(numbers: Array) -> Array:
        cost = _cost_of(numbers)
        said = cost.duration_us(elements, channels, nbytes, multiprocessors=multiprocessors, slower=1.0, memory=1.0)
        return np.asarray(np.abs(np.log(said / us)))

    best: tuple[float, Array] | None = None
    for turns, held in _STARTS:
        start = np.array([*np.log([3.0, 0.5, 0.4, 0.2, 0.5, held, 2200.0]), turns])
        numbers = start
        for _ in range(_TURNS):  # a simplex that has shrunk begins anew from where it stands
            found = minimize(
                lambda numbers, start=start: (
                    float(off(numbers).mean()) + _FROM_ITS_START * ((numbers - start) ** 2).sum()
                ),
                numbers,
                method="Nelder-Mead",
                options={"maxiter": 4000, "maxfev": 4000, "xatol": 1e-3, "fatol": 1e-5},
            )
            numbers = found.x
        if best is None or found.fun < best[0]:
            best = float(found.fun), numbers
    assert best is not None
    return _cost_of(best[1]), off(best[1])


def _cost_of(numbers: Array) -> PictureNorm:
    """Of unbounded numbers: all are positive, and one to four blocks run on a multiprocessor at once."""
    *logs, turns = numbers
    launch, turn, cached, further, again, held, rate = (float(each) for each in np.exp(logs))
    return PictureNorm(launch, turn, cached, further, again, held, 1 + 3 / (1 + math.exp(-float(turns))), rate)
