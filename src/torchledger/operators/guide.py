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
from torchledger.operators.formulas import adamw_work, gemm, pointwise, softmax_work
from torchledger.operators.guide_attention import (
    Baddbmm,
    CausalSoftmax,
    FillMask,
    FlashAttention,
    GuideBmm,
    GuideSoftmax,
    RotaryEmbedding,
)
from torchledger.operators.guide_operator import AsGeneral, GuideOperator, padded_vocabulary
from torchledger.work.element_sizes import ELEMENT_SIZES


class _LinearShare(AsGeneral):
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


class GuideEmbedding(AsGeneral):
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


class _RowsOfDim(AsGeneral):
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


class GuideGelu(AsGeneral):
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


class ParallelCrossEntropy(GuideOperator):
    """Cross entropy over a vocabulary shared by ranks, logits [b, l, vocabulary / mp]: maximum, subtract, pick the
    target, exponentiate, sum, divide; the ranks' reductions are not run. Backward: the saved softmax less one at the
    target, times the gradient."""

    name = "parallel_cross_entropy_128"
    keeps_result = True
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
        return (adamw_work(self.numel(p), item_size),)

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
