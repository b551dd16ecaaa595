"""Eager calls drawn with a seed that work along dimensions: any dimension, of blocks of one to four.

For ``eager_strangers_cuda.py --along``: reductions, softmaxes, scans, sorting, gathering, joining, norms, pooling and
convolutions, of which what they are asked for decides as much as their sizes do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

_REDUCTIONS = "sum sum mean amax amin max var std norm argmax prod logsumexp all any var_mean count_nonzero nansum"


class DrawnAlong(Drawn):
    """Draws calls along dimensions."""

    def kinds(self) -> list[Callable[[], tuple[Callable[..., Any], Tensors]]]:
        """Each draws a call of its kind."""
        return [
            *(self._reduced_along,) * 7, *(self._softmax_along,) * 5, *(self._scanned_along,) * 4,
            *(self._sorted_along,) * 4, *(self._gathered_along,) * 2, self._added_along, self._joined_along,
            self._turned_along, *(self._filtered,) * 5, *(self._transposed_filter,) * 2, *(self._normed,) * 2,
            self._batch_norm, self._batch_norm, self._group_norm, self._pooled_over, self._pooled, self._resized,
            self._padded, self._entropy, self._scattered, self._indexed, self._embedding, self._one_dimension,
        ]  # fmt: skip

    def block(self, most: int = 2**26, *, rank: int | None = None) -> Any:
        """A tensor of two to four dimensions, now and then one whose elements do not lie in the order of these."""
        rank = rank or self.rng.choice((2, 2, 3, 3, 4))
        total = self.rng.uniform(math.log(2**13), math.log(min(most, self.most)))
        shares = [self.rng.uniform(0.1, 1.0) for _ in range(rank)]
        sizes = [max(2, round(math.exp(total * share / sum(shares)))) for share in shares]
        sizes = [size - size % 8 if size > 32 and self.rng.random() < 0.7 else size for size in sizes]
        tensor = self.values(*sizes)
        how = self.rng.choice(("dense",) * 6 + ("turned", "half"))
        if how == "turned":
            return tensor.detach().transpose(*self.rng.sample(range(rank), 2)).requires_grad_()
        if how == "half" and sizes[-1] > 3:
            return tensor.detach()[..., : sizes[-1] // 2].requires_grad_()
        return tensor

    def dim(self, tensor: Any) -> int:
        """One of its dimensions, the last more often than others."""
        return self.rng.choice((-1, *range(tensor.dim()))) % tensor.dim()

    def _reduced_along(self) -> tuple[Any, Tensors]:
        self.begin()
        name, block, torch = self.rng.choice(_REDUCTIONS.split()), self.block(2**27), self.torch
        dim: Any = self.dim(block)
        if name in ("sum", "mean", "amax", "var", "norm", "logsumexp") and self.rng.random() < 0.3:
            dim = tuple(sorted(self.rng.sample(range(block.dim()), self.rng.randint(1, block.dim()))))
        calls: dict[str, Any] = {
            "norm": lambda x: torch.linalg.vector_norm(x, dim=dim), "all": lambda x: (x > 0).all(dim),
            "any": lambda x: (x > 3).any(dim), "max": lambda x: x.max(dim).values,
            "var_mean": lambda x: torch.var_mean(x, dim)[0],
        }  # fmt: skip
        return calls.get(name) or (lambda x: getattr(torch, name)(x, dim)), (block,)

    def _one_dimension(self) -> tuple[Any, Tensors]:
        self.begin()
        row, torch = self.values(self.size(2**12, 2**24)), self.torch
        calls = [torch.sum, lambda x: x.cumsum(0), lambda x: x.softmax(0), lambda x: x.amax(), torch.logsumexp]
        calls += [lambda x: x.sort().values, lambda x: x.topk(16).values, lambda x: x.argmax(), lambda x: x.std()]
        call = self.rng.choice(calls)
        return (lambda x: torch.logsumexp(x, 0)) if call is torch.logsumexp else call, (row,)

    def _softmax_along(self) -> tuple[Any, Tensors]:
        self.begin()
        call, block = self.rng.choice((self.functional.softmax, self.functional.log_softmax)), self.block(2**26)
        dim = self.dim(block)
        return lambda x: call(x, dim), (block,)

    def _scanned_along(self) -> tuple[Any, Tensors]:
        self.begin()
        torch, block = self.torch, self.block(2**25)
        dim = self.dim(block)
        calls = [torch.cumsum, torch.cumsum, torch.cumprod, torch.logcumsumexp, lambda x, dim: x.cummax(dim).values]
        call = self.rng.choice(calls)
        return lambda x: call(x, dim), (block,)

    def _sorted_along(self) -> tuple[Any, Tensors]:
        self.begin()
        block = self.block(2**23)
        dim, falls = self.dim(block), self.rng.random() < 0.4
        most = min(self.rng.choice((1, 2, 8, 64, 300)), block.shape[dim])
        calls = [
            lambda x: x.sort(dim, descending=falls).values, lambda x: x.argsort(dim),
            lambda x: x.topk(most, dim).values, lambda x: x.topk(most, dim).values,
            lambda x: x.kthvalue(most, dim).values, lambda x: x.median(dim).values,
        ]  # fmt: skip
        return self.rng.choice(calls), (block,)

    def _gathered_along(self) -> tuple[Any, Tensors]:
        self.begin()
        block, torch = self.block(2**25), self.torch
        dim = self.dim(block)
        wanted = self.size(1, 2 * block.shape[dim])
        shape = (*block.shape[:dim], wanted, *block.shape[dim + 1 :])
        rows, places = self.places(block.shape[dim], wanted), self.places(block.shape[dim], *shape)
        calls = [lambda x: torch.gather(x, dim, places), lambda x: x.index_select(dim, rows)]
        calls += [lambda x: x.narrow(dim, 0, min(wanted, x.shape[dim])).clone()]
        return self.rng.choice(calls), (block,)

    def _added_along(self) -> tuple[Any, Tensors]:
        self.begin()
        block, torch = self.block(2**24), self.torch
        dim = self.dim(block)
        height = self.size(1, 2 * block.shape[dim])
        made = {"dtype": block.dtype, "device": self.pool.device}
        shape = (*block.shape[:dim], height, *block.shape[dim + 1 :])
        rows, places = self.places(height, block.shape[dim]), self.places(height, *block.shape)
        calls = [
            lambda x: torch.zeros(shape, **made).scatter_add(dim, places, x),
            lambda x: torch.zeros(shape, **made).index_add(dim, rows, x),
            lambda x: torch.zeros(shape, **made).scatter(dim, places, x),
            lambda x: torch.zeros(shape, **made).scatter_reduce(dim, places, x.detach(), "amax"),
        ]  # fmt: skip
        return self.rng.choice(calls), (block,)

    def _joined_along(self) -> tuple[Any, Tensors]:
        self.begin()
        block = self.block(2**25)
        dim, count = self.dim(block), self.rng.choice((2, 2, 3, 8))
        others = [self.values(*block.shape) for _ in range(count - 1)]
        join = self.rng.choice((self.torch.cat, self.torch.cat, self.torch.stack))
        return lambda *each: join(each, dim), (block, *others)

    def _turned_along(self) -> tuple[Any, Tensors]:
        self.begin()
        block = self.block(2**26)
        dim = self.dim(block)
        calls = [lambda x: x.flip(dim), lambda x: x.roll(3, dim), lambda x: x.repeat_interleave(2, dim)]
        calls += [lambda x: x.unsqueeze(dim).expand(*x.shape[:dim], 2, *x.shape[dim:]).contiguous()]
        return self.rng.choice(calls), (block,)

    def _filtered(self) -> tuple[Any, Tensors]:
        self.begin()
        functional, rng = self.functional, self.rng
        sides = rng.choice((1, 2, 2, 2, 3))
        most = 2**22
        channels = self.size(4, 512, of=16)
        spread = self.size(8, {1: 4096, 2: 96, 3: 24}[sides])
        area = [max(4, round(spread * rng.uniform(0.6, 1.4))) for _ in range(sides)]
        image = self.values(self.size(1, max(2, min(64, most // (channels * math.prod(area))))), channels, *area)
        groups = math.gcd(channels, rng.choice((1, 1, 1, channels, 4)))
        filters = groups * max(1, self.size(8, 384, of=8) // groups) if groups < channels else channels
        width = rng.choice((1, 3, 3, 5)) if sides < 3 else rng.choice((1, 3))
        weight = self.values(filters, channels // groups, *(width,) * sides)
        stride, dilation = rng.choice((1, 1, 2)), rng.choice((1, 1, 1, 2))
        padding = rng.choice((dilation * (width // 2), 0)) if min(area) > dilation * (width - 1) else width
        if sides == 2 and rng.random() < 0.3:
            image = image.detach().contiguous(memory_format=self.torch.channels_last).requires_grad_()
        call = (functional.conv1d, functional.conv2d, functional.conv3d)[sides - 1]
        given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        if rng.random() < 0.3:
            return lambda x, w, b: call(x, w, b, **given), (image, weight, self.values(filters))
        return lambda x, w: call(x, w, **given), (image, weight)

    def _transposed_filter(self) -> tuple[Any, Tensors]:
        self.begin()
        functional, rng = self.functional, self.rng
        sides = rng.choice((1, 2, 2, 3))
        channels, spread = self.size(4, 256, of=16), self.size(8, {1: 2048, 2: 48, 3: 16}[sides])
        batch = self.size(1, max(2, min(32, 2**21 // (channels * spread**sides))))
        image, width = self.values(batch, channels, *(spread,) * sides), rng.choice((2, 3, 4))
        weight = self.values(channels, self.size(4, 192, of=8), *(width,) * sides)
        stride = rng.choice((1, 2, 2))
        call = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[sides - 1]
        given = {
            "stride": stride,
            "padding": rng.choice((0, width // 2)),
            "output_padding": rng.choice((0, stride - 1)),
        }
        return lambda x, w: call(x, w, **given), (image, weight)

    def _normed(self) -> tuple[Any, Tensors]:
        self.begin()
        block = self.block(2**26)
        shape = tuple(block.shape[-self.rng.choice((1, 1, 2)) :])
        weight, bias = self.values(*shape), self.values(*shape)
        return lambda x, w, b: self.functional.layer_norm(x, shape, w, b), (block, weight, bias)

    def _pooled_over(self) -> tuple[Any, Tensors]:
        self.begin()
        image, functional = self.image(2**24), self.functional
        width, stride = self.rng.choice((2, 3, 5)), self.rng.choice((1, 2))
        given = {"stride": stride, "padding": self.rng.choice((0, width // 2))}
        calls = [lambda x: functional.max_pool2d(x, width, **given), lambda x: functional.avg_pool2d(x, width, **given)]
        return self.rng.choice(calls), (image,)

    def _resized(self) -> tuple[Any, Tensors]:
        self.begin(single=self.rng.random() < 0.5)
        image = self.image(2**22)
        how = {
            "scale_factor": self.rng.choice((0.5, 2, 3)),
            "mode": self.rng.choice(("nearest", "bilinear", "bilinear")),
        }
        if how["mode"] == "bilinear":
            how["align_corners"] = self.rng.random() < 0.5
        return lambda x: self.functional.interpolate(x, **how), (image,)
