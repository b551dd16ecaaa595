"""The operators of the kernel sampling guide, with its parameters.

mp is the tensor-parallel degree (each operator is one rank's share), b the batch, h the heads, l the sequence length,
dim the hidden size. Shapes follow GPT-NeoX: activations are [l, b, ...], the feed-forward is 4 dim wide, and the
vocabulary of 50257 is padded to a multiple of 128 mp. Where the original calls a fused kernel of another package, the
same arithmetic is run from PyTorch itself; each operator's text says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchledger.operators import general
from torchledger.operators.declaration import (
    Input,
    Number,
    Operator,
    Parameters,
    Work,
    ceil_div,
    divides,
    dtype_name,
)
from torchledger.operators.general import gemm, pointwise, softmax_work
from torchledger.work.element_sizes import ELEMENT_SIZES

VOCABULARY = 50257


def padded_vocabulary(mp: Number) -> Number:
    """The vocabulary padded so that each of mp ranks holds a multiple of 128 rows: ceil(50257 / (128 mp)) 128.

    >>> padded_vocabulary(1)
    50304
    """
    return ceil_div(VOCABULARY, 128 * mp) * 128


class GuideOperator(Operator):
    """Base of the guide's operators; ``shares`` are the parameters that mp must divide."""

    guide = True
    shares: tuple[str, ...] = ()

    def check(self, p: Parameters) -> str | None:
        for share in self.shares:
            if reason := divides(p, "mp", share):
                return reason
        if "h" in p and "dim" in p:
            return divides(p, "h", "dim")
        return None


