"""Training steps that others measured on many GPUs, priced with nothing fitted to them.

    python benchmarks/public_steps.py [--data DIR] [--kernels A100.tlmodel] [--sealed] [--output FILE.md]

Sets: vTrain (A100, one node and several), nanotron (H100, rows of MFU >= 20 %), NeuSight's eleven (A100 and H100,
float32), SimuMax's Llamas (B200). Kernels of vTrain's A100 are fitted to operators that estimate-train-time measured
(no step among them); the H100 has its own model, the others are transferred by data sheet. Each set is split with a
seed: a fifth may be looked at while this is written, the rest is scored with ``--sealed``.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import math
import os
import platform
import random
import statistics
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchledger.errors import PredictError
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Fabric, Layout
from torchledger.planning.fabric import find_fabric
from torchledger.planning.layouts import Composition, price_layout
from torchledger.planning.prices import ModelPrices, PiecePrice, PiecePrices
from torchledger.planning.sharing import find_sharing
from torchledger.planning.timeline import Sharing
from torchledger.planning.transformer import Piece, Transformer, memory_of_rank
from torchledger.predicting.devices import find_model
from torchledger.predicting.model_file import load_model, save_model
from torchledger.predicting.operators import predict
from torchledger.predicting.power import StepWork

NEEDS: tuple[str, ...] = ("public data",)
RUNS: tuple[tuple[str, ...], ...] = (("--sealed",),)

SEED, DEVELOPMENT = 0, 0.2
ROOT = Path(__file__).resolve().parents[1]
GPT_VOCABULARY = 51200
"""Megatron's: 50,257 words, padded to equal shares."""

EAGER_LAUNCH_US = 10.0
"""What a host needs for a launch of an eager program: the usual one (``library launch host us``)."""


ENOUGH_TO_SCALE = 20
"""Development rows of which a median is taken."""

VTRAIN_LAUNCH_US = 60.0
"""What vTrain's host needs for a kernel of these lists, read off the development rows: Megatron's modules call several
operators for each."""


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
    gpus_per_node: int = 8
    mfu: float | None = None
    has_failed: bool = False
    composition: Composition = field(default_factory=Composition)


