"""Training steps that others measured on many GPUs, priced with nothing fitted to them.

    python -m benchmarks.public.public_steps [--data DIR] [--kernels A100.tlmodel] [--sealed] [--output FILE.md]

Sets: vTrain (A100, one node and several), nanotron (H100, rows of MFU >= 20 %), NeuSight's eleven (A100 and H100,
float32), SimuMax's Llamas (B200). Kernels of vTrain's A100 are fitted to operators that estimate-train-time measured
(no step among them); the H100 has its own model, the others are transferred by data sheet. Each set is split with a
seed: a half may be looked at while this is written, the rest is scored with ``--sealed``.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
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

from benchmarks.public.public_rows import Host, Row, megatron, nanotron, neusight, simumax, vtrain
from benchmarks.public.public_texts import COLUMNS, DESCRIBED, EAGER, HOSTS, KERNELS, ORIGIN, WRONG
from benchmarks.shared.places import ROOT
from torchledger.errors import PredictError
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Fabric, Layout
from torchledger.planning.fabric import find_fabric
from torchledger.planning.layouts import price_layout
from torchledger.planning.prices import ModelPrices, PiecePrice, PiecePrices
from torchledger.planning.sharing import find_sharing
from torchledger.planning.timeline import Sharing
from torchledger.planning.transformer import Piece, Transformer
from torchledger.planning.transformer_memory import memory_of_rank
from torchledger.predicting.devices import find_model
from torchledger.predicting.model_file import load_model, save_model
from torchledger.predicting.operators import predict
from torchledger.predicting.power import StepWork

NEEDS: tuple[str, ...] = ("public data",)
RUNS: tuple[tuple[str, ...], ...] = (("--sealed",),)

SEED, FIRST_LOOKED_AT, LOOKED_AT = 0, 0.2, 0.5
CHECKS = ROOT / "data/h200/checked_collectives_torch2.11.json"
EAGER_LAUNCH_US = 10.0
"""What a host needs for a launch of an eager program: the usual one (``library launch host us``)."""


BARE_LAUNCH_US = 6.75
"""What a host needs for a launch with no operator around it, for programs whose blocks' code was measured by itself:
``fused launch host us`` of the H100's model."""

LEAST_MFU = 20.0
"""Per cent, below which nanotron's rows are in no set."""

ENOUGH_TO_SCALE = 20
"""Development rows of which a median is taken."""


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
        if piece.role in ("bias", "score copies"):
            return PiecePrice(0.0)  # The guide's products have these in them.
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

    a100: Callable[[], TimeModel]
    models: dict[Any, ModelPrices] = field(default_factory=dict)
    guide: dict[Any, float] = field(default_factory=dict)

    def prices(self, row: Row) -> PiecePrices:
        launch_us = BARE_LAUNCH_US if any(row.composition.block_host_us) else EAGER_LAUNCH_US
        if row.device == "A100" and row.model.dtype == "float16":
            return GuidePrices(self.a100(), row.model, row.layout, launch_us, cache=self.guide)
        key = row.device, row.model.dtype
        if key not in self.models:
            kind = Flash2Prices if row.device == "H100" and row.model.attention == "flash" else ModelPrices
            self.models[key] = kind(find_model(DEVICES[row.device]), row.model.dtype)
        self.models[key].host_us = launch_us
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
    """Development rows and sealed ones, drawn with the seed: a fifth was looked at first, then more up to a half."""
    places = range(len(rows))
    drawn = set(random.Random(SEED).sample(places, max(1, round(FIRST_LOOKED_AT * len(rows)))))
    others = [place for place in places if place not in drawn]
    more = max(0, int(LOOKED_AT * len(rows)) - len(drawn))
    drawn |= set(random.Random(SEED + 1).sample(others, more))
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


def read_checks(path: Path) -> Host:
    """What a check of a collective takes, and more for each rank, in microseconds."""
    found = json.loads(path.read_text())
    return float(found["fixed_us"]), float(found["rank_us"])


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
    parser.add_argument("--checks", type=Path, default=CHECKS, help="what checked_collectives.py wrote")
    parser.add_argument("--sealed", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.data is None:
        parser.error("needs --data, or TORCHLEDGER_PUBLIC_DATA")
    options.kernels.parent.mkdir(parents=True, exist_ok=True)
    predictor = Predictor(functools.cache(lambda: kernels_of_a100(options.data, options.kernels)))
    checks = read_checks(options.checks)
    trained = nanotron(options.data, checks)
    sets: dict[str, Callable[[], list[Row]]] = {
        "vTrain's simulation, one node": lambda: vtrain(options.data, "single"),
        "vTrain, several nodes": lambda: vtrain(options.data, "multi"),
        "nanotron, MFU >= 20 %": lambda: [r for r in trained if r.mfu is not None and r.mfu >= LEAST_MFU],
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
            lines += [summary(f"{name}, sealed", final), summary(f"{name}, both halves", [*found, *final])]
            print("\n".join(lines[-2:]), f"{time.time() - begun:.0f} s", flush=True)
            if len(found) >= ENOUGH_TO_SCALE:
                scale = statistics.median((each.row.measured_us or 1) / each.predicted_us for each in found)
                scaled = [replace(each, predicted_us=scale * each.predicted_us) for each in final]
                lines.append(summary(f"{name}, sealed, times {scale:.2f} of the development rows", scaled))
                print(lines[-1], flush=True)
    memory = memory_lines(options.data, trained)
    print("\n".join(memory))
    if options.output:
        options.output.write_text(page(lines, memory, checks))


def memory_lines(data: Path, trained: Sequence[Row]) -> list[str]:
    """Peaks beside the measured, and which rows do not fit; ``trained`` are nanotron's."""
    lines = ["| memory of | rows | mean error, % | signed, % | peer, % |", "|---|---|---|---|---|"]
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


def page(lines: Sequence[str], memory: Sequence[str], checks: Host) -> str:
    """The results as a page."""
    told = ORIGIN.format(fixed_us=checks[0], rank_us=checks[1])
    head = (
        f"{datetime.date.today().isoformat()}, seed {SEED}, Python {platform.python_version()}; "
        "a half of each set was looked at, the rest was scored at the end and nothing set by it. Nothing is fitted to "
        "a step. Command:"
    )
    return "\n".join(
        [
            "# Steps that others measured on many GPUs",
            "",
            textwrap.fill(head, 120),
            "",
            "```console",
            "$ python -m benchmarks.public.public_steps --data PUBLIC --sealed --output docs/results/public_steps.md",
            "```",
            "",
            textwrap.fill(KERNELS, 120),
            "",
            textwrap.fill(DESCRIBED, 120),
            "",
            *(line for part in told.split("\n\n") for line in (textwrap.fill(part, 120), "")),
            textwrap.fill(HOSTS, 120),
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
