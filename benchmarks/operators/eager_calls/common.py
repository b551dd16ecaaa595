"""What ordinary eager programs call most, at the sizes that they have: norms of batches of pictures, layers of single
precision with a bias, recurrent layers, tables of words, losses. For ``eager_strangers_cuda.py --common``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

_HALF = ("float16", "bfloat16")


class DrawnCommon(Drawn):
    """Draws calls of these kinds."""

    def kinds(self) -> list[Callable[[], tuple[Any, Tensors]]]:
        """All kinds, those that are least known more often."""
        return [
            *(self._picture_norm,) * 8, *(self._single_layer,) * 6, *(self._half_layer,) * 2, *(self._recurrent,) * 3,
            *(self._words,) * 2, self._classes, *(self._row_norm,) * 2, self._mean_square,
        ]  # fmt: skip

    def _picture_norm(self) -> tuple[Any, Tensors]:
        """Of a network under autocast its weights stay float32."""
        self.begin(single=True)
        channels = self.size(8, 2048, of=8)
        weight, bias = self.values(channels), self.values(channels)
        mean, variance = (self.torch.ones(channels, device=self.pool.device) for _ in range(2))
        self.begin()
        height = self.rng.choice((1, 4, 7, 7, 8, 14, 14, 16, 28, 28, 32, 56, 64, 112, 128))
        batch = self.size(2, max(2, min(256, self.most // (2 * channels * height * height))), of=4)
        picture = self.values(batch, channels, height, max(1, self.rng.choice((height, height, height + 1))))
        if self.rng.random() < 0.25:
            picture = picture.detach().contiguous(memory_format=self.torch.channels_last).requires_grad_()
        call = self.functional.batch_norm
        return lambda x, w, b: call(x, mean, variance, w, b, training=True), (picture, weight, bias)

    def _single_layer(self) -> tuple[Any, Tensors]:
        self.begin(single=True)
        return self._layer()

    def _half_layer(self) -> tuple[Any, Tensors]:
        self.dtype = getattr(self.torch, self.rng.choice(_HALF))
        return self._layer()

    def _layer(self) -> tuple[Any, Tensors]:
        width, out = self.size(8, 8192, of=8), self.size(2, 8192, of=8)
        rows = self.size(4, max(8, min(16384, self.most // (8 * max(width, out)))), of=4)
        given = self.values(rows, width), self.values(out, width), self.values(out)
        return self.functional.linear, given

    def _recurrent(self) -> tuple[Any, Tensors]:
        self.begin(single=True)
        kind = self.rng.choice((self.torch.nn.LSTM, self.torch.nn.LSTM, self.torch.nn.GRU))
        width, hidden = self.size(16, 1024, of=8), self.size(16, 1024, of=8)
        layers, length, batch = self.rng.choice((1, 1, 2, 3)), self.size(4, 128), self.size(4, 256, of=4)
        module = kind(width, hidden, layers, dropout=self.rng.choice((0.0, 0.2)) if layers > 1 else 0.0)
        module = module.to(self.pool.device)
        given = self.values(length, batch, width)
        return lambda x, *weights: module(x)[0], (given, *module.parameters())

    def _words(self) -> tuple[Any, Tensors]:
        self.begin()
        words, width = self.size(100, 60000), self.size(32, 1024, of=32)
        places = self.places(words, self.size(1, 64), self.size(16, 1024, of=16))
        return lambda table: self.functional.embedding(places, table), (self.values(words, width),)

    def _classes(self) -> tuple[Any, Tensors]:
        self.begin(single=self.rng.random() < 0.6)
        classes = self.size(2, 60000)
        rows = self.size(8, max(16, min(16384, self.most // (4 * classes))), of=8)
        wanted = self.places(classes, rows)
        return lambda x: self.functional.cross_entropy(x, wanted), (self.values(rows, classes),)

    def _row_norm(self) -> tuple[Any, Tensors]:
        self.begin()
        width = self.size(32, 8192, of=32)
        rows = self.size(16, max(32, min(65536, self.most // (4 * width))), of=8)
        given = self.values(rows, width), self.values(width), self.values(width)
        return lambda x, w, b: self.functional.layer_norm(x, (width,), w, b), given

    def _mean_square(self) -> tuple[Any, Tensors]:
        self.begin()
        width = self.size(32, 8192, of=32)
        rows = self.size(1, max(32, min(65536, self.most // (4 * width))), of=8)
        return lambda x: x * self.torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).type_as(x), (
            self.values(rows, width),
        )
