"""What a host needs for steps, part by part: ``python -m benchmarks.machines.host_steps measure -o OUT [NAME ...]``.

``measure`` starts each drawn program NAME (``drawn_programs.py``) twice, ``torchledger doctor``'s measurement of the
host and kinds of work that it lacks, all at once, and lets them through a gate one by one. A program times its steps
in pieces, beside a piece of plain Python that says how fast the host is just then, and tells what its forward, its
backward and its optimizer take; ``kinds`` does so with steps of one and eight blocks and graphs of few and many
launches, parameters and tensors. OUT gets ``host_steps.json``. ``--tiny --device cpu`` tries the script itself.
``host_pieces.py`` reads what came out.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.strangers.drawn_programs import WARM_STEPS, build, draw, leave_gate, plain_us, wait_at_gate
from benchmarks.strangers.strangers_cuda import CALLS, Job, Wave

NEEDS: tuple[str, ...] = ("cuda", "transformers")
RUNS: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}"),)

PROGRAMS = ("sealed-719", "sealed-717", "sealed-732", "sealed-704")
_PIECES, _PIECE_S = 16, 0.04
_FEW, _MANY = 4, 68


class Collections:
    """How many seconds the garbage collector took since it was asked last."""

    def __init__(self) -> None:
        self._since, self.seconds = 0.0, 0.0
        gc.callbacks.append(self._called)

    def _called(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._since = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._since

    def taken(self) -> float:
        """Seconds since the last call of this."""
        taken, self.seconds = self.seconds, 0.0
        return taken


class Phases:
    """Seconds that the host was inside the calls that make up a step, by patching them in this process."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._depth = 0

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, timed where it is no part of another timed one."""

        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            self._depth += 1
            try:
                return call(*arguments, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

        return timed

    def patch(self) -> None:
        """Time backwards, optimizers and scalers from now on; what is left of a step is its forward and its loop."""
        import torch

        for owner, name, method in (
            (torch.Tensor, "backward", "backward"),
            (torch.optim.AdamW, "optimizer", "step"),
            (torch.optim.SGD, "optimizer", "step"),
            (torch.amp.GradScaler, "scaler", "step"),
            (torch.amp.GradScaler, "update", "update"),
            (torch.amp.GradScaler, "scale", "scale"),
        ):
            setattr(owner, method, self.around(name, getattr(owner, method)))


def time_pieces(step: Callable[[], Any], wait: Callable[[], None], *, pieces: int = _PIECES) -> list[dict[str, float]]:
    """Pieces of steps that do not wait: microseconds a step until it is issued and until it is done, what the
    collector took of it, how busy this process was, and how fast the host was before."""
    step()
    wait()
    begin = time.perf_counter()
    step()
    wait()
    count = max(3, min(400, round(_PIECE_S / (time.perf_counter() - begin))))
    collections, found = Collections(), []
    for _ in range(pieces):
        speed = plain_us()
        collections.taken()
        used, switched = time.process_time(), resource.getrusage(resource.RUSAGE_SELF)
        begin = time.perf_counter()
        for _ in range(count):
            step()
        issued = time.perf_counter() - begin
        busy, after = time.process_time() - used, resource.getrusage(resource.RUSAGE_SELF)
        wait()
        found.append(
            {
                "issued_us": round(issued / count * 1e6, 2),
                "step_us": round((time.perf_counter() - begin) / count * 1e6, 2),
                "collected_us": round(collections.taken() / count * 1e6, 2),
                "busy": round(busy / issued, 3),
                "preempted": after.ru_nivcsw - switched.ru_nivcsw,
                "faults": after.ru_minflt - switched.ru_minflt,
                "speed_us": round(speed, 1),
                "steps": count,
            }
        )
    gc.callbacks.remove(collections._called)
    return found


def run_program(name: str, device: str, *, tiny: bool) -> dict[str, Any]:
    """One drawn program behind the gate, whole and by phases."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    step = build(draw(name.partition("#")[0], tiny=tiny), device)
    for _ in range(WARM_STEPS):
        step()
    wait()
    wait_at_gate(name)
    pieces = time_pieces(step, wait)
    gc.collect()
    gc.freeze()
    frozen = time_pieces(step, wait, pieces=4)
    phases = Phases()
    phases.patch()
    steps, begin = 3 * pieces[0]["steps"], time.perf_counter()
    for _ in range(int(steps)):
        step()
    whole = time.perf_counter() - begin
    wait()
    by_phase = {key: round(seconds / steps * 1e6, 2) for key, seconds in phases.seconds.items()}
    return {"pieces": pieces, "frozen": frozen, "phases": by_phase, "with_phases_us": round(whole / steps * 1e6, 2)}


# --- kinds of work ----------------------------------------------------------------------------------------------------


