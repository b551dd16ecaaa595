"""Eager calls at the sizes that models ask them at: pictures by the hundred, frozen norms, regions, crops, experts.

What other sets draw smaller, or with every gradient. For ``eager_strangers_cuda.py --models``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

Made = tuple[Any, Tensors]


class DrawnModels(Drawn):
    """Draws calls of pictures, of experts that are chosen, and of losses over odd numbers of classes."""

    def kinds(self) -> list[Callable[[], Made]]:
        """All kinds, those of pictures more often."""
        return [
            *(self._norm,) * 4, *(self._frozen_norm,) * 3, *(self._pooled,) * 4, *(self._sampled,) * 3,
            *(self._cropped,) * 2, self._grid, *(self._chosen,) * 3, *(self._classes,) * 3, *(self._bags,) * 2,
            *(self._resized,) * 2,
        ]  # fmt: skip

    def _pictures(self, most: int) -> Any:
        """Pictures as stages of a network have them, one in three with their channels last."""
        side = self.rng.choice((7, 8, 14, 16, 24, 28, 32, 48, 56, 64, 96, 112, 128, self.size(7, 160)))
        channels = self.rng.choice((16, 32, 64, 64, 128, 256, 512, 1024, 2048))
        most = min(most, self.most)
        channels = max(1, min(channels, most // side**2))
        batch = max(1, min(self.size(1, 1024), most // (side**2 * channels)))
        pictures = self.values(batch, channels, side, side)
        if self.rng.random() < 0.33:
            pictures = pictures.detach().contiguous(memory_format=self.torch.channels_last).requires_grad_()
        return pictures

    def _norm(self) -> Made:
        self.begin()
        pictures, own = self._pictures(2**27), self.dtype
        channels = pictures.shape[1]
        mean, spread = (made(channels, device=self.pool.device) for made in (self.torch.zeros, self.torch.ones))
        self.dtype = self.torch.float32 if self.rng.random() < 0.7 else own
        weight, bias = self.values(channels), self.values(channels)
        self.dtype = own
        call = self.functional.batch_norm
        return lambda x, w, b: call(x, mean, spread, w, b, training=True), (pictures, weight, bias)

    def _frozen_norm(self) -> Made:
        """Statistics that stay, and a weight that learns or stays too."""
        self.begin(single=self.rng.random() < 0.5)
        pictures = self._pictures(2**27)
        mean, spread = (
            made(pictures.shape[1], device=self.pool.device) for made in (self.torch.zeros, self.torch.ones)
        )
        own, self.dtype = self.dtype, self.torch.float32
        weight, bias = self.values(pictures.shape[1]), self.values(pictures.shape[1])
        self.dtype = own
        call = self.functional.batch_norm
        if self.rng.random() < 0.6:
            weight, bias = weight.detach(), bias.detach()
            return lambda x: call(x, mean, spread, weight, bias, training=False), (pictures,)
        return lambda x, w, b: call(x, mean, spread, w, b, training=False), (pictures, weight, bias)

    def _pooled(self) -> Made:
        self.begin()
        pictures, functional = self._pictures(2**27), self.functional
        width, stride, edge = self.rng.choice(((2, 2, 0), (3, 2, 1), (3, 2, 1), (3, 1, 1), (5, 1, 2), (2, 1, 0)))
        calls = [
            lambda x: functional.max_pool2d(x, width, stride, edge),
            lambda x: functional.max_pool2d(x, width, stride, edge),
            lambda x: functional.avg_pool2d(x, width, stride, edge),
        ]
        return self.rng.choice(calls), (pictures,)

    def _sampled(self) -> Made:
        """Places between pixels: of pictures that are warped, or of regions one below the other."""
        self.begin(single=True)
        if self.rng.random() < 0.5:
            side, channels, batch = self.size(16, 256), self.rng.choice((1, 3, 3, 16, 64)), self.size(1, 256)
            high = wide = self.size(16, 256)
        else:
            side, channels, batch = self.size(14, 100), self.rng.choice((128, 256, 256, 512, 1024)), self.size(1, 8)
            wide = self.rng.choice((7, 14, 28))
            high = wide * self.size(8, 256)
        channels = max(1, min(channels, self.most // 4 // max(side * side, high * wide)))
        batch = max(1, min(batch, self.most // 4 // max(channels * side * side, channels * high * wide)))
        pictures = self.values(batch, channels, side, side)
        # Neighbours are sampled near each other, as warps and regions do.
        steps = self.torch.rand(batch, high, wide, 2, device=self.pool.device) * 2 / max(high, wide)
        grid = (self.rng.uniform(0.5, 1.1) * (2 * self._even(high, wide) - 1) + steps).detach()
        given = {
            "mode": self.rng.choice(("bilinear", "bilinear", "bilinear", "nearest")),
            "padding_mode": self.rng.choice(("zeros", "border", "reflection")),
            "align_corners": self.rng.random() < 0.4,
        }
        call = self.functional.grid_sample
        if self.rng.random() < 0.4:
            return lambda x, g: call(x, g, **given), (pictures, grid.requires_grad_())
        return lambda x: call(x, grid, **given), (pictures,)

    def _even(self, high: int, wide: int) -> Any:
        """Places from 0 to 1 over a picture, as (high, wide, 2)."""
        down, along = (self.torch.linspace(0, 1, size, device=self.pool.device) for size in (high, wide))
        return self.torch.stack((along.expand(high, wide), down[:, None].expand(high, wide)), -1)

    def _cropped(self) -> Made:
        """A window of each picture, by numbers of rows and of columns."""
        self.begin(single=self.rng.random() < 0.6)
        side, kept = self.size(16, 160), self.size(8, 128)
        channels = self.rng.choice((1, 3, 3, 3, 8))
        batch = max(1, min(self.size(4, 1024), self.most // 4 // (channels * max(side, kept) ** 2)))
        each = self.torch.arange(batch, device=self.pool.device)[:, None, None]
        rows, columns = self.places(side, batch, kept, 1), self.places(side, batch, 1, kept)
        if self.rng.random() < 0.5:
            pictures = self.values(batch, channels, side, side, grad=self.rng.random() < 0.5)
            return lambda x: x.permute(0, 2, 3, 1)[each, rows, columns], (pictures,)
        pictures = self.values(batch, side, side, channels, grad=self.rng.random() < 0.5)
        return lambda x: x[each, rows, columns], (pictures,)

    def _grid(self) -> Made:
        self.begin(single=True)
        batch, side = self.size(2, 1024), self.size(16, 256)
        side = max(4, min(side, math.isqrt(self.most // 4 // batch)))
        turns = self.values(batch, 2, 3)
        size, is_corner = (batch, 3, side, side), self.rng.random() < 0.4
        return lambda x: self.functional.affine_grid(x, size, align_corners=is_corner), (turns,)

    def _chosen(self) -> Made:
        """Experts of each token, by their scores."""
        self.begin(single=self.rng.random() < 0.7)
        experts = self.rng.choice((8, 8, 16, 32, 64, 64, 128, 256))
        tokens, most = self.size(256, 65536, of=128), self.rng.choice((1, 2, 2, 4, 6, 8))
        scores = self.values(tokens, experts, grad=self.rng.random() < 0.5)
        if self.rng.random() < 0.3:
            return lambda x: x.softmax(-1), (scores,)
        return lambda x: x.topk(min(most, experts), -1).values, (scores,)

    def _classes(self) -> Made:
        """Losses' rows, whose length is no multiple of a vector."""
        self.begin(single=self.rng.random() < 0.6)
        classes = self.size(10, 60_000) + self.rng.choice((0, 0, 1, 1, 3, 7))
        rows = self.values(max(1, min(self.size(64, 65536), min(self.most, 2**26) // classes)), classes)
        calls = (self.functional.log_softmax, self.functional.log_softmax, self.functional.softmax)
        call = self.rng.choice(calls)
        return lambda x: call(x, -1), (rows,)

    def _bags(self) -> Made:
        self.begin(single=True)
        count, width = self.size(1000, 2_000_000), self.rng.choice((8, 16, 32, 64, 64, 128, 256))
        table = self.values(max(2, min(count, self.most // 2 // width)), width)
        bags = self.size(256, 65536, of=64)
        places = self.places(table.shape[0], bags, self.rng.choice((1, 2, 3, 4, 8, 20, 50)))
        mode = self.rng.choice(("sum", "mean", "mean"))
        return lambda w: self.functional.embedding_bag(places, w, mode=mode), (table,)

    def _resized(self) -> Made:
        self.begin()
        pictures = self._pictures(2**25)
        given = {"scale_factor": self.rng.choice((0.5, 2, 2)), "mode": self.rng.choice(("nearest", "bilinear"))}
        if given["mode"] == "bilinear":
            given["align_corners"] = False
        return lambda x: self.functional.interpolate(x, **given), (pictures,)