@dataclass
class GuidePrices:
    """An A100's eager kernels: operators of the sampling guide, as estimate-train-time measured them on one."""

    model: TimeModel
    shape: Transformer
    layout: Layout
    launch_host_us: float = EAGER_LAUNCH_US
    device: str = "A100-SXM4-80GB"
    cache: dict[Any, float] = field(default_factory=dict)

    ROLES: Mapping[str, str] = field(
        default_factory=lambda: {
            "qkv": "linear1",
            "out": "linear2",
            "up": "linear3",
            "down": "linear4",
            "head": "linear_final",
            "scores": "baddbmm",
            "softmax": "ScaledUpperTriangMaskedSoftmax",
            "context": "bmm",
            "activation": "gelu",
            "norm": "layernorm",
            "loss": "parallel_cross_entropy_128",
            "embedding": "embedding",
        }
    )

    def ask(self, operator: str, direction: str, sizes: Mapping[str, int]) -> float:
        key = (operator, direction, tuple(sizes.items()))
        if key not in self.cache:
            self.cache[key] = predict(self.model, operator, sizes, direction=direction, dtype="float16").duration_us
        return self.cache[key]

    def copy_us(self, bytes_moved: float) -> float:
        """An elementwise kernel, as a sum of two tensors that moves as many bytes."""
        largest = 2.0**32
        if bytes_moved > largest:
            return self.copy_us(largest) * bytes_moved / largest
        rows = max(1, round(bytes_moved / 6 / 4096))
        return self.ask("guide.res_add", "forward", {"b": 1, "l": rows, "dim": 4096})

    def price(self, piece: Piece) -> PiecePrice:
        if piece.operator == "elementwise":
            return PiecePrice(self.copy_us(piece.parameters["bytes"]))
        name = f"guide.{self.ROLES[piece.role]}"
        from torchledger.operators import find_operator

        values = {
            "mp": self.layout.tp,
            "b": self.layout.micro_batch,
            "h": self.shape.heads,
            "l": self.shape.length,
            "dim": self.shape.hidden,
        }
        operator = find_operator(self.ROLES[piece.role], prefer_guide=True)
        sizes = {parameter: values[parameter] for parameter in operator.parameters}
        return PiecePrice(self.ask(name, piece.direction, sizes))

    def optimizer(self, parameters: float, tensors: int) -> PiecePrice:
        # Float16 gradients are cast, checked and clipped; four float32 tensors are read, three written, weights cast.
        return PiecePrice(self.copy_us(40.0 * parameters))

    def sustained_us(self, part: StepWork, step: StepWork, duration_us: float) -> float:
        """Nothing: what was sampled is what is known."""
        return 0.0


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table whose head is comments."""
    with path.open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def vtrain(data: Path, part: str) -> list[Row]:
    """GPT under Megatron-DeepSpeed: float16, everything recomputed, gradients reduced behind the last backward."""
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
                composition=Composition(overlaps_gradients=False))
        )  # fmt: skip
    return rows


def nanotron(data: Path) -> list[Row]:
    """Llamas in bfloat16 with float32 gradients, nothing recomputed, tensor with sequence parallelism.

    As huggingface/nanotron's llama.py has it: queries, keys and values are put in order by a copy, keys and values
    packed by two more, and back again in the backward; activation and the loss over a shared vocabulary are single
    eager operators; gradients are added to float32 ones. DDP all-reduces these, its buckets lie beside them; with
    ZeRO-1 there is no DDP: all of them are all-reduced at once behind the last backward, and updated weights gathered
    into one piece. All are clipped. Before each tensor that a stage sends go two messages that describe it, and forward
    a mask goes with it.

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
            overlaps_shards=True, counts_lengths=True,
        )  # fmt: skip
        # nanotron deals blocks to stages by what they cost, the output among them.
        model = replace(model, head_layers=model.vocabulary * model.hidden / model.block_parameters)
        layout = Layout(
            dp=n["dp"], tp=n["tp"], pp=n["pp"], fsdp=n["dp"] if n["zero_stage"] else 1,
            zero=n["zero_stage"] if n["dp"] > 1 else 0, micro_batch=n["micro_batch"],
        )  # fmt: skip
        has_failed = row["status"] == "failed"
        measured_bytes = 2**30 * float(row["gpu_memory_gb"]) if row["gpu_memory_gb"] else None
        layout = nearer_mode(model, layout, measured_bytes)
        rows.append(
            # The table of results is written by the first rank, in GiB.
            Row(f"{row['model']} on {n['gpus']}", model, layout, None if has_failed else 1e6 * float(row["step_s"]),
                device="H100", measured_bytes=measured_bytes,
                mfu=float(row["mfu_pct"]) if row["mfu_pct"] else None, has_failed=has_failed,
                composition=Composition(overlaps_gradients=not layout.zero, reduces_whole=True, clips_whole=True,
                                        announcements=(5, 2)))
        )  # fmt: skip
    return rows


def nearer_mode(model: Transformer, layout: Layout, measured_bytes: float | None) -> Layout:
    """Tensor parallelism with activations in shares or whole, which no row states: the one whose memory is nearer."""
    if layout.tp == 1 or measured_bytes is None:
        return layout
    modes = (layout, replace(layout, sequence_parallel=False))
    return min(modes, key=lambda mode: abs(math.log(memory_of_rank(model, mode, 0) / measured_bytes)))


