"""Attention as the kernel sampling guide has it: its parts for each head, and all of it fused.

Parameters as in ``guide.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchledger.operators import general
from torchledger.operators.declaration import (
    Input,
    Number,
    Parameters,
    Work,
)
from torchledger.operators.formulas import attention, gemm, pointwise, softmax_work
from torchledger.operators.general_attention import Sdpa
from torchledger.operators.guide_operator import GuideOperator


class _PerHead(GuideOperator):
    parameters = ("mp", "b", "h", "l", "dim")
    shares = ("h",)


class RotaryEmbedding(_PerHead):
    """Rotary embedding of q and k, [l, b, h / mp, dim / h], over the whole head: x cos + rotate_half(x) sin, five
    kernels each. Backward: gradients of q and k."""

    name = "RoPE"
    originals = ("apply_rotary_pos_emb", "RotaryEmbedding")
    feature_names = ("l", "b", "heads", "head_dim")
    ratio_bounds = (0.5, 4.0)

    def check(self, p: Parameters) -> str | None:
        if reason := super().check(p):
            return reason
        return "the head dimension dim / h must be even" if p.dim // p.h % 2 else None

    def tensors(self, p: Parameters) -> dict[str, Input]:
        x = Input((p.l, p.b, p.h // p.mp, p.dim // p.h), gradient=True)
        angle = Input((p.l, 1, 1, p.dim // p.h))
        return {"query": x, "key": x, "cosine": angle, "sine": angle}

    def forward(self, p: Parameters, query: Any, key: Any, cosine: Any, sine: Any) -> Any:
        import torch

        def rotate(x: Any) -> Any:
            left, right = x.chunk(2, dim=-1)
            return x * cosine + torch.cat((-right, left), dim=-1) * sine

        return rotate(query), rotate(key)

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        p = self.resolve(p)
        return (p.l, p.b, p.h // p.mp, p.dim // p.h)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        numel = p.l * p.b * (p.h // p.mp) * (p.dim // p.h)
        half = numel // 2
        angles = p.l * (p.dim // p.h) * item_size
        scale = pointwise(numel, numel, item_size, vector_flops=numel, other_bytes=angles)
        negate = pointwise(half, half, item_size, vector_flops=half)
        join = pointwise(numel, numel, item_size)
        add = pointwise(2 * numel, numel, item_size, vector_flops=numel)
        if direction == "forward":
            return (scale, negate, join, scale, add) * 2
        # The gradient of cat is two views; each half is padded back to a whole tensor and the parts are added.
        pad = pointwise(half, numel, item_size)
        return (scale, scale, negate, pad, pad, add, add) * 2


class FlashAttention(_PerHead):
    """Attention of [b, l, h / mp, dim / h] without a mask: ``flash_attn`` if installed, else torch's own. Backward:
    gradients of q, k and v."""

    name = "flash_atten"
    originals = ("built-in method apply of FunctionMeta object", "FlashAttnFunc", "FlashAttnFuncBackward")
    feature_names = ("b", "l", "heads", "head_dim")
    ratio_bounds = Sdpa.ratio_bounds

    def general_form(self, p: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        p = self.resolve(p)
        return "sdpa", {"b": p.b, "h": p.h // p.mp, "l": p.l, "d": p.dim // p.h, "causal": 0, "h_kv": 0, "l_kv": 0}

    def tensors(self, p: Parameters) -> dict[str, Input]:
        x = Input((p.b, p.l, p.h // p.mp, p.dim // p.h), gradient=True)
        return {"query": x, "key": x, "value": x}

    def forward(self, p: Parameters, query: Any, key: Any, value: Any) -> Any:
        from torchledger._torch.attention import flash_attention

        return flash_attention(query, key, value)

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        p = self.resolve(p)
        return (p.b, p.l, p.h // p.mp, p.dim // p.h)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        heads = p.b * (p.h // p.mp)
        return (attention(heads, heads, p.l, p.l, p.dim // p.h, p.l * p.l, direction, item_size),)


class _ProductPerHead(_PerHead):
    """A batched product of matrices, one for each head of each sequence."""

    feature_names = ("batch", "m", "k", "n")
    ratio_bounds = general.Bmm.ratio_bounds

    def general_form(self, p: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        batch, m, k, n = self.features(p)
        return "bmm", {"b": batch, "m": m, "k": k, "n": n}


class Baddbmm(_ProductPerHead):
    """Scaled scores without fused attention: [b h / mp, l, dim / h] x [b h / mp, dim / h, l] into an uninitialised
    tensor (beta 0). Backward: gradients of both factors, each scaled by one pointwise kernel."""

    name = "baddbmm"

    def tensors(self, p: Parameters) -> dict[str, Input]:
        batch, m, k, n = self.features(p)
        return {
            "into": Input((batch, m, n)),
            "left": Input((batch, m, k), gradient=True),
            "right": Input((batch, k, n), gradient=True),
        }

    def forward(self, p: Parameters, into: Any, left: Any, right: Any) -> Any:
        import torch

        return torch.baddbmm(into, left, right, beta=0.0, alpha=(p.dim // p.h) ** -0.5)

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        p = self.resolve(p)
        return (p.b * p.h // p.mp, p.l, p.dim // p.h, p.l)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        batch, m, k, n = self.features(p)
        if direction == "forward":
            return (gemm(batch, m, n, k, item_size),)
        scale = pointwise(batch * m * k, batch * m * k, item_size, vector_flops=batch * m * k)
        return (gemm(batch, m, k, n, item_size), scale, gemm(batch, k, n, m, item_size), scale)


class GuideBmm(_ProductPerHead):
    """Probabilities times values: [b h / mp, l, l] x [b h / mp, l, dim / h]. Backward: gradients of both factors."""

    name = "bmm"

    def tensors(self, p: Parameters) -> dict[str, Input]:
        batch, m, k, n = self.features(p)
        return {"left": Input((batch, m, k), gradient=True), "right": Input((batch, k, n), gradient=True)}

    def forward(self, p: Parameters, left: Any, right: Any) -> Any:
        import torch

        return torch.bmm(left, right)

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        p = self.resolve(p)
        return (p.b * p.h // p.mp, p.l, p.l, p.dim // p.h)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        batch, m, k, n = self.features(p)
        if direction == "forward":
            return (gemm(batch, m, n, k, item_size),)
        return (gemm(batch, m, k, n, item_size), gemm(batch, k, n, m, item_size))


class FillMask(_PerHead):
    """``masked_fill_`` of scores [b, h / mp, l, l] with a [b, 1, l, l] mask; dim plays no part. Backward: a copy of the
    gradient, then masked_fill_ with 0."""

    name = "fillmask"
    copies_first = ("backward",)
    feature_names = ("b", "heads", "l", "dim")
    ratio_bounds = (0.5, 5.0)
    in_place = True

    def tensors(self, p: Parameters) -> dict[str, Input]:
        scores = Input((p.b, p.h // p.mp, p.l, p.l), gradient=True, own=True)
        return {"scores": scores, "mask": Input((p.b, 1, p.l, p.l), dtype="bool", values="causal_mask")}

    def run_in_place(self, p: Parameters, scores: Any, mask: Any) -> Any:
        return scores.masked_fill_(mask, -10000.0)

    def forward(self, p: Parameters, scores: Any, mask: Any) -> Any:
        return scores.masked_fill(mask, -10000.0)

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        p = self.resolve(p)
        return (p.b, p.h // p.mp, p.l, p.dim)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        numel = p.b * (p.h // p.mp) * p.l * p.l
        fill = pointwise(numel, numel, item_size, other_bytes=p.b * p.l * p.l)
        if direction == "forward":
            return (fill,)
        return (pointwise(numel, numel, item_size), fill)


class _Scores(GuideOperator):
    parameters = ("mp", "b", "h", "l")
    shares = ("h",)

    def _numel(self, p: Parameters) -> Number:
        return p.b * (p.h // p.mp) * p.l * p.l


class GuideSoftmax(_Scores):
    """Softmax over the last dimension of scores [b, h / mp, l, l]. Backward: the gradient of the scores."""

    name = "softmax"
    keeps_result = True
    feature_names = ("b", "heads", "l", "columns")

    def general_form(self, p: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        p = self.resolve(p)
        return "softmax", {"rows": p.b * (p.h // p.mp) * p.l, "dim": p.l}

    def tensors(self, p: Parameters) -> dict[str, Input]:
        return {"scores": Input((p.b, p.h // p.mp, p.l, p.l), gradient=True)}

    def forward(self, p: Parameters, scores: Any) -> Any:
        import torch

        return torch.softmax(scores, -1)

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        p = self.resolve(p)
        return (p.b, p.h // p.mp, p.l, p.l)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        return (softmax_work(self._numel(p), direction, item_size),)


class CausalSoftmax(_Scores):
    """Scaled causal softmax of scores [b h / mp, l, l]: one kernel adds the mask to the scaled scores, one takes the
    softmax. Backward: softmax's gradient, then the scale."""

    name = "ScaledUpperTriangMaskedSoftmax"
    keeps_result = True
    originals = ("ScaledUpperTriangMaskedSoftmax",)
    feature_names = ("batch", "l", "columns")

    def tensors(self, p: Parameters) -> dict[str, Input]:
        scores = Input((p.b * (p.h // p.mp), p.l, p.l), gradient=True)
        return {"scores": scores, "mask": Input((p.l, p.l), values="causal_mask")}

    def forward(self, p: Parameters, scores: Any, mask: Any) -> Any:
        import torch

        return torch.softmax(torch.add(mask, scores, alpha=0.125), -1)

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        p = self.resolve(p)
        return (p.b * (p.h // p.mp), p.l, p.l)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        numel = self._numel(p)
        if direction == "forward":
            mask = pointwise(numel, numel, item_size, vector_flops=2 * numel, other_bytes=p.l * p.l * item_size)
            return (mask, softmax_work(numel, direction, item_size))
        scale = pointwise(numel, numel, item_size, vector_flops=numel)
        return (softmax_work(numel, direction, item_size), scale)

    def least_work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        # A fused kernel reads no score above the diagonal.
        numel = self._numel(p)
        reads = numel // 2 if direction == "forward" else numel
        return (pointwise(reads, numel, item_size),)