def works(place: Any) -> dict[str, Callable[[], Any]]:
    """Work by its name: ``"chain 24"`` has 24 of what it is named for."""
    import torch

    made: dict[str, Callable[[], Any]] = {}
    for count in (1, 64):
        made[f"chain {count}"] = _chain(place, count)
    for count in (1, 24):
        made[f"listed {count}"] = _listed(place, count)
    for count in (_FEW, _MANY):
        made[f"parameters {count}"] = _parameters(place, count)
        made[f"leaves {count}"] = _leaves(place, count)
        made[f"asked parameters {count}"] = _parameters(place, count, trains=False)
        if place.type == "cuda":
            made[f"scaled {count}"] = _scaled(place, count)
            made[f"scaled foreach {count}"] = _scaled(place, count, how="foreach")
    for count in (1, 8):
        made[f"blocks {count}"] = _blocks(place, count)
        made[f"asked blocks {count}"] = _blocks(place, count, trains=False)
    made["autocast blocks 8"] = _blocks(place, 8, low=torch.bfloat16)
    made["graphs 1"], made["graphs 6"] = _graphs(place, 1), _graphs(place, 6)
    return made


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    made: Callable[..., Any] = torch.compile(function, dynamic=False)
    return made


def _chain(place: Any, count: int) -> Callable[[], Any]:
    """So many kernels in a row over one input: sums over rows and columns in turns do not fuse."""
    import torch

    def chain(x: Any) -> Any:
        for number in range(count):
            x = x - x.sum(number % 2, keepdim=True) * 1e-3
        return x

    call, given = _compiled(chain), torch.ones(48, 48, device=place)

    def run() -> Any:
        with torch.no_grad():
            return call(given)

    return run


def _listed(place: Any, count: int) -> Callable[[], Any]:
    import torch

    call = _compiled(lambda inputs: [each.sin() for each in inputs])
    given = [torch.ones(256, device=place) for _ in range(count)]

    def run() -> Any:
        with torch.no_grad():
            return call(given)

    return run


def _parameters(place: Any, count: int, *, trains: bool = True) -> Callable[[], Any]:
    """A module of so many parameters in few kernels, forward and backward."""
    import torch
    from torch import nn

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(256)) for _ in range(count)])

        def forward(self, x: Any) -> Any:
            for number, weight in enumerate(self.weights):
                x = x + weight * (1 + number)
            return x.sum()

    module = Scaled().to(place)
    call, given = _compiled(module), torch.ones(256, device=place)
    parameters = list(module.parameters())

    def run() -> None:
        if not trains:
            with torch.no_grad():
                call(given)
            return
        call(given).backward()
        for each in parameters:
            each.grad = None

    return run


def _leaves(place: Any, count: int) -> Callable[[], Any]:
    """A backward that gives so many parameters a gradient each, which is made for it and launches nothing."""
    import torch

    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *leaves: Any) -> Any:
            return torch.empty(256, device=place)

        @staticmethod
        def backward(ctx: Any, *asked: Any) -> Any:
            return tuple(torch.empty(256, device=place) for _ in range(count))

    leaves = [torch.ones(256, device=place, requires_grad=True) for _ in range(count)]
    seed = torch.ones(256, device=place)

    def run() -> None:
        Given.apply(*leaves).backward(seed)
        for each in leaves:
            each.grad = None

    return run


def _scaled(place: Any, count: int, how: str = "fused") -> Callable[[], Any]:
    """An optimizer's step by a gradient scaler."""
    import torch

    parameters = [torch.nn.Parameter(torch.ones(256, device=place)) for _ in range(count)]
    for each in parameters:
        each.grad = torch.zeros_like(each)
    options: dict[str, Any] = {how: True}
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, **options)
    scaler, loss = torch.amp.GradScaler(place.type, init_scale=256.0), torch.ones((), device=place)

    def run() -> None:
        scaler.scale(loss)
        scaler.step(optimizer)
        scaler.update()

    return run


