"""Operators under their general names: what the library calls of any model amount to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torchledger.operators.declaration import Input, Operator, Parameters, Work
from torchledger.operators.formulas import (
    adamw_work,
    expected_distinct,
    gemm,
    norm_work,
    pointwise,
    softmax_work,
)
from torchledger.operators.general_attention import Sdpa, SdpaVarlen
from torchledger.work.flops import convolution_flops, matmul_flops


class Linear(Operator):
    """x W^T, with a bias if ``bias`` is 1. Backward: gradients of x and W (and the bias)."""

    name = "linear"
    parameters = ("m", "k", "n")
    defaults: ClassVar[Mapping[str, Any]] = {"bias": 0}
    ratio_bounds = (0.7, 7.0)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        inputs = {"x": Input((p.m, p.k), gradient=True), "weight": Input((p.n, p.k), gradient=True)}
        if p.bias:
            inputs["bias"] = Input((p.n,), gradient=True)
        return inputs

    def forward(self, p: Parameters, x: Any, weight: Any, bias: Any = None) -> Any:
        import torch

        return torch.nn.functional.linear(x, weight, bias)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        if direction == "forward":
            return (gemm(1, p.m, p.n, p.k, item_size, extra_read=p.bias * p.n * item_size),)
        parts = [gemm(1, p.m, p.k, p.n, item_size), gemm(1, p.n, p.k, p.m, item_size)]
        import numpy

        if numpy.any(p.bias):
            numel = p.bias * p.m * p.n
            parts.append(Work("reduction", numel * item_size, p.bias * p.n * item_size, vector_flops=numel))
        return tuple(parts)


class Bmm(Operator):
    """[b, m, k] x [b, k, n]. Backward: gradients of both."""

    name = "bmm"
    parameters = ("b", "m", "k", "n")
    ratio_bounds = (0.6, 7.0)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        return {"left": Input((p.b, p.m, p.k), gradient=True), "right": Input((p.b, p.k, p.n), gradient=True)}

    def forward(self, p: Parameters, left: Any, right: Any) -> Any:
        import torch

        return torch.bmm(left, right)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        if direction == "forward":
            return (gemm(p.b, p.m, p.n, p.k, item_size),)
        return (gemm(p.b, p.m, p.k, p.n, item_size), gemm(p.b, p.k, p.n, p.m, item_size))


class LayerNorm(Operator):
    """Layer norm over the last dimension, with weight and bias. Backward: gradients of x, weight and bias."""

    name = "layer_norm"
    parameters = ("rows", "dim")
    ratio_bounds = (0.8, 8.0)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        vector = Input((p.dim,), gradient=True)
        return {"x": Input((p.rows, p.dim), gradient=True), "weight": vector, "bias": vector}

    def forward(self, p: Parameters, x: Any, weight: Any, bias: Any) -> Any:
        import torch

        return torch.nn.functional.layer_norm(x, (p.dim,), weight, bias)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        return norm_work(p.rows, p.dim, direction, item_size, statistics=2, vectors=2)

    def least_work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        return norm_work(p.rows, p.dim, direction, item_size, statistics=2, vectors=2)[:1]


class RmsNorm(Operator):
    """RMS norm over the last dimension, with weight. Backward: gradients of x and weight."""

    name = "rms_norm"
    parameters = ("rows", "dim")
    ratio_bounds = (0.3, 10.0)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        return {"x": Input((p.rows, p.dim), gradient=True), "weight": Input((p.dim,), gradient=True)}

    def forward(self, p: Parameters, x: Any, weight: Any) -> Any:
        import torch

        return torch.nn.functional.rms_norm(x, (p.dim,), weight, eps=1e-5)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        return norm_work(p.rows, p.dim, direction, item_size, statistics=1, vectors=1)

    def least_work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        return norm_work(p.rows, p.dim, direction, item_size, statistics=1, vectors=1)[:1]


class Softmax(Operator):
    """Softmax over the last dimension. Backward: the gradient of x."""

    name = "softmax"
    keeps_result = True
    parameters = ("rows", "dim")

    def tensors(self, p: Parameters) -> dict[str, Input]:
        return {"x": Input((p.rows, p.dim), gradient=True)}

    def forward(self, p: Parameters, x: Any) -> Any:
        import torch

        return torch.softmax(x, -1)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        return (softmax_work(p.rows * p.dim, direction, item_size),)


class Gelu(Operator):
    """The exact (erf) GELU. Backward: the gradient of x."""

    name = "gelu"
    parameters = ("numel",)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        return {"x": Input((p.numel,), gradient=True)}

    def forward(self, p: Parameters, x: Any) -> Any:
        import torch

        return torch.nn.functional.gelu(x)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        reads = 1 if direction == "forward" else 2
        return (pointwise(reads * p.numel, p.numel, item_size, vector_flops=8 * p.numel),)


class Add(Operator):
    """x + y of one shape. The backward launches nothing, so only the forward is sampled."""

    name = "add"
    parameters = ("numel",)
    directions = ("forward",)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        return {"x": Input((p.numel,)), "y": Input((p.numel,))}

    def forward(self, p: Parameters, x: Any, y: Any) -> Any:
        return x + y

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        return (pointwise(2 * p.numel, p.numel, item_size, vector_flops=p.numel),)


class Mul(Operator):
    """x * y of one shape. Backward: the gradients of both."""

    name = "mul"
    parameters = ("numel",)
    ratio_bounds = (1.0, 4.0)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        return {"x": Input((p.numel,), gradient=True), "y": Input((p.numel,), gradient=True)}

    def forward(self, p: Parameters, x: Any, y: Any) -> Any:
        return x * y

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        one = pointwise(2 * p.numel, p.numel, item_size, vector_flops=p.numel)
        return (one,) if direction == "forward" else (one, one)


class Embedding(Operator):
    """Rows of a table by uniformly drawn ids. Backward: the dense gradient of the table (zeroed, ids sorted, rows
    added)."""

    name = "embedding"
    parameters = ("tokens", "vocab", "dim")
    ratio_bounds = (0.5, 400.0)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        ids = Input((p.tokens,), dtype="int64", values="indices", high=p.vocab)
        return {"ids": ids, "table": Input((p.vocab, p.dim), gradient=True)}

    def forward(self, p: Parameters, ids: Any, table: Any) -> Any:
        import torch

        return torch.nn.functional.embedding(ids, table)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        ids = p.tokens * 8
        rows = expected_distinct(p.tokens, p.vocab) * p.dim * item_size
        output = p.tokens * p.dim * item_size
        if direction == "forward":
            return (Work("gather", ids + rows, output),)
        return (
            Work("fill", 0, p.vocab * p.dim * item_size),
            Work("sort", 2 * ids, 2 * ids),
            Work("scatter", 2 * ids + output, rows, vector_flops=p.tokens * p.dim),
        )


class CrossEntropy(Operator):
    """Mean cross entropy of logits with drawn targets. Backward: the gradient of the logits."""

    name = "cross_entropy"
    keeps_result = True
    parameters = ("tokens", "vocab")
    ratio_bounds = (0.5, 8.0)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        targets = Input((p.tokens,), dtype="int64", values="indices", high=p.vocab)
        return {"logits": Input((p.tokens, p.vocab), gradient=True), "targets": targets}

    def forward(self, p: Parameters, logits: Any, targets: Any) -> Any:
        import torch

        return torch.nn.functional.cross_entropy(logits, targets)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        numel = p.tokens * p.vocab
        if direction == "forward":
            pick = Work("gather", p.tokens * (8 + item_size), item_size, vector_flops=p.tokens)
            return (softmax_work(numel, "forward", item_size), pick)
        return (
            Work("fill", 0, numel * item_size),
            Work("scatter", p.tokens * 8, p.tokens * item_size),
            softmax_work(numel, "backward", item_size),
        )


class Conv2d(Operator):
    """2-D convolution of [n, c_in, height, width], square kernel, no bias. Backward: gradients of x and the weight."""

    name = "conv2d"
    parameters = ("n", "c_in", "height", "width", "c_out", "kernel")
    defaults: ClassVar[Mapping[str, Any]] = {"stride": 1, "padding": 0, "groups": 1, "channels_last": 0}
    ratio_bounds = (0.5, 60.0)

    def check(self, p: Parameters) -> str | None:
        if p.c_in % p.groups or p.c_out % p.groups:
            return f"groups={p.groups} does not divide c_in={p.c_in} and c_out={p.c_out}"
        if min(p.height, p.width) + 2 * p.padding < p.kernel:
            return f"kernel={p.kernel} is larger than the padded image"
        return None

    def tensors(self, p: Parameters) -> dict[str, Input]:
        def image(*shape: int) -> Input:
            _, c, h, w = shape
            stride = (c * h * w, 1, w * c, c) if p.channels_last else None
            return Input(shape, gradient=True, stride=stride)

        return {
            "x": image(p.n, p.c_in, p.height, p.width),
            "weight": image(p.c_out, p.c_in // p.groups, p.kernel, p.kernel),
        }

    def forward(self, p: Parameters, x: Any, weight: Any) -> Any:
        import torch

        return torch.nn.functional.conv2d(x, weight, None, p.stride, p.padding, 1, p.groups)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        out_height = (p.height + 2 * p.padding - p.kernel) // p.stride + 1
        out_width = (p.width + 2 * p.padding - p.kernel) // p.stride + 1
        taps = p.c_in // p.groups * p.kernel * p.kernel
        pixels = p.n * out_height * out_width
        x = p.n * p.c_in * p.height * p.width * item_size
        weight, y = p.c_out * taps * item_size, pixels * p.c_out * item_size
        flops = convolution_flops(
            (p.n, p.c_in, p.height, p.width),
            (p.c_out, p.c_in // p.groups, p.kernel, p.kernel),
            (p.n, p.c_out, out_height, out_width),
        )
        out_channels = p.c_out // p.groups
        if direction == "forward":
            return (Work("convolution", x + weight, y, flops=flops, gemm=(p.groups, pixels, out_channels, taps)),)
        out_taps, in_channels = out_channels * p.kernel * p.kernel, p.c_in // p.groups
        return (
            Work("convolution", y + weight, x, flops=flops, gemm=(p.groups, pixels, in_channels, out_taps)),
            Work("convolution", y + x, weight, flops=flops, gemm=(p.groups, out_channels, taps, pixels)),
        )


class Swiglu(Operator):
    """silu(gate) * up on [rows, dim] each: two kernels. Backward: the gradients of both (three kernels)."""

    name = "swiglu"
    parameters = ("rows", "dim")
    ratio_bounds = (0.8, 5.0)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        return {"gate": Input((p.rows, p.dim), gradient=True), "up": Input((p.rows, p.dim), gradient=True)}

    def forward(self, p: Parameters, gate: Any, up: Any) -> Any:
        import torch

        return torch.nn.functional.silu(gate) * up

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        numel = p.rows * p.dim
        silu = pointwise(numel, numel, item_size, vector_flops=4 * numel)
        product = pointwise(2 * numel, numel, item_size, vector_flops=numel)
        if direction == "forward":
            return (silu, product)
        silu_backward = pointwise(2 * numel, numel, item_size, vector_flops=8 * numel)
        return (product, product, silu_backward)


class GroupedGemm(Operator):
    """``groups`` products [m, k] x [k, n] in one call (``torch.nn.functional.grouped_mm``). Backward: gradients of
    both."""

    name = "grouped_gemm"
    parameters = ("groups", "m", "k", "n")
    dtypes = ("bfloat16",)
    ratio_bounds = (0.8, 6.0)

    def tensors(self, p: Parameters) -> dict[str, Input]:
        rows = p.groups * p.m
        return {
            "x": Input((rows, p.k), gradient=True),
            "weight": Input((p.groups, p.k, p.n), gradient=True, stride=(p.k * p.n, 1, p.k)),
            "ends": Input((p.groups,), dtype="int32", values="ends", high=rows),
        }

    def forward(self, p: Parameters, x: Any, weight: Any, ends: Any) -> Any:
        import torch

        return torch.nn.functional.grouped_mm(x, weight, offs=ends)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        if direction == "forward":
            return (gemm(p.groups, p.m, p.n, p.k, item_size),)
        return (gemm(p.groups, p.m, p.k, p.n, item_size), gemm(p.groups, p.k, p.n, p.m, item_size))


class LinearFp8(Operator):
    """x W^T of tensors already in float8 e4m3 with one scale each, bfloat16 out. Forward only; making the float8
    tensors is not included."""

    name = "linear_fp8"
    parameters = ("m", "k", "n")
    directions = ("forward",)
    dtypes = ("float8_e4m3fn",)

    def check(self, p: Parameters) -> str | None:
        for key in ("k", "n"):
            if p[key] % 16:
                return f"{key}={p[key]} is no multiple of 16, which float8 products need"
        return None

    def tensors(self, p: Parameters) -> dict[str, Input]:
        return {"x": Input((p.m, p.k)), "weight": Input((p.n, p.k))}

    def forward(self, p: Parameters, x: Any, weight: Any) -> Any:
        from torchledger._torch.products import scaled_product

        return scaled_product(x, weight)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        read = (p.m * p.k + p.k * p.n) * item_size
        product = Work("gemm", read, p.m * p.n * 2, flops=matmul_flops(p.m, p.k, p.n), gemm=(1, p.m, p.n, p.k))
        return (product,)


class AdamW(Operator):
    """One fused AdamW step over ``tensors`` parameters of ``numel`` elements in all; states in their dtype."""

    name = "adamw"
    parameters = ("numel",)
    defaults: ClassVar[Mapping[str, Any]] = {"tensors": 1}
    directions = ("step",)

    def check(self, p: Parameters) -> str | None:
        return None if p.numel >= p.tensors else f"numel={p.numel} is less than tensors={p.tensors}"

    def tensors(self, p: Parameters) -> dict[str, Input]:
        share = p.numel // p.tensors
        sizes = [share + (p.numel - share * p.tensors), *[share] * (p.tensors - 1)]
        return optimizer_inputs([(size,) for size in sizes])

    def forward(self, p: Parameters, **tensors: Any) -> Any:
        from torchledger._torch.optimizers import fused_adamw_step

        return fused_adamw_step(tensors)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        return (adamw_work(p.numel, item_size),)


def optimizer_inputs(shapes: list[tuple[int, ...]]) -> dict[str, Input]:
    """Parameter, gradient and the two moments for each shape, and the number of the step."""
    roles = (("parameter", "normal"), ("gradient", "normal"), ("mean", "zeros"), ("square", "zeros"))
    inputs = {
        f"{role}_{index}": Input(shape, values=values, own=role != "gradient")  # type: ignore[arg-type]
        for role, values in roles
        for index, shape in enumerate(shapes)
    }
    return {**inputs, "step": Input((), dtype="float32", values="ones")}


OPERATORS: Mapping[str, type[Operator]] = {
    declaration.name: declaration
    for declaration in (
        Linear,
        Bmm,
        Sdpa,
        SdpaVarlen,
        LayerNorm,
        RmsNorm,
        Softmax,
        Gelu,
        Add,
        Mul,
        Embedding,
        CrossEntropy,
        Conv2d,
        Swiglu,
        GroupedGemm,
        LinearFp8,
        AdamW,
    )
}
