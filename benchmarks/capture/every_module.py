"""Every module of ``torch.nn`` that takes tensors as a small training program: do the books of its step balance?

    python -m benchmarks.capture.every_module [MODULE ...] [--eager|--compiled] [-o docs/results/every_module.md]

Each module is trained for some steps, once eager and once compiled, with its float inputs as parameters beside its own,
and recorded with ``--count-eager``. Asked of each: FLOPs of the step beside the eager count, operators beside what a
dispatch mode heard, launches, the memory's account, and operators whose FLOPs or bytes nobody knows. Every module of
``torch.nn`` has a case here or stands in ``NOT_CALLED``.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shared.limited import run_limited

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("-o", "docs/results/every_module.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("-o", "{out}/every_module.md", "Linear", "--eager"),)
STEPS = 14
BATCH = 12
LIMIT_S = 420
ASKED = ("step_flops", "step_operators", "step_launches", "step_device_time", "memory")
NOT_CALLED = {
    "Container": "a name of old for Module",
    "Module": "has no forward",
    "ModuleDict": "has no forward",
    "ModuleList": "has no forward",
    "ParameterDict": "has no forward",
    "ParameterList": "has no forward",
    "RNNBase": "has no forward of its own",
    "RNNCellBase": "has no forward",
    "DataParallel": "takes several GPUs",
    "SyncBatchNorm": "takes a GPU and a process group",
}
"""Modules that no program of one process on a CPU can call."""


@dataclass(frozen=True)
class Case:
    """Arguments of a module's constructor, and what it is called with: ``make(torch)``."""

    make: Callable[[Any], Sequence[Any]]
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def _floats(*shapes: tuple[int, ...]) -> Callable[[Any], Sequence[Any]]:
    return lambda torch: [torch.rand(shape) * 0.8 + 0.1 for shape in shapes]


def _labelled(shape: tuple[int, ...], classes: int, labels: tuple[int, ...]) -> Callable[[Any], Sequence[Any]]:
    return lambda torch: [torch.randn(shape), torch.randint(0, classes, labels)]


def _signed(*shapes: tuple[int, ...]) -> Callable[[Any], Sequence[Any]]:
    """Floats, and a last tensor of -1 and 1 that no gradient reaches."""
    return lambda torch: [*(torch.randn(shape) for shape in shapes), 1 - 2 * torch.randint(0, 2, shapes[0][:1])]


def _pairs(torch: Any) -> Sequence[Any]:
    return [torch.randn(6, 10), torch.randn(6, 10).detach()]


def _unpooled(rank: int) -> Callable[[Any], Sequence[Any]]:
    def make(torch: Any) -> Sequence[Any]:
        pooled = getattr(torch.nn, f"MaxPool{rank}d")(2, return_indices=True)
        values, indices = pooled(torch.randn(2, 3, *[8] * rank))
        return [values.detach(), indices]

    return make


def _ctc(torch: Any) -> Sequence[Any]:
    lengths = torch.full((2,), 12, dtype=torch.long), torch.full((2,), 5, dtype=torch.long)
    return [torch.randn(12, 2, 7), torch.randint(1, 7, (2, 5)), *lengths]


_PLANE: dict[int, tuple[int, ...]] = {1: (2, 4, 16), 2: (2, 4, 8, 8), 3: (2, 4, 6, 6, 6)}


def _by_rank(name: str, *arguments: Any, **options: Any) -> Iterator[tuple[str, Case]]:
    for rank, shape in _PLANE.items():
        yield f"{name}{rank}d", Case(_floats(shape), arguments, options)


def _names(text: str) -> list[str]:
    return text.split()


