"""Eager calls that a rank makes between its collectives, at drawn sizes, without any other rank.

Norms that are synchronized over ranks (``SyncBatchNorm``), and what FSDP2 copies before and after it gathers parameters
and scatters gradients. For ``eager_strangers_cuda.py --sharded``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

Made = tuple[Any, Tensors]


class DrawnSharded(Drawn):
    """Draws calls of these kinds."""

    def kinds(self) -> list[Callable[[], Made]]:
        """Norms as often as what FSDP2 does with parameters and with gradients together."""
        return [*(self._synchronized_norm,) * 2, self._gathered, self._scattered]

    def _synchronized_norm(self) -> Made:
        self.begin()
        torch, image = self.torch, self.image().detach()
        if self.rng.random() < 0.2:  # features without pixels, as projections of self-supervised models are
            image = self.matrix(2**22, grad=False)
        channels, world = image.shape[1], self.rng.choice((2, 4, 8, 8, 16, 64))
        mean, variance, weight, bias = torch.ones(4, channels, device=self.pool.device).unbind()
        means, scales = torch.ones(2, world, channels, device=self.pool.device).unbind()
        counts = torch.full((world,), image.numel() / channels, device=self.pool.device)
        counted = counts.to(torch.int32)

        def both(image: Any) -> Any:
            torch.batch_norm_stats(image, 1e-5)
            # What a collective has just brought lies in the cache.
            means.fill_(0.5)
            scales.fill_(2.0)
            of_all, scale = torch.batch_norm_gather_stats_with_counts(
                image, means, scales, mean, variance, 0.1, 1e-5, counts
            )
            result = torch.batch_norm_elemt(image, weight, bias, of_all, scale, 1e-5)
            summed, weighted, _, _ = torch.batch_norm_backward_reduce(
                result, image, of_all, scale, weight, True, True, True
            )
            return torch.batch_norm_backward_elemt(result, image, of_all, scale, weight, summed, weighted, counted)

        return both, (image,)

    def _shards(self) -> tuple[int, list[int]]:
        """Ranks, and the elements that each holds of each parameter of a block, as a transformer or a network of
        pictures has them."""
        world, width = self.rng.choice((2, 4, 8, 8, 16)), self.size(64, 4096, of=64)
        sides = [width, width, 4 * width * width, 4 * width * width, 3 * width * width, width * width]
        parameters = sides * self.rng.choice((1, 1, 2))
        if self.rng.random() < 0.3:
            parameters = [self.size(16, 2**20, of=16) for _ in range(self.rng.randint(2, 60))]
        shards = [max(1, each // world) for each in parameters]
        while sum(shards) * world > min(self.most, 2**27):
            shards = [max(1, each // 2) for each in shards]
        return world, shards

    def _gathered(self) -> Made:
        from torch.distributed.fsdp._fully_shard import _fsdp_collectives  # noqa: F401  (registers FSDP2's operators)

        self.begin()
        torch, (world, shards) = self.torch, self._shards()
        own = [self.values(each, grad=False) for each in shards]
        whole = self.values(world, sum(shards), grad=False)
        parameters = [self.values(world, each, grad=False) for each in shards]

        def both(*_: Any) -> Any:
            torch._foreach_copy_(list(whole[0].split(shards)), own)
            torch.ops.fsdp.split_with_sizes_copy(whole, shards, 1, out=parameters)
            return parameters[0]

        return both, ()

    def _scattered(self) -> Made:
        self.begin()
        torch, (world, shards) = self.torch, self._shards()
        # Gradients have a first side that need not divide by the ranks.
        gradients = []
        for each in shards:
            columns = self.rng.choice([side for side in (1, 1, 16, 64, 256) if each % side == 0])
            gradients.append(self.values(each * world // columns, columns, grad=False))
        rows = sum(-(-each.shape[0] // world) * math.prod(each.shape[1:]) for each in gradients)
        out = torch.empty(world, rows, device=self.pool.device, dtype=self.rng.choice((self.dtype, torch.float32)))

        def both(*_: Any) -> Any:
            torch._chunk_cat(gradients, dim=0, num_chunks=world, out=out)
            return out

        return both, ()
