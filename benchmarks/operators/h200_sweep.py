"""Write the sweep of the H200 data set as YAML: ``python -m benchmarks.operators.h200_sweep [--denser] > h200.yml``.

Every operator of the sampling guide and the general forms, on the usual grids and off them, in three alignments
(any number, multiples of 8, multiples of 64). Groups: ``train``, and ``held_out`` for judging a fit. The order is
shuffled, so that any beginning of the sweep is a fair share of the whole. Conditions keep a forward near or below a
millisecond, so that points stay cheap.

``--denser`` writes a second sweep, to train on only: more of the products and convolutions, whose times jump with the
library's choice of kernel, and the guide's operators between the lines of its grid. ``--rows`` writes a third one, to
train on: kernels that work on rows, attention and the optimizer. ``--anew`` writes the held-out part of the first with
other draws: shapes for judging a model that is finished.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import yaml

SWEEPS: list[dict[str, Any]] = []
Parameters = Mapping[str, Any]

BF16, FP16, FP32 = ["bf16"], ["fp16"], ["fp32"]
MP = [1, 2, 4, 8, 16]
BATCHES, ODD_BATCHES = [1, 2, 4, 8], [1, 2, 3, 4, 5, 6, 8]
CHANNELS = [16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 2048]
STAGES = ("first", "middle", "last")
DENSER = {"linear": 0.25, "bmm": 0.3, "conv2d": 1.3, "grouped_gemm": 1.0, "linear_fp8": 0.6, "sdpa": 0.2}
DENSER |= {"sdpa_varlen": 0.5, "embedding": 0.5, "cross_entropy": 0.5, "adamw": 1.5, "swiglu": 0.7}
DENSER |= {"layer_norm": 0.35, "rms_norm": 0.35, "softmax": 0.45, "gelu": 0.5, "add": 0.7, "mul": 0.5}
"""How much of each operator the denser sweep draws again, in shares of the first one's training draws."""
ROWS = {"softmax": 1.6, "cross_entropy": 1.5, "layer_norm": 0.8, "rms_norm": 1.0, "embedding": 0.9, "adamw": 2.4}
ROWS |= {"grouped_gemm": 1.2, "linear_fp8": 0.8, "sdpa": 0.35, "sdpa_varlen": 1.2, "swiglu": 0.2, "gelu": 0.3}
ROWS |= {"add": 0.5, "mul": 0.3}
"""The same of the sweep of kernels on rows."""
HEADS = [4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64]


def log(start: int, end: int, multiple_of: int = 1) -> dict[str, Any]:
    """A log-uniform draw."""
    values: dict[str, Any] = {"from": max(start, multiple_of), "to": end, "draw": "log"}
    return values | ({"multiple_of": multiple_of} if multiple_of > 1 else {})


def steps(start: int, end: int, step: int) -> dict[str, int]:
    """An arithmetic range."""
    return {"from": start, "to": end, "step": step}


def part(
    operator: str,
    parameters: Parameters,
    draws: float,
    group: str,
    *,
    where: list[str],
    derived: Mapping[str, str] | None = None,
    dtypes: list[str],
) -> None:
    """One entry of the file."""
    entry: dict[str, Any] = {"operator": operator, "group": group, "dtypes": dtypes, "draws": max(int(draws), 4)}
    entry |= {"parameters": dict(parameters), "where": where}
    SWEEPS.append(entry | ({"derived": dict(derived)} if derived else {}))


def aligned(
    operator: str,
    make: Callable[[int], Parameters],
    train: int,
    held_out: int,
    where: list[str],
    *,
    shares: tuple[float, float, float] = (1.0, 0.3, 0.0),
    slow_where: list[str] | None = None,
) -> None:
    """Draws in three alignments to train on, in two held out; ``shares`` of them in bf16, fp16 and fp32."""
    for dtypes, share in zip((BF16, FP16, FP32), shares, strict=True):
        conditions = (slow_where or where) if dtypes is FP32 else where
        for multiple in (1, 8, 64) if share else ():
            part(operator, make(multiple), train * share / 3, "train", where=conditions, dtypes=dtypes)
        for multiple in (1, 8) if share else ():
            part(operator, make(multiple), held_out * share / 2, "held_out", where=conditions, dtypes=dtypes)


