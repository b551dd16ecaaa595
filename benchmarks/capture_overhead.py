"""What capturing costs: cold compile time with capture on over off, run time after compilation, growth with launches.

    python benchmarks/capture_overhead.py [--device cuda] [--models gpt_block ...] [--pairs 5] [--parallel 1] [--json F]
    python benchmarks/capture_overhead.py --scaling

Each compile is cold, in a process and cache folder of its own; pairs are interleaved (on, off, off, on, ...) and the
ratio is taken pair by pair. ``--scaling`` captures unrolled models of growing depth on the CPU and counts the CPU time
of our hooks, which a busy machine does not change much.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--json", "{out}.json"),)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def compile_once(name: str, device: str, is_captured: bool) -> dict[str, float]:
    """Cold forward and backward compile of a zoo model in this process, then its steps' time."""
    import contextlib

    import torch
    import torch._inductor.compile_fx

    import model_zoo
    import torchledger

    case = model_zoo.make(name)
    module = case.module.to(device)
    inputs = tuple(tensor.to(device) for tensor in case.inputs)
    if device == "cuda":
        torch.zeros(1, device="cuda")
    capture: Any = contextlib.nullcontext()
    if is_captured:
        capture = torchledger.capture(Path(tempfile.mkdtemp()) / "a.ledger")
    with capture:
        started = time.perf_counter()
        compiled = torch.compile(module)
        case.loss(compiled, *inputs).backward()
        if device == "cuda":
            torch.cuda.synchronize()
        compile_s = time.perf_counter() - started
        times = []
        for _ in range(30):
            started = time.perf_counter()
            for _ in range(5):
                case.loss(compiled, *inputs).backward()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - started) / 5)
    return {"compile_s": compile_s, "step_us": statistics.median(times) * 1e6}


def in_process(name: str, device: str, is_captured: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "TRITON_CACHE_DIR": f"{cache}/triton",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
        }
        command = [
            sys.executable,
            __file__,
            "--once",
            name,
            "--device",
            device,
            *(["--captured"] if is_captured else []),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise SystemExit(done.stderr[-2000:])
        result: dict[str, float] = json.loads(lines[-1].removeprefix("RESULT "))
        return result


def measure(name: str, device: str, pairs: int) -> dict[str, Any]:
    """Ratios of interleaved pairs."""
    ratios, step_ratios, seconds = [], [], []
    for pair in range(pairs):
        order = (True, False) if pair % 2 == 0 else (False, True)
        found = {is_captured: in_process(name, device, is_captured) for is_captured in order}
        ratios.append(found[True]["compile_s"] / found[False]["compile_s"])
        step_ratios.append(found[True]["step_us"] / found[False]["step_us"])
        seconds.append(found[False]["compile_s"])
    return {
        "model": name,
        "device": device,
        "pairs": pairs,
        "compile_s_off": round(statistics.median(seconds), 2),
        "compile_ratio": round(statistics.median(ratios), 4),
        "compile_ratios": [round(ratio, 3) for ratio in ratios],
        "step_ratio": round(statistics.median(step_ratios), 4),
        "step_ratios": [round(ratio, 3) for ratio in step_ratios],
    }


def scaling() -> None:
    """CPU time inside our hooks, the writing of the ledger included, and of ``show``, for graphs of growing size."""
    import torch

    import torchledger
    from torchledger.capturing.recorder import Recorder
    from torchledger.nouns import Launch
    from torchledger.store import open_ledger

    spent = [0.0]

    def timed(method: Any) -> Any:
        def around(*arguments: Any, **keywords: Any) -> Any:
            started = time.process_time()
            try:
                return method(*arguments, **keywords)
            finally:
                spent[0] += time.process_time() - started

        return around

    for name in [name for name in vars(Recorder) if name.startswith("on_")]:
        setattr(Recorder, name, timed(getattr(Recorder, name)))
    print("| launches | CPU s, whole compile | CPU s, our hooks | share | CPU ms a launch, our hooks | show, s |")
    print("|---|---|---|---|---|---|")
    for layers in (20, 125, 250, 500):
        torch._dynamo.reset()
        spent[0] = 0.0
        weights = [torch.randn(8, 8) for _ in range(layers)]

        def deep(x: torch.Tensor, weights: list[torch.Tensor] = weights) -> torch.Tensor:
            for weight in weights:
                x = torch.mm(torch.softmax(torch.mm(x, weight), -1), weight).sin()
            return x

        with (
            tempfile.TemporaryDirectory() as folder,
            torch._inductor.config.patch(force_disable_caches=True),
            torch.no_grad(),
        ):
            path = Path(folder) / "a.ledger"
            started = time.process_time()
            with torchledger.capture(path):
                torch.compile(deep)(torch.randn(8, 8))
            whole = time.process_time() - started
            with open_ledger(path) as ledger:
                launches = ledger.count(Launch)
            started = time.perf_counter()
            subprocess.run([sys.executable, "-m", "torchledger", "show", str(path)], capture_output=True, check=True)
            show_s = time.perf_counter() - started
        hooks = spent[0]
        print(
            f"| {launches:,} | {whole:.1f} | {hooks:.2f} | {hooks / whole:.1%} | {hooks / launches * 1e3:.2f} "
            f"| {show_s:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="*", default=["gpt_block", "resnet", "mixer"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--once")
    parser.add_argument("--captured", action="store_true")
    arguments = parser.parse_args()
    if arguments.once:
        print("RESULT " + json.dumps(compile_once(arguments.once, arguments.device, arguments.captured)))
        return
    if arguments.scaling:
        scaling()
        return
    with ThreadPoolExecutor(arguments.parallel) as pool:
        results = list(pool.map(lambda name: measure(name, arguments.device, arguments.pairs), arguments.models))
    for result in results:
        print(json.dumps(result), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
