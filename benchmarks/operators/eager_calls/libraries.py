"""What libraries for pictures, graphs and detection call, at the sizes that they have: rows taken from nodes and added
up at them, pictures enlarged by much, boxes, channels joined, norms of few large channels and of volumes, dilated and
transposed convolutions. For ``eager_strangers_cuda.py --libraries``."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors


class DrawnOfLibraries(Drawn):
    """Draws calls of these kinds."""

    def kinds(self) -> list[Callable[[], tuple[Any, Tensors]]]:
        """All kinds, those that are least known more often."""
        return [
            *(self._taken,) * 5, *(self._added,) * 5, *(self._enlarged,) * 5, *(self._boxes,) * 2, *(self._joined,) * 2,
            *(self._large_norm,) * 5, *(self._dilated,) * 3, *(self._volume,) * 2, self._summed, self._graph_softmax,
        ]  # fmt: skip

    def _nodes(self) -> tuple[Any, Any]:
        """Features of nodes, and a node for each edge."""
        self.begin(single=self.rng.random() < 0.7)
        width, nodes = self.size(1, 512, of=self.rng.choice((1, 4, 16, 16))), self.size(64, 300000)
        nodes = max(8, min(nodes, self.most // (2 * width)))
        edges = self.size(64, max(65, min(3000000, self.most // (2 * width))))
        return self.values(nodes, width), self.places(nodes, edges)

    def _taken(self) -> tuple[Any, Tensors]:
        features, edges = self._nodes()
        spread = edges.unsqueeze(1).expand(-1, features.shape[1])
        calls = [lambda x: x.index_select(0, edges), lambda x: x[edges], lambda x: x.gather(0, spread)]
        return self.rng.choice(calls), (features,)

    def _added(self) -> tuple[Any, Tensors]:
        nodes, edges = self._nodes()
        rows = self.values(edges.shape[0], nodes.shape[1])
        spread = edges.unsqueeze(1).expand(-1, nodes.shape[1])
        zeros = self.torch.zeros_like(nodes)
        reduction = self.rng.choice(("amax", "mean", "sum"))
        calls = [
            lambda x: zeros.scatter_add(0, spread, x), lambda x: zeros.index_add(0, edges, x),
            lambda x: zeros.scatter_add(0, spread, x),
            lambda x: zeros.scatter_reduce(0, spread, x, reduction, include_self=False),
            lambda x: zeros.index_put((edges,), x, accumulate=True),
        ]  # fmt: skip
        return self.rng.choice(calls), (rows,)

    def _enlarged(self) -> tuple[Any, Tensors]:
        self.begin()
        mode = self.rng.choice(("nearest", "bilinear", "bilinear", "bicubic"))
        times = self.rng.choice((2, 2, 2, 3, 4, 8, 16, 0.5, 1.7))
        channels, side = self.size(1, 512, of=8), self.size(4, 256, of=4)
        batch = max(1, min(self.size(1, 64), int(self.most // (channels * side * side * max(1, times) ** 2))))
        while batch == 1 and channels * side * side * max(1, times) ** 2 > self.most:
            side = max(4, side // 2)
            channels = max(1, channels // 2)
        picture = self.values(batch, channels, side, side)
        if self.rng.random() < 0.35:
            picture = picture.detach().contiguous(memory_format=self.torch.channels_last).requires_grad_()
        corners = {} if mode == "nearest" else {"align_corners": self.rng.random() < 0.4}
        enlarge = self.functional.interpolate
        return lambda x: enlarge(x, scale_factor=float(times), mode=mode, **corners), (picture,)

    def _boxes(self) -> tuple[Any, Tensors]:
        if importlib.util.find_spec("torchvision") is None:
            return self._joined()
        from torchvision.ops import nms, roi_align

        self.begin(single=True)
        torch, device = self.torch, self.pool.device
        count = self.size(8, max(16, min(8192, self.most >> 8)))
        corners = torch.rand(count, 2, device=device) * 400
        boxes = torch.cat([corners, corners + torch.rand(count, 2, device=device) * 150 + 4], 1)
        if self.rng.random() < 0.45:
            scores = torch.rand(count, device=device)
            limit = self.rng.choice((0.3, 0.5, 0.7))
            return lambda x: nms(boxes, scores, limit), (self.values(1),)
        count = min(count, 2048)
        channels, batch = self.size(16, min(256, max(16, self.most >> 10)), of=16), self.rng.choice((1, 2, 4, 8))
        side = self.rng.choice((25, 50, 100, 200)) if self.most > 2**20 else 8
        picture = self.values(batch, channels, side, side)
        rows = torch.cat([torch.randint(0, batch, (count, 1), device=device).float(), boxes[:count]], 1)
        pooled = self.rng.choice((7, 7, 14))
        return lambda x: roi_align(x, rows, pooled, side / 800, 2), (picture,)

    def _joined(self) -> tuple[Any, Tensors]:
        self.begin()
        count, side = self.rng.choice((2, 2, 2, 3, 4, 8)), self.size(7, 256, of=1)
        batch = self.size(1, 64)
        each = max(1, min(512, self.most // (batch * side * side * count)))
        parts = [self.values(batch, self.size(1, each, of=4), side, side) for _ in range(count)]
        return lambda *given: self.torch.cat(given, 1), tuple(parts)

    def _large_norm(self) -> tuple[Any, Tensors]:
        self.begin(single=True)
        channels = self.size(1, 512, of=1 if self.rng.random() < 0.3 else 8)
        weight, bias = self.values(channels), self.values(channels)
        mean, variance = (self.torch.ones(channels, device=self.pool.device) for _ in range(2))
        self.begin(single=self.rng.random() < 0.4)
        if self.rng.random() < 0.3:
            side = self.rng.choice((8, 16, 24, 32, 48, 64, 96, 128))
            sides = (side,) * 3
        else:
            side = self.rng.choice((14, 28, 32, 48, 56, 64, 96, 112, 128, 160, 192, 256, 320))
            sides = (side, self.rng.choice((side, side, side // 2 + 1)))
        while (pixels := math.prod(sides)) > self.most:
            sides = tuple(max(2, each // 2) for each in sides)
        batch = max(1, min(self.size(1, 128), self.most // (pixels * channels)))
        if batch * pixels * channels > self.most:
            channels = max(1, self.most // (pixels * batch))
            weight, bias, mean, variance = (each[:channels] for each in (weight, bias, mean, variance))
            weight, bias = (each.detach().clone().requires_grad_() for each in (weight, bias))
        picture = self.values(batch, channels, *sides)
        call = self.functional.batch_norm
        return lambda x, w, b: call(x, mean, variance, w, b, training=True), (picture, weight, bias)

    def _dilated(self) -> tuple[Any, Tensors]:
        self.begin()
        dilation = self.rng.choice((2, 2, 4, 6, 12, 18))
        channels, out = self.size(16, 1024, of=16), self.size(16, 512, of=16)
        side = self.rng.choice((16, 24, 32, 33, 48, 64, 65))
        batch = max(1, min(self.size(1, 32), self.most // (side * side * max(channels, out))))
        picture, weight = self.values(batch, channels, side, side), self.values(out, channels, 3, 3)
        if self.rng.random() < 0.5:
            last = self.torch.channels_last
            picture = picture.detach().contiguous(memory_format=last).requires_grad_()
            weight = weight.detach().contiguous(memory_format=last).requires_grad_()
        convolve = self.functional.conv2d
        return lambda x, w: convolve(x, w, padding=dilation, dilation=dilation), (picture, weight)

    def _volume(self) -> tuple[Any, Tensors]:
        self.begin(single=self.rng.random() < 0.6)
        channels, out = self.size(1, 128, of=self.rng.choice((1, 8))), self.size(1, 128, of=self.rng.choice((1, 8)))
        side = self.rng.choice((8, 12, 16, 24, 32, 48, 64, 96)) if self.most > 2**20 else 4
        while side**3 * max(channels, out) > self.most // 2:
            side //= 2
        batch = max(1, min(self.size(1, 8), self.most // (2 * side**3 * max(channels, out))))
        picture = self.values(batch, channels, side, side, side)
        stride = self.rng.choice((1, 1, 2))
        if self.rng.random() < 0.35:
            weight = self.values(channels, out, 3, 3, 3)
            turned = self.functional.conv_transpose3d
            return lambda x, w: turned(x, w, stride=2, padding=1, output_padding=1), (picture, weight)
        weight = self.values(out, channels, 3, 3, 3)
        return lambda x, w: self.functional.conv3d(x, w, stride=stride, padding=1), (picture, weight)

    def _summed(self) -> tuple[Any, Tensors]:
        self.begin()
        channels, side = self.size(1, 1024), self.size(1, 128)
        batch = max(1, min(self.size(1, 128), self.most // (channels * side * side)))
        while channels * side * side > self.most:
            side //= 2
        picture = self.values(batch, channels, side, side, grad=False)
        dimensions = self.rng.choice(((0, 2, 3), (2, 3), (0,), (1,)))
        return lambda x: x.sum(dimensions), (picture,)

    def _graph_softmax(self) -> tuple[Any, Tensors]:
        """Attention of a graph network: over the edges of each node."""
        nodes, edges = self._nodes()
        scores = self.values(edges.shape[0], min(8, nodes.shape[1]))
        spread = edges.unsqueeze(1).expand(-1, scores.shape[1])

        def softmax(x: Any) -> Any:
            zeros = x.new_zeros(nodes.shape[0], x.shape[1])
            largest = zeros.scatter_reduce(0, spread, x.detach(), "amax", include_self=False)
            weights = (x - largest.index_select(0, edges)).exp()
            return weights / (zeros.scatter_add(0, spread, weights).index_select(0, edges) + 1e-16)

        return softmax, (scores,)
