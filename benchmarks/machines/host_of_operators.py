"""What single eager operators cost the host: ``python -m benchmarks.machines.host_of_operators -o FILE``, on a GPU.

``python -m benchmarks.machines.host_of_operators --told data/h200/host_operators_torch2.11.json`` prints what two
machines said: beside ``aten::mul``, and what a call takes of a host of slowness 1 more than a usual one
(``predicting/dear_operators.py``).

Each operator is called on tensors of a few elements, so that the host decides, in rounds that take turns; of those that
wait for the device the whole wait is counted, since nothing was queued before them. Prints what a call takes beside one
of ``aten::mul`` in the same round (median, and the range of the middle half), and writes medians with the host as
``doctor`` measures it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from torchledger.device.host import measure_host
from torchledger.nouns import Host
from torchledger.predicting.host_steps import slowness_of

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/operators.json"),)

ROUNDS, CALLS = 15, 60
REFERENCE, USUAL = "mul", 1.15
"""What others are beside, and what the middle one of those that most steps are made of takes beside it."""


def operators(device: str) -> dict[str, Callable[[], Any]]:
    """By name, a call on tensors of a few elements."""
    rows, other = torch.randn(8, 16, device=device), torch.randn(8, 16, device=device)
    square = torch.randn(16, 16, device=device)
    definite = square @ square.T + 16 * torch.eye(16, device=device)
    stacked = torch.randn(2, 16, 16, device=device)
    mask = rows[:, 0] > 0
    places = torch.tensor([1, 3, 5], device=device)
    counts = torch.tensor([1, 2, 3], device=device)
    column = places[:, None].expand(3, 16)
    image, weight = torch.randn(2, 8, 8, 8, device=device), torch.randn(8, 8, 3, 3, device=device)
    table, labels = torch.randn(32, 16, device=device), torch.randint(0, 16, (8,), device=device)
    heads = torch.randn(2, 4, 16, 32, device=device, dtype=torch.bfloat16)
    many = [torch.randn(16, device=device) for _ in range(20)]
    norm, bias = torch.ones(16, device=device), torch.zeros(16, device=device)
    channels = torch.ones(8, device=device)
    grid = torch.rand(2, 8, 8, 2, device=device)
    last = image.contiguous(memory_format=torch.channels_last)
    chances = torch.rand(8, 16, device=device)
    frames = torch.randn(12, 2, 16, device=device).log_softmax(2)
    spoken = torch.randint(1, 16, (2, 4), device=device)
    recurrent, sequence = torch.nn.LSTM(16, 16, device=device), torch.randn(8, 2, 16, device=device)
    window, signal = torch.ones(64, device=device), torch.randn(2, 256, device=device)
    spectrum = torch.stft(signal, 64, 16, 64, window, return_complex=True)
    bytes_ = torch.ones(32, 32, dtype=torch.int8, device=device)
    where = torch.tensor([[1, 3, 3], [2, 5, 5]], device=device)
    sparse = torch.sparse_coo_tensor(where, norm[:3], (16, 16)).coalesce()
    return {
        "mul": lambda: rows * other,
        "add_scalar": lambda: rows + 1.0,
        "mul_": lambda: rows.mul_(1.0),
        "copy to half": lambda: rows.half(),
        "clone": lambda: rows.clone(),
        "zeros": lambda: torch.zeros(8, 16, device=device),
        "arange": lambda: torch.arange(16, device=device),
        "randn": lambda: torch.randn(8, 16, device=device),
        "sum": lambda: rows.sum(1),
        "mean": lambda: rows.mean(),
        "norm": lambda: torch.linalg.vector_norm(rows),
        "softmax": lambda: rows.softmax(1),
        "layer_norm": lambda: F.layer_norm(rows, (16,), norm, bias),
        "group_norm": lambda: F.group_norm(image, 2, channels, channels),
        "batch_norm": lambda: F.batch_norm(image, None, None, channels, channels, training=True),
        "gelu": lambda: F.gelu(rows),
        "dropout": lambda: F.dropout(rows, 0.1),
        "where": lambda: torch.where(rows > 0, rows, other),
        "cat": lambda: torch.cat([rows, other]),
        "stack of 20": lambda: torch.stack(many),
        "cumsum": lambda: rows.cumsum(1),
        "argmax": lambda: rows.argmax(1),
        "topk": lambda: rows.topk(4),
        "sort": lambda: rows.sort(),
        "gather": lambda: rows.gather(0, column),
        "scatter_add": lambda: torch.zeros_like(rows).scatter_add_(0, column, other),
        "index_add": lambda: rows.index_add(0, places, other[:3]),
        "index_select": lambda: rows.index_select(0, places),
        "index by numbers": lambda: rows[places],
        "index_put": lambda: rows.index_put_((places,), other[:3]),
        "index_put, accumulated": lambda: rows.index_put_((places,), other[:3], accumulate=True),
        "embedding": lambda: F.embedding(labels, table),
        "mm": lambda: square @ square,
        "addmm": lambda: F.linear(rows, square, bias),
        "bmm": lambda: stacked @ stacked,
        "einsum": lambda: torch.einsum("bij,bjk->bik", stacked, stacked),
        "convolution": lambda: F.conv2d(image, weight, padding=1),
        "max_pool": lambda: F.max_pool2d(image, 2),
        "interpolate": lambda: F.interpolate(image, scale_factor=2, mode="bilinear"),
        "grid_sample": lambda: F.grid_sample(image, grid, align_corners=False),
        "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads),
        "cross_entropy": lambda: F.cross_entropy(rows, labels),
        "rfft": lambda: torch.fft.rfft(rows),
        "cholesky": lambda: torch.linalg.cholesky_ex(definite),
        "solve_triangular": lambda: torch.linalg.solve_triangular(definite, square, upper=False),
        "foreach_add of 20": lambda: torch._foreach_add(many, 1.0),
        "foreach_norm of 20": lambda: torch._foreach_norm(many),
        "item": lambda: rows[0, 0].item(),
        "index by truth values": lambda: rows[mask],
        "index_put by truth values": lambda: rows.index_put_((mask,), other[0]),
        "nonzero": lambda: mask.nonzero(),
        "masked_select": lambda: torch.masked_select(rows, rows > 0),
        "unique": lambda: torch.unique(labels),
        "repeat_interleave": lambda: torch.repeat_interleave(rows[:3], counts, dim=0),
        "to the host": lambda: rows.cpu(),
        "from the host": lambda: torch.tensor([1.0, 2.0], device=device),
        "bincount": lambda: torch.bincount(labels),
        "linalg.solve": lambda: torch.linalg.solve(definite, square),
        "eigh": lambda: torch.linalg.eigh(definite),
        "qr": lambda: torch.linalg.qr(square),
        "svd": lambda: torch.linalg.svd(square),
        "inv": lambda: torch.linalg.inv_ex(definite),
        "lu_factor": lambda: torch.linalg.lu_factor_ex(definite),
        "slogdet": lambda: torch.linalg.slogdet(definite),
        "cholesky_solve": lambda: torch.cholesky_solve(square, definite),
        "matrix_exp": lambda: torch.linalg.matrix_exp(square),
        "embedding gradient": lambda: torch.ops.aten.embedding_dense_backward(rows, labels, 32, -1, False),
        "convolution gradient": lambda: torch.ops.aten.convolution_backward(
            image, image, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        ),
        "batch_norm statistics": lambda: torch.batch_norm_stats(image, 1e-5),
        "group_norm, channels last": lambda: F.group_norm(last, 2, channels, channels),
        "multinomial": lambda: torch.multinomial(chances, 4),
        "randperm": lambda: torch.randperm(64, device=device),
        "searchsorted": lambda: torch.searchsorted(norm, rows[0]),
        "cdist": lambda: torch.cdist(rows, other),
        "ctc_loss": lambda: F.ctc_loss(frames, spoken, (12, 12), (4, 4)),
        "unfold": lambda: F.unfold(image, 3, padding=1),
        "lstm": lambda: recurrent(sequence),
        "scatter_reduce": lambda: rows.scatter_reduce(0, column, other, "amax"),
        "cummax": lambda: rows.cummax(1),
        "median": lambda: rows.median(1),
        "var": lambda: rows.var(1),
        "flip": lambda: rows.flip(1),
        "roll": lambda: rows.roll(1, 0),
        "tril": lambda: square.tril(),
        "one_hot": lambda: F.one_hot(labels, 16),
        "istft": lambda: torch.istft(spectrum, 64, 16, 64, window),
        "stft": lambda: torch.stft(signal, 64, 16, 64, window, return_complex=True),
        "int_mm": lambda: torch._int_mm(bytes_, bytes_),
        "sparse product": lambda: torch.sparse.mm(sparse, square),
        "coalesce": lambda: torch.sparse_coo_tensor(where, norm[:3], (16, 16)).coalesce(),
    }


def names_of(call: Callable[[], Any]) -> list[str]:
    """The operators that a call comes to, views among them."""
    found: list[str] = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    with Listening():
        call()
    return found


def measure(device: str, *, rounds: int = ROUNDS, calls: int = CALLS) -> dict[str, list[float]]:
    """Microseconds a call of each operator, one figure a round; what fails is left out with a line."""
    times: dict[str, list[float]] = {}
    todo = operators(device)
    with torch.no_grad():
        for name, call in list(todo.items()):
            try:
                for _ in range(5):
                    call()
            except RuntimeError as error:
                print(f"left out: {name}: {str(error)[:80]}")
                del todo[name]
        for _ in range(rounds):
            for name, call in todo.items():
                _wait(device)
                start = time.perf_counter()
                for _ in range(calls):
                    call()
                times.setdefault(name, []).append(1e6 * (time.perf_counter() - start) / calls)
    return times


def print_told(machines: Sequence[Mapping[str, Any]]) -> None:
    """A row for each operator that was measured last: beside ``aten::mul`` on each machine, and more than usual."""
    known = Host.__dataclass_fields__
    slow = [
        slowness_of(Host(**{name: value for name, value in each["host"].items() if name in known})) or 1.0
        for each in machines
    ]
    print("| operator | beside mul | more than usual, us |\n|---|---|---|")
    for name, us in sorted(machines[-1]["us"].items(), key=lambda item: -float(item[1])):
        ratios = [f"{each['us'][name] / each['us'][REFERENCE]:.2f}" for each in machines if name in each["us"]]
        more = (us - USUAL * machines[-1]["us"][REFERENCE]) / slow[-1]
        print(f"| {name} | {', '.join(ratios)} | {more:.0f} |")


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--told", type=Path, help="print what was measured before")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if options.told is not None:
        print_told(json.loads(options.told.read_text()))
        return
    if options.output is None:
        parser.error("say with -o where to write")
    times = measure(options.device, rounds=options.rounds)
    print("| operator | us | beside mul | middle half |\n|---|---|---|---|")
    for name, found in times.items():
        ratios = [one / other for one, other in zip(found, times[REFERENCE], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(f"| {name} | {statistics.median(found):.1f} | {middle:.2f} | {low:.2f} to {high:.2f} |")
    us = {name: round(statistics.median(found), 3) for name, found in times.items()}
    with torch.no_grad():
        named = {name: names_of(call) for name, call in operators(options.device).items() if name in us}
    host = asdict(measure_host(options.device))
    told = {"torch": torch.__version__, "host": host, "us": us, "operators": named}
    options.output.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
