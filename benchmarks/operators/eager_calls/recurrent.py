"""Recurrent layers in all their kinds, at drawn sizes. For ``eager_strangers_cuda.py --recurrent``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors


class DrawnRecurrent(Drawn):
    """Draws LSTMs most of all, then GRUs and plain ones."""

    def kinds(self) -> list[Callable[[], tuple[Any, Tensors]]]:
        """One kind, of which everything is drawn."""
        return [self._layers]

    def _layers(self) -> tuple[Any, Tensors]:
        self.begin(single=self.rng.random() < 0.6)
        nn = self.torch.nn
        kind = self.rng.choice((nn.LSTM, nn.LSTM, nn.LSTM, nn.GRU, nn.GRU, nn.RNN))
        most = min(1280, max(8, self.most >> 9))
        width, hidden = self.size(8, most, of=8), self.size(8, most, of=self.rng.choice((1, 8, 16, 64)))
        length, batch = self.size(4, min(400, max(8, self.most >> 8))), self.size(1, min(512, max(8, self.most >> 7)))
        while length * batch * max(width, hidden) > self.most // 16:
            length, batch = max(1, length // 2), max(1, batch * 2 // 3)
        module = kind(
            width,
            hidden,
            num_layers := self.rng.choice((1, 1, 1, 2, 2, 3, 4)),
            bidirectional=self.rng.random() < 0.3,
            batch_first=self.rng.random() < 0.5,
            dropout=self.rng.choice((0.0, 0.2)) if num_layers > 1 else 0.0,
            **self._projected(kind, hidden),
        ).to(self.pool.device, self.dtype)
        if self.rng.random() < 0.25:
            return self._packed(module, width, length, batch)
        sides = (batch, length) if module.batch_first else (length, batch)
        given = self.values(*sides, width)
        if self.rng.random() < 0.15:
            module.requires_grad_(False)
            return lambda x: module(x)[0], (given.detach(),)
        return lambda x, *weights: module(x)[0], (given, *module.parameters())

    def _projected(self, kind: Any, hidden: int) -> dict[str, int]:
        """Some LSTMs hand a smaller state on than they hold."""
        is_projected = kind is self.torch.nn.LSTM and hidden > 8 and self.rng.random() < 0.1
        return {"proj_size": hidden // self.rng.choice((2, 3, 4))} if is_projected else {}

    def _packed(self, module: Any, width: int, length: int, batch: int) -> tuple[Any, Tensors]:
        """Sequences of drawn lengths, packed: of each turn those rows whose sequence has not ended."""
        torch = self.torch
        shortest = max(1, round(length * self.rng.random()))
        lengths = [self.rng.randint(shortest, length) for _ in range(batch)]
        at_each = torch.tensor([sum(each > turn for each in lengths) for turn in range(max(lengths))])

        def call(rows: Any, *weights: Any) -> Any:
            return module(torch.nn.utils.rnn.PackedSequence(rows, at_each))[0].data

        return call, (self.values(sum(lengths), width), *module.parameters())