def _cases() -> dict[str, Case]:
    rows = _floats((6, 10))
    cases: dict[str, Case] = {}
    for name in _names(
        "AdaptiveAvgPool AdaptiveMaxPool AvgPool MaxPool CircularPad ReflectionPad ReplicationPad ZeroPad"
    ):
        cases.update(_by_rank(name, 2))
    cases.update(_by_rank("ConstantPad", 1, 0.5))
    cases.update(_by_rank("LPPool", 2, 2))
    for name in ("Conv", "ConvTranspose"):
        cases.update(_by_rank(name, 4, 6, 3, stride=2, padding=1))
        cases.update(_by_rank(f"Lazy{name}", 6, 3))
    for name in ("BatchNorm", "InstanceNorm"):
        cases.update(_by_rank(name, 4))
        cases.update(_by_rank(f"Lazy{name}"))
    cases.update(_by_rank("Dropout", 0.4))
    cases.update((f"MaxUnpool{rank}d", Case(_unpooled(rank), (2,))) for rank in _PLANE)
    for name in _names(
        "CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh Identity LeakyReLU LogSigmoid Mish "
        "PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink "
        "AlphaDropout Dropout Flatten GLU"
    ):
        cases[name] = Case(rows)
    for name in ("LogSoftmax", "Softmax", "Softmin"):
        cases[name] = Case(rows, (1,))
    for name in _names("HuberLoss KLDivLoss L1Loss MSELoss SmoothL1Loss PoissonNLLLoss BCELoss PairwiseDistance"):
        cases[name] = Case(_floats((6, 10), (6, 10)))
    labels = _labelled((6, 10), 10, (6,))
    many = _labelled((6, 10), 2, (6, 10))
    image = _floats(_PLANE[2])
    sequence = _floats((5, 2, 8))
    return cases | {
        "Threshold": Case(rows, (0.1, 20.0)),
        "Softmax2d": Case(image),
        "FeatureAlphaDropout": Case(image),
        "BCEWithLogitsLoss": Case(_floats((6, 10), (6, 10))),
        "CosineSimilarity": Case(_floats((6, 10), (6, 10))),
        "CosineEmbeddingLoss": Case(_signed((6, 10), (6, 10))),
        "MarginRankingLoss": Case(_signed((6,), (6,))),
        "HingeEmbeddingLoss": Case(_signed((6,))),
        "SoftMarginLoss": Case(_signed((6,))),
        "GaussianNLLLoss": Case(_floats((6, 10), (6, 10), (6, 10))),
        "TripletMarginLoss": Case(_floats((6, 10), (6, 10), (6, 10))),
        "TripletMarginWithDistanceLoss": Case(_floats((6, 10), (6, 10), (6, 10))),
        "CrossEntropyLoss": Case(labels),
        "MultiMarginLoss": Case(labels),
        "NLLLoss": Case(labels),
        "NLLLoss2d": Case(_labelled((2, 5, 4, 4), 5, (2, 4, 4))),
        "MultiLabelMarginLoss": Case(many),
        "MultiLabelSoftMarginLoss": Case(_floats((6, 10), (6, 10))),
        "AdaptiveLogSoftmaxWithLoss": Case(_labelled((6, 16), 40, (6,)), (16, 40, [10, 20])),
        "LinearCrossEntropyLoss": Case(_labelled((6, 16), 40, (6,)), (16, 40)),
        "CTCLoss": Case(_ctc),
        "Bilinear": Case(_floats((6, 10), (6, 12)), (10, 12, 7)),
        "Linear": Case(rows, (10, 7)),
        "LazyLinear": Case(rows, (7,)),
        "Embedding": Case(lambda torch: [torch.randint(0, 30, (4, 6))], (30, 8)),
        "EmbeddingBag": Case(lambda torch: [torch.randint(0, 30, (4, 6))], (30, 8)),
        "LayerNorm": Case(rows, (10,)),
        "RMSNorm": Case(rows, (10,)),
        "GroupNorm": Case(image, (2, 4)),
        "LocalResponseNorm": Case(image, (2,)),
        "CrossMapLRN2d": Case(image, (2,)),
        "ChannelShuffle": Case(image, (2,)),
        "PixelShuffle": Case(image, (2,)),
        "PixelUnshuffle": Case(image, (2,)),
        "FractionalMaxPool2d": Case(image, (2,), {"output_size": 4}),
        "FractionalMaxPool3d": Case(_floats(_PLANE[3]), (2,), {"output_size": 3}),
        "Fold": Case(_floats((2, 16, 16)), ((8, 8), 2), {"stride": 2}),
        "Unfold": Case(image, (3,)),
        "Unflatten": Case(rows, (1, (2, 5))),
        "Upsample": Case(image, (), {"scale_factor": 2.0, "mode": "bicubic"}),
        "UpsamplingBilinear2d": Case(image, (), {"scale_factor": 2.0}),
        "UpsamplingNearest2d": Case(image, (), {"scale_factor": 2.0}),
        "Sequential": Case(rows),
        "RNN": Case(sequence, (8, 12), {"num_layers": 2}),
        "LSTM": Case(sequence, (8, 12), {"num_layers": 2, "bidirectional": True}),
        "GRU": Case(sequence, (8, 12)),
        "RNNCell": Case(_floats((6, 8), (6, 12)), (8, 12)),
        "GRUCell": Case(_floats((6, 8), (6, 12)), (8, 12)),
        "LSTMCell": Case(_floats((6, 8)), (8, 12)),
        "MultiheadAttention": Case(_floats((5, 2, 16), (5, 2, 16), (5, 2, 16)), (16, 4)),
        "Transformer": Case(_floats((5, 2, 16), (4, 2, 16)), (16, 4, 1, 1, 32)),
        "TransformerDecoder": Case(_floats((5, 2, 16), (4, 2, 16))),
        "TransformerDecoderLayer": Case(_floats((5, 2, 16), (4, 2, 16)), (16, 4, 32)),
        "TransformerEncoder": Case(_floats((5, 2, 16))),
        "TransformerEncoderLayer": Case(_floats((5, 2, 16)), (16, 4, 32)),
    }


