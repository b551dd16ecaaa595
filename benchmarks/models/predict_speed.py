"""How quick predictions are: a table on one core, one from a cold start, a step of a thousand launches; and the fit.

    python -m benchmarks.models.predict_speed [--data DIR] [--output FILE]
    python -m benchmarks.models.predict_speed --only linear bmm step

Each line is printed when it is known. ``--only`` times some operators of the shipped model of the H200, a few seconds
each, or ``step``, and nothing is written: for a core that is quiet for a moment.

Learns from the public GH200 timings (``--data``, else ``TORCHLEDGER_PUBLIC_DATA/ett``) and made-up launches; asks the
shipped model of the H200, too, at random shapes.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.shared.places import ROOT, child_environment

NEEDS: tuple[str, ...] = ("public data",)
RUNS: tuple[tuple[str, ...], ...] = ((),)
QUICK: tuple[tuple[str, ...], ...] = (("--quick", "--output", "{out}/predict_speed.md"),)

if TYPE_CHECKING:
    import numpy as np

    from torchledger.fitting.time_model import TimeModel

if os.environ.get("OMP_NUM_THREADS") != "1":
    # One core: libraries read this when they are loaded, so begin again with it set.
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    again = [sys.executable, "-m", __spec__.name, *sys.argv[1:]]
    os.execve(sys.executable, again, os.environ | dict.fromkeys(names, "1"))

ROWS = 100_000
STEP = "step"
"""What ``--only`` calls the step of a thousand launches."""


def main() -> None:
    """Measure and print all lines, or the few that were asked for."""
    import numpy as np

    from torchledger.predicting import find_model

    arguments = _arguments()
    shipped = find_model("H200")
    head = ["| what | measured | wanted |", "|---|---|---|"]
    if arguments.only:
        print(*head, sep="\n", flush=True)
        for name, question in _random_shapes(np.random.default_rng(0)).items():
            if name in arguments.only:
                list(_printed(_tables(shipped, {name: question})))
        if STEP in arguments.only:
            list(_printed(_steps({"H200": shipped})))
        return
    title = [
        "# How quick predictions are",
        "",
        f"`python -m benchmarks.models.predict_speed`, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, "
        f"Python {platform.python_version()}, numpy {np.__version__}, {_processor()}.",
        "",
        *head,
    ]
    print(*title, sep="\n", flush=True)
    lines = list(_printed(_everything(arguments, shipped)))
    if arguments.output is not None:
        arguments.output.write_text("\n".join([*title, *lines]) + "\n")


def _everything(arguments: argparse.Namespace, shipped: TimeModel) -> Iterator[str]:
    """All lines of the page."""
    import numpy as np

    from launch_times import make_launch_set
    from torchledger.device.datasheets import device_of_name
    from torchledger.fitting.data import gate_public_labels, read_operator_samples
    from torchledger.fitting.fit import fit
    from torchledger.fitting.fit_data import fit_launches
    from torchledger.fitting.launches import machine_of_launches
    from torchledger.fitting.time_model import TimeModel
    from torchledger.predicting import load_model, predict_table, save_model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gh200.tlmodel"
        samples = gate_public_labels(read_operator_samples([arguments.data / "Vista" / "operator"]))
        if arguments.quick:
            samples = [s for s in samples if s.operator in ("guide.linear1", "guide.flash_atten", "guide.layernorm")]
        started = time.perf_counter()
        model, _ = fit(samples, jobs=2)
        seconds = time.perf_counter() - started
        size = save_model(model, path)
        learned = f"{len(samples):,} samples, {len(model.entries)} entries"
        yield f"| fit of {learned}, two cores | {seconds:.0f} s | <= 180 s |"
        yield f"| model file | {size / 1e6:.1f} MB | |"
        generator = np.random.default_rng(0)
        lengths = generator.integers(1024, 5121, ROWS)
        questions = {
            "linear1": {"mp": 1, "b": generator.integers(2, 9, ROWS), "l": lengths, "dim": 4096},
            "flash_atten": {"mp": 1, "b": 4, "h": 32, "l": lengths, "dim": 4096},
            "layernorm": {"b": 4, "l": lengths, "dim": generator.integers(2048, 8193, ROWS)},
        }
        loaded = load_model(path)
        for name, question in questions.items():
            rate = answers_per_second(partial(predict_table, loaded, f"guide.{name}", question, dtype="fp16"))
            yield f"| {name}: table of {ROWS:,}, per second of one core | {rate:,.0f} | >= 100,000 |"
        yield from _tables(shipped, _random_shapes(generator))
        yield _cold_start(path)
    train = make_launch_set(80)
    bare = TimeModel("TEST", machine_of_launches(device_of_name("TEST"), train.launches), {})
    yield from _steps({"a small model": replace(bare, entries=fit_launches(train.launches, bare)[0]), "H200": shipped})


def _tables(model: TimeModel, questions: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    """Answers a second for each operator and direction."""
    from torchledger.predicting import predict_table

    for name, question in questions.items():
        for direction in ("forward", "backward"):
            ask = partial(predict_table, model, name, question, dtype="bf16", direction=direction)
            rate = answers_per_second(ask)
            yield f"| H200, {name} {direction}: the same | {rate:,.0f} | >= 100,000 |"


def _cold_start(path: Path) -> str:
    command = [sys.executable, "-m", "torchledger", "predict", "flash_atten", "mp=1", "b=4", "h=32", "l=2048"]
    command += ["dim=4096", "--dtype", "fp16", "--device", str(path)]
    cold = []
    for _ in range(5):
        begun = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=child_environment())
        cold.append(time.perf_counter() - begun)
    return f"| `torchledger predict` from a cold start, best of five | {min(cold):.2f} s | < 1 s |"


def _steps(models: Mapping[str, TimeModel]) -> Iterator[str]:
    """A step of a thousand launches by each model."""
    from launch_times import pointwise, product
    from torchledger.predicting.step import predict_step

    launches = [
        product(1024, 512, 1024, order=order) if order % 3 == 1 else pointwise(1024, 1024, 3, order=order)
        for order in range(1000)
    ]
    for name, model in models.items():
        seconds = _processor_s(partial(predict_step, model, launches))
        yield f"| step of 1,000 launches, {name}, of one core | {seconds:.3f} s | < 0.3 s |"


def _printed(lines: Iterable[str]) -> Iterator[str]:
    """The lines, printed as they come."""
    for line in lines:
        print(line, flush=True)
        yield line


def answers_per_second(ask: Callable[[], object]) -> float:
    """Rows a second of processor time, the best of three after one to warm up."""
    return ROWS / _processor_s(ask)


def _processor_s(ask: Callable[[], object]) -> float:
    """Seconds of processor time of a call, the least of three after one to warm up."""
    ask()
    spent = []
    for _ in range(3):
        begun = time.process_time()
        ask()
        spent.append(time.process_time() - begun)
    return min(spent)


def _random_shapes(generator: np.random.Generator) -> dict[str, dict[str, object]]:
    def sides(low: int, high: int) -> object:
        return generator.integers(low, high, ROWS)

    image = {"n": sides(1, 64), "c_in": sides(3, 512), "height": sides(7, 128), "width": 56, "c_out": sides(16, 512)}
    return {
        "linear": {"m": sides(1, 9000), "k": sides(64, 8000), "n": sides(64, 8000)},
        "bmm": {"b": sides(1, 64), "m": sides(8, 2000), "k": sides(8, 2000), "n": sides(8, 2000)},
        "conv2d": {**image, "kernel": 3, "stride": 1, "padding": 1, "groups": 1},
        "softmax": {"rows": sides(1, 100_000), "dim": sides(32, 20_000)},
        "sdpa": {"b": sides(1, 32), "h": 16, "l": sides(64, 4096), "d": 64, "causal": 1},
        "layer_norm": {"rows": sides(1, 100_000), "dim": sides(32, 20_000)},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def _arguments() -> argparse.Namespace:
    import numpy as np

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    public = Path(os.environ.get("TORCHLEDGER_PUBLIC_DATA") or ROOT.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=public / "ett")
    parser.add_argument("--output", type=Path, help="a page with the same lines")
    parser.add_argument("--quick", action="store_true", help="three operators only")
    parser.add_argument(
        "--only", nargs="+", choices=(*_random_shapes(np.random.default_rng(0)), STEP), help="print these alone"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
