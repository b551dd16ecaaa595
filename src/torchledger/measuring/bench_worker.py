"""The process that runs kernels for the bench: it may be lost to one of them, and the others go on in the next.

``python -m torchledger.measuring.bench_worker TASKS.json`` reads tasks and writes one JSON object a line on what was
its stdout: ``{"start": id}`` before a task, ``{"done": id, ...}`` after it. What kernels print goes to stderr.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torchledger.measuring.bench_timing import Budget, Times, time_call


@dataclass(frozen=True)
class Task:
    """One call to time: the text of its module, the bytes of its tensors, and what to try."""

    task_id: str
    device: str
    head: str
    body: str
    input_bytes: Mapping[str, int] = field(default_factory=dict)
    mode: str = "run"
    states: tuple[str, ...] = ("warm", "cold")
    saved_inputs: str | None = None


@dataclass(frozen=True)
class Job:
    """Tasks, when to stop each, and the settings of the run that they must share."""

    tasks: tuple[Task, ...]
    budget: Budget
    settings: Mapping[str, str] = field(default_factory=dict)
    num_threads: int | None = None


class OutOfMemory(Exception):
    """The inputs do not fit; the message holds the sizes."""


def write_job(job: Job, path: Path) -> None:
    """The job as a file for the worker."""
    path.write_text(json.dumps(asdict(job)))


def main(path: str) -> None:
    """Do the tasks of a file, one after another."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    plain = json.loads(Path(path).read_text())
    tasks = [Task(**task) for task in plain["tasks"]]
    budget = Budget(**plain["budget"])
    _apply_settings(plain["settings"], plain["num_threads"])
    # Compiling starts for all at once, so that the pool of compilers is never idle while the device works.
    started = {task.task_id: _start(task) for task in tasks}
    for task in tasks:
        _answer(answers, {"start": task.task_id})
        fatal = False
        try:
            answer = _do(task, started.pop(task.task_id), budget)
        except Exception as error:  # any kernel's own failure is the answer to its task
            answer, fatal = _failure(error)
        _answer(answers, {"done": task.task_id, **answer})
        if fatal:
            sys.exit(3)
        gc.collect()


def _answer(answers: Any, content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


def _apply_settings(settings: Mapping[str, str], num_threads: int | None) -> None:
    import torch

    precision = settings.get("float32_matmul_precision")
    if precision in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = settings.get("cudnn_benchmark") == "True"
    if settings.get("deterministic_algorithms") == "True":
        torch.use_deterministic_algorithms(True)
    if num_threads and not torch.cuda.is_available():
        torch.set_num_threads(num_threads)


def _start(task: Task) -> dict[str, Any] | Exception:
    """Execute the kernels' definitions, which starts their compilation."""
    from torchledger._torch.kernels import with_all_configurations, with_max_autotune

    change: Callable[[str], str] = {
        "configurations": with_all_configurations,
        "max_autotune": with_max_autotune,
    }.get(task.mode, lambda source: source)
    namespace: dict[str, Any] = {"__name__": "torchledger_bench"}
    try:
        exec(compile(change(task.head), f"<kernels of {task.task_id}>", "exec"), namespace)
    except Exception as error:  # reported when the task's turn comes
        return error
    return namespace


def _do(task: Task, namespace: dict[str, Any] | Exception, budget: Budget) -> dict[str, Any]:
    import torch

    from torchledger._torch.kernels import (
        OneLauncher,
        autotuners,
        describe_configuration,
        launch_facts,
        wait_for_kernels,
    )
    from torchledger.measuring.standalone import MAKE_TENSOR

    if isinstance(namespace, Exception):
        raise namespace
    _check_memory(task)
    wait_for_kernels(namespace)
    exec(compile(MAKE_TENSOR + task.body, f"<call of {task.task_id}>", "exec"), namespace)
    if task.device.startswith("cuda"):
        torch.cuda.set_device(torch.device(task.device))
    tuners = list(autotuners(namespace).values())
    with torch.no_grad():
        inputs = namespace["make_inputs"]()
        notes = [_load_saved(inputs, task.saved_inputs)] if task.saved_inputs else []
        call = namespace["call"]
        values = list(inputs.values())
        prepare = (lambda: namespace["prepare"](**inputs)) if "zero_" in task.body else None

        def once() -> Any:
            return call(*values)

        def timed() -> Times:
            return time_call(once, prepare, task.device, budget, task.states)  # type: ignore[arg-type]

        if task.mode == "configurations" and len(tuners) == 1:
            (tuner,) = tuners
            tuner.precompile()
            found = []
            for launcher in list(tuner.launchers):
                with OneLauncher(tuner, launcher):
                    times = timed()
                    found.append({**_plain(times), **launch_facts(tuner)})
            return {"status": "ok", "configurations": found}
        times = timed()
        facts = launch_facts(tuners[0]) if len(tuners) == 1 else {}
        if len(tuners) > 1:
            chosen = [(name, tuner.launchers) for name, tuner in autotuners(namespace).items()]
            parts = [f"{name}: {describe_configuration(found[0].config)}" for name, found in chosen if found]
            facts = {"configuration": "; ".join(parts)}
        times.notes += notes
        return {"status": "ok", **_plain(times), **facts}


def _plain(times: Times) -> dict[str, Any]:
    return {"clock": times.clock, "warmup": times.warmup, "samples_us": times.samples_us, "notes": times.notes}


def _load_saved(inputs: dict[str, Any], path: str) -> str:
    """Put captured values into the tensors that were made for them; says what came of it."""
    from safetensors.torch import load_file

    if not Path(path).is_file():
        return f"captured inputs are gone ({path}): made-up ones were used"
    found = 0
    for key, saved in load_file(path).items():
        moment, _, name = key.partition(".")
        tensor = inputs.get(name)
        if moment != "before" or tensor is None or not hasattr(tensor, "copy_"):
            continue
        if tensor.numel() == saved.numel() and tensor.dtype == saved.dtype:
            tensor.copy_(saved.reshape(tensor.shape))
            found += 1
    return f"on {found} captured inputs"


def _check_memory(task: Task) -> None:
    needed = sum(task.input_bytes.values())
    free = _free_bytes(task.device)
    if free is None or needed <= 0.9 * free:
        return
    largest = sorted(task.input_bytes.items(), key=lambda item: -item[1])[:3]
    sizes = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in largest)
    raise OutOfMemory(
        f"its tensors take {needed / 1e9:.2f} GB (largest: {sizes}); {free / 1e9:.2f} GB are free on {task.device}. "
        f"At most {0.9 * free / 1e9:.2f} GB would fit: free the device, or record the model at a smaller batch."
    )


def _free_bytes(device: str) -> int | None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _failure(error: Exception) -> tuple[dict[str, Any], bool]:
    """The answer that reports an error, and whether the device is lost with it."""
    text = str(error).strip()
    first = text.splitlines()[0][:500] if text else ""
    if isinstance(error, OutOfMemory) or type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return {"status": "out_of_memory", "reason": first or "out of memory"}, False
    fatal = type(error).__name__ == "AcceleratorError" or "CUDA error" in text
    return {"status": "crashed" if fatal else "failed", "reason": f"{type(error).__name__}: {first}"}, fatal


if __name__ == "__main__":
    main(sys.argv[1])
