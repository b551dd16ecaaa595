"""Steps of eight models compiled for training, two batch sizes each, launched one by one and as CUDA graphs.

    python -m benchmarks.launches.model_steps --out OUT [--models gpt2 bert ...] [--modes graphs] [--sizes large]
        [--limit 200]

Each model has a process; all compile at once, then one after the other is measured alone on the GPU; one that has not
compiled when ``--limit`` seconds are over is left out and named. Writes
``models.launches`` (the launches of both batch sizes, with their profiled times) and ``steps.json`` (step times without
the profiler, kernel sums, counts of launches) into OUT. A step is forward, backward and a fused AdamW step.
Needs what ``cuda_models.py`` needs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

NEEDS: tuple[str, ...] = ("cuda", "timm", "transformers")
RUNS: tuple[tuple[str, ...], ...] = (("--out", "{out}"),)


MODES = ("eager", "graphs")
SIZES = ("small", "large")
WARM, TIMED = 8, 20


def main() -> None:
    """Let all models compile, then measure them in turn; twice per batch size."""
    from benchmarks.shared import cuda_models

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=list(cuda_models.STEP_TIME_NAMES))
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=SIZES, help="of each model's two batches")
    parser.add_argument("--limit", type=float, default=420, help="seconds after which nothing more is compiled")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + arguments.limit
    context = get_context("spawn")
    workers: dict[str, tuple[Any, Connection]] = {}
    for name in arguments.models:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, name, str(arguments.out)), daemon=True)
        process.start()
        workers[name] = (process, ours)
    steps: list[dict[str, Any]] = []
    for place, mode in [(SIZES.index(size), mode) for size in arguments.sizes for mode in arguments.modes]:
        if time.monotonic() > end:
            print("out of time", flush=True)
            break
        for _, pipe in workers.values():
            pipe.send(("compile", place, mode))
        for name in list(workers):
            answer = receive(workers[name][1], max(1.0, end - time.monotonic()))
            print(name, place, mode, answer, flush=True)
            if answer.get("unanswered"):
                workers.pop(name)[0].terminate()
        for name, (_, pipe) in workers.items():
            pipe.send(("measure", place, mode))
            answer = receive(pipe, 120)
            print(name, place, mode, answer, flush=True)
            if "step_us" in answer:
                steps.append(answer)
            (arguments.out / "steps.json").write_text(json.dumps(steps, indent=1))
    for process, pipe in workers.values():
        pipe.send(("finish", 0, ""))
        receive(pipe, 60)
        process.join(10)
    parts = sorted(arguments.out.glob(".*.launches"))
    if parts:
        (arguments.out / "models.launches").write_bytes(b"".join(part.read_bytes() for part in parts))
    for part in parts:
        part.unlink()


def receive(pipe: Connection, limit_s: float) -> dict[str, Any]:
    """A worker's answer, or why there is none."""
    try:
        if pipe.poll(limit_s):
            answer: dict[str, Any] = pipe.recv()
            return answer
        return {"unanswered": f"in {limit_s:.0f} s"}
    except (EOFError, OSError) as error:
        return {"unanswered": repr(error)}


