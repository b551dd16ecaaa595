"""Further eager calls that a seed draws: norms of single images, the largest of long rows, tensors that are joined
along any dimension, as caches grow. For ``eager_strangers_cuda.py --further``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors


class DrawnFurther(Drawn):
    """Draws calls of these kinds."""

    def kinds(self) -> list[Callable[[], tuple[Any, Tensors]]]:
        """All kinds, one after the other."""
        return [self._instance_norm, self._largest, self._joined_along, self._grown, self._instance_norm, self._largest]

    def _instance_norm(self) -> tuple[Any, Tensors]:
        self.begin()
        image = self.image()
        call = self.functional.instance_norm
        if self.rng.random() < 0.5:
            return lambda x: call(x), (image,)
        own, self.dtype = self.dtype, image.dtype
        weight, bias = self.values(image.shape[1]), self.values(image.shape[1])
        self.dtype = own
        return lambda x, w, b: call(x, weight=w, bias=b), (image, weight, bias)

    def _largest(self) -> tuple[Any, Tensors]:
        self.begin()
        width = self.size(256, 2**18, of=16)
        rows = self.size(1, max(2, min(self.most // width, 2**13)), of=1)
        most = self.rng.choice((1, 4, 10, 50, 100, 256))
        return lambda x: x.topk(min(most, x.shape[-1])).values, (self.values(rows, width),)

    def _joined_along(self) -> tuple[Any, Tensors]:
        self.begin()
        image, dim = self.image(2**24), self.rng.choice((0, 1, 1, 2))
        shape = list(image.shape)
        shape[dim] = max(1, shape[dim] // self.rng.choice((1, 2, 4)))
        return lambda x, y: self.torch.cat((x, y), dim), (image, self.values(*shape))

    def _grown(self) -> tuple[Any, Tensors]:
        self.begin()
        heads, width = self.size(2, 32, of=1), self.rng.choice((64, 64, 128))
        batch = self.size(1, 64, of=1)
        length = self.size(4, max(8, min(4096, self.most // (batch * heads * width))), of=1)
        held, new = self.values(batch, heads, length, width), self.values(batch, heads, 1, width)
        return lambda x, y: self.torch.cat((x, y), -2), (held, new)
