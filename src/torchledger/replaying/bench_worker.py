"""The process that runs kernels for the bench: it may be lost to one of them, and the others go on in the next.

``python -m torchledger.replaying.bench_worker`` reads a job from stdin, a seal before it, and executes nothing of it
unless this user sealed it (or said ``--trust``). It writes one JSON object a line on what was its stdout:
``{"start": [ids]}`` before tasks that are timed together, ``{"done": id, ...}`` after each. What kernels print goes to
stderr.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torchledger._torch.errors import is_device_fault, is_out_of_memory
from torchledger.replaying.bench_timing import Budget, Subject, Times, clock_of
from torchledger.store.seal import is_sealed_here


@dataclass(frozen=True)
class Task:
    """One call to time: the text of its module, the bytes of its tensors, and what to try.

    ``kernels`` are keys of the job's kernels by the name that the text knows them by. In state ``"step"`` the text is
    that of a lead-in, which starts from a cold cache if ``is_flushed``.
    """

    task_id: str
    device: str
    preamble: str
    body: str
    input_bytes: Mapping[str, int] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)
    mode: str = "run"
    states: tuple[str, ...] = ("warm", "cold")
    saved_inputs: str | None = None
    is_flushed: bool = True


@dataclass(frozen=True)
class Job:
    """Tasks, the definitions of their kernels, when to stop each, and the settings of the run that they must share.

    On CUDA up to ``together`` tasks share a recording.
    """

    tasks: tuple[Task, ...]
    budget: Budget
    kernels: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    num_threads: int | None = None
    together: int = 16
    is_trusted: bool = False


JOB = "bench job"
"""What a job is sealed as."""

TRUST = "--trust"


class OutOfMemory(Exception):
    """The inputs do not fit; the message holds the sizes."""


def job_text(job: Job) -> bytes:
    """The job as the worker reads it."""
    return json.dumps(asdict(job)).encode()


def main(arguments: Sequence[str]) -> None:
    """Do the tasks of the job on stdin, some at a time."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    found, _, text = sys.stdin.buffer.read().partition(b"\n")
    if TRUST not in arguments and not is_sealed_here(found.decode(), JOB, text):
        sys.exit("the job carries no valid seal: nothing of it is run")
    plain = json.loads(text)
    tasks = [Task(**task) for task in plain["tasks"]]
    budget = Budget(**plain["budget"])
    _apply_settings(plain["settings"], plain["num_threads"])
    kernels = Kernels(plain["kernels"])
    # Compiling starts for all at once, so that the pool of compilers is never idle while the device works.
    for task in tasks:
        kernels.start(task)
    gc.freeze()  # what lives to the end need not be looked through after each batch
    for batch in batches(tasks, plain["together"]):
        _answer(answers, {"start": [task.task_id for task in batch]})
        lost = False
        for task_id, answer, is_fatal in _do(batch, kernels, budget):
            _answer(answers, {"done": task_id, **answer})
            lost = lost or is_fatal
        if lost:
            sys.exit(3)
        gc.collect()