def matrix_products() -> None:
    """linear, bmm, grouped and float8 products."""
    size = "m * k + k * n + m * n <= 5e8"
    aligned(
        "linear",
        lambda a: {"m": log(1, 32768, a), "k": log(32, 16384, a), "n": log(32, 32768, a)},
        5000,
        500,
        ["2 * m * k * n <= 6e11", size],
        shares=(1.0, 0.3, 0.12),
        slow_where=["2 * m * k * n <= 5e10", size],
    )
    size = "b * (m * k + k * n + m * n) <= 4e8"
    aligned(
        "bmm",
        lambda a: {"b": log(1, 512), "m": log(8, 4096, a), "k": log(16, 4096, a), "n": log(8, 4096, a)},
        3000,
        300,
        ["2 * b * m * k * n <= 4e11", size],
        shares=(1.0, 0.3, 0.1),
        slow_where=["2 * b * m * k * n <= 4e10", size],
    )
    aligned(
        "grouped_gemm",
        lambda a: {"groups": log(2, 64), "m": log(16, 8192), "k": log(128, 8192, max(a, 8)), "n": log(128, 8192, 8)},
        400,
        80,
        ["2 * groups * m * k * n <= 4e11", "groups * (m * k + k * n + m * n) <= 4e8"],
        shares=(1.0, 0.0, 0.0),
    )
    product = {"m": log(16, 16384, 16), "k": log(64, 16384, 16), "n": log(64, 16384, 16)}
    for group, draws in (("train", 500), ("held_out", 100)):
        part("linear_fp8", product, draws, group, where=["2 * m * k * n <= 1e12"], dtypes=["fp8"])


def attention() -> None:
    """sdpa, causal and not, grouped-query, and packed sequences."""
    limits = ["b * h * l * l * d <= 1.5e11", "b * h * l * d <= 1.5e8"]
    anything = {"b": log(1, 64), "h": HEADS, "l": log(16, 8192), "d": [32, 64, 64, 80, 96, 128, 128, 256]}
    usual = {"b": log(1, 64), "h": HEADS, "l": log(128, 8192, 128), "d": [64, 64, 96, 128, 128]}
    grouped = {"b": log(1, 16), "h": [8, 16, 32, 64], "h_kv": [1, 2, 4, 8], "l": log(64, 8192), "d": [64, 128]}
    packed = {"sequences": log(1, 64), "h": [8, 12, 16, 32], "l": log(16, 4096), "d": [64, 128], "causal": [0, 1]}
    for group, draws in (("train", 2200), ("held_out", 240)):
        for dtypes, share in ((BF16, 1.0), (FP16, 0.3)):
            for shapes, weight in ((anything, 0.5), (usual, 0.35)):
                part("sdpa", {**shapes, "causal": [0, 1]}, draws * share * weight, group, where=limits, dtypes=dtypes)
            conditions = [*limits, "h_kv < h"]
            part("sdpa", {**grouped, "causal": 1}, draws * share * 0.15, group, where=conditions, dtypes=dtypes)
        limit = ["sequences * h * l * l * d <= 1e11", "sequences * h * l * d <= 1e8"]
        part("sdpa_varlen", packed, draws * 0.14, group, where=limit, dtypes=BF16)


