"""Keeps one worker process going: a lost device or a crash costs one shape, and a fresh process goes on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchledger.errors import SampleError
from torchledger.sampling.journal import Journal, journal_prefix, read_journals

log = logging.getLogger(__name__)

MOST_DEATHS_WITHOUT_PROGRESS = 5


@dataclass(frozen=True)
class WorkerOptions:
    """How workers measure: on which kind of device, in groups of how many, for how long."""

    device: str = "cuda"
    group_size: int | None = None
    budget_s: float | None = None
    allow_mixed: bool = False
    adaptive: bool = False
    until_error_pct: float | None = None


def supervise(
    folder: str | os.PathLike[str],
    options: WorkerOptions,
    *,
    part: int = 1,
    parts: int = 1,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a worker over its part until nothing is left to measure; returns how often it had to be started again.

    ``environment`` is added to the worker's, to give it its own GPU. Raises ``SampleError`` with the worker's own words
    if it refuses, or if it dies again and again without finishing a point.
    """
    folder = Path(folder)
    restarts = fruitless = 0
    while True:
        before = len(read_journals(folder, samples=False).samples)
        code, process, words = _run(folder, options, part, parts, environment or {})
        if code == 0:
            return restarts
        if code == 1:
            raise SampleError(words or f"the worker of part {part} of {parts} failed and said nothing.")
        state = read_journals(folder, samples=False)
        prefix = journal_prefix(process)
        lost = [p for name, points in state.in_flight.items() if name.startswith(prefix) for p in points]
        log.warning("the worker of part %d of %d died (%s); starting it again", part, parts, _cause(code))
        if lost:
            with Journal(folder, None) as journal:
                journal.fault(lost, _cause(code))
        fruitless = 0 if len(state.samples) > before else fruitless + 1
        restarts += 1
        if fruitless >= MOST_DEATHS_WITHOUT_PROGRESS:
            raise SampleError(
                f"the worker of part {part} of {parts} died {fruitless} times without finishing a point "
                f"({_cause(code)}). Its last words: {words or 'none'}"
            )


def _run(
    folder: Path, options: WorkerOptions, part: int, parts: int, environment: Mapping[str, str]
) -> tuple[int, int, str]:
    """Exit code, process id and last words of one worker."""
    command = [sys.executable, "-m", "torchledger.sampling.worker", str(folder), "--device", options.device]
    command += ["--part", str(part), "--parts", str(parts), "--parent", str(os.getpid())]
    if options.group_size is not None:
        command += ["--group-size", str(options.group_size)]
    if options.budget_s is not None:
        command += ["--budget-s", str(options.budget_s)]
    if options.allow_mixed:
        command.append("--allow-mixed")
    if options.adaptive:
        command.append("--adaptive")
    if options.until_error_pct is not None:
        command += ["--until-error", str(options.until_error_pct)]
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=stderr)
        try:
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        stderr.seek(0)
        text = stderr.read().decode(errors="replace").strip()
    for line in text.splitlines():
        log.info("worker %d: %s", part, line)
    words = text.rsplit("torchledger: ", 1)[-1] if "torchledger: " in text else "\n".join(text.splitlines()[-3:])
    return code, process.pid, words


def _cause(code: int) -> str:
    if code == 75:
        return "device fault"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
