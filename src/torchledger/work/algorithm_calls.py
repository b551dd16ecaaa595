"""A call whose algorithm its time goes by, and the parts that are said of it (``algorithms.py``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchledger.nouns import TensorArgument
from torchledger.work.element_sizes import element_size


@dataclass(frozen=True)
class Parts:
    """The parts of which a call's time is a sum. ``way`` names how it goes, calls of another way being others;
    ``amounts`` is how much there is of each part, in a unit of its own, the launch being 1."""

    way: str
    amounts: tuple[float, ...]


CHANNELS_LAST = "channels last"


@dataclass(frozen=True)
class Call:
    name: str
    shapes: tuple[tuple[int, ...], ...]
    tensors: Sequence[TensorArgument]
    settings: Mapping[str, tuple[int, ...]]
    flops: float
    megabytes: float
    is_backward: bool
    is_in_place: bool = False

    @property
    def item_size(self) -> int:
        """Bytes of an element of the first tensor; four where its dtype was not recorded."""
        return element_size(self.tensors[0].dtype) or 4

    @property
    def copied(self) -> float:
        """Megabytes of the copy in which a call writes that leaves its first tensor as it is."""
        return 0.0 if self.is_in_place else 2 * math.prod(self.shapes[0]) * self.item_size / 1e6

    @property
    def copy(self) -> tuple[float, float]:
        """The kernel of such a copy, and its megabytes."""
        return float(not self.is_in_place), self.copied

    @property
    def precision(self) -> str:
        return "float32" if self.tensors[0].dtype == "float32" else "half"

    @property
    def layout(self) -> str:
        """How pictures, lines or volumes lie that the call is given first."""
        return CHANNELS_LAST if has_channels_last(self.tensors[0]) else "channels first"

    def number(self, name: str, default: int | None = None) -> int:
        """The one number under a name; a ``LookupError`` if there is none and no default."""
        values = self.settings.get(name, () if default is None else (default,))
        return values[0]


def has_channels_last(tensor: TensorArgument, dim: int = 1) -> bool:
    """Whether the channels of pictures, lines or volumes lie side by side; ``dim`` is theirs."""
    return len(tensor.shape) > 2 and tensor.shape[dim] > 1 and tensor.stride is not None and tensor.stride[dim] == 1


TILES_AT_ONCE = 132
"""Of a product's result, on the multiprocessors that an H100 or H200 has."""


MOST_THREADS = 1024
"""Of a block."""


CACHED = 4e7
"""Bytes of a table that an H100's or H200's cache holds."""


LOADED_AT_ONCE = 16
"""Bytes that one load of a thread takes at most."""
