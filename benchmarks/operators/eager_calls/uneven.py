"""Eager calls whose work is uneven: tables that no cache holds, thin products over long sums, tensors that lie across.

Lookups in tables of hundreds of megabytes, products with few rows and columns, pictures whose channels lie side by side
where points are read from them, large tensors that are turned, sums along many short rows, tensors put side by side.
For ``eager_strangers_cuda.py --uneven``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

Made = tuple[Any, Tensors]

_FEW = (1, 2, 3, 4, 8, 9, 16, 32, 64, 128)


class DrawnUneven(Drawn):
    """Draws calls of which their bytes and FLOPs say little."""

    def kinds(self) -> list[Callable[[], Made]]:
        """All kinds, lookups and products more often."""
        return [
            *(self._looked_up,) * 4, *(self._thin_batch,) * 4, *(self._thin,) * 3, *(self._read_from,) * 2,
            *(self._turned,) * 3, *(self._along_rows,) * 2, *(self._side_by_side,) * 2,
        ]  # fmt: skip

    def _looked_up(self) -> Made:
        self.begin(single=self.rng.random() < 0.6)
        width = self.rng.choice((8, 16, 32, 64, 64, 96, 128, 256))
        rows = max(2, min(self.size(100_000, 12_000_000), min(self.most, 2**29) // width))
        table = self.values(rows, width, grad=False)
        places = self.places(rows, max(1, min(self.size(2**10, 2**22), min(self.most, 2**28) // width)))
        if self.rng.random() < 0.3:
            return lambda w: w.index_select(0, places), (table,)
        return lambda w: self.functional.embedding(places, w), (table,)

    def _thin_batch(self) -> Made:
        self.begin(single=self.rng.random() < 0.5)
        batch, rows, columns = self.size(1, 256), self.rng.choice(_FEW), self.rng.choice(_FEW)
        along = max(8, min(self.size(2**9, 2**17), min(self.most, 2**27) // (batch * max(rows, columns))))
        first = self.values(batch, along, rows).detach().transpose(1, 2).requires_grad_()
        second = self.values(batch, along, columns)
        if self.rng.random() < 0.4:
            first = self.values(batch, rows, along)
        return lambda x, y: x @ y, (first, second)

    def _thin(self) -> Made:
        self.begin(single=self.rng.random() < 0.5)
        inputs, outputs = self.size(3, 512), self.rng.choice((*_FEW, 6, 12, 24, 48))
        rows = max(8, min(self.size(2**12, 2**22), min(self.most, 2**27) // max(inputs, outputs)))
        return lambda x, w: self.functional.linear(x, w), (self.values(rows, inputs), self.values(outputs, inputs))

    def _read_from(self) -> Made:
        self.begin(single=self.rng.random() < 0.7)
        channels, side, batch = self.rng.choice((8, 16, 32, 32, 64, 128)), self.size(16, 256), self.size(1, 16)
        pictures = self.values(batch, channels, side, side)
        if self.rng.random() < 0.7:
            pictures = pictures.detach().contiguous(memory_format=self.torch.channels_last).requires_grad_()
        points = max(16, min(self.size(2**10, 2**20), min(self.most, 2**28) // (batch * channels)))
        shape = (batch, 1, points, 2) if self.rng.random() < 0.6 else (batch, side, side, 2)
        own, self.dtype = self.dtype, pictures.dtype
        grid = self.torch.rand(shape, device=self.pool.device, dtype=pictures.dtype) * 2 - 1
        self.dtype = own
        return lambda x: self.functional.grid_sample(x, grid, align_corners=False), (pictures,)

    def _turned(self) -> Made:
        self.begin()
        sizes = [self.rng.choice((2, 3, 4, 8, 16, 32, 64, 96, 128)) for _ in range(self.rng.choice((1, 2, 2)))]
        room = min(self.most, 2**28)
        for each in sizes:
            room //= each
        last = max(2, min(self.size(2**8, 2**22), room))
        sizes.insert(self.rng.randrange(len(sizes) + 1), last)
        order = list(range(len(sizes)))
        while order == sorted(order):
            self.rng.shuffle(order)
        return lambda x: x.permute(order).contiguous(), (self.values(*sizes),)

    def _along_rows(self) -> Made:
        self.begin(single=self.rng.random() < 0.6)
        length = self.rng.choice((8, 16, 32, 48, 49, 64, 96, 128, 192, 256, 512))
        rows = max(2, min(self.size(2**8, 2**20), min(self.most, 2**26) // length))
        kept = self.values(rows, length)
        call = self.rng.choice((self.torch.cumsum, self.torch.cumprod))
        return lambda x: call(x, -1), (kept,)

    def _side_by_side(self) -> Made:
        self.begin()
        count, last = self.rng.choice((2, 2, 3, 3, 4, 6)), self.rng.choice((1, 2, 3, 4, 8, 16, 64, 256))
        rows = max(2, min(self.size(2**10, 2**22), min(self.most, 2**27) // (last * count)))
        parts = tuple(self.values(rows, last) for _ in range(count))
        place = self.rng.choice((0, 1, -1, -1))
        if self.rng.random() < 0.6:
            return lambda *each: self.torch.stack(each, place), parts
        return lambda *each: self.torch.cat(each, min(place, 1)), parts