def neusight(data: Path) -> list[Row]:
    """GPTs in float32 on four GPUs, attention unfused, nothing recomputed; a pipeline of one microbatch."""
    shapes = {"gpt2_large": (36, 1280, 20), "gpt3_xl": (24, 2048, 16)}
    rows = []
    for row in rows_of(data / "distributed/neusight_distributed.csv"):
        layers, hidden, heads = shapes[row["model"]]
        batch, kind = int(row["global_batch"]), row["parallel"][:2]
        model = Transformer(
            layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden, vocabulary=50304, length=int(row["seq"]),
            batch=batch, gated=False, norm="layer", attention="unfused", bias=True, rotary=False, tied=True,
            dtype="float32", fused=False,
        )  # fmt: skip
        layout = Layout(
            dp=4 if kind == "dp" else 1, tp=4 if kind == "tp" else 1, pp=4 if kind == "pp" else 1,
            micro_batch=batch // 4 if kind == "dp" else batch, sequence_parallel=False,
        )  # fmt: skip
        rows.append(
            Row(f"{row['gpu']} {row['model']} {row['parallel']} {batch}", model, layout,
                1e3 * float(row["measured_ms"]), 1e3 * float(row["neusight_ms"]), device=row["gpu"].split("-")[0])
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


def kernels_of_a100(data: Path, path: Path) -> TimeModel:
    """The model of estimate-train-time's operators on an A100; fitted when ``path`` does not hold it yet."""
    if not path.exists():
        from torchledger.fitting import fit
        from torchledger.sampling.guide_csv import read_guide_csv

        name = "NVIDIAA100-SXM4-80GB"
        samples = [
            replace(sample, device=name)
            for file in sorted((data / "ett/Perlmutter/operator").glob(f"{name}_*.csv"))
            if "optimizer" not in file.name
            for sample in read_guide_csv(file)
        ]
        model, _ = fit(samples, jobs=1)
        save_model(model, path)
    return load_model(path)


DEVICES = {"H100": "H100", "A100": "A100-SXM4-40GB", "B200": "B200"}
"""What answers for a row's device: the H100's own model, data sheets of the others."""

FLASH_2 = {64: {"forward": 1.54, "backward": 1.59}, 128: {"forward": 1.92, "backward": 1.75}}
"""How many times as long attention takes by flash-attention 2 as by what torch runs on a Hopper, by the width of a
head: both measured on an H100."""


class Flash2Prices(ModelPrices):
    """Prices of a program that brings its own flash-attention."""

    def price(self, piece: Piece) -> PiecePrice:
        found = super().price(piece)
        if piece.operator != "sdpa":
            return found
        width = min(FLASH_2, key=lambda d: abs(d - piece.parameters["d"]))
        factor = FLASH_2[width][piece.direction]
        return PiecePrice(factor * found.duration_us, factor * found.spread_us, found.work.times(factor))


@dataclass
class Predictor:
    """Steps of rows: prices by device, fabrics by device and world."""

    a100: TimeModel
    launch_host_us: float = EAGER_LAUNCH_US
    models: dict[Any, ModelPrices] = field(default_factory=dict)
    guide: dict[Any, float] = field(default_factory=dict)

    def prices(self, row: Row) -> PiecePrices:
        if row.device == "A100" and row.model.dtype == "float16":
            return GuidePrices(self.a100, row.model, row.layout, self.launch_host_us, cache=self.guide)
        key = row.device, row.model.dtype
        if key not in self.models:
            kind = Flash2Prices if row.device == "H100" and row.model.attention == "flash" else ModelPrices
            self.models[key] = kind(find_model(DEVICES[row.device]), row.model.dtype)
        self.models[key].host_us = self.launch_host_us
        return self.models[key]

    def fabric(self, row: Row) -> Fabric:
        name = {"A100": "a100+800gb", "H100": "h100-efa", "B200": "b200"}[row.device]
        return find_fabric(name)

    def step_us(self, row: Row) -> float:
        # Contention was measured on a Hopper; of other generations nothing is known.
        sharing = find_sharing(row.device) if row.device == "H100" else Sharing()
        return price_layout(
            row.model, row.layout, self.prices(row), self.fabric(row), composition=row.composition, sharing=sharing
        ).duration_us


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Development rows and sealed ones, drawn with the seed."""
    drawn = set(random.Random(SEED).sample(range(len(rows)), max(1, round(DEVELOPMENT * len(rows)))))
    return [row for k, row in enumerate(rows) if k in drawn], [row for k, row in enumerate(rows) if k not in drawn]


def gpus(row: Row) -> int:
    return row.layout.world_size


def constant_errors(rows: Sequence[Row]) -> list[float]:
    """Errors of the one rate that fits these rows best (known only behind them)."""
    work = [row.model.step_flops(row.layout.recomputation) / gpus(row) for row in rows]
    rates = sorted(flops / (row.measured_us or 1) for flops, row in zip(work, rows, strict=True))
    best = min(
        (rates[k * (len(rates) - 1) // 40] for k in range(41)),
        key=lambda rate: sum(abs(w / rate / (r.measured_us or 1) - 1) for w, r in zip(work, rows, strict=True)),
    )
    return [100 * (w / best / (r.measured_us or 1) - 1) for w, r in zip(work, rows, strict=True)]


@dataclass(frozen=True)
class Scored:
    row: Row
    predicted_us: float

    @property
    def error(self) -> float:
        """Signed, in per cent."""
        return 100 * (self.predicted_us / (self.row.measured_us or 1) - 1)


def score(predictor: Predictor, rows: Iterable[Row]) -> list[Scored]:
    found = []
    for row in rows:
        try:
            found.append(Scored(row, predictor.step_us(row)))
        except PredictError as error:
            print("not priced:", row.name, str(error)[:150])
    return found


def neighbour_errors(scored: Sequence[Scored]) -> list[float]:
    """Of pairs of layouts of one model, world and batch that differ by one factor of two between two axes."""
    groups = by_question(scored)
    errors = []
    for members in groups.values():
        for k, one in enumerate(members):
            for other in members[k + 1 :]:
                if is_neighbour(one.row.layout, other.row.layout):
                    predicted = one.predicted_us / other.predicted_us
                    measured = (one.row.measured_us or 1) / (other.row.measured_us or 1)
                    errors.append(100 * (math.exp(abs(math.log(predicted / measured))) - 1))
    return errors


def is_neighbour(one: Layout, other: Layout) -> bool:
    axes = [(one.dp, other.dp), (one.tp, other.tp), (one.pp, other.pp), (one.micro_batch, other.micro_batch)]
    changed = [max(a, b) / min(a, b) for a, b in axes if a != b]
    return bool(changed) and len(changed) <= 2 and all(factor == 2 for factor in changed) and one.zero == other.zero


def by_question(scored: Iterable[Scored]) -> dict[Any, list[Scored]]:
    groups: dict[Any, list[Scored]] = defaultdict(list)
    for each in scored:
        # A question is of a model; what its program keeps beside gradients depends on the layout.
        groups[replace(each.row.model, spare_gradient_bytes=0), gpus(each.row)].append(each)
    return groups


def chosen_losses(scored: Sequence[Scored]) -> list[float]:
    """Per cent by which the layout that is ranked first is slower than the best measured, of four layouts or more."""
    losses = []
    for members in by_question(scored).values():
        if len(members) >= 4:
            first = min(members, key=lambda each: each.predicted_us)
            best = min(each.row.measured_us or math.inf for each in members)
            losses.append(100 * ((first.row.measured_us or 1) / best - 1))
    return losses


def summary(name: str, scored: Sequence[Scored]) -> str:
    """A row of the table of times."""
    errors = [each.error for each in scored]
    constant = statistics.mean(map(abs, constant_errors([each.row for each in scored])))
    peers = [100 * abs(e.row.peer_us / (e.row.measured_us or 1) - 1) for e in scored if e.row.peer_us]
    ratios, losses = neighbour_errors(scored), chosen_losses(scored)
    cells = [
        name,
        len(errors),
        f"{statistics.mean(map(abs, errors)):.1f}",
        f"{statistics.median(map(abs, errors)):.1f}",
        f"{statistics.mean(errors):+.1f}",
        f"{constant:.1f}",
        f"{statistics.mean(peers):.1f}" if peers else "",
        f"{statistics.mean(ratios):.1f}, {statistics.median(ratios):.1f} ({len(ratios)})" if ratios else "",
        f"{statistics.mean(losses):.1f}, {sum(x <= 5 for x in losses)} of {len(losses)}" if losses else "",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


HEAD = (
    "| set | rows | mean error, % | median, % | signed, % | constant TFLOP/s, % | peer, % "
    "| ratios of neighbours, mean and median, % | first layout over best, %; within 5 % |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def memory_rows(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    return [
        (row, max(memory_of_rank(row.model, row.layout, stage) for stage in {0, row.layout.pp - 1})) for row in rows
    ]


def out_of_memory(rows: Sequence[Row], limit: float) -> tuple[int, int, int]:
    """Rows that failed and are predicted to, that are predicted to and did not, and that failed unpredicted."""
    predicted = [(row, peak > limit) for row, peak in memory_rows(rows)]
    hit = sum(row.has_failed and too_much for row, too_much in predicted)
    false = sum(not row.has_failed and too_much for row, too_much in predicted)
    missed = sum(row.has_failed and not too_much for row, too_much in predicted)
    return hit, false, missed


def main() -> None:
    """Price, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("TORCHLEDGER_PUBLIC_DATA"))
    parser.add_argument("--kernels", type=Path, default=ROOT / "build/public_a100.tlmodel")
    parser.add_argument("--sealed", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.data is None:
        parser.error("needs --data, or TORCHLEDGER_PUBLIC_DATA")
    options.kernels.parent.mkdir(parents=True, exist_ok=True)
    predictor = Predictor(kernels_of_a100(options.data, options.kernels))
    sets: dict[str, Callable[[], list[Row]]] = {
        "vTrain, one node": lambda: vtrain(options.data, "single"),
        "vTrain, several nodes": lambda: vtrain(options.data, "multi"),
        "nanotron, MFU >= 20 %": lambda: [r for r in nanotron(options.data) if r.mfu is not None and r.mfu >= 20],
        "NeuSight": lambda: neusight(options.data),
        "SimuMax, Llamas": lambda: simumax(options.data),
    }
    lines = [HEAD]
    print(HEAD)
    for name, load in sets.items():
        if options.only not in name:
            continue
        begun = time.time()
        development, sealed = split(load())
        found = score(predictor, development)
        lines.append(summary(f"{name}, development", found))
        print(lines[-1], f"{time.time() - begun:.0f} s", flush=True)
        if options.show:
            for each in found[:: max(1, len(found) // options.show)]:
                print(
                    f"   {each.error:+7.1f} % {each.row.measured_us / 1e3:10.1f} ms {each.row.name} {each.row.layout}"
                )
        if options.sealed:
            final = score(predictor, sealed)
            lines.append(summary(f"{name}, sealed", final))
            print(lines[-1], f"{time.time() - begun:.0f} s", flush=True)
            if len(found) >= ENOUGH_TO_SCALE:
                scale = statistics.median((each.row.measured_us or 1) / each.predicted_us for each in found)
                scaled = [replace(each, predicted_us=scale * each.predicted_us) for each in final]
                lines.append(summary(f"{name}, sealed, times {scale:.2f} of the development rows", scaled))
                print(lines[-1], flush=True)
            if name == "vTrain, one node":
                slower = replace(predictor, launch_host_us=VTRAIN_LAUNCH_US, models={})
                lines.append(summary(f"{name}, sealed, with its host's launches", score(slower, sealed)))
                print(lines[-1], f"{time.time() - begun:.0f} s", flush=True)
    memory = memory_lines(options.data)
    print("\n".join(memory))
    if options.output:
        options.output.write_text(page(lines, memory))


def memory_lines(data: Path) -> list[str]:
    """Peaks beside the measured, and which rows do not fit."""
    lines = ["| memory of | rows | mean error, % | signed, % | peer, % |", "|---|---|---|---|---|"]
    trained = nanotron(data)
    sets: dict[str, tuple[list[Row], int | None]] = {"SimuMax, Llamas": (simumax(data), None)}
    parts = ("development", "sealed")
    for part, rows in zip(parts, split(trained), strict=True):
        sets[f"nanotron (the first rank), {part}"] = rows, 0
    for part, rows in zip(parts, split(trained), strict=True):
        sets[f"nanotron without tensor parallelism, {part}"] = [row for row in rows if row.layout.tp == 1], 0
    for part, rows in zip(parts, split(megatron(data)), strict=True):
        sets[f"Megatron-LM's tests (the last rank), {part}"] = rows, -1
    for name, (rows, stage) in sets.items():
        pairs = [
            (row, peak if stage is None else memory_of_rank(row.model, row.layout, stage % row.layout.pp))
            for row, peak in memory_rows(rows)
            if row.measured_bytes
        ]
        errors = [100 * (peak / (row.measured_bytes or 1) - 1) for row, peak in pairs]
        peers = [100 * abs(row.peer_bytes / (row.measured_bytes or 1) - 1) for row, _ in pairs if row.peer_bytes]
        peer = f"{statistics.mean(peers):.2f}" if peers else ""
        digits = 2 if peers else 1
        lines.append(
            f"| {name} | {len(errors)} | {statistics.mean(map(abs, errors)):.{digits}f} "
            f"| {statistics.mean(errors):+.{digits}f} | {peer} |"
        )
    hit, false, missed = out_of_memory(trained, 80e9)
    lines.append("")
    lines.append(
        f"nanotron's rows that failed: {hit + missed}. Predicted above 80 GB: {hit + false}, of which {hit} failed "
        f"(precision {100 * hit / max(1, hit + false):.0f} %, recall {100 * hit / max(1, hit + missed):.0f} %); some "
        "failed of other causes, which the set does not tell apart."
    )
    return lines


KERNELS = """Kernels: vTrain's A100 by estimate-train-time's operators (fitted to all of them, no step among them),
the H100 by its own model (`devices.md`), NeuSight's A100 and the B200 transferred by data sheet. The B200's sheet
holds what SimuMax's authors measured of products and attention on one (a kernel at a time, no step); products and
attention are slowed by the energy of a step at the power limit, as measured on an H200 (`strangers.md`). An H100's
kernels beside collectives are slowed as measured on two H200s, its attention by flash-attention 2 and its eager
kernels as measured on one (below). A host's launch is taken to need 10 us, as usual; the line with its host's
launches takes 60 us, read off the development rows: most of vTrain's steps on one node wait for their host. Lines
with a factor are all of the set's predictions times one number, the median of its development rows; the constant
TFLOP/s is the one rate that fits the rows of its line best, known only behind them. Peers' published errors: vTrain
8.4 % on one node, 14.7 % on several; NeuSight 7.7 %; SimuMax 5.6 % (the last two also beside the rows here).
vTrain's links: 800 Gbit/s a node at the share of their rate that measured InfiniBand reaches; nanotron's: EFA as its
authors measured it (`fabrics.md`)."""

DESCRIBED = """Programs are described as their public source has them. nanotron by huggingface/nanotron at the time of
its measurements (e24d248 of 2025-02-19): copies of heads around attention, lengths counted anew by each block, eager
activation and loss, products in shares beside the gathering of rows (of rows whose memory says that activations are
whole, none), layers dealt to stages by a running sum, two messages before each tensor that a stage sends; DDP
without ZeRO, with ZeRO-1 one all-reduce of all float32 gradients behind the last backward; all gradients clipped and
set to zero, weights cast. Its times are those of each run's third step alone, on the host's clock, its memory what
the allocator had reserved (the allocated peak is set back before it is read). SimuMax by the launch scripts of
MooreThreads/SimuMax (Transformer Engine with its loss in place of the logits, an empty gradient of each weight's
shape, all-to-alls around attention for context parallelism, nothing of the collectives overlapped), Megatron-LM's
loss by its in-place cross entropy."""

EAGER = """Eager kernels on an H100 (80 GB, torch 2.11.0+cu130, 2026-11-23; each for a tenth of a second, bytes read
and written over time; typed at a prompt what is now `python benchmarks/eager_kernels_cuda.py -o FILE`): additions of
two bfloat16 tensors 3,055 GB/s; not vectorized are permuting copies of heads (1,430 to 1,510), activations of halves
of rows (SiLU 1,440, products 2,090, SiLU's backward 1,860), broadcast subtraction and division (2,480, 1,990), casts
to float32 (1,980) and bfloat16 gradients added to float32 ones (2,400); vectorized ones, concatenations and
reductions 2,630 to 3,130. Flash-attention 2 took 1.54 and 1.59 times (forward, backward; heads of 64) and 1.92 and
1.75 times (of 128) as long as cuDNN's attention. A whole eager block of nanotron's sizes (plain torch, forward and
backward, seconds long; widths 2,048 and 4,096, 8,192 and 4,096 tokens) took 9.1 and 12.9 ms; as pieces it is priced
at 8.7 and 12.2, without the adding up of gradients, which it had none of."""

COLUMNS = """Neighbours are layouts of one model, world and batch that differ by a factor of two between one or two
axes; in brackets how many pairs. The last column takes questions with at least four measured layouts."""

WRONG = """What is left, from the development rows. nanotron: without tensor parallelism 6 %; with it, microbatches of
one sequence of the smallest model are 20 % too quick and wait for a host of which nothing is stated; 64 and more
data-parallel ranks without ZeRO are 14 to 20 % too quick, since gradients are reduced in eight parts here and in
buckets of 25 MB there, whose rate between nodes nobody measured; some rows are up to twice as slow as their like (a
third step may still be warming up; rows that occur twice differ by as much), and make the mean of the ratios. vTrain's
steps on one node need their host, which is not stated. NeuSight's gpt3_xl has heads that its table does not name.
Memory: of SimuMax's rows all were looked at. nanotron's mode of tensor parallelism is not stated: where activations
are whole or shared it was taken from that memory, so that its error is too kind; without tensor parallelism it is not.
Megatron-LM's tests of two and four tensor-parallel ranks without sequence parallelism lack 0.1 GB of 1 that is not
explained. Not built: tests that fuse the loss, defer gradients of the embedding or write a mask (only their names say
so)."""


def page(lines: Sequence[str], memory: Sequence[str]) -> str:
    """The results as a page."""
    head = (
        f"{datetime.date.today().isoformat()}, seed {SEED}, Python {platform.python_version()}; "
        "a fifth of each set was looked at, the rest was scored at the end and nothing set by it. Nothing is fitted to "
        "a step. Command:"
    )
    return "\n".join(
        [
            "# Steps that others measured on many GPUs",
            "",
            textwrap.fill(head, 120),
            "",
            "```console",
            "$ python benchmarks/public_steps.py --data PUBLIC --sealed --output docs/results/public_steps.md",
            "```",
            "",
            textwrap.fill(KERNELS, 120),
            "",
            textwrap.fill(DESCRIBED, 120),
            "",
            textwrap.fill(EAGER, 120),
            "",
            *lines,
            "",
            textwrap.fill(COLUMNS, 120),
            "",
            *memory,
            "",
            textwrap.fill(WRONG, 120),
            "",
        ]
    )


if __name__ == "__main__":
    main()
