"""Eager calls of kinds that strangers' programs had and no drawn ones, or at other sizes: losses of aligned sequences,
pictures made small without aliases, weights by their norms, norms of one channel, rows' norms, thin products, values
put at places, and element-wise work in place. For ``eager_strangers_cuda.py --seldom``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

Made = tuple[Any, Tensors]


class DrawnSeldom(Drawn):
    """Draws calls of these kinds."""

    def kinds(self) -> list[Callable[[], Made]]:
        """All kinds, those whose times depend on more more often."""
        return [
            *(self._aligned,) * 3, *(self._smooth,) * 4, *(self._by_norm,) * 2, *(self._each_channel,) * 3,
            *(self._row_norms,) * 3, *(self._thin,) * 4, *(self._put,) * 3, *(self._in_place,) * 5,
        ]  # fmt: skip

    def _aligned(self) -> Made:
        self.begin(single=True)
        torch, functional = self.torch, self.functional
        length, batch, classes = self.size(32, 2048), self.size(1, 128), self.size(16, 8192)
        length = max(4, min(length, self.most // (batch * classes)))
        scores = self.values(length, batch, classes)
        most = max(1, int(length * self.rng.uniform(0.05, 0.45)))
        device = self.pool.device if self.rng.random() < 0.5 else "cpu"
        lengths = [torch.full((batch,), each, dtype=torch.long, device=device) for each in (length, most)]
        joined = self.rng.random() < 0.4
        shape = (batch * most,) if joined else (batch, most)
        targets = torch.randint(1, classes, shape, device=self.pool.device)
        zeroed = self.rng.random() < 0.5
        return lambda x: functional.ctc_loss(x.log_softmax(-1), targets, *lengths, zero_infinity=zeroed), (scores,)

    def _smooth(self) -> Made:
        """Pictures at another size, each place a weighted mean: to crops for a network, thumbnails, feature maps."""
        self.begin()
        channels = self.rng.choice((1, 3, 3, 3, 16, 64, 256))
        side, target = self.size(8, 512, of=8), self.rng.choice((14, 16, 32, 48, 64, 96, 112, 128, 224, 256))
        batch = max(1, min(self.size(1, 128), min(2**26, self.most) // (channels * max(side, target) ** 2)))
        target = target if channels * target * target <= self.most else 2
        side = side if channels * side * side <= self.most else 2
        picture = self.values(batch, channels, side, side)
        if self.rng.random() < 0.3:
            picture = picture.detach().contiguous(memory_format=self.torch.channels_last).requires_grad_()
        mode, aliased = self.rng.choice(("bicubic", "bicubic", "bilinear")), self.rng.random() < 0.25
        make = self.functional.interpolate
        return lambda x: make(x, size=(target, target), mode=mode, antialias=not aliased), (picture,)

    def _by_norm(self) -> Made:
        self.begin(single=self.rng.random() < 0.7)
        shapes: tuple[tuple[int, ...], ...] = (
            (self.size(16, 2048, of=16), self.size(16, 2048, of=16)),
            (self.size(16, 1024, of=16), self.size(1, 256, of=8), self.rng.choice((1, 3, 5, 7, 16, 128))),
            (self.size(16, 512, of=16), self.size(1, 512, of=8), 3, 3),
        )
        shape = self.rng.choice(shapes)
        while self.torch.Size(shape).numel() > self.most:
            shape = tuple(max(1, each // 2) for each in shape)
        weight, along = self.values(*shape), self.rng.choice((0, 0, 0, len(shape) - 1))
        size = self.values(*(each if axis == along else 1 for axis, each in enumerate(shape)))
        return lambda v, g: self.torch._weight_norm(v, g, along), (weight, size)

    def _each_channel(self) -> Made:
        """Lines or pictures, each channel of each a group of its own; or few groups of long lines."""
        self.begin()
        channels, is_line = self.size(8, 1024, of=8), self.rng.random() < 0.6
        sides = (self.size(64, 65536),) if is_line else (self.size(7, 128),) * 2
        pixels = self.torch.Size(sides).numel()
        if pixels > self.most // 8:
            sides, pixels = (8,), 8
        channels = max(1, min(channels, self.most // pixels))
        batch = max(1, min(self.size(1, 64), min(2**27, self.most) // (channels * pixels)))
        given, (weight, bias) = self.values(batch, channels, *sides), (self.values(channels), self.values(channels))
        groups = self.rng.choice([each for each in (channels, channels, 1, 8, 32) if channels % each == 0])
        return lambda x, w, b: self.functional.group_norm(x, groups, w, b), (given, weight, bias)

    def _row_norms(self) -> Made:
        self.begin()
        rows = self.matrix(2**27)
        norm = self.torch.linalg.vector_norm
        calls: tuple[Callable[..., Any], ...] = (
            lambda x: norm(x, dim=1), norm, lambda x: norm(x, dim=0), lambda x: norm(x, dim=1, keepdim=True),
            lambda x: norm(x, ord=1, dim=1), lambda x: norm(x, ord=float("inf")), lambda x: x.square().mean(dim=-1),
            lambda x: norm(x, dtype=self.torch.float32),
        )  # fmt: skip
        return self.rng.choice(calls), (rows,)

    def _thin(self) -> Made:
        """Products of many small or thin matrices: one row, one column, an outer product, a vector."""
        self.begin()
        count, long, other = self.size(16, 65536), self.size(8, 1024, of=8), self.size(8, 512, of=8)
        count = max(1, min(count, self.most // (long * other)))
        shapes = (
            ((count, 1, long), (count, long, other)), ((count, other, long), (count, long, 1)),
            ((count, long, 1), (count, 1, other)), ((count, self.size(2, 16), long), (count, long, self.size(2, 32))),
            ((count, long), (long, 1)), ((count, 1), (1, long)),
        )  # fmt: skip
        left, right = self.rng.choice(shapes)
        return lambda x, y: x @ y, (self.values(*left), self.values(*right))

    def _put(self) -> Made:
        """Values added up at places with two indices, or rows of a picture taken so."""
        self.begin(single=self.rng.random() < 0.6)
        height, width, channels = self.size(16, 1024), self.size(16, 1024), self.size(1, 256, of=8)
        height = max(2, min(height, self.most // (width * channels)))
        table = self.values(height, width, channels)
        count = max(8, min(self.size(256, 2**21), self.most // (2 * channels)))
        rows, columns = self.places(height, count), self.places(width, count)
        if self.rng.random() < 0.5:
            return lambda x: x[rows, columns], (table,)
        added, zeros = self.values(count, channels), self.torch.zeros_like(table)
        return lambda x: zeros.index_put((rows, columns), x, accumulate=True), (added,)

    def _in_place(self) -> Made:
        """What optimizers and filters written by hand do to one tensor after another."""
        self.begin()
        given = self.matrix(2**27, grad=False)
        other = self.values(*given.shape, grad=False)
        calls: tuple[Callable[[], Any], ...] = (
            lambda: given.clamp_(-1, 1), lambda: given.clamp_(min=-9), lambda: given.abs_(), lambda: given.mul_(0.999),
            lambda: given.sqrt().sqrt_(), lambda: given.add_(other, alpha=1e-3), lambda: given.div_(1.001),
            lambda: given.lerp_(other, 0.01), lambda: given.copy_(other),
            lambda: given.addcmul_(other, other, value=1e-3),
            lambda: given.sign_(), lambda: given.abs().add_(1.0).rsqrt_(), lambda: given.abs().pow_(0.8),
            lambda: given.mul_(0.9).addcmul_(other, other, value=0.1), lambda: given.zero_(), lambda: given.neg_(),
            lambda: given.add_(1e-8), lambda: given.sub_(other), lambda: given.mul_(other), lambda: given.exp_().log_(),
        )  # fmt: skip
        made = self.rng.choice(calls)
        return lambda *_: made().detach(), ()
