"""Eager calls drawn with a seed: element-wise ones in every layout, reductions, copies, indexing, library calls.

For ``eager_strangers_cuda.py``. Tensors are windows of one store of drawn values, each behind the last, so that many
calls fit into memory and each finds a cache that others swept.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

Call = tuple[str, Callable[..., Any], tuple[Any, ...]]
Tensors = tuple[Any, ...]

_DTYPES = ("bfloat16", "float32", "float16")
_ALIGNED = 256
_OF_RARE_DTYPES = 2**26
"""Values of double or complex numbers that are held."""
_BINARY = ("add", "sub", "mul", "div", "mul", "add", "maximum")
_REDUCTIONS = ("sum", "mean", "sum", "mean", "amax", "amin", "var", "std", "norm", "argmax", "prod", "logsumexp", "all")


class Pool:
    """Drawn values of each dtype on a device, of which ``take`` hands out windows."""

    def __init__(self, device: str, elements: int, seed: int) -> None:
        import torch

        torch.manual_seed(seed)
        self.device, self._at = device, 0
        self._values = {torch.float32: torch.randn(elements, device=device)}
        for name in ("bfloat16", "float16"):
            dtype = getattr(torch, name)
            self._values[dtype] = self._values[torch.float32].to(dtype)

    def take(self, dtype: Any, shape: tuple[int, ...], number: int | None = None) -> Any:
        """A tensor of ``shape``; of a ``number``, always the same window."""
        if dtype not in self._values:
            held = self._values[next(iter(self._values))][:_OF_RARE_DTYPES]
            self._values[dtype] = held.to(dtype)
        values, numel = self._values[dtype], math.prod(shape)
        at = self._at if number is None else number * 7919 * _ALIGNED
        at %= max(1, values.numel() - numel)
        at -= at % _ALIGNED
        if number is None:
            self._at = at + numel + _ALIGNED
        return values[at : at + numel].view(shape)


def draw(seed: int, count: int, pool: Pool, *, most_elements: int, drawing: type[Drawn] | None = None) -> list[Call]:
    """Named calls with the tensors whose gradients they make; all kinds come before any comes again."""
    made = (drawing or Drawn)(random.Random(f"eager calls {seed}"), pool, most_elements)
    kinds = made.kinds()
    order = [made.rng.sample(kinds, len(kinds)) for _ in range(-(-count // len(kinds)))]
    return [(kind.__name__.lstrip("_"), *kind()) for kind in [each for some in order for each in some][:count]]


class Drawn:
    """Draws calls of all kinds."""

    def __init__(self, rng: random.Random, pool: Pool, most_elements: int) -> None:
        import torch

        self.rng, self.pool, self.most = rng, pool, most_elements
        self.torch, self.functional = torch, torch.nn.functional
        self.dtype = torch.float32

    def begin(self, *, single: bool = False) -> None:
        """Draw the dtype of the next call."""
        self.dtype = self.torch.float32 if single else getattr(self.torch, self.rng.choice(_DTYPES))

    def size(self, low: int, high: int, *, of: int = 1) -> int:
        """A size, even in logarithms, often a multiple of ``of``."""
        low, high = min(low, self.most), min(high, self.most)
        drawn = round(math.exp(self.rng.uniform(math.log(low), math.log(high))))
        return max(of, drawn - drawn % of) if self.rng.random() < 0.8 else drawn

    def values(self, *shape: int, grad: bool = True) -> Any:
        """A leaf of the call's dtype."""
        return self.pool.take(self.dtype, shape).detach().requires_grad_(grad)

    def matrix(self, most: int = 2**27, *, grad: bool = True) -> Any:
        """A dense matrix of ``most`` elements at most."""
        columns = self.size(32, 12288, of=64)
        return self.values(self.size(16, max(17, min(most, self.most) // columns), of=8), columns, grad=grad)

    def image(self, most: int = 2**25) -> Any:
        """Images, now and then with their channels last."""
        height, width = self.size(7, 96), self.size(7, 96)
        channels = self.size(3, 512, of=16)
        batch = self.size(1, max(1, min(most, self.most) // (height * width * channels)))
        image = self.values(min(batch, 128), channels, height, width)
        if self.rng.random() < 0.3:
            image = image.detach().contiguous(memory_format=self.torch.channels_last).requires_grad_()
        return image

    def places(self, high: int, *shape: int) -> Any:
        """Indices below ``high``."""
        return self.torch.randint(0, high, shape, device=self.pool.device)

    def laid_out(self) -> Any:
        """A matrix that is dense, a share of wider rows, every other row, or lies across."""
        how = self.rng.choice(("dense", "dense", "half", "across", "rows"))
        matrix = self.matrix()
        if how == "half":
            return matrix.detach()[:, : max(1, matrix.shape[1] // 2)].requires_grad_()
        if how == "rows":
            return matrix.detach()[::2].requires_grad_()
        return matrix.detach().t().requires_grad_() if how == "across" else matrix

    def kinds(self) -> list[Callable[[], tuple[Callable[..., Any], Tensors]]]:
        """Each draws a call of its kind."""
        return [
            *(self._unary,) * 4, *(self._binary,) * 8, *(self._compared,) * 2, *(self._reduced,) * 5, self._scanned,
            self._ternary, self._in_place, self._sorted, self._copied, self._copied, self._cast, self._joined,
            self._padded, self._made, self._dropped, self._softmax, self._losses, self._entropy, self._indexed,
            self._indexed, self._embedding, self._scattered, self._pooled, self._upsampled, self._batch_norm,
            self._group_norm, self._layer_norm, self._convolution, self._convolution, self._transposed, self._volume,
            self._attention, self._masked, self._spectrum, self._moments, self._rotated, self._gated, self._product,
        ]  # fmt: skip

    def _unary(self) -> tuple[Any, Tensors]:
        self.begin()
        names = "exp neg abs sqrt rsqrt tanh sigmoid relu log square reciprocal sin cos erf clone_relu silu gelu"
        names += " softplus leaky_relu hardswish elu mish log_sigmoid clamp power"
        name = self.rng.choice(names.split())
        torch, functional = self.torch, self.functional
        calls: dict[str, Any] = {
            "clone_relu": lambda x: x.clamp_min(0.0), "clamp": lambda x: x.clamp(-1, 1), "power": lambda x: x**3,
            "log_sigmoid": functional.logsigmoid,
        }  # fmt: skip
        found = calls.get(name) or getattr(torch, name, None) or getattr(functional, name)
        return found, (self.laid_out(),)

    def _binary(self) -> tuple[Any, Tensors]:
        self.begin()
        call = self.rng.choice([getattr(self.torch, name) for name in _BINARY])
        left = self.laid_out()
        how = self.rng.choice(("alike", "alike", "row", "column", "scalar", "mixed", "layout", "middle"))
        if how == "scalar":
            return (lambda x: call(x, self.torch.tensor(0.5))) if call is self.torch.maximum else (
                lambda x: call(x, 1.7)
            ), (left,)
        if how == "row":
            return call, (left, self.values(left.shape[1]))
        if how == "column":
            return call, (left, self.values(left.shape[0], 1))
        if how == "middle":
            heads, width = self.size(2, 32), self.size(16, 256, of=16)
            rows = self.size(8, max(9, self.most // (4 * heads * width)))
            return call, (self.values(4, rows, heads, width), self.values(rows, 1, width))
        if how == "mixed":
            self.dtype = self.rng.choice([getattr(self.torch, name) for name in _DTYPES])
        right = self.values(*left.shape)
        if how == "layout":
            right = self.values(*left.shape[::-1]).detach().t().requires_grad_()
        return call, (left, right)

    def _compared(self) -> tuple[Any, Tensors]:
        self.begin()
        left, torch = self.laid_out(), self.torch
        right = self.values(*(left.shape if self.rng.random() < 0.5 else left.shape[1:]), grad=False)
        calls = [
            lambda x: torch.where(x > 0, x, right), lambda x: (x > right).to(x.dtype), lambda x: torch.eq(x, right),
            lambda x: torch.logical_and(x > 0, right > 0), lambda x: x.masked_fill(right > 0, -1.0),
        ]  # fmt: skip
        return self.rng.choice(calls), (left,)

    def _ternary(self) -> tuple[Any, Tensors]:
        self.begin()
        first, torch = self.matrix(2**26), self.torch
        second, third = self.values(*first.shape), self.values(*first.shape)
        calls = [torch.addcmul, torch.lerp, lambda x, y, z: torch.addcdiv(x, y, z)]
        return self.rng.choice(calls), (first, second, third)

    def _in_place(self) -> tuple[Any, Tensors]:
        self.begin()
        target, other = self.matrix(2**26, grad=False).clone(), self.matrix(2**26, grad=False)
        other = self.values(*target.shape, grad=False)
        calls = [
            lambda: target.mul_(0.999), lambda: target.add_(other, alpha=1e-3), lambda: target.zero_(),
            lambda: target.copy_(other), lambda: target.clamp_(-2, 2), lambda: target.lerp_(other, 0.1),
            lambda: target.div_(1.001), lambda: target.sub_(other), lambda: target.fill_(1.0),
        ]  # fmt: skip
        return self.rng.choice(calls), ()

    def _reduced(self) -> tuple[Any, Tensors]:
        self.begin()
        name = self.rng.choice(_REDUCTIONS)
        left = self.laid_out()
        dim = self.rng.choice((-1, -1, 0))
        if name == "all":
            return lambda x: (x > 0).all(dim), (left,)
        if name == "norm":
            return lambda x: self.torch.linalg.vector_norm(x, dim=dim), (left,)
        if name in ("sum", "mean") and self.rng.random() < 0.3:
            return lambda x: getattr(x, name)(), (left,)
        return lambda x: getattr(self.torch, name)(x, dim), (left,)

    def _scanned(self) -> tuple[Any, Tensors]:
        self.begin()
        dim = self.rng.choice((-1, -1, 0))
        call = self.rng.choice((self.torch.cumsum, self.torch.cumsum, self.torch.cumprod))
        return lambda x: call(x, dim), (self.matrix(2**24),)

    def _sorted(self) -> tuple[Any, Tensors]:
        self.begin()
        left = self.matrix(2**23)
        most = min(self.rng.choice((1, 2, 8, 64)), left.shape[1])
        calls = [lambda x: x.sort(-1).values, lambda x: x.topk(most).values, lambda x: x.topk(most).values]
        return self.rng.choice(calls), (left,)

    def _copied(self) -> tuple[Any, Tensors]:
        self.begin()
        heads, width = self.size(2, 32), self.size(16, 256, of=16)
        rows = self.size(16, max(17, self.most // (2 * heads * width)), of=8)
        block, matrix = self.values(2, rows, heads, width), self.laid_out()
        calls = [
            (lambda x: x.transpose(1, 2).contiguous(), block), (lambda x: x.clone(), matrix),
            (lambda x: x.transpose(1, 3).contiguous(), block), (lambda x: x.t().contiguous(), matrix),
            (lambda x: x.permute(2, 0, 3, 1).contiguous(), block), (lambda x: x.flip(-1), matrix),
            (lambda x: x.roll(1, -1), matrix), (lambda x: x.repeat(1, 2), matrix), (lambda x: x.tril(), matrix),
            (lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1, -1).contiguous(), block),
        ]  # fmt: skip
        call, tensor = self.rng.choice(calls)
        return call, (tensor,)

    def _cast(self) -> tuple[Any, Tensors]:
        self.begin()
        to = getattr(self.torch, self.rng.choice(_DTYPES))
        return lambda x: x.to(to), (self.laid_out(),)

    def _joined(self) -> tuple[Any, Tensors]:
        self.begin()
        left = self.laid_out()
        if self.rng.random() < 0.3:
            return lambda x, y: self.torch.stack((x, y), 1), (left, self.values(*left.shape))
        right = self.values(left.shape[0], self.size(32, 2048, of=32))
        return lambda x, y: self.torch.cat((x, y), -1), (left, right)

    def _padded(self) -> tuple[Any, Tensors]:
        self.begin()
        how = self.rng.choice(("constant", "reflect"))
        image = self.image(2**24)
        return lambda x: self.functional.pad(x, (2, 2, 2, 2), mode=how), (image,)

    def _made(self) -> tuple[Any, Tensors]:
        self.begin()
        shape, torch = tuple(self.matrix(2**26).shape), self.torch
        how = {"device": self.pool.device, "dtype": self.dtype}
        left = self.values(*shape, grad=False)
        calls = [
            lambda: torch.zeros(shape, **how), lambda: torch.full(shape, 1.5, **how), lambda: torch.randn(shape, **how),
            lambda: torch.rand(shape, **how), lambda: torch.arange(math.prod(shape), device=self.pool.device),
            lambda: torch.zeros_like(left), lambda: torch.ones_like(left), lambda: torch.rand_like(left),
            lambda: torch.empty(shape, **how).normal_(), lambda: torch.empty(shape, **how).bernoulli_(0.5),
        ]  # fmt: skip
        return self.rng.choice(calls), ()

    def _dropped(self) -> tuple[Any, Tensors]:
        self.begin()
        return lambda x: self.functional.dropout(x, 0.1), (self.matrix(2**26),)

    def _softmax(self) -> tuple[Any, Tensors]:
        self.begin()
        call = self.rng.choice((self.functional.softmax, self.functional.log_softmax))
        dim = self.rng.choice((-1, -1, -1, 0))
        return lambda x: call(x, dim), (self.matrix(2**26),)

    def _losses(self) -> tuple[Any, Tensors]:
        self.begin()
        left, functional = self.matrix(2**25), self.functional
        right = self.values(*left.shape, grad=False)
        calls = [
            lambda x: functional.mse_loss(x, right), lambda x: functional.smooth_l1_loss(x, right),
            lambda x: functional.l1_loss(x, right), lambda x: functional.binary_cross_entropy_with_logits(x, right),
            lambda x: functional.kl_div(x, right, reduction="batchmean"),
        ]  # fmt: skip
        return self.rng.choice(calls), (left,)

    def _entropy(self) -> tuple[Any, Tensors]:
        self.begin()
        classes = self.size(10, 65536)
        rows = self.values(self.size(16, max(17, min(2**27, self.most) // classes)), classes)
        places = self.places(classes, rows.shape[0])
        return lambda x: self.functional.cross_entropy(x, places), (rows,)

    def _indexed(self) -> tuple[Any, Tensors]:
        self.begin()
        table, torch = self.matrix(2**26), self.torch
        wanted = self.size(16, max(17, min(2**25, self.most) // table.shape[1]))
        places = self.places(table.shape[0], wanted)
        columns = self.places(table.shape[1], table.shape[0], min(64, table.shape[1]))
        calls = [
            lambda x: x.index_select(0, places), lambda x: x[places], lambda x: torch.gather(x, 1, columns),
            lambda x: torch.gather(x, 0, places.unsqueeze(1).expand(-1, x.shape[1])), lambda x: x[:, x.shape[1] // 2 :],
            lambda x: torch.take_along_dim(x, columns, 1),
        ]  # fmt: skip
        return self.rng.choice(calls), (table,)

    def _embedding(self) -> tuple[Any, Tensors]:
        self.begin()
        width = self.size(32, 4096, of=32)
        table = self.values(self.size(64, max(65, min(2**27, self.most) // width)), width)
        places = self.places(table.shape[0], self.size(1, 16), self.size(32, 2048))
        return lambda w: self.functional.embedding(places, w), (table,)

    def _scattered(self) -> tuple[Any, Tensors]:
        self.begin()
        rows = self.matrix(2**25)
        height = self.size(16, 65536)
        places, torch = self.places(height, rows.shape[0]), self.torch
        made = {"dtype": rows.dtype, "device": self.pool.device}
        spread = places.unsqueeze(1).expand(-1, rows.shape[1])
        calls = [
            lambda x: torch.zeros(height, x.shape[1], **made).scatter_add(0, spread, x),
            lambda x: torch.zeros(height, x.shape[1], **made).index_add(0, places, x),
            lambda x: torch.zeros(height, x.shape[1], **made).index_put((places,), x, accumulate=True),
            lambda x: torch.zeros(height, x.shape[1], **made).scatter(0, spread, x),
        ]  # fmt: skip
        return self.rng.choice(calls), (rows,)

    def _pooled(self) -> tuple[Any, Tensors]:
        self.begin()
        functional = self.functional
        calls = [
            lambda x: functional.max_pool2d(x, 3, 2, 1), lambda x: functional.max_pool2d(x, 2),
            lambda x: functional.avg_pool2d(x, 2), lambda x: functional.adaptive_avg_pool2d(x, 1),
            lambda x: functional.adaptive_avg_pool2d(x, 7),
        ]  # fmt: skip
        return self.rng.choice(calls), (self.image(),)

    def _upsampled(self) -> tuple[Any, Tensors]:
        self.begin()
        mode = self.rng.choice(("nearest", "bilinear"))
        return lambda x: self.functional.interpolate(x, scale_factor=2, mode=mode), (self.image(2**23),)

    def _batch_norm(self) -> tuple[Any, Tensors]:
        self.begin()
        image, torch, training = self.image(), self.torch, self.rng.random() < 0.8
        mean, spread = (made(image.shape[1], device=self.pool.device) for made in (torch.zeros, torch.ones))
        # A weight of single precision beside an image of half of it is what autocast has, and goes to cuDNN.
        has_weight, own = self.rng.random() < 0.7, self.dtype
        self.dtype = self.torch.float32
        weight, bias = self.values(image.shape[1]), self.values(image.shape[1])
        self.dtype = own
        if not has_weight:
            return lambda x: self.functional.batch_norm(x, mean, spread, training=training), (image,)
        call = self.functional.batch_norm
        return lambda x, w, b: call(x, mean, spread, w, b, training=training), (image, weight, bias)

    def _group_norm(self) -> tuple[Any, Tensors]:
        self.begin()
        image = self.image()
        groups = math.gcd(image.shape[1], self.rng.choice((1, 8, 32)))
        weight, bias = self.values(image.shape[1]), self.values(image.shape[1])
        return lambda x, w, b: self.functional.group_norm(x, groups, w, b), (image, weight, bias)

    def _layer_norm(self) -> tuple[Any, Tensors]:
        self.begin()
        rows = self.matrix(2**26)
        weight, bias = self.values(rows.shape[1]), self.values(rows.shape[1])
        if self.rng.random() < 0.3 and hasattr(self.functional, "rms_norm"):
            return lambda x, w: self.functional.rms_norm(x, (x.shape[1],), w), (rows, weight)
        return lambda x, w, b: self.functional.layer_norm(x, (x.shape[1],), w, b), (rows, weight, bias)

    def _convolution(self) -> tuple[Any, Tensors]:
        self.begin()
        image = self.image(2**23)
        channels, side = image.shape[1], self.rng.choice((1, 3, 3, 5, 7))
        groups = channels if self.rng.random() < 0.4 else 1
        filters = channels * self.rng.choice((1, 2)) if groups > 1 else self.size(8, 512, of=16)
        weight, stride = self.values(filters, channels // groups, side, side), self.rng.choice((1, 1, 2))
        call = self.functional.conv2d
        return lambda x, w: call(x, w, stride=stride, padding=side // 2, groups=groups), (image, weight)

    def _transposed(self) -> tuple[Any, Tensors]:
        self.begin()
        image, side = self.image(2**22), self.rng.choice((2, 3, 4))
        weight = self.values(image.shape[1], self.size(8, 256, of=16), side, side)
        return lambda x, w: self.functional.conv_transpose2d(x, w, stride=2, padding=side // 2 - 1 + side % 2), (
            image, weight,
        )  # fmt: skip

    def _volume(self) -> tuple[Any, Tensors]:
        self.begin()
        depth, side, channels = self.size(4, 32), self.size(8, 64), self.size(3, 128, of=16)
        batch = max(1, min(8, 2**23 // (depth * side * side * channels)))
        block = self.values(batch, channels, depth, side, side)
        weight = self.values(self.size(8, 128, of=16), channels, *(self.rng.choice((1, 3, 3)),) * 3)
        return lambda x, w: self.functional.conv3d(x, w, padding=w.shape[-1] // 2), (block, weight)

    def _attention(self) -> tuple[Any, Tensors]:
        self.begin()
        shape = self.size(1, 8), self.size(2, 32), self.size(64, 2048, of=64), self.rng.choice((32, 64, 80, 128))
        causal, call = self.rng.random() < 0.5, self.functional.scaled_dot_product_attention
        return lambda q, k, v: call(q, k, v, is_causal=causal), tuple(self.values(*shape) for _ in range(3))

    def _masked(self) -> tuple[Any, Tensors]:
        self.begin()
        length = self.size(32, 1024, of=32)
        scores = self.values(self.size(1, 16), self.size(2, 16), length, length)
        mask = self.torch.rand(length, length, device=self.pool.device) > 0.5
        return lambda x: x.masked_fill(mask, -1e4), (scores,)

    def _spectrum(self) -> tuple[Any, Tensors]:
        self.begin(single=True)
        return lambda x: self.torch.fft.rfft(x).abs(), (self.matrix(2**24),)

    def _moments(self) -> tuple[Any, Tensors]:
        self.begin()
        weight = self.matrix(2**26)
        return lambda x: x.float().pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt(), (weight,)

    def _rotated(self) -> tuple[Any, Tensors]:
        self.begin()
        query = self.values(self.size(1, 8), self.size(2, 32), self.size(64, 4096, of=64), 128)
        turn = self.values(query.shape[2], 128, grad=False)
        return lambda x: x * turn + self.torch.cat((-x[..., 64:], x[..., :64]), -1) * turn, (query,)

    def _gated(self) -> tuple[Any, Tensors]:
        self.begin()
        rows = self.values(self.size(16, 16384, of=16), 2 * self.size(64, 8192, of=64))
        how = self.rng.choice((self.functional.silu, self.functional.gelu, self.torch.sigmoid))
        return lambda x: how(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], (rows,)

    def _product(self) -> tuple[Any, Tensors]:
        self.begin()
        rows = self.values(self.size(64, 8192, of=64), self.size(64, 4096, of=64))
        weight, bias = self.values(self.size(64, 8192, of=64), rows.shape[1]), None
        return lambda x, w: self.functional.linear(x, w, bias), (rows, weight)
