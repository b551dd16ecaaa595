"""Eager calls of programs that write token after token: caches put in another order, lengthened and written to, a few
rows through norms and products, and choices among a vocabulary. For ``eager_strangers_cuda.py --decoding``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

Made = tuple[Any, Tensors]


class DrawnDecoding(Drawn):
    """Draws calls of these kinds."""

    def kinds(self) -> list[Callable[[], Made]]:
        """All kinds, those whose times depend on more more often."""
        return [
            *(self._cache,) * 6, *(self._few_rows,) * 4, *(self._few_products,) * 3, *(self._vocabulary,) * 6,
            *(self._small,) * 4, *(self._long_rows,) * 4,
        ]  # fmt: skip

    def _held(self) -> tuple[Any, tuple[int, int, int, int]]:
        """Keys or values of one layer: batch, heads, length, width."""
        self.begin()
        batch, heads = self.size(1, 128), self.rng.choice((1, 2, 4, 8, 8, 12, 16, 32))
        length, width = self.size(16, 8192, of=16), self.rng.choice((64, 64, 80, 96, 128, 128, 256))
        length = max(4, min(length, min(2**27, self.most) // (batch * heads * width)))
        batch = max(1, min(batch, self.most // (heads * length * width)))
        shape = (batch, heads, length, width)
        return self.values(*shape, grad=False), shape

    def _cache(self) -> Made:
        torch, rng = self.torch, self.rng
        held, (batch, heads, length, width) = self._held()
        other = self.values(batch, heads, self.rng.choice((1, 1, 1, 4, 16)), width, grad=False)
        order = self.places(batch, batch)
        at = torch.arange(other.shape[2], device=self.pool.device)
        at = at.clamp(max=length - 1)
        new = other[:, :, : at.numel()]
        groups = rng.choice((2, 4, 8))
        groups = groups if held.numel() * groups <= 2**27 else 1
        shared = held[:1]
        calls: tuple[Callable[[], Any], ...] = (
            lambda: held.index_select(0, order), lambda: held.index_select(0, order), lambda: held[order],
            lambda: torch.cat((held, other), 2), lambda: torch.cat((held, other), dim=-2), lambda: held.clone(),
            lambda: held.index_copy_(2, at, new),
            lambda: held.__setitem__((slice(None), slice(None), at), new),
            lambda: held[:, :, :1].copy_(other[:, :, :1]),
            lambda: held[:, :, None].expand(-1, -1, groups, -1, -1).reshape(batch, heads * groups, length, width),
            lambda: held.transpose(1, 2).contiguous(), lambda: held[:, :, : length // 2].contiguous(),
            lambda: shared.repeat(min(4, batch), 1, 1, 1), lambda: held[:, :, 1:].contiguous(),
            lambda: held.repeat_interleave(2, 0) if held.numel() < 2**26 else held.clone(),
            lambda: held.to(torch.float8_e4m3fn), lambda: torch.roll(held, -1, 2),
        )  # fmt: skip
        made = rng.choice(calls)
        return lambda: _detached(made(), held), ()

    def _few_rows(self) -> Made:
        """What is done to one token of each sequence."""
        torch, rng, functional = self.torch, self.rng, self.functional
        self.begin()
        rows, width = self.size(1, 256), self.size(256, 8192, of=128)
        given, other = (self.values(rows, 1, width, grad=False) for _ in range(2))
        weight = self.values(width, grad=False)
        calls: tuple[Callable[[], Any], ...] = (
            lambda: functional.layer_norm(given, (width,), weight, weight), lambda: given + other,
            lambda: functional.rms_norm(given, (width,), weight), lambda: given.float().pow(2).mean(-1, keepdim=True),
            lambda: functional.silu(given) * other, lambda: functional.gelu(given), lambda: weight * given,
            lambda: torch.cat((-given[..., width // 2 :], given[..., : width // 2]), -1), lambda: given.float(),
            lambda: torch.rsqrt(given.float() + 1e-5), lambda: given.transpose(0, 1).contiguous(),
            lambda: functional.softmax(given, -1, dtype=torch.float32), lambda: given.float().to(given.dtype),
            lambda: torch.cat((given, other), 1), lambda: given * other.float(),
        )  # fmt: skip
        made = rng.choice(calls)
        return lambda: made(), ()

    def _few_products(self) -> Made:
        """A few rows times a layer's weights, or against a cache."""
        torch, rng = self.torch, self.rng
        self.begin()
        rows, left, right = self.size(1, 128), self.size(256, 8192, of=128), self.size(256, 16384, of=128)
        left, right = max(8, min(left, self.most // right)), right
        weight, bias = self.values(right, left, grad=False), self.values(right, grad=False)
        given = self.values(rows, left, grad=False)
        held, (batch, heads, _, width) = self._held()
        query = self.values(batch, heads, 1, width, grad=False)
        scores = torch.softmax(query.float() @ held.float().mT, -1).to(held.dtype) if held.numel() < 2**25 else None
        calls: list[Callable[[], Any]] = [
            lambda: given @ weight.mT, lambda: self.functional.linear(given[:, None], weight, bias),
            lambda: self.functional.linear(given, weight, bias), lambda: query @ held.mT,
        ]  # fmt: skip
        if scores is not None:
            calls.append(lambda: scores @ held)
        made = rng.choice(calls)
        return lambda: made(), ()

    def _vocabulary(self) -> Made:
        torch, rng, functional = self.torch, self.rng, self.functional
        self.begin(single=rng.random() < 0.6)
        rows = self.size(1, 128) if rng.random() < 0.8 else self.size(128, 4096)
        words = rng.choice((32000, 50257, 50304, 51865, 128256, 151936, 256000, 2048, 8192))
        words = min(words, self.most)
        rows = max(1, min(rows, min(2**27, self.most) // words))
        scores = self.values(rows, words, grad=False)
        some = self.places(words, rows, rng.choice((1, 1, 8, 64)))
        mask = torch.zeros(rows, words, dtype=torch.bool, device=self.pool.device)
        mask[:, ::3] = True
        count = min(rng.choice((1, 2, 5, 8, 20, 50, 50, 100)), words)
        shares = torch.softmax(scores[: min(rows, 256)].float(), -1)
        calls: tuple[Callable[[], Any], ...] = (
            lambda: scores.argmax(-1), lambda: scores.argmax(-1, keepdim=True), lambda: scores.topk(count, -1).values,
            lambda: scores.topk(count, -1).values, lambda: functional.softmax(scores, -1),
            lambda: functional.log_softmax(scores.float(), -1), lambda: scores.sort(-1, descending=True).values,
            lambda: shares.cumsum(-1), lambda: torch.multinomial(shares, 1), lambda: scores.masked_fill(mask, -1e9),
            lambda: scores.gather(-1, some), lambda: scores.scatter(-1, some, -1e9), lambda: scores / 0.7,
            lambda: mask.scatter(-1, some, value=True), lambda: shares.exponential_(), lambda: scores.float(),
            lambda: torch.where(mask, scores, -1e9), lambda: scores < scores[:, :1], lambda: scores.max(-1).values,
            lambda: scores.logsumexp(-1), lambda: torch.multinomial(shares, min(count, 8)), lambda: scores.sum(-1),
            lambda: scores.logsumexp(-1, keepdim=True), lambda: scores.view(1, -1).topk(count, -1).values,
        )  # fmt: skip
        made = rng.choice(calls)
        return lambda: made().detach(), ()

    def _small(self) -> Made:
        """Bookkeeping: tokens so far, who has ended, scores of beams."""
        torch, rng = self.torch, self.rng
        rows, length = self.size(1, 256), self.size(1, 512)
        length = max(1, min(length, self.most // rows))
        tokens = self.places(1000, rows, length)
        truth, numbers = tokens[:, 0] > 500, torch.rand(rows, 8, device=self.pool.device)
        order, last = self.places(8, rows, 4), tokens[:, -1:]
        calls: tuple[Callable[[], Any], ...] = (
            lambda: torch.cat((tokens, last), 1), lambda: tokens == 2, lambda: truth.all(), lambda: truth.any(),
            lambda: numbers.gather(1, order), lambda: tokens.gather(1, order % length), lambda: tokens[:, -1],
            lambda: numbers.topk(4, 1).values, lambda: numbers.sort(1).values, lambda: tokens.cumsum(1),
            lambda: torch.where(truth, tokens[:, 0], 0), lambda: tokens.sum(1), lambda: truth.long() * 3,
            lambda: numbers.cumprod(1), lambda: tokens[order[:, 0] % rows], lambda: numbers.log(),
            lambda: tokens.index_select(0, order[:, 0] % rows), lambda: tokens.masked_fill(tokens > 3, 1),
            lambda: tokens // 7, lambda: tokens % 7, lambda: torch.stack((tokens, tokens), 1), lambda: tokens.max(),
            lambda: torch.nn.functional.pad(tokens, (0, 1)), lambda: truth.nonzero(), lambda: tokens.clone(),
            lambda: torch.isin(tokens, last[:3, 0]), lambda: tokens.new_zeros(rows, 1), lambda: numbers.argmax(1),
            lambda: torch.full((rows, length), -1e9, device=tokens.device).triu(1),
            lambda: torch.arange(length, device=tokens.device)[None] < tokens[:, :1],
        )  # fmt: skip
        made = rng.choice(calls)
        return lambda: made().detach(), ()

    def _long_rows(self) -> Made:
        """Long rows taken and put in another order, as experts, stores and shuffles do."""
        self.begin()
        torch = self.torch
        rows, width = self.size(8, 8192), self.size(64, 2**18, of=64)
        width = max(8, min(width, min(2**26, self.most) // rows))
        table = self.values(rows, width)
        order = torch.randperm(rows, device=self.pool.device)
        some = self.places(rows, max(1, rows // self.rng.choice((1, 2, 4))))
        short = some.int()
        zeros = torch.zeros_like(table)
        calls: tuple[Callable[..., Any], ...] = (
            lambda x: x[order], lambda x: x.index_select(0, some), lambda x: x.index_select(0, short),
            lambda x: x[some], lambda x: zeros.index_add(0, order, x), lambda x: zeros.index_copy(0, order, x),
            lambda x: x.repeat_interleave(2, 0), lambda x: x.view(rows, 1, width).index_select(0, order),
            lambda x: x.index_select(1, order % width), lambda x: x[:, order % width],
        )  # fmt: skip
        return self.rng.choice(calls), (table,)


def _detached(made: Any, instead: Any) -> Any:
    """The result of a call; of one that returns none, what it wrote to."""
    return (instead if made is None else made).detach()
