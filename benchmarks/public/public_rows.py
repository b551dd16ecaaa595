"""Steps that others measured on many GPUs, as rows: each with the model, the layout and what its program does.

Programs are described as their public source has them; ``public_steps.py`` prices the rows.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchledger.nouns import Layout
from torchledger.planning.composing import Composition
from torchledger.planning.transformer import Transformer
from torchledger.planning.transformer_memory import memory_of_rank

GPT_VOCABULARY = 51200
"""Megatron's: 50,257 words, padded to equal shares."""

GPUS_PER_NODE = 8

Host = tuple[float, float]

MEGATRON_HOST_US: Host = (990.0, 2050.0)
MEGATRON_PLAIN_HOST_US: Host = (1130.0, 2310.0)
"""What a host needs for a recomputed block of Megatron-DeepSpeed, forward and backward, beside its kernels' launches;
and where its softmax is torch's, which it is unless sequences times heads of a rank divide by four."""

NANOTRON_HOST_US: dict[str, Host] = {
    "alone": (1450.0, 1350.0),
    "whole, 2 ranks": (1510.0, 1410.0),
    "whole": (1640.0, 1490.0),
    "shares, 2 ranks": (1720.0, 1720.0),
    "shares": (1940.0, 1940.0),
}
"""The same for a block of nanotron, by ranks of tensor parallelism, with whole activations or in shares. Both are of
their own code on a CPU (``framework_hosts.py``, ``docs/results/public_steps.md``); no step is in them."""


def is_checked(layout: Layout) -> bool:
    """Whether the hosts of a nanotron row check each collective of tensor parallelism before they launch it.

    The launch script of these benchmarks sets ``TORCH_DISTRIBUTED_DEBUG=DETAIL``; with which rows it did is not stated.
    Rows that no set scores say that it is those of pipelines over several nodes (``public_origin.py``).
    """
    return layout.tp > 1 and layout.pp > 1 and layout.world_size > GPUS_PER_NODE