def _blocks(place: Any, count: int, *, trains: bool = True, low: Any = None, how: str = "fused") -> Callable[[], Any]:
    """A small transformer of so many blocks, trained or asked."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
            self.mixed, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
            self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: Any) -> Any:
            q, k, v = self.mixed(self.first(x)).view(2, 16, 3, 2, 32).permute(2, 0, 3, 1, 4)
            mixed = (q @ k.mT).softmax(-1) @ v
            x = x + self.out(mixed.transpose(1, 2).reshape(2, 16, 64))
            return x + self.down(nn.functional.gelu(self.up(self.second(x))))

    model = nn.Sequential(*(Block() for _ in range(count))).to(place)
    call, given = _compiled(lambda x: model(x).square().mean()), torch.ones(2, 16, 64, device=place)
    parameters = list(model.parameters())
    options: dict[str, Any] = {how: True}
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, **options)

    def run() -> None:
        with torch.autocast(place.type, dtype=low, enabled=low is not None):
            if not trains:
                with torch.no_grad():
                    call(given)
                return
            loss = call(given)
        loss.backward()
        optimizer.step()
        for each in parameters:
            each.grad = None

    return run


def _graphs(place: Any, count: int) -> Callable[[], Any]:
    import torch

    calls = [_compiled(lambda x, number=number: (x * (2 + number)).sin()) for number in range(count)]
    leaf, seed = torch.ones(256, device=place, requires_grad=True), torch.ones(256, device=place)

    def run() -> None:
        y: Any = leaf
        for call in calls:
            y = call(y)
        y.backward(seed)
        leaf.grad = None

    return run


def run_kinds(device: str) -> dict[str, Any]:
    """All kinds behind the gate, in rounds: microseconds when issued one after the other, and alone; launches of each
    by a profiler, at the end."""
    import torch

    place = torch.device(device)
    wait = torch.cuda.synchronize if place.type == "cuda" else (lambda: None)
    made = works(place)
    for run in made.values():
        for _ in range(4):
            run()
    wait()
    wait_at_gate("kinds")
    issued: dict[str, list[float]] = {name: [] for name in made}
    alone: dict[str, list[float]] = {name: [] for name in made}
    speeds = []
    for _ in range(6):
        speeds.append(round(plain_us(), 1))
        for name, run in made.items():
            run()
            wait()
            begin = time.perf_counter()
            run()
            alone[name].append(round((time.perf_counter() - begin) * 1e6, 2))
            wait()
            count = max(2, min(60, round(0.012 / (alone[name][-1] / 1e6))))
            begin = time.perf_counter()
            for _ in range(count):
                run()
            issued[name].append(round((time.perf_counter() - begin) / count * 1e6, 2))
            wait()
    phases = Phases()
    phases.patch()
    by_phase = {}
    for name, run in made.items():
        phases.seconds.clear()
        for _ in range(20):
            run()
        wait()
        by_phase[name] = {key: round(seconds / 20 * 1e6, 2) for key, seconds in phases.seconds.items()}
    return {
        "issued_us": issued,
        "alone_us": alone,
        "speed_us": speeds,
        "phases": by_phase,
        "launches": {name: _launched(run, wait) for name, run in made.items()},
        "python_us": _python_costs(),
    }


def _launched(run: Callable[[], Any], wait: Callable[[], None]) -> dict[str, int]:
    """Kernels by whether Triton's, and the operators that the host calls, of one run."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
        wait()
    found: dict[str, int] = {}
    for event in seen.events() or ():
        on_device = str(event.device_type).endswith("CUDA")
        kind = ("triton" if event.name.startswith("triton_") else "other kernel") if on_device else event.name
        if on_device or kind.startswith("aten::"):
            found[kind] = found.get(kind, 0) + 1
    return found


def _python_costs() -> dict[str, float]:
    begin = time.perf_counter()
    for _ in range(100_000):
        time.perf_counter()
    return {"clock": round((time.perf_counter() - begin) * 10, 4)}


# --- the command ------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> None:
    """Start all, let them through one by one, and keep what they say."""
    out: Path = options.output.resolve()
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="host-steps-"))
    extra = ("--device", options.device, *(("--tiny",) if options.tiny else ()))
    names: Sequence[str] = options.names or PROGRAMS
    own = ("-m", __spec__.name)

    def jobs(round_: int) -> list[Job]:
        return [Job(f"{name}#{round_}", (*own, "program", f"{name}#{round_}", *extra), 20.0) for name in names]

    host = Job("host", (*CALLS, "host", "--out", str(out), *extra), 40.0)
    kinds = Job("kinds", (*own, "kinds", *extra), 30.0)
    apart = {
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
        "TORCHINDUCTOR_CACHE_DIR": str(work / "again"),
        "TRITON_CACHE_DIR": str(work / "again-triton"),
    }
    kinds.environment["TORCHINDUCTOR_COMPILE_THREADS"] = "4"
    second = jobs(2)
    for job in second:  # compiled apart, so that neither waits for the other's locks
        job.environment |= apart
    wave = Wave([*jobs(1), host, kinds, *second], work, out, cores=os.cpu_count() or 1)
    wave.wait_ready(options.compile_limit)
    answers: dict[str, Any] = {}
    for job in wave.jobs:
        wave.pass_one(job)
        answers[job.name] = job.answer
        (out / "host_steps.json").write_text(json.dumps(answers))
    wave.finish(5)


def main() -> None:
    """Measure, or one part of it behind the gate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "program", "kinds"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("-o", "--output", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--compile-limit", type=float, default=60.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_intermixed_args()
    if options.what == "measure":
        measure(options)
    elif options.what == "kinds":
        leave_gate("kinds", run_kinds(options.device))
    else:
        (name,) = options.names
        answer = run_program(name, options.device, tiny=options.tiny)
        answer["median_us"] = statistics.median(piece["issued_us"] for piece in answer["pieces"])
        leave_gate(name, answer)


if __name__ == "__main__":
    main()