def work(pipe: Connection, name: str, out: str) -> None:
    """The process of one model."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    from torchledger.store.launch_file import join_launches, write_launches

    variant: Variant | None = None
    found: list[Any] = []
    while True:
        task, place, mode = pipe.recv()
        try:
            if task == "compile":
                if variant is not None:
                    variant.close()
                variant = Variant(name, place, mode, Path(out))
                pipe.send({"compile_s": round(variant.compile(), 1)})
            elif task == "measure":
                assert variant is not None
                answer = variant.measure(found)
                if found:
                    write_launches(Path(out) / f".{name}.launches", join_launches(found))
                pipe.send(answer)
            else:
                pipe.send({})
                return
        except Exception:
            pipe.send({"error": traceback.format_exc()[-900:]})


class Variant:
    """One model at one batch size in one mode."""

    def __init__(self, name: str, place: int, mode: str, out: Path) -> None:
        import torch

        from benchmarks.shared import cuda_models
        from torchledger import capture
        from torchledger.sampling.fused import GraphMarks

        torch._dynamo.reset()
        torch.cuda.empty_cache()
        self.name, self.mode, self.batch = name, mode, cuda_models.batches(name)[place]
        self.path = out / f".{name}-{self.batch}-{mode}.ledger"
        self.case = cuda_models.make(name, self.batch)
        self.optimizer = torch.optim.AdamW(self.case.module.parameters(), lr=1e-6, fused=True)
        self.capture = capture(self.path, force=True)
        self.marks = GraphMarks()
        self.capture.watch(self.marks)
        self.compiled = torch.compile(self.case.module, mode="reduce-overhead" if mode == "graphs" else None)

    def step(self) -> None:
        """Forward, backward, optimizer."""
        import torch

        if self.mode == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        self.case.step(self.compiled)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def compile(self) -> float:
        """The first step; returns its seconds."""
        import torch

        started = time.perf_counter()
        self.step()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return time.perf_counter() - started

    def measure(self, found: list[Any]) -> dict[str, Any]:
        """Step time without a profiler, then (eager) a profile of the launches."""
        import torch

        from torchledger._torch import profiler
        from torchledger.device.describe import describe_devices
        from torchledger.nouns import Measurement
        from torchledger.profiling.records import profile_records
        from torchledger.profiling.steps import Steps
        from torchledger.store.launch_file import LaunchSet, MeasuredLaunch
        from torchledger.traces.reading import read_trace
        from torchledger.work.step_traffic import StepTraffic, step_traffic

        for _ in range(WARM):
            self.step()
        torch.cuda.synchronize()
        times = []
        for _ in range(3):
            started = time.perf_counter()
            for _ in range(TIMED):
                self.step()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - started) / TIMED * 1e6)
        parameters = [p for p in self.case.module.parameters() if p.requires_grad]
        launches = [launch for group in self.marks.launches.values() for launch in group]
        answer: dict[str, Any] = {
            "model": self.name,
            "batch": self.batch,
            "mode": self.mode,
            "step_us": statistics.median(times),
            "step_times_us": times,
            "numel": sum(p.numel() for p in parameters),
            "tensors": len(parameters),
            "launches": len(launches),
            "graphs": len(self.marks.launches),
        }
        recording = profiler.Recording()
        recording.start()
        for _ in range(2 if self.mode == "graphs" else 6):
            self.step()
        torch.cuda.synchronize()
        recording.stop()
        path = recording.export()
        trace = read_trace(path)
        path.unlink(missing_ok=True)
        if self.mode == "graphs":
            from torchledger.traces.costs import device_events

            answer["device_kernels_us"] = sum(event.duration_us for event in device_events(trace)) / 2
            return answer
        records, _ = profile_records(trace, launches, steps=Steps(), learned={}, devices=describe_devices(), n_steps=6)
        samples = {record.subject: record.samples_us for record in records if isinstance(record, Measurement)}
        program = f"{self.name}-{self.batch}"
        # Fused AdamW reads a parameter, its gradient and two moments, and writes all but the gradient.
        optimizer_bytes = 7 * sum(p.numel() * p.element_size() for p in parameters)
        moved = step_traffic(launches, dict.fromkeys(self.marks.launches, 1)).bytes_moved + optimizer_bytes
        traffic = StepTraffic(moved, optimizer_bytes)
        items = tuple(MeasuredLaunch(each, samples.get(each.launch_id, ()), program, traffic) for each in launches)
        gpu = next(device for device in describe_devices() if device.kind == "cuda")
        found.append(LaunchSet(gpu.name, items, {"torch": str(torch.__version__)}, gpu))
        answer["kernels_us"] = sum(statistics.median(times) for times in samples.values())
        answer["measured_launches"] = len(samples)
        return answer

    def close(self) -> None:
        """Free the GPU."""
        import torch

        self.capture.close()
        self.path.unlink(missing_ok=True)
        del self.compiled, self.case, self.optimizer
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