def megatron_host_us(model: Transformer, layout: Layout) -> Host:
    """A block's host time by the softmax that Megatron-DeepSpeed chooses."""
    is_plain = layout.micro_batch * (model.heads // layout.tp) % 4
    return MEGATRON_PLAIN_HOST_US if is_plain else MEGATRON_HOST_US


def nanotron_host_us(layout: Layout) -> Host:
    """A block's host time by how its tensors are shared."""
    if layout.tp == 1:
        return NANOTRON_HOST_US["alone"]
    mode = "shares" if layout.sequence_parallel else "whole"
    return NANOTRON_HOST_US[f"{mode}, 2 ranks" if layout.tp == 2 else mode]


@dataclass(frozen=True)
class Row:
    """One measured step. ``peer_us`` is the peer's own prediction where the set holds it."""

    name: str
    model: Transformer
    layout: Layout
    measured_us: float | None
    peer_us: float | None = None
    device: str = ""
    measured_bytes: float | None = None
    peer_bytes: float | None = None
    gpus_per_node: int = GPUS_PER_NODE
    mfu: float | None = None
    has_failed: bool = False
    composition: Composition = field(default_factory=Composition)


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table whose head is comments."""
    with path.open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def vtrain(data: Path, part: str) -> list[Row]:
    """GPT under Megatron-DeepSpeed: float16, everything recomputed, gradients reduced behind the last backward.

    Those on one node (``"single"``) are published as measured and are of vTrain's simulator (``public_origin.py``).
    """
    rows = []
    for row in rows_of(data / f"distributed/vtrain_a100_{part}.csv"):
        n = {key: int(row[key]) for key in row if key not in ("params_b", "iteration_ms")}
        model = Transformer(
            layers=n["layers"], hidden=n["hidden"], heads=n["heads"], ffn=4 * n["hidden"], vocabulary=GPT_VOCABULARY,
            length=n["seq"], batch=n["global_batch"], gated=False, norm="layer", attention="unfused", bias=True,
            rotary=False, tied=True, dtype="float16", fused=False, gradient_bytes=2, optimizer_bytes=16,
        )  # fmt: skip
        layout = Layout(
            dp=n["dp"], tp=n["tp"], pp=n["pp"], micro_batch=n["micro_batch"], recomputation="full",
            sequence_parallel=False,
        )  # fmt: skip
        rows.append(
            Row(str(n), model, layout, 1e3 * float(row["iteration_ms"]), device="A100",
                composition=Composition(overlaps_gradients=False, shares_sends=True,
                                        block_host_us=megatron_host_us(model, layout)))
        )  # fmt: skip
    return rows


def nanotron(data: Path, check_us: Host) -> list[Row]:
    """Llamas in bfloat16 with float32 gradients, nothing recomputed, tensor with sequence parallelism.

    As huggingface/nanotron's llama.py has it: queries, keys and values are put in order by a copy, keys and values
    packed by two more, and back again in the backward; activation and the loss over a shared vocabulary are single
    eager operators; gradients are added to float32 ones. DDP all-reduces these, its buckets lie beside them; with
    ZeRO-1 there is no DDP: all of them are all-reduced at once behind the last backward, and updated weights gathered
    into one piece. All are clipped. Before each tensor that a stage sends go two messages that describe it, and forward
    a mask goes with it.

    ``check_us`` is what a check of a collective takes, and more for each rank (``checked_collectives.py``).

    The memory is what the allocator had reserved: its peak of allocated bytes is set back behind the last backward. So
    gradients in bfloat16, which come as activations go, count beside these.
    """
    rows = []
    for row in rows_of(data / "distributed/nanotron_ultrascale_h100.csv"):
        if row["status"] not in ("ok", "failed"):
            continue
        n = {key: int(row[key]) for key in
             ("dp", "tp", "pp", "zero_stage", "micro_batch", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab",
              "seq", "global_batch", "gpus")}  # fmt: skip
        model = Transformer(
            layers=n["layers"], hidden=n["hidden"], heads=n["heads"], kv_heads=n["kv_heads"], ffn=n["ffn"],
            vocabulary=n["vocab"], length=n["seq"], batch=n["global_batch"], tied=row["model"] in ("1B", "3B"),
            fused=False, head_copies=2.5, spare_gradient_bytes=4 if n["dp"] > 1 else 2,
            overlaps_shards=True, counts_lengths=True, loss_in_steps=True,
        )  # fmt: skip
        # nanotron deals blocks to stages by what they cost, the output among them.
        model = replace(model, head_layers=model.vocabulary * model.hidden / model.block_parameters)
        layout = Layout(
            dp=n["dp"], tp=n["tp"], pp=n["pp"], fsdp=n["dp"] if n["zero_stage"] else 1,
            zero=n["zero_stage"] if n["dp"] > 1 else 0, micro_batch=n["micro_batch"],
        )  # fmt: skip
        has_failed = row["status"] == "failed"
        measured_bytes = 2**30 * float(row["gpu_memory_gb"]) if row["gpu_memory_gb"] else None
        checks = check_us if is_checked(layout) else (0.0, 0.0)
        layout = nearer_mode(model, layout, measured_bytes)
        rows.append(
            # The table of results is written by the first rank, in GiB.
            Row(f"{row['model']} on {n['gpus']}", model, layout, None if has_failed else 1e6 * float(row["step_s"]),
                device="H100", measured_bytes=measured_bytes,
                mfu=float(row["mfu_pct"]) if row["mfu_pct"] else None, has_failed=has_failed,
                composition=Composition(overlaps_gradients=not layout.zero, reduces_whole=True, clips_whole=True,
                                        announcements=(5, 2), check_us=checks,
                                        block_host_us=nanotron_host_us(layout)))
        )  # fmt: skip
    return rows


def nearer_mode(model: Transformer, layout: Layout, measured_bytes: float | None) -> Layout:
    """Tensor parallelism with activations in shares or whole, which no row states: the one whose memory is nearer."""
    if layout.tp == 1 or measured_bytes is None:
        return layout
    modes = (layout, replace(layout, sequence_parallel=False))
    return min(modes, key=lambda mode: abs(math.log(memory_of_rank(model, mode, 0) / measured_bytes)))


def neusight(data: Path) -> list[Row]:
    """GPTs in float32 on four GPUs, attention unfused, nothing recomputed; a pipeline of one microbatch.

    Shapes are those of sitar-lab/NeuSight's ``scripts/asplos/data/DLmodel_configs`` (its XL is 3,072 wide, not 2,048).
    Its script (``collect_label_distributed.py``) times Megatron-LM's own training step (core_r0.5.0, called by
    accelerate 1.0.0), optimizer and all: float32 scores are masked by a kernel of their own, products add to gradients
    themselves, the gradient of an input is summed beside the weight's, the loss is written step by step; behind the
    backward gradients are scaled and reduced at once, before the next they are set to zero.
    """
    shapes = {"gpt2_large": (36, 1280, 20), "gpt3_xl": (24, 3072, 24)}
    rows = []
    for row in rows_of(data / "distributed/neusight_distributed.csv"):
        layers, hidden, heads = shapes[row["model"]]
        batch, kind = int(row["global_batch"]), row["parallel"][:2]
        shares = 128 * (4 if kind == "tp" else 1)
        model = Transformer(
            layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden, vocabulary=shares * math.ceil(50257 / shares),
            length=int(row["seq"]),
            batch=batch, gated=False, norm="layer", attention="unfused", bias=True, rotary=False, tied=True,
            dtype="float32", fused=False, own_kernels=True, overlaps_inputs=True, loss_in_steps=True,
        )  # fmt: skip
        layout = Layout(
            dp=4 if kind == "dp" else 1, tp=4 if kind == "tp" else 1, pp=4 if kind == "pp" else 1,
            micro_batch=batch // 4 if kind == "dp" else batch, sequence_parallel=False,
        )  # fmt: skip
        rows.append(
            Row(f"{row['gpu']} {row['model']} {row['parallel']} {batch}", model, layout,
                1e3 * float(row["measured_ms"]), 1e3 * float(row["neusight_ms"]), device=row["gpu"].split("-")[0],
                composition=Composition(overlaps_gradients=False, gradient_passes=3))
        )  # fmt: skip
    return rows


def simumax(data: Path) -> list[Row]:
    """Megatron's Llamas in bfloat16, float32 gradients, ZeRO-1; DeepSeek's experts are not described here.

    As the launch scripts of MooreThreads/SimuMax say: Transformer Engine, its loss in place of the logits, 16 groups of
    queries in the larger, a vocabulary in shares of 128, all-to-alls around attention for context parallelism, nothing
    of the collectives overlapped.
    """
    shapes = {"llama3_70b": (8192, 64, 8, 28672, 128256), "llama3_405b": (16384, 128, 16, 53248, 128256)}
    rows = []
    for row in rows_of(data / "distributed/simumax_b200.csv"):
        if row["model"] not in shapes:
            continue
        hidden, heads, kv_heads, ffn, vocabulary = shapes[row["model"]]
        n = {key: int(row[key]) for key in ("layers", "tp", "cp", "pp", "dp", "micro_batches", "seq")}
        vocabulary = 128 * n["tp"] * math.ceil(vocabulary / (128 * n["tp"]))
        model = Transformer(
            layers=n["layers"], hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn, vocabulary=vocabulary,
            length=n["seq"], batch=n["micro_batches"] * n["dp"], fused=False, own_kernels=True,
            logit_bytes=2, exchanges_heads=True,
        )  # fmt: skip
        shares = n["dp"] * n["cp"]
        layout = Layout(
            dp=n["dp"], tp=n["tp"], pp=n["pp"], cp=n["cp"], fsdp=n["dp"], zero=1 if shares > 1 else 0, micro_batch=1
        )
        rows.append(
            Row(row["case"], model, layout, 1e3 * float(row["real_ms"]), 1e3 * float(row["simumax_ms"]), device="B200",
                measured_bytes=2**30 * float(row["real_alloc_gib"]), peer_bytes=2**30 * float(row["simumax_alloc_gib"]),
                composition=Composition(overlaps_gradients=False))
        )  # fmt: skip
    return rows


def megatron(data: Path) -> list[Row]:
    """Dense GPTs of Megatron-LM's own tests, for their memory: most are tiny. Float8, CUDA graphs, virtual stages and
    FSDP are left out."""
    rows = []
    unlike = ("num-experts", "fp8-format", "cuda-graph-impl", "use-megatron-fsdp",
              "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank")  # fmt: skip
    needed = ("mem_max_allocated_bytes", "gpus", "num-layers", "hidden-size", "num-attention-heads",
              "global-batch-size")  # fmt: skip
    for row in rows_of(data / "distributed/megatron_ci_golden.csv"):
        if row["family"] != "gpt" or any(row[key] for key in unlike) or not all(row[key] for key in needed):
            continue
        tp, pp, cp, micro_batch = (
            int(row[key] or 1)
            for key in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
                        "micro-batch-size")
        )  # fmt: skip
        dp = int(row["gpus"]) * int(row["nodes"] or 1) // (tp * pp * cp)
        if dp < 1:
            continue
        hidden = int(row["hidden-size"])
        is_unfused = row["transformer-impl"] == "local" or row["attention-backend"] == "unfused"
        model = Transformer(
            layers=int(row["num-layers"]), hidden=hidden, heads=int(row["num-attention-heads"]),
            kv_heads=int(row["num-query-groups"] or 0), ffn=int(row["ffn-hidden-size"] or 4 * hidden),
            vocabulary=GPT_VOCABULARY, length=int(row["seq-length"]), batch=int(row["global-batch-size"]),
            gated=row["swiglu"] == "True", norm="layer", attention="unfused" if is_unfused else "flash", bias=True,
            rotary=False, tied=row["untie-embeddings-and-output-weights"] != "True", fused=False, own_kernels=True,
            logit_bytes=6,
        )  # fmt: skip
        is_sharded = row["use-distributed-optimizer"] == "True"
        layout = Layout(
            dp=dp, tp=tp, pp=pp, cp=cp, fsdp=dp if is_sharded else 1, zero=int(is_sharded), micro_batch=micro_batch,
            recomputation=row["recompute-granularity"] if row["recompute-granularity"] == "full" else "none",
            sequence_parallel=row["sequence-parallel"] == "True",
        )  # fmt: skip
        rows.append(Row(row["test_case"], model, layout, None, measured_bytes=float(row["mem_max_allocated_bytes"])))
    return rows
