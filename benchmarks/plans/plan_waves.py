"""Jobs of two GPUs, planned without one, beside what ``job_waves_cuda.py`` measured of them.

    python -m benchmarks.plans.plan_waves WAVE.json... --device H100 [--plans FOLDER]

WAVE.json is the ``jobs.json`` of a folder of ``job_waves_cuda.py --plain``; the ``host.json`` beside it (or
``NAME_host.json`` beside ``NAME.json``) is the host that was measured. Each job is planned twice, for a usual host and
for that one; ``--plans`` keeps the plans, and what is there is not planned again. Prints a table, and mean and worst
errors of the steps of two ranks, in all and by what decides them. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.plans.planned_jobs import plan_arguments
from benchmarks.shared.places import child_environment

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("data/h100/jobs_drawn8_torch2.11.json", "--device", "H100", "--plans", "{out}"),)


@dataclass(frozen=True)
class Compared:
    """A job: its step as planned for a usual host and for the measured one, and as it was; milliseconds."""

    strategy: str
    size: str
    usual: dict[str, Any]
    by_host: dict[str, Any] | None
    own_ms: float
    hosts_ms: tuple[float, ...]
    peak_bytes: int

    @property
    def decided_by(self) -> str:
        """Host or device, by the plan for a usual host."""
        return "host" if self.usual["step"]["decided_by"] == "host" else "device"

    @property
    def error(self) -> float:
        """Of the step for a usual host."""
        return float(self.usual["step"]["duration_us"] / 1e3 / self.own_ms - 1)

    @property
    def error_by_host(self) -> float | None:
        """Of the step for the measured host."""
        return self.by_host["step"]["duration_us"] / 1e3 / self.own_ms - 1 if self.by_host is not None else None

    def row(self) -> str:
        """A line of the table."""
        step, both = self.usual["step"], (self.error, self.error_by_host)
        by_host = f", {self.by_host['step']['duration_us'] / 1e3:.1f}" if self.by_host is not None else ""
        errors = ", ".join(f"{each:+.1%}" for each in both if each is not None)
        peak = self.usual["memory"]["peak_allocated_bytes"] / self.peak_bytes - 1
        hosts = ", ".join(f"{each:.0f}" for each in self.hosts_ms)
        cells = (
            *(self.strategy, self.size, f"{step['duration_us'] / 1e3:.1f}{by_host}", f"{self.own_ms:.1f}", errors),
            *(self.decided_by, f"{step['host_us'] / 1e3:.0f}", hosts),
            *(f"{self.usual['communication']['exposed_us'] / 1e3:.1f}", f"{peak:+.2%}"),
        )
        return f"| {' | '.join(cells)} |"


def planned(strategy: str, size: str, device: str, host: Path | None, plans: Path) -> dict[str, Any]:
    """The plan of a job as JSON; that of ``plans`` where it is there."""
    kept = plans / f"{strategy}-{size}{'' if host is None else '-host'}.json"
    if not kept.exists():
        given = ("--host", str(host)) if host is not None else ()
        command = [sys.executable, "-m", "torchledger", *plan_arguments(strategy, size, device, *given)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=child_environment())
        if done.returncode:
            raise SystemExit(f"{strategy}:{size} was not planned: {done.stderr[-500:]}")
        kept.write_text(done.stdout)
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def compared(wave: Path, device: str, plans: Path) -> list[Compared]:
    """All jobs of a wave that were measured."""
    beside = (wave.with_name("host.json"), wave.with_name(f"{wave.stem}_host.json"))
    host = next((path for path in beside if path.exists()), None)
    found = []
    for case, row in json.loads(wave.read_text()).items():
        own = row.get("plain", row)
        strategy, size = case.split(":")
        if own.get("own_ms") is None:
            continue
        phases = [
            sum(value for key, value in rank.items() if key.endswith("_host_ms") and not key.startswith("between"))
            for rank in own["ranks"]
        ]
        usual = planned(strategy, size, device, None, plans)
        by_host = planned(strategy, size, device, host, plans) if host is not None else None
        peak = max(rank["peak_allocated_bytes"] for rank in own["ranks"])
        one = Compared(strategy, size, usual, by_host, own["own_ms"], tuple(phases), peak)
        print(one.row(), flush=True)
        found.append(one)
    return found


def line(name: str, jobs: Sequence[Compared]) -> str:
    """Errors of some steps."""
    off = [abs(job.error) for job in jobs]
    by_host = [abs(job.error_by_host) for job in jobs if job.error_by_host is not None]
    said = f"{name}: {len(off)} steps, mean error {statistics.fmean(off):.1%}, worst {max(off):.1%}"
    also = f"; by the measured host {statistics.fmean(by_host):.1%}, {max(by_host):.1%}" if by_host else ""
    return said + also


def main() -> None:
    """Plan, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("waves", type=Path, nargs="+")
    parser.add_argument("--device", required=True)
    parser.add_argument("--plans", type=Path)
    arguments = parser.parse_args()
    print(
        "| program | size | planned, ms (by the measured host) | measured | errors | decided by | host planned, ms ",
        end="",
    )
    print("| hosts measured | exposed communication planned, ms | peak of memory |\n|" + "---|" * 10, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        plans = arguments.plans if arguments.plans is not None else Path(scratch)
        plans.mkdir(parents=True, exist_ok=True)
        jobs = [job for wave in arguments.waves for job in compared(wave, arguments.device, plans)]
    ranks = [job for job in jobs if not job.strategy.startswith("alone")]
    print(line("\nall", ranks))
    for decider in ("device", "host"):
        some = [job for job in ranks if job.decided_by == decider]
        if some:
            print(line(f"decided by the {decider}", some))


if __name__ == "__main__":
    main()
