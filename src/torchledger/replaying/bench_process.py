"""The processes in which launches run alone: a new one takes over from one that is lost."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torchledger.replaying.bench_worker import JOB, TRUST, Job, Task, job_text
from torchledger.store.seal import seal

Progress = Callable[[int, int, str], None]
"""Told timings done, their number, and of which launch the last was."""


def run_tasks(
    job: Job,
    *,
    timeout_s: float,
    deadline: float | None = None,
    progress: Progress = lambda done, total, what: None,
) -> dict[str, dict[str, Any]]:
    """The answers of a worker process by task; a new process takes over what a lost one had not done."""
    answers: dict[str, dict[str, Any]] = {}
    told = 0

    def tell(task_id: str) -> None:
        nonlocal told
        told += 1
        progress(min(told, len(job.tasks)), len(job.tasks), task_id)

    progress(0, len(job.tasks), "")
    remaining = list(job.tasks)
    suspects: set[str] = set()
    while remaining and (deadline is None or time.monotonic() < deadline):
        # Of tasks that were lost together nobody knows which one it was: they are tried again one by one.
        now = [task for task in remaining if task.task_id in suspects] or remaining
        together = 1 if suspects else job.together
        part = replace(job, tasks=tuple(now), together=together, kernels=_kernels_of(now, job.kernels))
        done, lost, end = _run_worker(part, timeout_s, deadline, tell)
        answers |= done
        if end.status == "ended" and deadline is not None and time.monotonic() >= deadline:
            break
        lost = [task_id for task_id in lost if task_id not in answers]
        if len(lost) == 1:
            answers[lost[0]] = {"status": end.status, "reason": end.reason}
        elif lost:
            suspects.update(lost)
        elif not done:
            for task in now:
                answers[task.task_id] = {"status": "failed", "reason": end.reason or "the worker could not start"}
        suspects -= set(answers)
        remaining = [task for task in remaining if task.task_id not in answers]
    return answers


def _kernels_of(tasks: Sequence[Task], kernels: Mapping[str, str]) -> dict[str, str]:
    return {key: kernels[key] for task in tasks for key in task.kernels.values()}


@dataclass(frozen=True)
class WorkerEnd:
    """How a worker's process came to its end, and in words where it was not its own."""

    status: Literal["ended", "timed_out", "crashed"] = "ended"
    reason: str = ""


def _run_worker(
    job: Job, timeout_s: float, deadline: float | None, tell: Callable[[str], None]
) -> tuple[dict[str, dict[str, Any]], list[str], WorkerEnd]:
    """Answers of one process, the tasks that it was lost in (if it was), and how."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        text = job_text(job)
        # The file has no name, and what is in it a seal: nothing can come between the check of the ledger and the run.
        stdin.write((seal(JOB, text) or "").encode() + b"\n" + text)
        stdin.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "torchledger.replaying.bench_worker", *([TRUST] if job.is_trusted else [])],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=_worker_environment(),
        )
        try:
            done, current, timed_out = _listen(process, timeout_s, deadline, tell)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if timed_out and deadline is not None and time.monotonic() >= deadline:
            return done, [], WorkerEnd()  # the time for all was over, which says nothing of the one that was running
        if timed_out:
            return done, current, WorkerEnd("timed_out", f"it took longer than {timeout_s:g} s (compiling included)")
        if process.returncode in (0, 3):
            return done, [], WorkerEnd()
        stderr.seek(0)
        tail = stderr.read().decode(errors="replace").strip().splitlines()[-1:] or [""]
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        return done, current, WorkerEnd("crashed", f"its process was lost ({how}) {tail[0][:300]}".strip())


def _listen(
    process: subprocess.Popen[bytes], timeout_s: float, deadline: float | None, tell: Callable[[str], None]
) -> tuple[dict[str, dict[str, Any]], list[str], bool]:
    done: dict[str, dict[str, Any]] = {}
    current: list[str] = []
    for line in _lines(process, timeout_s, deadline):
        if line is None:
            return done, current, True
        message = json.loads(line)
        if "start" in message:
            current = message["start"]
        else:
            done[task_id := message.pop("done")] = message
            tell(task_id)
    return done, [task_id for task_id in current if task_id not in done], False


def _lines(process: subprocess.Popen[bytes], timeout_s: float, deadline: float | None) -> Iterator[bytes | None]:
    """Lines of the worker's answers; ``None``, as the last, when it is silent for too long."""
    assert process.stdout is not None
    buffered = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            patience = timeout_s if deadline is None else min(timeout_s, max(deadline - time.monotonic(), 0.1))
            if not selector.select(patience):
                yield None
                return
            piece = os.read(process.stdout.fileno(), 65536)
            if not piece:
                return
            *lines, buffered = (buffered + piece).split(b"\n")
            yield from lines


def _worker_environment() -> dict[str, str]:
    """The caller's, with this package importable and without what would capture the worker."""
    import torchledger

    folder = str(Path(torchledger.__file__).parent.parent)
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {name: value for name, value in os.environ.items() if name != "TORCHLEDGER_CAPTURE"}
    return environment | {"PYTHONPATH": os.pathsep.join(paths)}
