"""Eager calls that a seed draws of what models have in one place and not in many.

Recurrent layers, volumes, factorizations, spectra, losses over pictures, bags, complex and double numbers. For
``eager_strangers_cuda.py --rare``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

Made = tuple[Any, Tensors]


class DrawnRare(Drawn):
    """Draws calls of these kinds."""

    def kinds(self) -> list[Callable[[], Made]]:
        """All kinds, those more often whose times depend on more."""
        return [
            *(self._recurrent,) * 6, *(self._volume,) * 4, *(self._volume_up,) * 2, *(self._factored,) * 5,
            *(self._solved,) * 3, *(self._transformed,) * 5, *(self._pictures_loss,) * 3, *(self._softmax_over,) * 2,
            *(self._bags,) * 2, *(self._normalized,) * 2, self._aligned, *(self._sampled,) * 2, *(self._unfolded,) * 2,
            *(self._line,) * 3, *(self._pooled_otherwise,) * 2, self._searched, *(self._distances,) * 2,
            *(self._complex,) * 3, *(self._double,) * 3, *(self._double_product,) * 2, *(self._whole_numbers,) * 2,
            *(self._chance,) * 2, *(self._enlarged,) * 3, *(self._activation,) * 2, *(self._encoder,) * 2,
            *(self._ragged,) * 3, self._sparse, self._reduced_at, self._weight_norm,
        ]  # fmt: skip

    def _recurrent(self) -> Made:
        self.begin()
        nn, rng = self.torch.nn, self.rng
        kind = rng.choice((nn.LSTM, nn.LSTM, nn.GRU, nn.GRU, nn.RNN))
        hidden, given = self.size(32, 1024, of=32), self.size(32, 1024, of=32)
        layers, both = rng.choice((1, 1, 2, 3)), rng.random() < 0.3
        batch, length = self.size(1, 256, of=4), self.size(8, 512)
        work = 2.0 * layers * (1 + both) * 4 * hidden * (hidden + given) * batch
        length = max(4, min(length, int(2e12 / work), self.most // (batch * max(given, hidden))))
        module = kind(given, hidden, layers, batch_first=rng.random() < 0.5, bidirectional=both)
        module = module.to(self.pool.device, self.dtype)
        shape = (batch, length, given) if module.batch_first else (length, batch, given)
        return lambda x, *_: module(x)[0], (self.values(*shape), *module.parameters())

    def _volume(self) -> Made:
        self.begin()
        depth, side, channels = self.size(4, 64), self.size(8, 96), self.size(1, 256, of=8)
        batch = self.size(1, max(1, min(8, min(2**24, self.most) // (depth * side * side * channels))))
        channels = max(1, min(channels, min(2**25, self.most) // (depth * side * side * batch)))
        groups = channels if self.rng.random() < 0.15 else 1
        filters = channels if groups > 1 else self.size(4, 256, of=8)
        side_of = self.rng.choice((1, 2, 3, 3, 3, 5))
        sides = (side_of, side_of, side_of) if self.rng.random() < 0.8 else (1, side_of, side_of)
        stride = self.rng.choice((1, 1, 2))
        block = self.values(batch, channels, depth, side, side)
        weight = self.values(filters, channels // groups, *sides)
        if self.rng.random() < 0.2:
            block = block.detach().contiguous(memory_format=self.torch.channels_last_3d).requires_grad_()
        padding, call = tuple(each // 2 for each in sides), self.functional.conv3d
        return lambda x, w: call(x, w, stride=stride, padding=padding, groups=groups), (block, weight)

    def _volume_up(self) -> Made:
        self.begin()
        side, channels, batch = self.size(4, 32), self.size(8, 256, of=8), self.size(1, 4)
        channels = max(8, min(channels, min(2**22, self.most) // (side**3 * batch)))
        block = self.values(batch, channels, side, side, side)
        weight = self.values(channels, self.size(8, 128, of=8), 2, 2, 2)
        return lambda x, w: self.functional.conv_transpose3d(x, w, stride=2), (block, weight)

    def _matrices(self, most: int = 2048) -> tuple[Any, Any]:
        """Positive definite matrices, one or a batch, and columns beside them, of single or double numbers."""
        torch = self.torch
        size = self.size(4, most)
        count = self.size(1, max(1, min(512, min(2**22, self.most) // size**2))) if self.rng.random() < 0.6 else 1
        dtype = torch.float64 if self.rng.random() < 0.4 else torch.float32
        made = torch.randn(count, size, size, device=self.pool.device, dtype=dtype)
        matrices = made @ made.mT / size + torch.eye(size, device=self.pool.device, dtype=dtype)
        columns = torch.randn(count, size, self.size(1, 256), device=self.pool.device, dtype=dtype)
        if count == 1 and self.rng.random() < 0.7:
            matrices, columns = matrices[0], columns[0]
        return matrices.contiguous().requires_grad_(), columns.contiguous().requires_grad_()

    def _factored(self) -> Made:
        linalg = self.torch.linalg
        calls: tuple[tuple[Callable[..., Any], int], ...] = (
            (lambda x: linalg.cholesky_ex(x).L, 4096), (lambda x: linalg.cholesky_ex(x).L, 2048),
            (lambda x: linalg.lu_factor_ex(x).LU, 1024), (lambda x: linalg.inv_ex(x).inverse, 1024),
            (lambda x: linalg.qr(x).R, 512), (lambda x: linalg.eigh(x).eigenvalues, 256),
            (lambda x: linalg.matrix_exp(x), 256), (lambda x: linalg.slogdet(x).logabsdet, 512),
        )  # fmt: skip
        call, most = self.rng.choice(calls)
        return call, (self._matrices(most)[0],)

    def _solved(self) -> Made:
        linalg = self.torch.linalg
        matrices, columns = self._matrices(1024)
        calls: tuple[Callable[..., Any], ...] = (
            lambda a, b: linalg.solve_triangular(a, b, upper=False), lambda a, b: linalg.solve_ex(a, b).result,
            lambda a, b: self.torch.cholesky_solve(b, a), lambda a, b: linalg.solve_triangular(a, b, upper=True),
        )  # fmt: skip
        return self.rng.choice(calls), (matrices, columns)

    def _transformed(self) -> Made:
        fft, rng = self.torch.fft, self.rng
        self.dtype = self.torch.float32
        if rng.random() < 0.4:
            rows = self.size(8, 4096)
            length = self.size(16, max(32, min(2**18, min(2**24, self.most) // rows)), of=rng.choice((1, 16, 64)))
            given = self.values(rows, length)
            calls: tuple[Callable[..., Any], ...] = (
                lambda x: fft.rfft(x), lambda x: fft.fft(x), lambda x: fft.irfft(fft.rfft(x), n=x.shape[-1]),
                lambda x: fft.rfft(x, norm="ortho"), lambda x: fft.fft(x, dim=0),
            )  # fmt: skip
            return rng.choice(calls), (given,)
        if rng.random() < 0.75:
            side = self.size(8, 512, of=rng.choice((1, 8, 32)))
            batch = self.size(1, max(1, min(256, min(2**24, self.most) // side**2)))
            given = self.values(batch, side, side) if rng.random() < 0.5 else self.values(1, batch, side, side)
            calls = (
                lambda x: fft.rfft2(x), lambda x: fft.fft2(x), lambda x: fft.irfft2(fft.rfft2(x), s=x.shape[-2:]),
                lambda x: fft.ifft2(fft.fft2(x)), lambda x: fft.rfft2(x, norm="ortho"),
            )  # fmt: skip
            return rng.choice(calls), (given,)
        side = self.size(8, 128, of=8)
        given = self.values(self.size(1, max(1, min(16, min(2**23, self.most) // side**3))), side, side, side)
        return rng.choice((lambda x: fft.rfftn(x, dim=(1, 2, 3)), lambda x: fft.fftn(x, dim=(1, 2, 3)))), (given,)

    def _over_pictures(self) -> tuple[Any, tuple[int, ...]]:
        """Scores of a few classes at each place of pictures or volumes."""
        classes, is_volume = self.size(2, 150), self.rng.random() < 0.4
        side = self.size(8, 64 if is_volume else 512, of=8)
        sides = (side,) * (3 if is_volume else 2)
        batch = self.size(1, max(1, min(32, min(2**26, self.most) // (classes * math.prod(sides)))))
        return self.values(batch, classes, *sides), (batch, *sides)

    def _pictures_loss(self) -> Made:
        self.begin()
        scores, shape = self._over_pictures()
        places = self.places(scores.shape[1], *shape)
        return lambda x: self.functional.cross_entropy(x, places), (scores,)

    def _softmax_over(self) -> Made:
        self.begin()
        scores, _ = self._over_pictures()
        call = self.rng.choice((self.functional.softmax, self.functional.log_softmax))
        return lambda x: call(x, 1), (scores,)

    def _bags(self) -> Made:
        self.begin()
        width = self.size(8, 512, of=8)
        table = self.values(self.size(64, max(65, min(2**26, self.most) // width)), width)
        bags, each = self.size(16, 65536, of=16), self.size(1, 64)
        bags = max(1, min(bags, min(2**21, self.most) // each))
        places, mode = self.places(table.shape[0], bags, each), self.rng.choice(("sum", "mean", "max"))
        return lambda w: self.functional.embedding_bag(places, w, mode=mode), (table,)

    def _normalized(self) -> Made:
        self.begin()
        image = self.image(2**24)
        calls: tuple[Callable[..., Any], ...] = (
            lambda x: self.functional.normalize(x, dim=1), lambda x: x.norm(dim=1), lambda x: x.norm(dim=(2, 3)),
            lambda x: self.functional.local_response_norm(x, 5), lambda x: self.functional.instance_norm(x),
            lambda x: self.functional.cosine_similarity(x, x.flip(0), dim=1),
        )  # fmt: skip
        return self.rng.choice(calls), (image,)

    def _aligned(self) -> Made:
        self.begin(single=True)
        length, batch, classes = self.size(32, 1024), self.size(1, 64), self.size(16, 1024)
        length = max(4, min(length, self.most // (batch * classes)))
        scores = self.values(length, batch, classes)
        most = max(1, length // 3)
        targets = self.torch.randint(1, classes, (batch, most), device=self.pool.device)
        lengths = [self.torch.full((batch,), each, dtype=self.torch.long) for each in (length, most)]
        return lambda x: self.functional.ctc_loss(x.log_softmax(-1), targets, *lengths), (scores,)

    def _sampled(self) -> Made:
        self.begin(single=self.rng.random() < 0.6)
        image, mode = self.image(2**23), self.rng.choice(("bilinear", "bilinear", "nearest", "bicubic"))
        height, width = self.size(7, 128), self.size(7, 128)
        grid = self.torch.rand(image.shape[0], height, width, 2, device=self.pool.device, dtype=image.dtype) * 2 - 1
        call = self.functional.grid_sample
        return lambda x, g: call(x, g, mode=mode, align_corners=False), (image, grid.requires_grad_())

    def _unfolded(self) -> Made:
        self.begin()
        image, side, stride = self.image(2**21), self.rng.choice((2, 3, 4, 7)), self.rng.choice((1, 2))
        if self.rng.random() < 0.6:
            return lambda x: self.functional.unfold(x, side, stride=stride), (image,)
        height, width = ((each - side) // stride + 1 for each in image.shape[2:])
        folded = self.values(image.shape[0], image.shape[1] * side * side, height * width)
        sizes = tuple(image.shape[2:])
        return lambda x: self.functional.fold(x, sizes, side, stride=stride), (folded,)

    def _line(self) -> Made:
        self.begin()
        channels, length = self.size(1, 1024, of=16), self.size(32, 65536, of=8)
        batch = self.size(1, max(1, min(64, min(2**24, self.most) // (channels * length))))
        length = max(32, min(length, min(2**25, self.most) // (channels * batch)))
        groups = channels if self.rng.random() < 0.3 else 1
        filters = channels if groups > 1 else self.size(16, 1024, of=16)
        side = self.rng.choice((1, 3, 3, 5, 7, 15, 31))
        dilation, stride = self.rng.choice((1, 1, 2, 8)), self.rng.choice((1, 1, 2, 4))
        line, weight = self.values(batch, channels, length), self.values(filters, channels // groups, side)
        how = {"stride": stride, "padding": dilation * (side // 2), "dilation": dilation, "groups": groups}
        return lambda x, w: self.functional.conv1d(x, w, **how), (line, weight)

    def _pooled_otherwise(self) -> Made:
        self.begin()
        functional = self.functional
        if self.rng.random() < 0.5:
            side, channels = self.size(8, 64, of=4), self.size(4, 128, of=4)
            batch = self.size(1, max(1, min(8, min(2**24, self.most) // (channels * side**3))))
            block = self.values(batch, channels, side, side, side)
            calls = (lambda x: functional.max_pool3d(x, 2), lambda x: functional.avg_pool3d(x, 2))
            return self.rng.choice((*calls, lambda x: functional.adaptive_avg_pool3d(x, 1))), (block,)
        calls = (lambda x: functional.adaptive_max_pool2d(x, 7), lambda x: functional.max_pool2d(x, 3, 1, 1))
        return self.rng.choice((*calls, lambda x: functional.max_pool1d(x.flatten(2), 4))), (self.image(2**24),)

    def _searched(self) -> Made:
        self.begin(single=True)
        bounds = self.torch.linspace(-3, 3, self.size(4, 65536), device=self.pool.device)
        values = self.matrix(2**24, grad=False)
        call = self.rng.choice((self.torch.bucketize, lambda x, y: self.torch.searchsorted(y, x)))
        return lambda: call(values, bounds), ()

    def _distances(self) -> Made:
        self.begin(single=True)
        width = self.size(2, 512)
        left, right = self.values(self.size(32, 4096), width), self.values(self.size(32, 4096), width)
        norm = self.rng.choice((2.0, 2.0, 1.0))
        return lambda x, y: self.torch.cdist(x, y, p=norm), (left, right)

    def _complex(self) -> Made:
        self.dtype = self.torch.complex64
        shape = tuple(self.matrix(2**24, grad=False).shape)
        left, right = self.values(*shape), self.values(*shape)
        calls: tuple[Callable[..., Any], ...] = (
            lambda x, y: x * y, lambda x, y: x + y, lambda x, y: (x * y.conj()).abs(), lambda x, y: x.angle(),
            lambda x, y: self.torch.complex(x.real, y.imag), lambda x, y: x / y, lambda x, y: x.exp(),
            lambda x, y: self.torch.view_as_complex(self.torch.view_as_real(x).contiguous()) * y,
            lambda x, y: x @ y.mT if x.numel() < 2**20 else x * 2.0,
        )  # fmt: skip
        return self.rng.choice(calls), (left, right)

    def _double(self) -> Made:
        self.dtype = self.torch.float64
        left, right = self.matrix(2**24), None
        right = self.values(*left.shape)
        calls: tuple[Callable[..., Any], ...] = (
            lambda x, y: x * y, lambda x, y: x.exp(), lambda x, y: x.sum(-1), lambda x, y: (x - y).pow(2).mean(),
            lambda x, y: x.float(), lambda x, y: self.torch.softmax(x, -1), lambda x, y: x.tanh() + y,
            lambda x, y: x.cumsum(-1),
        )  # fmt: skip
        return self.rng.choice(calls), (left, right)

    def _double_product(self) -> Made:
        self.dtype = self.torch.float64
        count = self.rng.choice((1, 1, 4, 32))
        rows, shared, columns = (self.size(16, 2048 if count == 1 else 256) for _ in range(3))
        left, right = self.values(count, rows, shared), self.values(count, shared, columns)
        return (lambda x, y: x @ y) if count > 1 else (lambda x, y: x[0] @ y[0]), (left, right)

    def _whole_numbers(self) -> Made:
        torch, device = self.torch, self.pool.device
        values = torch.randint(0, 1000, (self.size(64, 4096), self.size(32, 4096)), device=device)
        calls: tuple[Callable[..., Any], ...] = (
            lambda: values + 1, lambda: values.sum(-1), lambda: values.cumsum(-1), lambda: values.argsort(-1),
            lambda: values.float(), lambda: self.functional.one_hot(values[:, 0], 1000), lambda: values == values[0],
            lambda: torch.bincount(values.flatten(), minlength=1000), lambda: values.flatten().sort().values,
            lambda: values.nonzero(), lambda: torch.unique(values), lambda: values[values > 500],
        )  # fmt: skip
        return self.rng.choice(calls), ()

    def _chance(self) -> Made:
        torch, device = self.torch, self.pool.device
        self.dtype = torch.float32
        shares = self.values(self.size(1, 512), self.size(8, 65536), grad=False).abs()
        count = self.size(1024, 2**22)
        calls: tuple[Callable[..., Any], ...] = (
            lambda: torch.multinomial(shares, 1), lambda: torch.multinomial(shares, min(8, shares.shape[1])),
            lambda: torch.randperm(count, device=device), lambda: torch.randint(0, 100, (count,), device=device),
            lambda: torch.poisson(shares), lambda: torch.empty_like(shares).exponential_(),
            lambda: torch.empty_like(shares).uniform_(), lambda: torch.bernoulli(shares.clamp(0, 1)),
        )  # fmt: skip
        return self.rng.choice(calls), ()

    def _enlarged(self) -> Made:
        self.begin()
        functional = self.functional
        if self.rng.random() < 0.4:
            side, channels = self.size(4, 32, of=4), self.size(4, 128, of=4)
            batch = self.size(1, max(1, min(4, min(2**21, self.most) // (channels * side**3))))
            block = self.values(batch, channels, side, side, side)
            mode = self.rng.choice(("trilinear", "nearest"))
            return lambda x: functional.interpolate(x, scale_factor=2, mode=mode), (block,)
        image = self.image(2**22)
        calls: tuple[Callable[..., Any], ...] = (
            lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"),
            lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
            lambda x: functional.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
            lambda x: functional.interpolate(x, size=(224, 224), mode="bilinear"),
            lambda x: functional.pixel_shuffle(functional.pad(x, (0, x.shape[3] % 2)), 1),
            lambda x: functional.interpolate(x.flatten(2), scale_factor=2, mode="linear"),
        )  # fmt: skip
        return self.rng.choice(calls), (image,)

    def _activation(self) -> Made:
        self.begin()
        functional = self.functional
        rows = self.matrix(2**25)
        calls: tuple[Callable[..., Any], ...] = (
            functional.gelu, lambda x: functional.gelu(x, approximate="tanh"), functional.mish, functional.softplus,
            functional.elu, functional.hardswish, functional.hardtanh, functional.logsigmoid, functional.selu,
            lambda x: functional.glu(x[:, : x.shape[1] // 2 * 2]), functional.leaky_relu, functional.relu6,
        )  # fmt: skip
        return self.rng.choice(calls), (rows,)

    def _encoder(self) -> Made:
        self.begin()
        torch = self.torch
        heads, each = self.rng.choice((4, 8, 12, 16)), self.rng.choice((32, 64))
        layer = torch.nn.TransformerEncoderLayer(heads * each, heads, 4 * heads * each, batch_first=True, dropout=0.0)
        layer = layer.to(self.pool.device, self.dtype).eval()
        given = self.values(self.size(1, 64), self.size(16, 512, of=16), heads * each, grad=False)

        def call() -> Any:
            with torch.no_grad():
                return layer(given)

        return call, ()

    def _ragged(self) -> Made:
        self.dtype = getattr(self.torch, self.rng.choice(("bfloat16", "float16")))
        torch = self.torch
        count, heads, width = self.size(1, 64), self.size(2, 32, of=2), self.rng.choice((32, 64, 128))
        longest = self.size(32, 4096, of=16)
        longest = max(16, min(longest, min(2**25, self.most) // (count * heads * width)))
        lengths = [self.rng.randint(max(1, longest // 8), longest) for _ in range(count)]
        ends = torch.tensor([0, *lengths], device=self.pool.device, dtype=torch.int32).cumsum(0, dtype=torch.int32)
        query, key, value = (self.values(sum(lengths), heads, width) for _ in range(3))
        most, is_causal = max(lengths), self.rng.random() < 0.6

        def call(q: Any, k: Any, v: Any) -> Any:
            from torch.nn.attention.varlen import varlen_attn

            is_of_before = "is_causal" in inspect.signature(varlen_attn).parameters
            how = {"is_causal": is_causal} if is_of_before else {"window_size": (-1, 0 if is_causal else -1)}
            return varlen_attn(q, k, v, ends, ends, most, most, **how)

        return call, (query, key, value)

    def _sparse(self) -> Made:
        torch, device = self.torch, self.pool.device
        self.dtype = torch.float32
        rows, width = self.size(64, 65536), self.size(8, 512, of=8)
        count = self.size(256, max(512, min(2**20, self.most)))
        places = torch.stack([self.places(rows, count), self.places(rows, count)])
        matrix = torch.sparse_coo_tensor(places, torch.ones(count, device=device), (rows, rows)).coalesce()
        matrix = matrix.to_sparse_csr() if self.rng.random() < 0.5 else matrix
        return lambda x: torch.sparse.mm(matrix, x), (self.values(rows, width),)

    def _reduced_at(self) -> Made:
        self.begin()
        rows = self.matrix(2**23)
        height, how = self.size(16, 65536), self.rng.choice(("sum", "mean", "amax", "prod"))
        places = self.places(height, rows.shape[0]).unsqueeze(1).expand(-1, rows.shape[1])
        start = self.torch.zeros(height, rows.shape[1], dtype=rows.dtype, device=self.pool.device)
        return lambda x: start.scatter_reduce(0, places, x, how), (rows,)

    def _weight_norm(self) -> Made:
        self.begin(single=True)
        weight = self.matrix(2**22)
        size = self.values(weight.shape[0], 1)
        return lambda v, g: self.torch._weight_norm(v, g, 0), (weight, size)
