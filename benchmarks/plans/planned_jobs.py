"""Jobs of ``job_programs.py``, planned without a GPU and without a word: for those who listen in on the pricing."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from benchmarks.shared.places import ROOT
from torchledger.cli import main as torchledger

SCRIPTS = ROOT / "benchmarks" / "jobs" / "stranger_jobs"


def plan_arguments(strategy: str, size: str, device: str, *options: str) -> list[str]:
    """What ``torchledger`` is given to plan a strategy for two ranks, or for one where each rank is for itself.

    The size of the strategy ``script`` is the name of one of ``stranger_jobs``.
    """
    world = "1" if strategy.startswith("alone") else "2"
    if strategy == "script":
        script = [str(SCRIPTS / f"{size}.py")]
    else:
        script = ["-m", "benchmarks.jobs.job_programs", strategy, "--size", size, "--device", "cuda", "--steps", "12"]
    return ["plan", "--json", "--device", device, "--world", world, *options, *script]


def plan_job(strategy: str, size: str, device: str) -> dict[str, Any]:
    """Plan it in this process: the ``step`` of the plan's JSON."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        torchledger(plan_arguments(strategy, size, device))
    step: dict[str, Any] = json.loads(said.getvalue())["step"]
    return step