CASES = _cases()


def _module(torch: Any, name: str) -> Any:
    nn, case = torch.nn, CASES[name]
    if name == "Sequential":
        return nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 4))
    if name in ("TransformerEncoder", "TransformerDecoder"):
        layer = getattr(nn, f"{name}Layer")(16, 4, 32)
        return getattr(nn, name)(layer, 2)
    return getattr(nn, name)(*case.arguments, **case.options)


def program(torch: Any, name: str, *, compiles: bool) -> Callable[[], None]:
    """One step of a program that trains a module and what goes into it."""
    module = _module(torch, name)
    given = list(CASES[name].make(torch))
    if name.startswith("Lazy"):
        module(*given)
    leaves = [torch.nn.Parameter(each) for each in given[:1] if each.is_floating_point()]
    inputs = [*leaves, *given[len(leaves) :]]
    optimizer = torch.optim.SGD([*module.parameters(), *leaves], lr=1e-3)
    called = torch.compile(module) if compiles else module

    def scalar(result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return result.square().mean()
        return sum(scalar(each) for each in result if each is not None)

    def step() -> None:
        optimizer.zero_grad()
        first = [each.sigmoid() if name == "BCELoss" and each.requires_grad else each for each in inputs]
        if name == "CTCLoss":
            first[0] = first[0].log_softmax(-1)
        scalar(called(*first)).backward()
        optimizer.step()

    return step


def books_of(name: str, folder: Path, *, compiles: bool) -> dict[str, Any]:
    """What the ledger of a program says of its own step, as plain values; the program runs here."""
    import torch

    from torchledger.balance import balance_books
    from torchledger.books import open_books
    from torchledger.capturing.session import Capture
    from torchledger.nouns import StepCall
    from torchledger.profiling.profile import attach
    from torchledger.store import open_ledger

    torch.manual_seed(0)
    torch._dynamo.reset()
    path = folder / f"{name}_{'compiled' if compiles else 'eager'}.ledger"
    step = program(torch, name, compiles=compiles)
    with Capture(path) as capture:
        attach(capture, {"warmup": 2, "repeats": 2, "after_us": 0, "counts_eager": True})
        for _ in range(STEPS):
            step()
    with open_ledger(path) as reader:
        accounts = balance_books(open_books(reader)).accounts
        calls = tuple(reader.read(StepCall))
        found: dict[str, Any] = {
            kind: [account.ledger, account.reference, account.is_balanced]
            for kind in ASKED
            if (account := accounts.get(kind)) is not None
        }
    found["named"] = [f"{each.reason}: {each.amount:,}" for each in accounts["step_flops"].differences]
    found["unknown"] = sorted({call.name for call in calls if call.flops is None or call.bytes_moved is None})
    found["calls"] = len(calls)
    return found


def work(names: Sequence[str], folder: Path, *, compiles: bool) -> None:
    """Write a line for each program, for whoever started this process."""
    for name in names:
        print("BEGIN", name, flush=True)
        try:
            found = books_of(name, folder, compiles=compiles)
        except Exception as error:
            log = traceback.format_exc().splitlines()[-3:]
            found = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}", "log": log}
        print("ROW", json.dumps({"name": name} | found), flush=True)