def batches(tasks: Sequence[Task], together: int, most_bytes: int = 8 * 10**9) -> Iterator[list[Task]]:
    """Tasks that may share a recording: of one CUDA device, with one configuration each, and small enough together."""
    batch: list[Task] = []
    size = 0
    for task in tasks:
        needed = sum(task.input_bytes.values())
        is_alone = task.mode != "run" or not task.device.startswith("cuda")
        joins = batch and batch[-1].device == task.device and batch[-1].mode == "run" and not is_alone
        if batch and not (joins and len(batch) < together and size + needed <= most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += needed
    if batch:
        yield batch


class Kernels:
    """Kernels of the job, compiled once however many tasks call them."""

    def __init__(self, definitions: Mapping[str, str]) -> None:
        self._definitions = definitions
        self._preambles: dict[str, dict[str, Any]] = {}
        self._started: dict[tuple[str, str], dict[str, Any] | Exception] = {}
        self._finished: set[tuple[str, str]] = set()

    def start(self, task: Task) -> None:
        """Execute the definitions, which starts their compilation; what they raise is kept for the task's turn."""
        from torchledger._torch.kernels import with_all_configurations, with_max_autotune

        change: Callable[[str], str] = {
            "configurations": with_all_configurations,
            "max_autotune": with_max_autotune,
        }.get(task.mode, lambda source: source)
        for key in task.kernels.values():
            if (task.mode, key) in self._started:
                continue
            try:
                # A kernel may be made of others of its task, which were started before it.
                made = self._preamble(task) | self._objects(task)
                exec(compile(change(self._definitions[key]), f"<kernel {key}>", "exec"), made)
                self._started[task.mode, key] = made
            except Exception as error:  # reported when the task's turn comes
                self._started[task.mode, key] = error

    def namespace(self, task: Task) -> dict[str, Any]:
        """The preamble's names and the finished kernels; raises what a definition raised."""
        from torchledger._torch.kernels import wait_for_kernels

        namespace = dict(self._preamble(task))
        for name, key in task.kernels.items():
            made = self._started[task.mode, key]
            if isinstance(made, Exception):
                raise made
            if (task.mode, key) not in self._finished:
                wait_for_kernels(made)
                self._finished.add((task.mode, key))
            namespace[name] = made[name]
        return namespace

    def _objects(self, task: Task) -> dict[str, Any]:
        found = {}
        for name, key in task.kernels.items():
            made = self._started.get((task.mode, key))
            if isinstance(made, dict):
                found[name] = made[name]
        return found

    def _preamble(self, task: Task) -> dict[str, Any]:
        if task.preamble not in self._preambles:
            namespace: dict[str, Any] = {"__name__": "torchledger_bench"}
            exec(compile(task.preamble, "<preamble>", "exec"), namespace)
            self._preambles[task.preamble] = namespace
        return self._preambles[task.preamble]


def _answer(answers: Any, content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


def _apply_settings(settings: Mapping[str, str], num_threads: int | None) -> None:
    import torch

    precision = settings.get("float32_matmul_precision")
    if precision in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(precision)
    if settings.get("cudnn_allow_tf32") in ("True", "False"):
        torch.backends.cudnn.allow_tf32 = settings["cudnn_allow_tf32"] == "True"
    torch.backends.cudnn.benchmark = settings.get("cudnn_benchmark") == "True"
    if settings.get("deterministic_algorithms") == "True":
        torch.use_deterministic_algorithms(True)
    if num_threads and not torch.cuda.is_available():
        torch.set_num_threads(num_threads)


@dataclass
class _Ready:
    """A task whose kernels and tensors exist."""

    task: Task
    subject: Subject
    tuners: Mapping[str, Any]
    notes: list[str]


def _do(batch: Sequence[Task], kernels: Kernels, budget: Budget) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """The answer to each task, and whether the device is lost with it (then the rest has none)."""
    import torch

    device = batch[0].device
    if device.startswith("cuda"):
        torch.cuda.set_device(torch.device(device))
    clock = clock_of(device)
    ready: list[tuple[_Ready, Times]] = []
    with torch.no_grad():
        for task in batch:
            try:
                made = _make(task, kernels)
                if task.mode == "configurations" and len(made.tuners) == 1:
                    yield task.task_id, _every_configuration(made, clock, budget), False
                else:
                    ready.append((made, clock.warm_up(made.subject)))
            except Exception as error:  # any kernel's own failure is the answer to its task
                answer, is_fatal = _failure(error)
                yield task.task_id, answer, is_fatal
                if is_fatal:
                    return
        clock.measure([(made.subject, times) for made, times in ready], budget)
    for made, times in ready:
        yield made.task.task_id, _answer_of(made, times), False


def _make(task: Task, kernels: Kernels) -> _Ready:
    from torchledger._torch.kernels import autotuners
    from torchledger.replaying.standalone import MAKE_TENSOR

    _check_memory(task)
    namespace = kernels.namespace(task)
    own = {name: namespace[name] for name in task.kernels}
    exec(compile(MAKE_TENSOR + task.body, f"<call of {task.task_id}>", "exec"), namespace)
    states: Any = task.states
    if "step" in states:
        made = namespace["make_led_inputs"]()
        prepare = (lambda: namespace["prepare_led"](**made)) if "def prepare_led(**" not in task.body else None
        run = namespace["run_led"]
        subject = Subject(
            led=lambda mark: run(mark, **made),
            prepare=prepare,
            restore=restorer(made) if task.device.startswith("cuda") else None,
            states=states,
            is_flushed=task.is_flushed,
        )
        return _Ready(task, subject, {}, [])
    inputs = namespace["make_inputs"]()
    notes = [_load_saved(inputs, task.saved_inputs)] if task.saved_inputs else []
    call, values = namespace["call"], list(inputs.values())
    prepare = (lambda: namespace["prepare"](**inputs)) if "zero_" in task.body else None
    restore = restorer(inputs) if task.device.startswith("cuda") else None
    subject = Subject(call=lambda: call(*values), prepare=prepare, restore=restore, states=states)
    return _Ready(task, subject, autotuners(own), notes)


def restorer(inputs: Mapping[str, Any], most_bytes: int = 10**9) -> Callable[[], None] | None:
    """What gives tensors the values back that they have now; ``None`` if there are none, or too large ones to copy."""
    import torch

    from torchledger._torch.tensors import copy_into

    storages = {}
    for value in inputs.values():
        if isinstance(value, torch.Tensor) and value.numel():
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage(), value.device
    flat = [torch.empty(0, dtype=torch.uint8, device=place).set_(storage) for storage, place in storages.values()]
    if not flat or sum(each.numel() for each in flat) > most_bytes:
        return None
    wide = [each.view(torch.int64) for each in flat if each.numel() % 8 == 0]
    groups = [wide, [each for each in flat if each.numel() % 8]]
    copies = [(group, [each.clone() for each in group]) for group in groups if group]

    def restore() -> None:
        for group, kept in copies:
            copy_into(group, kept)

    return restore


def _every_configuration(made: _Ready, clock: Any, budget: Budget) -> dict[str, Any]:
    from torchledger._torch.kernels import OneLauncher, launch_facts

    (tuner,) = made.tuners.values()
    tuner.precompile()
    found = []
    for launcher in list(tuner.launchers):
        with OneLauncher(tuner, launcher):
            times = clock.warm_up(made.subject)
            clock.measure([(made.subject, times)], budget)
            found.append({**_plain(times), **launch_facts(tuner)})
    return {"status": "ok", "configurations": found}


def _answer_of(made: _Ready, times: Times) -> dict[str, Any]:
    from torchledger._torch.kernels import describe_configuration, launch_facts

    if not times.samples_us or not all(times.samples_us.values()):
        reason = "no device time was recorded: the call ran nothing on the device, or records were lost"
        return {"status": "failed", "reason": reason}
    tuners = list(made.tuners.values())
    facts = launch_facts(tuners[0]) if len(tuners) == 1 else {}
    if len(tuners) > 1:
        chosen = [(name, tuner.launchers) for name, tuner in made.tuners.items()]
        parts = [f"{name}: {describe_configuration(found[0].config)}" for name, found in chosen if found]
        facts = {"configuration": "; ".join(parts)}
    times.notes += made.notes
    return {"status": "ok", **_plain(times), **facts}


def _plain(times: Times) -> dict[str, Any]:
    return {
        "clock": times.clock,
        "warmup": times.warmup,
        "samples_us": times.samples_us,
        "notes": times.notes,
        "clock_fell": times.clock_fell,
    }


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
    if not needed:
        return
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

        place = torch.device(device)
        kept = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
        return int(torch.cuda.mem_get_info(place)[0]) + kept
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
    fatal = is_device_fault(error)
    if isinstance(error, OutOfMemory) or (is_out_of_memory(error) and not fatal):
        return {"status": "out_of_memory", "reason": first or "out of memory"}, False
    return {"status": "crashed" if fatal else "failed", "reason": f"{type(error).__name__}: {first}"}, fatal


if __name__ == "__main__":
    main(sys.argv[1:])
