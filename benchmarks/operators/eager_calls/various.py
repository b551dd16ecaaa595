"""Eager calls over what strangers' programs hold: whole numbers, layouts of up to five dimensions, sums over any of
them, rows and values taken and put, pooling, norms that do not train, losses of volumes, tiny tensors, recurrent layers
that drop. For ``eager_strangers_cuda.py --various``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

Made = tuple[Any, Tensors]


class DrawnVarious(Drawn):
    """Draws calls of these kinds."""

    def kinds(self) -> list[Callable[[], Made]]:
        """All kinds, those whose times depend on more more often."""
        return [
            *(self._whole,) * 4, *(self._laid_otherwise,) * 8, *(self._mixed,) * 4, *(self._over_some,) * 6,
            *(self._taken,) * 5, *(self._put,) * 3, *(self._part,) * 3, *(self._pooled,) * 4, *(self._normed,) * 3,
            *(self._places_loss,) * 2, *(self._tiny,) * 5, *(self._ordered,) * 3, *(self._recurrent,) * 2,
        ]  # fmt: skip

    def _sizes(self, most: int, *, few: int = 2, many: int = 5) -> tuple[int, ...]:
        """Of a tensor of some dimensions; ``most`` numbers."""
        count, total = self.rng.randint(few, many), self.rng.uniform(8, math.log2(min(most, self.most)))
        shares = [self.rng.random() ** 1.5 + 0.05 for _ in range(count)]
        sizes = [max(1, round(2 ** (total * share / sum(shares)))) for share in shares]
        return tuple(size - size % 8 if size > 32 and self.rng.random() < 0.7 else size for size in sizes)

    def _laid(self, sizes: tuple[int, ...]) -> Any:
        """A tensor of these sizes, whose dimensions lie in another order now and then."""
        order = list(range(len(sizes)))
        if self.rng.random() < 0.5 and len(sizes) > 2:
            order = [0, *range(2, len(sizes)), 1]  # channels last
        elif self.rng.random() < 0.4:
            self.rng.shuffle(order)
        made = self.values(*(sizes[each] for each in order), grad=False)
        back = [order.index(each) for each in range(len(sizes))]
        return made.permute(back).detach().requires_grad_()

    def _whole(self) -> Made:
        torch, rng = self.torch, self.rng
        dtype = getattr(torch, rng.choice(("uint8", "int8", "int16", "int32", "int64", "int64", "bool")))
        sizes = self._sizes(2**25, many=3)
        one, other = (torch.randint(0, 2 if dtype == torch.bool else 100, sizes, device=self.pool.device).to(dtype)
                      for _ in range(2))  # fmt: skip
        calls: list[Callable[[], Any]] = [
            lambda: one.float(), lambda: one.to(torch.bfloat16), lambda: one.clone(), lambda: one == other,
            lambda: one.sum(), lambda: one.sum(-1), lambda: torch.stack((one, other), 1), lambda: one.any(-1),
            lambda: torch.where(one > 0, one, other), lambda: torch.cat((one, other), -1), lambda: one.long(),
            lambda: one & other, lambda: one | other, lambda: one.flip(-1),
            lambda: one.repeat(2, *(1,) * (one.dim() - 1)),
        ]  # fmt: skip
        if dtype != torch.bool:
            calls += [lambda: one + other, lambda: one * 3, lambda: one >> 1, lambda: one & 15, lambda: one // 3,
                      lambda: one % 7, lambda: one.cumsum(-1), lambda: one.amax(-1), lambda: one.clamp(1, 50),
                      lambda: one != 3, lambda: one - other]  # fmt: skip
        else:
            calls += [lambda: ~one, lambda: one.all(), lambda: one.logical_and(other), lambda: one.long().cumsum(-1)]
        return rng.choice(calls), ()

    def _laid_otherwise(self) -> Made:
        """A copy of a tensor in another order of its dimensions, or with another shape."""
        self.begin()
        rng, torch = self.rng, self.torch
        given = self._laid(self._sizes(2**26, few=3))
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        calls: list[Callable[[Any], Any]] = [
            lambda x: x.contiguous() if not x.is_contiguous() else x.clone(),
            lambda x: x.transpose(-1, -2).contiguous(),
            lambda x: x.transpose(1, 2).contiguous(), lambda x: x.flip(rng_dim), lambda x: x.roll(1, rng_dim),
            lambda x: x.clone(), lambda x: x.reshape(-1), lambda x: x.permute(*order).contiguous(),
            lambda x: x.repeat_interleave(2, rng_dim), lambda x: x.float(), lambda x: x.half() * 2,
            lambda x: torch.zeros_like(x, memory_format=torch.contiguous_format).copy_(x),
            lambda x: torch.nn.functional.pad(x, (1, 1)), lambda x: x.unfold(-1, 1, 1).contiguous(),
        ]  # fmt: skip
        if given.dim() in formats:
            calls += [lambda x: x.contiguous(memory_format=formats[x.dim()])] * 4
        order, rng_dim = list(range(given.dim())), rng.randrange(given.dim())
        rng.shuffle(order)
        return rng.choice(calls), (given,)

    def _mixed(self) -> Made:
        """Tensors of one shape that lie differently, or that are spread over others."""
        self.begin()
        sizes = self._sizes(2**25, few=2)
        one, other = self._laid(sizes), self._laid(sizes)
        few = self.values(*(size if self.rng.random() < 0.5 else 1 for size in sizes))
        along = self.rng.randrange(len(sizes))
        calls: tuple[Callable[..., Any], ...] = (
            lambda x, y, z: x + y, lambda x, y, z: x * z, lambda x, y, z: x - z,
            lambda x, y, z: self.torch.cat((x, y), along),
            lambda x, y, z: self.torch.where(x > 0, x, y), lambda x, y, z: x.lerp(y, 0.1),
            lambda x, y, z: x / (z * z + 1),
            lambda x, y, z: self.torch.stack((x, y), along), lambda x, y, z: self.torch.addcmul(x, y, z),
        )  # fmt: skip
        return self.rng.choice(calls), (one, other, few)

    def _over_some(self) -> Made:
        """Reductions over one or several dimensions."""
        self.begin()
        given = self._laid(self._sizes(2**27))
        dims = tuple(self.rng.sample(range(given.dim()), self.rng.choice((1, 1, 1, min(2, given.dim())))))
        one = dims[0]
        calls: tuple[Callable[..., Any], ...] = (
            lambda x: x.sum(dims), lambda x: x.mean(dims), lambda x: x.amax(dims), lambda x: x.sum(dims),
            lambda x: x.max(one).values, lambda x: x.argmax(one), lambda x: x.var(dims), lambda x: x.logsumexp(one),
            lambda x: x.softmax(one), lambda x: x.log_softmax(one), lambda x: x.norm(dim=dims), lambda x: x.sum(),
            lambda x: x.cumsum(one), lambda x: (x > 0).any(one), lambda x: x.square().mean(),
        )  # fmt: skip
        return self.rng.choice(calls), (given,)

    def _taken(self) -> Made:
        self.begin(single=self.rng.random() < 0.5)
        torch, device = self.torch, self.pool.device
        width = self.rng.choice((1, 1, 1, 2, 3, 4, 8, 16, 64, 128, 384, 512))
        table = self.size(4, max(5, min(2**22, self.most // width)))
        count = self.size(16, max(17, min(2**25, self.most) // width))
        given = self.values(table, width) if width > 1 else self.values(table)
        places = torch.randint(0, table, (count,), device=device)
        calls: list[Callable[[Any], Any]] = [
            lambda x: x[places],
            lambda x: x[places],
            lambda x: x.index_select(0, places),
        ]
        if count <= 2**22:
            calls += [lambda x: x[places.int()], lambda x: x[places.view(-1, 1)]]
        if width > 1:
            columns = torch.randint(0, width, (count,), device=device)
            kept = torch.rand(table, width, device=device) > 0.5
            beside = torch.randint(0, width, (table, 4), device=device)
            calls += [lambda x: x[places, columns], lambda x: x.gather(1, beside), lambda x: x[kept]]
        return self.rng.choice(calls), (given,)

    def _put(self) -> Made:
        self.begin(single=self.rng.random() < 0.6)
        torch, device = self.torch, self.pool.device
        width = self.rng.choice((1, 2, 3, 8, 16, 64, 128, 384))
        table, count = self.size(4, max(5, min(2**20, self.most // width))), self.size(16, 2**20)
        count = max(1, min(count, self.most // width))
        zeros = torch.zeros(table, width, device=device, dtype=self.dtype)
        places = torch.randint(0, table, (count,), device=device)
        spread = places[:, None].expand(-1, width)
        calls: tuple[Callable[[Any], Any], ...] = (
            lambda x: zeros.index_put((places,), x, accumulate=True), lambda x: zeros.index_put((places,), x),
            lambda x: zeros.index_add(0, places, x), lambda x: zeros.scatter(0, spread, x),
            lambda x: zeros.scatter_reduce(0, spread, x, "amax"), lambda x: zeros.index_copy(0, places, x),
        )  # fmt: skip
        return self.rng.choice(calls), (self.values(count, width),)

    def _part(self) -> Made:
        """A part of a tensor, whose gradient is the whole."""
        self.begin()
        given = self._laid(self._sizes(2**24, many=4))
        dim = self.rng.randrange(given.dim())
        size = given.shape[dim]
        calls: tuple[Callable[[Any], Any], ...] = (
            lambda x: x.select(dim, size - 1) * 2, lambda x: x.narrow(dim, 0, max(1, size // 2)) * 2,
            lambda x: x.select(dim, 0).exp(), lambda x: x.chunk(2, dim)[0].sigmoid(), lambda x: x.unbind(dim)[0] + 1,
            lambda x: x.diagonal().square() if x.dim() == 2 else x.select(dim, 0) * 3,
            lambda x: x.tril() if x.dim() > 1 else x,
        )  # fmt: skip
        return self.rng.choice(calls), (given,)

    def _pooled(self) -> Made:
        self.begin()
        functional, rng = self.functional, self.rng
        dims = rng.choice((1, 2, 2, 2, 3))
        side = self.size(8, {1: 16384, 2: 256, 3: 64}[dims], of=2)
        channels = self.size(1, 512, of=8)
        while channels * side**dims > self.most:
            channels, side = max(1, channels // 2), max(4, side // 2)
        batch = max(1, min(self.size(1, 128), min(2**26, self.most) // (channels * side**dims)))
        given = self.values(batch, channels, *(side,) * dims)
        if dims > 1 and rng.random() < 0.4:
            last = self.torch.channels_last if dims == 2 else self.torch.channels_last_3d
            given = given.detach().contiguous(memory_format=last).requires_grad_()
        average, largest = (getattr(functional, f"{name}_pool{dims}d") for name in ("avg", "max"))
        adaptive = getattr(functional, f"adaptive_avg_pool{dims}d")
        kernel, stride = rng.choice(((2, 2), (2, 2), (2, 2), (3, 2), (3, 1), (4, 4)))
        calls: tuple[Callable[[Any], Any], ...] = (
            lambda x: average(x, kernel, stride, kernel // 2), lambda x: average(x, 2),
            lambda x: largest(x, kernel, stride, kernel // 2), lambda x: adaptive(x, max(1, side // 4)),
            lambda x: average(x, 2), lambda x: adaptive(x, 1),
        )  # fmt: skip
        return rng.choice(calls), (given,)

    def _normed(self) -> Made:
        self.begin()
        torch, functional = self.torch, self.functional
        sizes = self._sizes(2**25, few=3, many=5)
        given, channels = self._laid(sizes), sizes[1]
        device = self.pool.device
        half = self.dtype != torch.float32 and self.rng.random() < 0.5
        dtype, self.dtype = self.dtype, self.dtype if half else torch.float32
        weight, bias = self.values(channels), self.values(channels)
        self.dtype = dtype
        mean, variance = torch.zeros(channels, device=device), torch.ones(channels, device=device)
        calls: tuple[Callable[..., Any], ...] = (
            lambda x, w, b: functional.batch_norm(x, mean, variance, w, b, training=False),
            lambda x, w, b: functional.batch_norm(x, mean, variance, w, b, training=True),
            lambda x, w, b: functional.batch_norm(x, mean, variance, w, b, training=False),
            lambda x, w, b: functional.instance_norm(x, weight=w.to(x.dtype), bias=b.to(x.dtype)),
        )  # fmt: skip
        return self.rng.choice(calls), (given, weight, bias)

    def _places_loss(self) -> Made:
        self.begin(single=self.rng.random() < 0.6)
        classes, dims = self.size(2, 64), self.rng.choice((1, 2, 3))
        side = self.size(8, {1: 65536, 2: 512, 3: 128}[dims], of=8)
        while classes * side**dims > self.most:
            side //= 2
        batch = max(1, min(self.size(1, 32), min(2**26, self.most) // (classes * side**dims)))
        scores = self._laid((batch, classes, *(side,) * dims))
        places = self.places(classes, batch, *(side,) * dims)
        weight = (
            self.torch.ones(classes, device=self.pool.device, dtype=scores.dtype) if self.rng.random() < 0.5 else None
        )
        smooth = 0.1 if self.rng.random() < 0.3 else 0.0
        call = self.functional.cross_entropy
        return lambda x: call(x, places, weight=weight, label_smoothing=smooth), (scores,)

    def _tiny(self) -> Made:
        """Steps of loops over time, states of filters, rows of one picture."""
        self.begin()
        sizes = self._sizes(2**14, few=1, many=3)
        one, other = self.values(*sizes), self.values(*sizes)
        torch = self.torch
        calls: tuple[Callable[..., Any], ...] = (
            lambda x, y: x + y, lambda x, y: x * y, lambda x, y: torch.where(x > 0, x, y), lambda x, y: x.tanh(),
            lambda x, y: torch.stack((x, y)), lambda x, y: torch.cat((x, y), -1), lambda x, y: x.sum(),
            lambda x, y: x.exp(),
            lambda x, y: x.float(), lambda x, y: x.softmax(-1), lambda x, y: torch.logaddexp(x, y),
            lambda x, y: x.flip(-1),
            lambda x, y: x[..., :1] * y, lambda x, y: x.clamp(-1, 1), lambda x, y: x.mean(-1), lambda x, y: -x,
            lambda x, y: torch.logsumexp(torch.stack((x, y)), 0), lambda x, y: x.t() @ y if x.dim() == 2 else x - y,
            lambda x, y: x.argmax(-1), lambda x, y: torch.maximum(x, y), lambda x, y: x.pow(2), lambda x, y: x.abs(),
        )  # fmt: skip
        return self.rng.choice(calls), (one, other)

    def _ordered(self) -> Made:
        self.begin(single=self.rng.random() < 0.6)
        rows = self.matrix(2**24)
        few, along = min(16, rows.shape[1]), self.rng.choice((-1, -1, 0))
        calls: tuple[Callable[[Any], Any], ...] = (
            lambda x: x.topk(few, -1).values, lambda x: x.topk(few, -1, largest=False).values,
            lambda x: x.sort(along).values,
            lambda x: x.argsort(-1), lambda x: x.cumsum(along), lambda x: x.cumprod(along),
            lambda x: x.min(along).values,
            lambda x: self.torch.multinomial(x.detach().float().abs() + 1e-3, 1), lambda x: x.cummax(-1).values,
            lambda x: x.median(-1).values, lambda x: x.kthvalue(few // 2 + 1).values,
        )  # fmt: skip
        return self.rng.choice(calls), (rows,)

    def _recurrent(self) -> Made:
        """Layers between which a share is dropped, or not."""
        self.begin(single=self.rng.random() < 0.6)
        nn, rng = self.torch.nn, self.rng
        hidden, given, layers = self.size(32, 512, of=32), self.size(16, 512, of=16), rng.choice((1, 2, 2, 3))
        batch, length = self.size(1, 512, of=8), self.size(8, 256)
        length = max(4, min(length, int(4e11 / (layers * 8.0 * hidden * (hidden + given) * batch)), self.most >> 10))
        kind = rng.choice((nn.LSTM, nn.LSTM, nn.GRU))
        dropout = rng.choice((0.0, 0.1, 0.3)) if layers > 1 else 0.0
        module = kind(given, hidden, layers, batch_first=rng.random() < 0.7, dropout=dropout)
        module = module.to(self.pool.device, self.dtype)
        batch = max(1, min(batch, self.most // (length * max(hidden, given))))
        shape = (batch, length, given) if module.batch_first else (length, batch, given)
        return lambda x, *_: module(x)[0], (self.values(*shape), *module.parameters())
