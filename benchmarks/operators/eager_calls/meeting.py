"""Values added up where several meet: gradients of rows, columns and pairs that were taken by numbers, sums at places.

The kernel that adds up goes through those that meet one by one: few rows that many take need long for few bytes. For
``eager_strangers_cuda.py --meeting``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

Made = tuple[Any, Tensors]


class DrawnMeeting(Drawn):
    """Draws calls whose values meet, by chance or nearly all."""

    def kinds(self) -> list[Callable[[], Made]]:
        """All kinds, those of rows more often."""
        return [*(self._rows,) * 4, *(self._pairs,) * 2, *(self._columns,) * 3, *(self._between,) * 3, self._sums]

    def _sizes(self) -> tuple[int, int, int]:
        """Rows that there are, how many are taken, and how wide each is."""
        self.begin(single=self.rng.random() < 0.6)
        rows = self.rng.choice((self.size(3, 64), self.size(16, 2048), self.size(256, 200_000)))
        taken = max(1, round(rows * 2 ** self.rng.uniform(-3, 10)))
        width = self.rng.choice((1, 3, self.size(4, 64), self.size(16, 2048, of=8), self.size(16, 2048, of=8)))
        taken = max(2, min(taken, self.most // 4 // width, 2**20))
        return min(rows, self.most // 4 // width), taken, width

    def _rows(self) -> Made:
        rows, taken, width = self._sizes()
        places = self.places(rows, taken)
        shape = (rows,) if width == 1 else (rows, width)
        return lambda x: x[places], (self.values(*shape),)

    def _pairs(self) -> Made:
        """Rows of a matrix of rows, by two numbers each."""
        rows, taken, width = self._sizes()
        outer = self.rng.choice((2, 4, 16, 64))
        inner = max(1, rows // outer)
        first, second = self.places(outer, taken), self.places(inner, taken)
        return lambda x: x[first, second], (self.values(outer, inner, width),)

    def _columns(self) -> Made:
        """Columns, or the last parts of a tensor, by numbers."""
        self.begin(single=self.rng.random() < 0.6)
        last, taken = self.rng.choice(((3, 9), (9, 27), (16, 64), (4, 4), (64, 32), (128, 512), (1000, 100)))
        rest = self.size(64, max(65, min(2**23, self.most // 4 // max(last, taken))))
        places = self.places(last, taken)
        middle = self.rng.choice((1, 8, 64))
        return lambda x: x[..., places], (self.values(max(1, rest // middle), middle, last),)

    def _between(self) -> Made:
        """Parts along a dimension in the middle."""
        self.begin(single=self.rng.random() < 0.6)
        middle, taken = self.size(3, 512), self.size(4, 2048)
        width = self.rng.choice((3, self.size(8, 512, of=8), self.size(8, 512, of=8)))
        outer = max(1, min(self.size(2, 4096), self.most // 4 // (max(middle, taken) * width)))
        places = self.places(middle, taken)
        return lambda x: x[:, places], (self.values(outer, middle, width),)

    def _sums(self) -> Made:
        """Values put at places and added up there."""
        rows, taken, width = self._sizes()
        places = self.places(rows, taken)
        zeros = self.torch.zeros(rows, width, dtype=self.dtype, device=self.pool.device)
        return lambda x: zeros.index_put((places,), x, accumulate=True), (self.values(taken, width),)