def rows_of(names: Sequence[str], folder: Path, *, compiles: bool) -> Iterator[dict[str, Any]]:
    """Run the programs in other processes: one for as many as it survives."""
    left = list(names)
    while left:
        command = [sys.executable, "-m", __spec__.name, "--work", str(folder), "--compiled" if compiles else "--eager"]
        batch = left[:BATCH]
        cache = str(folder / "cache")
        code, output = run_limited([*command, *batch], LIMIT_S, OMP_NUM_THREADS="1", TORCHINDUCTOR_CACHE_DIR=cache)
        lines = output.splitlines()
        rows = [json.loads(line.removeprefix("ROW ")) for line in lines if line.startswith("ROW ")]
        if len(rows) < len(batch):
            last = output.strip().splitlines()[-1:] or ["no output"]
            rows.append({"name": batch[len(rows)], "failed": f"exit code {code}: {last[0][:160]}"})
        left = left[len(rows) :]
        yield from rows


def faults_in(row: Mapping[str, Any]) -> list[str]:
    """What does not balance in a step, in words."""
    if "failed" in row:
        return [row["failed"]]
    found = []
    for kind in ASKED:
        if kind not in row:
            if kind != "step_launches":
                found.append(f"{kind}: none")
            continue
        ledger, reference, is_balanced = row[kind]
        if not is_balanced or reference is None:
            found.append(f"{kind}: {ledger} beside {reference}")
    return found


def main() -> None:
    """Record every program and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODULE", default=[])
    parser.add_argument("--eager", action="store_true", help="Only the eager programs.")
    parser.add_argument("--compiled", action="store_true", help="Only the compiled ones.")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    names = options.names or sorted(CASES)
    if options.work:
        work(names, options.work, compiles=options.compiled)
        return
    ways = [compiles for compiles, other in ((False, options.compiled), (True, options.eager)) if not other]
    lines: list[str] = []
    sums: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for compiles in ways:
            way = "compiled" if compiles else "eager"
            balanced = 0
            for row in rows_of(names, Path(folder), compiles=compiles):
                faults = faults_in(row)
                balanced += not faults
                flops, heard, memory = (row.get(kind, ["-"])[0] for kind in ("step_flops", "step_operators", "memory"))
                said = "; ".join(faults) or "balances"
                notes = "; ".join([*row.get("named", []), *(f"no cost: {each}" for each in row.get("unknown", []))])
                lines.append(f"| {row['name']} | {way} | {flops} | {heard} | {memory} | {said} | {notes} |")
                print(lines[-1], flush=True)
            sums.append(f"{balanced} of {len(names)} {way} programs balance")
            print(sums[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join([*_head(sums), *lines]) + "\n")


def _head(sums: Sequence[str]) -> list[str]:
    not_called = "; ".join(f"{name} ({reason})" for name, reason in sorted(NOT_CALLED.items()))
    return [
        "# Every module of torch.nn as a training program",
        "",
        f"{datetime.date.today()}, torch {importlib.metadata.version('torch')}, Python {platform.python_version()}, "
        f"{platform.machine()}, {os.cpu_count()} cores. `python -m benchmarks.capture.every_module -o "
        "docs/results/every_module.md`.",
        "",
        *(f"- {each}." for each in sums),
        f"- Not called: {not_called}.",
        "",
        "A program balances when the FLOPs of its step equal those of a step that torch counted while nothing was "
        "compiled (differences with a name count), its operators and launches those that were heard and seen, and the "
        "peak of its memory the peak that was counted.",
        "",
        "| module | as | FLOPs | operators | peak, bytes | books | named differences, operators without a cost |",
        "|---|---|---|---|---|---|---|",
    ]


if __name__ == "__main__":
    main()
