"""Eager calls that a seed draws, forward and backward: a script to record, and how far their prices are off.

    torchledger run --profile -o EAGER.ledger -m benchmarks.operators.eager_strangers_cuda [--along] [--seconds 45]
    python -m benchmarks.operators.eager_strangers_cuda --judge EAGER.ledger [--model H200] [--each]
    python -m benchmarks.operators.eager_strangers_cuda --data EAGER.ledger... -o data/h200/eager_torch2.11.json.gz

Library calls and element-wise ones at drawn shapes, dtypes and layouts, none compiled (``eager_calls/drawn.py``). Calls
that a device refuses are left out and named. ``--along`` draws calls that work along dimensions
(``eager_calls/along.py``) in their stead, and leaves out those over 5 ms, ``--further`` those of
``eager_calls/further.py``, ``--rare`` those of ``eager_calls/rare.py``, as bounded, ``--common`` those of
``eager_calls/common.py``, ``--recurrent`` those of ``eager_calls/recurrent.py``, ``--libraries`` those of
``eager_calls/libraries.py``, ``--sharded`` those of ``eager_calls/sharded.py``, ``--seldom`` those of
``eager_calls/seldom.py``, ``--various`` those of ``eager_calls/various.py``, ``--solvers`` those of
``eager_calls/solvers.py``, ``--factors`` those of ``eager_calls/factors.py``, ``--decoding`` those of
``eager_calls/decoding.py``, ``--models`` those of
``eager_calls/models.py``, ``--uneven`` those of ``eager_calls/uneven.py`` and ``--meeting`` those of
``eager_calls/meeting.py``; ``--seconds`` bounds the script's own time, after which a recorder still ends its ledger.
``--judge`` says for each operator what was measured and what its price is, and how many intervals hold; ``--data`` adds
the calls with their times for a fit to learn from.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.operators.eager_calls.drawn import Call as DrawnCall
    from benchmarks.operators.eager_calls.drawn import Drawn, Pool, Tensors

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (
    ("--tiny", "--device", "cpu", "--count", "6", "--steps", "2"),
    ("--tiny", "--device", "cpu", "--count", "8", "--steps", "2", "--along", "--seconds", "60"),
    ("--tiny", "--device", "cpu", "--count", "6", "--steps", "2", "--further", "--seconds", "60"),
    ("--tiny", "--device", "cpu", "--count", "12", "--steps", "2", "--rare", "--seconds", "60"),
    ("--tiny", "--device", "cpu", "--count", "12", "--steps", "2", "--common", "--seconds", "60"),
    ("--tiny", "--device", "cpu", "--count", "6", "--steps", "2", "--recurrent", "--seconds", "60"),
    ("--tiny", "--device", "cpu", "--count", "30", "--steps", "2", "--libraries", "--seconds", "60"),
    ("--tiny", "--device", "cpu", "--count", "6", "--steps", "2", "--sharded", "--seconds", "60"),
    ("--tiny", "--device", "cpu", "--count", "27", "--steps", "2", "--seldom", "--seconds", "60"),
    ("--tiny", "--device", "cpu", "--count", "52", "--steps", "2", "--various", "--seconds", "60"),
    ("--tiny", "--device", "cpu", "--count", "24", "--steps", "2", "--solvers", "--seconds", "60"),
    ("--tiny", "--device", "cpu", "--count", "54", "--steps", "2", "--decoding", "--seconds", "60"),
)

Row = tuple[float, float, bool]


def run(options: argparse.Namespace) -> None:
    """Try every call once; then each step makes all that were quick enough, forward and backward, and ends with a small
    compiled loss and an optimizer's step.

    What is not done in its time is left out rather than lost: a third of ``--seconds`` is for trying calls, and of
    those tried only as many go into steps as leave room for all of these. SIGTERM ends the program as its last step
    would, so that a recorder writes what it has.
    """
    import torch

    from benchmarks.operators.eager_calls.drawn import Pool, draw

    began = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"ended by a signal after {_since(began)}"))
    device = options.device
    weight = torch.nn.Parameter(torch.ones(8, device=device))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    loss = torch.compile(lambda weight: (weight * weight).sum())
    loss(weight).backward()
    torch.nn.functional.conv2d(torch.ones(1, 8, 8, 8, device=device), torch.ones(8, 8, 3, 3, device=device)).sum()
    _say(f"compiled after {_since(began)}")
    pool = Pool(device, 2**26 if options.tiny else 2**30, options.seed)
    drawing = _drawing(options)
    most = 2**12 if options.tiny else 2**27
    drawn = draw(options.seed, options.count, pool, most_elements=most, drawing=drawing)
    seconds = options.seconds or float("inf")
    until = time.perf_counter() + _FOR_TRYING * seconds
    longest_s = min((most_s for name, most_s in _LONGEST_S.items() if getattr(options, name)), default=float("inf"))
    calls = _tried(drawn, pool, until, longest_s)
    _say(f"{len(calls)} of {len(drawn)} calls are quick enough, after {_since(began)}")
    for step in range(options.steps):
        step_began = time.perf_counter()
        for each in list(calls):
            number, name, call, tensors = each
            try:
                _make(call, tensors, pool, number)
            except Exception as error:  # one that a recorder breaks is named, the others go on
                _say(f"{name} in a step: {type(error).__name__}: {str(error)[:160]!r}")
                calls.remove(each)
        loss(weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        took_s = _now(device) - step_began
        _say(f"step {step + 1} of {options.steps}: {took_s:.2f} s, after {_since(began)}")
        if step == _WATCHED:  # nothing is recorded yet
            calls = calls[: _how_many(len(calls), took_s * (options.steps - step - 1), began + seconds)]
    _say(f"{len(calls)} of {len(drawn)} calls ran in steps")


_DRAWINGS = {
    "--along": "DrawnAlong",
    "--further": "DrawnFurther",
    "--rare": "DrawnRare",
    "--common": "DrawnCommon",
    "--recurrent": "DrawnRecurrent",
    "--libraries": "DrawnOfLibraries",
    "--sharded": "DrawnSharded",
    "--seldom": "DrawnSeldom",
    "--meeting": "DrawnMeeting",
    "--models": "DrawnModels",
    "--uneven": "DrawnUneven",
    "--various": "DrawnVarious",
    "--solvers": "DrawnSolvers",
    "--factors": "DrawnFactors",
    "--decoding": "DrawnDecoding",
}
"""What can be drawn instead of the usual calls, each by the class in its own file."""


def _drawing(options: argparse.Namespace) -> type[Drawn]:
    """What draws the calls that are asked for."""
    from benchmarks.operators.eager_calls.drawn import Drawn

    found = next((option for option in _DRAWINGS if getattr(options, option[2:])), None)
    if found is None:
        return Drawn
    drawing: type[Drawn] = getattr(
        importlib.import_module(f"benchmarks.operators.eager_calls.{found[2:]}"), _DRAWINGS[found]
    )
    return drawing


_LONGEST_S = {"along": 0.005, "rare": 0.005, "solvers": 0.02, "factors": 0.6}
"""Calls along dimensions may take a hundred times what others of their size do; few of those fill a recording."""

_FOR_TRYING, _SLOWER, _WATCHED = 1 / 3, 2.5, 1
"""The share of the time for trying calls, how much slower the steps are in the mean that a recorder watches, and the
step after which calls are left out that all of these have no room for."""


def _how_many(count: int, steps_s: float, until: float) -> int:
    """Of ``count`` calls, whose steps would take ``steps_s``, those that end in time; some in any case, since steps
    that are not made are not recorded."""
    left_s = max(until - time.perf_counter(), _AT_LEAST_S)
    if steps_s * _SLOWER <= left_s:
        return count
    fewer = max(1, int(count * left_s / (steps_s * _SLOWER)))
    _say(f"the first {fewer} calls go on: more would not end in time")
    return fewer


_AT_LEAST_S = 10.0


def _tried(
    drawn: Sequence[DrawnCall], pool: Pool, until: float, longest_s: float
) -> list[tuple[int, str, Callable[..., Any], Tensors]]:
    """The calls, numbered, that can be made and take no longer than ``longest_s``, of those tried before ``until``."""
    found = []
    for number, (name, call, tensors) in enumerate(drawn):
        if time.perf_counter() > until:
            _say(f"{len(drawn) - number} calls are left untried: there is no time for them")
            break
        try:
            took_s = _time_of(call, tensors, pool, number)
            if longest_s < took_s < _LOADS_S:  # what it loads the first time is not its own
                took_s = _time_of(call, tensors, pool, number)
        except Exception as error:  # a call that cannot be made is named, the others are measured
            _say(f"{name}: {type(error).__name__}: {str(error)[:160]!r}")
            continue
        if took_s > longest_s:
            _say(f"{name}: takes {1e3 * took_s:.1f} ms")
        else:
            found.append((number, name, call, tensors))
    return found


_LOADS_S = 1.0
"""Loading a library and its kernels takes less."""


def _time_of(call: Callable[..., Any], tensors: Tensors, pool: Pool, number: int) -> float:
    began = _now(pool.device)
    _make(call, tensors, pool, number)
    return _now(pool.device) - began


def _make(call: Callable[..., Any], tensors: Tensors, pool: Pool, number: int) -> None:
    """Make a call, forward and backward."""
    for tensor in tensors:
        tensor.grad = None
    result = call(*tensors)
    if result.requires_grad:
        result.backward(pool.take(result.dtype, tuple(result.shape), number))


def _now(device: str) -> float:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def _since(began: float) -> str:
    return f"{time.perf_counter() - began:.1f} s"


def _say(text: str) -> None:
    print(text, flush=True)


def judge(path: Path, model_name: str, *, each: bool) -> None:
    """Print what each operator took and was said to take; with ``each``, every call, the worst first."""
    from torchledger.nouns import StepCall
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.step_calls import price_calls
    from torchledger.store import open_ledger

    with open_ledger(path) as reader:
        calls = reader.read(StepCall)
    rows: dict[str, list[Row]] = defaultdict(list)
    texts: list[tuple[float, str]] = []
    for call, priced in price_calls(find_model(model_name), calls, ran_on_cpu=False):
        if call.samples_us:
            us = statistics.median(call.samples_us)
            rows[call.name].append((us, priced.duration_us, priced.low_us <= us <= priced.high_us))
            given = " ".join(f"{tuple(one.shape)} {one.stride} {one.dtype}" for one in call.arguments[:3])
            text = f"{call.name:44s} {us:8.1f} us, said {priced.duration_us:8.1f} {priced.model[:30]:30s} {given}"
            texts.append((abs(priced.duration_us - us), text[:230]))
    if each:
        print("\n".join(text for _, text in sorted(texts, reverse=True)))
    print("| operator | calls | measured, us | said | in sum | mean error | intervals hold |")
    print("|---|---|---|---|---|---|---|")
    for name, found in sorted(rows.items(), key=lambda row: -sum(us for us, _, _ in row[1])):
        _print_row(name, found)
    _print_row("all", [each for found in rows.values() for each in found])


def _print_row(name: str, found: list[Row]) -> None:
    measured, said = (sum(row[place] for row in found) for place in (0, 1))
    in_sum = said / measured - 1 if measured else 0.0
    error = statistics.mean([abs(priced / us - 1) for us, priced, _ in found if us] or [0.0])
    held = sum(holds for _, _, holds in found)
    print(f"| {name} | {len(found)} | {measured:.0f} | {said:.0f} | {in_sum:+.1%} | {error:.1%} | {held} |")


def write_data(ledgers: list[Path], target: Path) -> None:
    """Add the calls of ledgers with their times, as ``fit_call_costs`` reads them, to those of others in ``target``."""
    from benchmarks.strangers.strangers_data import calls_of

    rows = [row for path in ledgers for row in calls_of(path) if not _lacks_what_is_held(row)]
    if target.exists():
        new = {row["program"] for row in rows}
        before = json.loads(gzip.decompress(target.read_bytes()))
        rows = [row for row in before if row["program"] not in new] + rows
    target.write_bytes(gzip.compress(json.dumps(rows, separators=(",", ":")).encode(), mtime=0))
    print(f"{len(rows):,} calls of {len({row['name'] for row in rows})} operators")


def _lacks_what_is_held(row: dict[str, Any]) -> bool:
    """Whether a call was given a sparse tensor of which it was not recorded what it holds."""
    return any(shape and stride is None and not held for shape, _, stride, *held in row["arguments"])


def main() -> None:
    """Run the drawn calls, judge their ledger, or keep what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes: to try the script itself")
    parser.add_argument("--seconds", type=float, help="leave out what does not end in about this time")
    for option in _DRAWINGS:
        parser.add_argument(option, action="store_true", help=f"calls of eager_calls/{option[2:]}.py alone")
    parser.add_argument("--judge", type=Path, metavar="LEDGER", help="a ledger of this script")
    parser.add_argument("--each", action="store_true", help="with --judge: every call, the worst first")
    parser.add_argument("--model", default="H200")
    parser.add_argument("--data", nargs="*", type=Path, default=[], metavar="LEDGER")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.judge is not None:
        judge(options.judge, options.model, each=options.each)
    elif options.data:
        if options.output is None:
            parser.error("--data wants -o FILE")
        write_data(options.data, options.output)
    else:
        run(options)


if __name__ == "__main__":
    main()