def convolutions() -> None:
    """The shapes of convolutional networks, off-grid ones, stems, depthwise and grouped, in both memory formats."""
    image = {"n": log(1, 256), "kernel": [1, 1, 3, 3, 3, 5, 7], "stride": [1, 1, 1, 2], "channels_last": [0, 1, 1]}
    sides = [7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224]
    same = {"width": "height", "padding": "kernel // 2"}
    limits = [
        "2 * n * c_out * c_in * kernel * kernel * height * width <= 6e11 * stride * stride",
        "n * c_in * height * width <= 2e8",
        "n * c_out * height * width <= 2e8 * stride * stride",
    ]
    small = ["n * c_in * height * width <= 6e7"]
    usual = {**image, "c_in": CHANNELS, "c_out": CHANNELS, "height": sides}
    anything = {**image, "c_in": log(4, 2048, 4), "c_out": log(4, 2048, 4), "height": log(5, 256)}
    stem = {**image, "c_in": [1, 3, 3, 4], "c_out": CHANNELS[:8], "height": [32, 64, 96, 128, 160, 192, 224, 256]}
    stem |= {"kernel": [3, 3, 4, 7, 16], "stride": [1, 2, 2, 4, 16]}
    depthwise = {**image, "c_in": log(8, 1536, 8), "height": log(7, 128), "kernel": [3, 3, 5, 7], "stride": [1, 1, 2]}
    grouped = {**image, "c_in": [64, 96, 128, 192, 256, 384, 512], "height": [7, 14, 28, 56], "kernel": 3}
    grouped |= {"groups": [2, 4, 8, 16, 32]}
    for group, share in (("train", 1.0), ("held_out", 0.1)):
        for dtypes, weight in ((BF16, share), (FP16, share * 0.25)):
            part("conv2d", usual, 1300 * weight, group, where=limits, derived=same, dtypes=dtypes)
            part("conv2d", anything, 900 * weight, group, where=limits, derived=same, dtypes=dtypes)
            stems = [*limits, "stride <= kernel"]
            part("conv2d", stem, 250 * weight, group, where=stems, derived=same, dtypes=dtypes)
            one_each = {**same, "c_out": "c_in", "groups": "c_in"}
            part("conv2d", depthwise, 500 * weight, group, where=small, derived=one_each, dtypes=dtypes)
            several = {**same, "c_out": "c_in"}
            part("conv2d", grouped, 200 * weight, group, where=small, derived=several, dtypes=dtypes)


def rows_and_elements() -> None:
    """Norms, softmax, elementwise, lookups, losses and the optimizer."""
    some = (1.0, 0.3, 0.25)
    for operator in ("layer_norm", "rms_norm", "softmax"):
        limits = ["rows * dim <= 2e8"]
        aligned(operator, lambda a: {"rows": log(1, 131072), "dim": log(32, 32768, a)}, 800, 160, limits, shares=some)
    for operator in ("gelu", "add", "mul"):
        aligned(operator, lambda a: {"numel": log(256, 500_000_000, a)}, 220, 80, [], shares=(1.0, 0.3, 0.4))
    gated = ["rows * dim <= 2e8"]
    aligned("swiglu", lambda a: {"rows": log(1, 65536), "dim": log(64, 32768, a)}, 400, 80, gated, shares=some)
    aligned(
        "embedding",
        lambda a: {"tokens": log(16, 131072), "vocab": log(128, 262144), "dim": log(32, 8192, a)},
        900,
        180,
        ["tokens * dim <= 2e8", "vocab * dim <= 4e8"],
        shares=some,
    )
    logits = ["tokens * vocab <= 4e8"]
    aligned(
        "cross_entropy", lambda a: {"tokens": log(8, 65536), "vocab": log(8, 262144, a)}, 800, 160, logits, shares=some
    )
    step = {"numel": log(1024, 300_000_000), "tensors": [1, 1, 4, 16, 64, 150]}
    for group, draws in (("train", 160), ("held_out", 40)):
        part("adamw", step, draws, group, where=["tensors <= numel"], dtypes=["bf16", "fp32"])