class _AsGeneral(GuideOperator):
    """A guide operator whose kernels are those of a general form."""

    form: type[Operator]

    def form_parameters(self, p: Parameters) -> dict[str, Any]:
        raise NotImplementedError

    def general_form(self, p: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return self.form.name, self.form_parameters(self.resolve(p))

    def tensors(self, p: Parameters) -> dict[str, Input]:
        form = self.form()
        return form.tensors(form.resolve(self.form_parameters(p)))

    def forward(self, p: Parameters, **tensors: Any) -> Any:
        form = self.form()
        return form.forward(form.resolve(self.form_parameters(p)), **tensors)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        form = self.form()
        return form.work(form.resolve(self.form_parameters(p)), direction, item_size)

    def least_work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        form = self.form()
        return form.least_work(form.resolve(self.form_parameters(p)), direction, item_size)


class _LinearShare(_AsGeneral):
    parameters = ("mp", "b", "l", "dim")
    form = general.Linear
    ratio_bounds = general.Linear.ratio_bounds
    feature_names = ("rows", "k", "n")

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        form = self.form_parameters(self.resolve(p))
        return (form["m"], form["k"], form["n"])

    def tensors(self, p: Parameters) -> dict[str, Input]:
        inputs = super().tensors(p)
        rows, k = inputs["x"].shape
        return {**inputs, "x": Input((p.l, rows // p.l, k), gradient=True)}


class Linear1(_LinearShare):
    """QKV projection with bias: [l, b, dim] to 3 dim / mp. Backward: gradients of x, weight and bias."""

    name = "linear1"
    originals = ("LinearWithGradAccumulationAndAsyncCommunication",)
    shares = ("dim",)

    def form_parameters(self, p: Parameters) -> dict[str, Any]:
        return {"m": p.b * p.l, "k": p.dim, "n": 3 * p.dim // p.mp, "bias": 1}


class Linear2(_LinearShare):
    """Attention's output projection: [l, b, dim / mp] to dim. Backward: gradients of x and weight."""

    name = "linear2"
    originals = ("LinearWithGradAccumulationAndAsyncCommunication",)
    shares = ("dim",)

    def form_parameters(self, p: Parameters) -> dict[str, Any]:
        return {"m": p.b * p.l, "k": p.dim // p.mp, "n": p.dim}


class Linear3(_LinearShare):
    """Feed-forward up: [l, b, dim] to 4 dim / mp. Backward: gradients of x and weight."""

    name = "linear3"
    originals = ("LinearWithGradAccumulationAndAsyncCommunication",)

    def form_parameters(self, p: Parameters) -> dict[str, Any]:
        return {"m": p.b * p.l, "k": p.dim, "n": 4 * p.dim // p.mp}


class Linear4(_LinearShare):
    """Feed-forward down: [l, b, 4 dim / mp] to dim. Backward: gradients of x and weight."""

    name = "linear4"
    originals = ("LinearWithGradAccumulationAndAsyncCommunication",)

    def form_parameters(self, p: Parameters) -> dict[str, Any]:
        return {"m": p.b * p.l, "k": 4 * p.dim // p.mp, "n": p.dim}


class LinearFinal(_LinearShare):
    """Output layer: [l, b, dim] to the rank's share of the vocabulary. Backward: gradients of x and weight."""

    name = "linear_final"
    originals = ("LinearWithGradAccumulationAndAsyncCommunication",)

    def form_parameters(self, p: Parameters) -> dict[str, Any]:
        return {"m": p.b * p.l, "k": p.dim, "n": padded_vocabulary(p.mp)}


class GuideEmbedding(_AsGeneral):
    """Lookup of [b, l] ids in the rank's share of the table. Backward: the table's dense gradient."""

    name = "embedding"
    originals = ("VocabParallelEmbedding",)
    parameters = ("mp", "b", "l", "dim")
    form = general.Embedding
    ratio_bounds = general.Embedding.ratio_bounds
    feature_names = ("rows", "vocabulary", "dim")

    def form_parameters(self, p: Parameters) -> dict[str, Any]:
        return {"tokens": p.b * p.l, "vocab": padded_vocabulary(p.mp), "dim": p.dim}

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        form = self.form_parameters(self.resolve(p))
        return (form["tokens"], form["vocab"], form["dim"])


class _RowsOfDim(_AsGeneral):
    parameters = ("b", "l", "dim")

    def form_parameters(self, p: Parameters) -> dict[str, Any]:
        return {"rows": p.b * p.l, "dim": p.dim}


class GuideLayerNorm(_RowsOfDim):
    """Layer norm of [l, b, dim]. Backward: gradients of x, weight and bias."""

    name = "layernorm"
    originals = ("FusedLayerNormAffineFunction", "FusedLayerNormAffineMixedDtypesFunction", "MixedFusedLayerNorm")
    form = general.LayerNorm
    ratio_bounds = general.LayerNorm.ratio_bounds


class GuideRmsNorm(_RowsOfDim):
    """RMS norm of [l, b, dim]. Backward: gradients of x and weight."""

    name = "RMSlayernorm"
    originals = ("FusedRMSNorm", "RMSNorm")
    form = general.RmsNorm
    ratio_bounds = general.RmsNorm.ratio_bounds


class ResidualAdd(GuideOperator):
    """Residual addition of [l, b, dim]. Backward: the one addition that joins the residual's two gradients."""

    name = "res_add"
    parameters = ("b", "l", "dim")
    ratio_bounds = (0.4, 2.5)

    def general_form(self, p: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        resolved = self.resolve(p)
        return "add", {"numel": resolved.b * resolved.l * resolved.dim}

    def tensors(self, p: Parameters) -> dict[str, Input]:
        return {"x": Input((p.l, p.b, p.dim), gradient=True), "y": Input((p.l, p.b, p.dim))}

    in_place = True

    def run_in_place(self, p: Parameters, x: Any, y: Any) -> Any:
        return x + y

    def forward(self, p: Parameters, x: Any, y: Any) -> Any:
        from torchledger._torch.graphs import fork

        return fork(x)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        numel = p.b * p.l * p.dim
        return (pointwise(2 * numel, numel, item_size, vector_flops=numel),)


class GuideGelu(_AsGeneral):
    """GELU of [l, b, 4 dim / mp]. Backward: the gradient of x."""

    name = "gelu"
    originals = ("GeLUFunction", "bias_gelu")
    parameters = ("mp", "b", "l", "dim")
    form = general.Gelu
    feature_names = ("l", "b", "width")

    def form_parameters(self, p: Parameters) -> dict[str, Any]:
        return {"numel": p.l * p.b * (4 * p.dim // p.mp)}

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        p = self.resolve(p)
        return (p.l, p.b, 4 * p.dim // p.mp)


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
    ratio_bounds = general.Sdpa.ratio_bounds

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
        return (general.attention(heads, heads, p.l, p.l, p.dim // p.h, p.l * p.l, direction, item_size),)


class Baddbmm(_PerHead):
    """Scaled scores without fused attention: [b h / mp, l, dim / h] x [b h / mp, dim / h, l] into an uninitialised
    tensor (beta 0). Backward: gradients of both factors, each scaled by one pointwise kernel."""

    name = "baddbmm"
    feature_names = ("batch", "m", "k", "n")
    ratio_bounds = general.Bmm.ratio_bounds

    def general_form(self, p: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        batch, m, k, n = self.features(p)
        return "bmm", {"b": batch, "m": m, "k": k, "n": n}

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


class GuideBmm(_PerHead):
    """Probabilities times values: [b h / mp, l, l] x [b h / mp, l, dim / h]. Backward: gradients of both factors."""

    name = "bmm"
    feature_names = ("batch", "m", "k", "n")
    ratio_bounds = general.Bmm.ratio_bounds

    def general_form(self, p: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        batch, m, k, n = self.features(p)
        return "bmm", {"b": batch, "m": m, "k": k, "n": n}

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


class ParallelCrossEntropy(GuideOperator):
    """Cross entropy over a vocabulary shared by ranks, logits [b, l, vocabulary / mp]: maximum, subtract, pick the
    target, exponentiate, sum, divide; the ranks' reductions are not run. Backward: the saved softmax less one at the
    target, times the gradient."""

    name = "parallel_cross_entropy_128"
    originals = ("_VocabParallelCrossEntropy",)
    parameters = ("mp", "b", "l")
    feature_names = ("b", "l", "vocabulary")
    ratio_bounds = (0.1, 3.0)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        vocabulary = padded_vocabulary(p.mp)
        targets = Input((p.b, p.l), dtype="int64", values="indices", high=vocabulary)
        return {"logits": Input((p.b, p.l, vocabulary), gradient=True), "targets": targets}

    def forward(self, p: Parameters, logits: Any, targets: Any) -> Any:
        from torchledger._torch.graphs import parallel_cross_entropy

        return parallel_cross_entropy(logits, targets)

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        p = self.resolve(p)
        return (p.b, p.l, padded_vocabulary(p.mp))

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        tokens = p.b * p.l
        numel = tokens * padded_vocabulary(p.mp)
        reduce = Work("reduction", numel * item_size, tokens * item_size, vector_flops=numel)
        update = pointwise(numel, numel, item_size, vector_flops=numel, other_bytes=tokens * item_size)
        pick = Work("gather", tokens * (8 + item_size), tokens * item_size)
        if direction == "forward":
            return (reduce, update, pick, update, reduce, update)
        return (pick, update)


class MixtureOfExperts(GuideOperator):
    """A mixture-of-experts feed-forward with balanced routing: router product and softmax, top_k, gather of the rows of
    each expert, two batched products with GELU between, weighting and scatter-add. Every expert gets the same number
    of rows, ceil(b l top_k / experts). Backward: gradients of x, router and both expert weights."""

    name = "moe"
    originals = ("MoELayer", "GroupedMLP", "SwitchMLP")
    parameters = ("mp", "b", "l", "dim", "experts", "intermediate", "top_k")
    ratio_bounds = (0.8, 6.0)

    def check(self, p: Parameters) -> str | None:
        if p.top_k > p.experts:
            return f"top_k={p.top_k} exceeds experts={p.experts}"
        return divides(p, "mp", "intermediate")

    def tensors(self, p: Parameters) -> dict[str, Input]:
        tokens, rows = p.b * p.l, ceil_div(p.b * p.l * p.top_k, p.experts)
        width = p.intermediate // p.mp
        return {
            "x": Input((tokens, p.dim), gradient=True),
            "router": Input((p.experts, p.dim), gradient=True),
            "up": Input((p.experts, p.dim, width), gradient=True),
            "down": Input((p.experts, width, p.dim), gradient=True),
            "rows": Input((p.experts * rows,), dtype="int64", values="indices", high=tokens),
        }

    def forward(self, p: Parameters, x: Any, router: Any, up: Any, down: Any, rows: Any) -> Any:
        import torch

        weights = torch.softmax(torch.nn.functional.linear(x, router), -1)
        chosen = weights.topk(p.top_k, -1).values
        picked = x.index_select(0, rows).view(p.experts, -1, p.dim)
        hidden = torch.nn.functional.gelu(torch.bmm(picked, up))
        output = torch.bmm(hidden, down).view(-1, p.dim)
        weight = chosen.reshape(-1).index_select(0, rows)
        return torch.zeros_like(x).index_add(0, rows, output * weight[:, None])

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        tokens, width = p.b * p.l, p.intermediate // p.mp
        rows = ceil_div(tokens * p.top_k, p.experts)
        all_rows, ids = p.experts * rows, p.experts * rows * 8
        moved, hidden = all_rows * p.dim, all_rows * width
        gather = Work("gather", moved * item_size + ids, moved * item_size)
        scatter = Work("scatter", 2 * moved * item_size + ids, moved * item_size, vector_flops=moved)
        scores = tokens * p.experts
        up, down = (p.experts, rows, width, p.dim), (p.experts, rows, p.dim, width)
        if direction == "forward":
            return (
                gemm(1, tokens, p.experts, p.dim, item_size),
                softmax_work(scores, direction, item_size),
                Work("sort", scores * item_size, tokens * p.top_k * (item_size + 8)),
                gather,
                gemm(*up, item_size),
                pointwise(hidden, hidden, item_size, vector_flops=8 * hidden),
                gemm(*down, item_size),
                pointwise(moved, moved, item_size, vector_flops=moved),
                Work("fill", 0, tokens * p.dim * item_size),
                scatter,
            )
        return (
            gather,
            pointwise(moved, moved, item_size, vector_flops=moved),
            Work("reduction", 2 * moved * item_size, all_rows * item_size, vector_flops=2 * moved),
            gemm(p.experts, rows, width, p.dim, item_size),
            gemm(p.experts, width, p.dim, rows, item_size),
            pointwise(2 * hidden, hidden, item_size, vector_flops=12 * hidden),
            gemm(p.experts, rows, p.dim, width, item_size),
            gemm(p.experts, p.dim, width, rows, item_size),
            Work("fill", 0, tokens * p.dim * item_size),
            scatter,
            softmax_work(scores, direction, item_size),
            gemm(1, tokens, p.dim, p.experts, item_size),
            gemm(1, p.experts, p.dim, tokens, item_size),
            pointwise(2 * tokens * p.dim, tokens * p.dim, item_size),
        )


class _StageOptimizer(GuideOperator):
    parameters = ("mp", "dim", "encoders")
    shares = ("dim",)
    directions = ("step",)
    has_table = True
    has_final_norm = False

    def parameter_shapes(self, p: Parameters) -> list[tuple[int, ...]]:
        """The stage's weights: per encoder two norms, QKV, output projection, feed-forward up and down."""
        dim, share = p.dim, p.dim // p.mp
        encoder: list[tuple[int, ...]] = [(dim,)] * 4
        encoder += [(3 * share, dim), (3 * share,), (dim, share), (dim,)]
        encoder += [(4 * share, dim), (4 * share,), (dim, 4 * share), (dim,)]
        extra: list[tuple[int, ...]] = [(dim,)] * 2 if self.has_final_norm else []
        if self.has_table:
            extra.append((padded_vocabulary(p.mp), dim))
        return [*(encoder * int(p.encoders)), *extra]

    def numel(self, p: Parameters) -> Number:
        """Elements of all weights of the stage."""
        encoder = 12 * p.dim * p.dim // p.mp + 7 * p.dim // p.mp + 6 * p.dim
        table = padded_vocabulary(p.mp) * p.dim if self.has_table else 0
        return encoder * p.encoders + table + (2 * p.dim if self.has_final_norm else 0)

    def general_form(self, p: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        resolved = self.resolve(p)
        extra = (1 if self.has_table else 0) + (2 if self.has_final_norm else 0)
        return "adamw", {"numel": self.numel(resolved), "tensors": 12 * resolved.encoders + extra}

    def tensors(self, p: Parameters) -> dict[str, Input]:
        return general.optimizer_inputs(self.parameter_shapes(p))

    def forward(self, p: Parameters, **tensors: Any) -> Any:
        from torchledger._torch.optimizers import fused_adamw_step

        return fused_adamw_step(tensors)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        return (general.adamw_work(self.numel(p), item_size),)

    def input_bytes(self, p: Mapping[str, Any], dtype: str) -> int:
        return int(4 * self.numel(self.resolve(p)) * ELEMENT_SIZES[dtype_name(dtype)])


class FirstStageOptimizer(_StageOptimizer):
    """One fused AdamW step over a first pipeline stage: ``encoders`` layers and the embedding's share."""

    name = "firstStage_optimizer"
    originals = ("FusedAdam", "multi_tensor_adam", "Optimizer.step")


class MiddleStageOptimizer(_StageOptimizer):
    """One fused AdamW step over a middle pipeline stage: ``encoders`` layers."""

    name = "middleStage_optimizer"
    originals = ("FusedAdam", "multi_tensor_adam", "Optimizer.step")
    has_table = False


class LastStageOptimizer(_StageOptimizer):
    """One fused AdamW step over a last pipeline stage: ``encoders`` layers, the final norm and the output layer."""

    name = "lastStage_optimizer"
    originals = ("FusedAdam", "multi_tensor_adam", "Optimizer.step")
    has_final_norm = True


OPERATORS: Mapping[str, type[Operator]] = {
    declaration.name: declaration
    for declaration in (
        GuideEmbedding,
        GuideLayerNorm,
        GuideRmsNorm,
        Linear1,
        Linear2,
        Linear3,
        Linear4,
        LinearFinal,
        FlashAttention,
        GuideGelu,
        RotaryEmbedding,
        ResidualAdd,
        ParallelCrossEntropy,
        GuideSoftmax,
        FillMask,
        Baddbmm,
        GuideBmm,
        CausalSoftmax,
        MixtureOfExperts,
        FirstStageOptimizer,
        MiddleStageOptimizer,
        LastStageOptimizer,
    )
}