def guide(operator: str, draws: int, grid: Parameters, between: Parameters, where: list[str]) -> None:
    """One of the guide's operators: on its grid to train on, between its lines held out."""
    for dtypes in (BF16, FP16):
        part(f"guide.{operator}", grid, draws, "train", where=where, dtypes=dtypes)
        part(f"guide.{operator}", {**grid, **between}, max(draws // 5, 20), "held_out", where=where, dtypes=dtypes)


def guide_operators() -> None:
    """All operators of the sampling guide."""
    off = {"l": log(100, 4096), "b": ODD_BATCHES}
    share = {"mp": MP, "b": BATCHES, "l": steps(256, 4096, 256), "dim": steps(1024, 8192, 512)}
    products = ["b * l * dim * dim / mp <= 8e10"]
    for operator in ("linear1", "linear2", "linear3", "linear4"):
        guide(operator, 150, share, off, products)
    guide("linear_final", 120, share, off, ["b * l * dim / mp <= 5e6"])
    guide("embedding", 150, share, off, [])
    guide("gelu", 100, share, off, [])
    rows = {"b": BATCHES, "l": steps(256, 5120, 256), "dim": steps(1024, 8192, 256)}
    for operator in ("layernorm", "RMSlayernorm", "res_add"):
        guide(operator, 100, rows, off, [])
    scores = {"mp": MP, "b": BATCHES, "h": steps(16, 80, 8), "l": steps(256, 5120, 256)}
    heads = {**scores, "dim": steps(1024, 8192, 512)}
    whole = ["h divides dim", "mp divides h", "(dim // h) % 8 == 0", "dim // h <= 256"]
    work, memory = "b * l * l * dim / mp <= 1e11", "b * h * l * l / mp <= 4e8"
    guide("flash_atten", 200, heads, off, [*whole, work])
    guide("RoPE", 100, heads, off, whole)
    for operator in ("baddbmm", "bmm"):
        guide(operator, 120, heads, off, [*whole, work, memory])
    guide("fillmask", 60, heads, off, ["h divides dim", "mp divides h", memory])
    for operator in ("softmax", "ScaledUpperTriangMaskedSoftmax"):
        guide(operator, 100, scores, off, ["mp divides h", memory])
    tokens = {"mp": MP, "b": BATCHES, "l": steps(256, 4096, 128)}
    guide("parallel_cross_entropy_128", 100, tokens, off, ["b * l / mp <= 8192"])
    experts = {"mp": MP, "b": [1, 2, 4], "l": steps(512, 4096, 512), "dim": steps(1024, 4096, 512)}
    experts |= {"experts": [4, 8, 16, 32], "intermediate": [1024, 2048, 4096, 8192], "top_k": [1, 2, 4]}
    limits = ["experts * dim * intermediate / mp <= 2e8", "b * l * top_k * dim * intermediate / mp <= 8e10"]
    guide("moe", 150, experts, off, limits)
    stage = {"mp": MP, "dim": steps(1024, 8192, 512), "encoders": steps(4, 12, 1)}
    for operator in ("firstStage_optimizer", "middleStage_optimizer", "lastStage_optimizer"):
        guide(operator, 60, stage, {}, ["12 * dim * dim * encoders / mp <= 1.2e9"])


def guide_between_the_lines(draws: int) -> None:
    """The guide's operators at any length, batch and width, to train on."""
    off: dict[str, Any] = {"b": ODD_BATCHES, "l": log(100, 4096), "dim": steps(1024, 8192, 128)}
    tensor = {"mp": MP, **off}
    products = ["mp divides dim", "b * l * dim * dim / mp <= 8e10"]
    whole = ["h divides dim", "mp divides h", "(dim // h) % 8 == 0", "dim // h <= 256"]
    scores = {"mp": MP, "b": ODD_BATCHES, "h": steps(16, 80, 8), "l": log(100, 4096)}
    heads = {**scores, "dim": steps(1024, 8192, 128)}
    work, memory = "b * l * l * dim / mp <= 1e11", "b * h * l * l / mp <= 4e8"
    experts = {"mp": MP, "b": [1, 2, 3, 4, 5], "l": log(100, 4096), "dim": steps(1024, 4096, 256)}
    experts |= {"experts": [4, 8, 16, 32], "intermediate": [1024, 2048, 4096, 8192], "top_k": [1, 2, 4]}
    moe = ["experts * dim * intermediate / mp <= 2e8", "b * l * top_k * dim * intermediate / mp <= 8e10"]
    stage = {"mp": MP, "dim": steps(1024, 8192, 256), "encoders": steps(2, 12, 1)}
    parts: list[tuple[str, Parameters, list[str], float]] = [
        *((f"linear{number}", tensor, products, 1.4) for number in (1, 2, 3, 4)),
        ("linear_final", tensor, ["b * l * dim / mp <= 5e6"], 1.0),
        ("embedding", tensor, [], 1.0),
        ("gelu", tensor, [], 0.6),
        *((operator, off, [], 0.8) for operator in ("layernorm", "RMSlayernorm", "res_add")),
        ("flash_atten", heads, [*whole, work], 1.4),
        ("RoPE", heads, whole, 0.8),
        *((operator, heads, [*whole, work, memory], 2.0) for operator in ("baddbmm", "bmm")),
        ("fillmask", heads, ["h divides dim", "mp divides h", memory], 0.8),
        *((name, scores, ["mp divides h", memory], 1.0) for name in ("softmax", "ScaledUpperTriangMaskedSoftmax")),
        ("parallel_cross_entropy_128", {"mp": MP, **{k: off[k] for k in "bl"}}, ["b * l / mp <= 8192"], 0.8),
        ("moe", experts, moe, 1.2),
        *((f"{name}Stage_optimizer", stage, ["12 * dim * dim * encoders / mp <= 1.2e9"], 0.4) for name in STAGES),
    ]
    for operator, shapes, where, weight in parts:
        for dtypes, share in ((BF16, 0.7), (FP16, 0.3)):
            part(f"guide.{operator}", shapes, draws * weight * share, "train", where=where, dtypes=dtypes)


def products_of_mixed_alignment(draws: int) -> None:
    """Products whose sides are aligned each in its own way, to train on: m never matters where rows are of k and n."""
    aligned_to = (1, 2, 8, 64)
    size, batched = "m * k + k * n + m * n <= 5e8", "b * (m * k + k * n + m * n) <= 4e8"
    for of_k, of_n in [(k, n) for k in aligned_to for n in aligned_to]:
        for dtypes, share in ((BF16, 0.8), (FP16, 0.2)):
            flat = {"m": log(1, 32768), "k": log(32, 16384, of_k), "n": log(32, 32768, of_n)}
            part("linear", flat, draws * share, "train", where=["2 * m * k * n <= 6e11", size], dtypes=dtypes)
            many = {"b": log(1, 512), "m": log(8, 4096), "k": log(16, 4096, of_k), "n": log(8, 4096, of_n)}
            part("bmm", many, draws * share, "train", where=["2 * b * m * k * n <= 4e11", batched], dtypes=dtypes)


def depthwise_convolutions(draws: int) -> None:
    """One filter per channel, with the larger filters of mixed networks, to train on."""
    image = {"n": log(4, 256), "stride": [1, 1, 2], "channels_last": [0, 1, 1], "kernel": [3, 5, 7, 9, 11]}
    shapes = {**image, "c_in": log(8, 2048, 4), "height": log(5, 160)}
    derived = {"width": "height", "padding": "kernel // 2", "c_out": "c_in", "groups": "c_in"}
    limits = ["n * c_in * height * width <= 6e7"]
    part("conv2d", shapes, draws, "train", where=limits, derived=derived, dtypes=BF16)


def only_held_out() -> None:
    """Keep the held-out parts of what was written."""
    SWEEPS[:] = [entry for entry in SWEEPS if entry["group"] == "held_out"]


def only_to_train(scale: Mapping[str, float]) -> None:
    """Keep the training parts of what was written, ``scale`` times as many draws; operators not named are left out."""
    kept = [{**e, "draws": max(int(e["draws"] * scale[e["operator"]]), 4)} for e in SWEEPS if e["operator"] in scale]
    SWEEPS[:] = [entry for entry in kept if entry["group"] == "train"]


def main() -> None:
    """Print the file."""
    matrix_products()
    attention()
    convolutions()
    rows_and_elements()
    seed = 20261121
    if "--denser" in sys.argv[1:]:
        only_to_train(DENSER)
        guide_between_the_lines(230)
        products_of_mixed_alignment(160)
        depthwise_convolutions(700)
        seed = 20261122
    elif "--rows" in sys.argv[1:]:
        only_to_train(ROWS)
        guide_between_the_lines(60)
        seed = 20261123
    else:
        guide_operators()
    if "--anew" in sys.argv[1:]:
        only_held_out()
        seed = 20261124
    head = {"dtypes": BF16, "order": "shuffle", "seed": seed, "warmup": 2, "active": 10}
    yaml.safe_dump({**head, "sweeps": SWEEPS}, sys.stdout, sort_keys=False, default_flow_style=None, width=118)


if __name__ == "__main__":
    main()
