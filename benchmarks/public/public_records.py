"""Steps that a speedrun measured on eight H100s, planned from its own scripts without a GPU.

    python -m benchmarks.public.public_records CLONE [NAME ...] [--plans DIR] [--output FILE.md]

CLONE is a copy of github.com/KellerJordan/modded-nanogpt. Each of its records (``records/track_1_short/NAME``) keeps a
log that begins with the script which ran, and says how long a step took (``step_avg``), on which card and with which
torch. The script is planned as it is, on tokens that are drawn here in the format of its data, for a world of eight;
nothing is fitted to a record. Plans that ``--plans`` holds already are not made again.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.limited import run_limited

LIMIT_S = 600.0
WORLD = 8
HEAD = (
    "| record | torch of the record | step ms, measured | planned | error | interval holds | decided by | exposed "
    "communication ms |\n|---|---|---|---|---|---|---|---|"
)

_LINE = re.compile(r"^={50,}\n", re.MULTILINE)
_STEP = re.compile(r"step_avg:([\d.]+)ms")
_TORCH = re.compile(r"[Pp]y[Tt]orch (\d\S*)")
_CARD = re.compile(r"\|\s+(\d)\s+(NVIDIA \S+)")
_MAGIC, _VERSION, _TOKENS, _VOCABULARY = 20240520, 1, 3_000_000, 50257


@dataclass(frozen=True)
class Record:
    """A record's script, and what its log says: the mean step in milliseconds, on how many cards, with which torch."""

    name: str
    script: str
    step_ms: float
    cards: tuple[str, ...]
    torch: str


@dataclass(frozen=True)
class Row:
    """A record beside its plan, in milliseconds."""

    record: Record
    step_ms: float
    low_ms: float
    high_ms: float
    exposed_ms: float
    decides: str

    @property
    def error(self) -> float:
        """Of the planned step, as a share of the measured one."""
        return self.step_ms / self.record.step_ms - 1

    @property
    def holds(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.low_ms <= self.record.step_ms <= self.high_ms


def records(clone: Path) -> Iterator[Record]:
    """Of each record the first log that holds a script of several ranks and a step's time."""
    for folder in sorted((clone / "records" / "track_1_short").iterdir()):
        for log in sorted([*folder.glob("*.txt"), *folder.glob("*.log")]):
            text = log.read_text(errors="replace")
            parts = _LINE.split(text)
            scripts = [part for part in parts if "import torch" in part and "init_process_group" in part]
            steps, torch = _STEP.findall(text), _TORCH.search(text.partition(scripts[0])[2]) if scripts else None
            if scripts and steps and torch:
                cards = dict(_CARD.findall(text))
                yield Record(folder.name, scripts[0], float(steps[-1]), tuple(cards.values()), torch.group(1))
                break


def make_tokens(folder: Path) -> None:
    """Shards of random tokens where the scripts look for theirs."""
    import numpy as np

    drawn = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train_000001", "train_000002", "val_000000"):
        header = np.zeros(256, dtype=np.int32)
        header[:3] = _MAGIC, _VERSION, _TOKENS
        tokens = drawn.integers(0, _VOCABULARY, _TOKENS).astype(np.uint16)
        (folder / f"fineweb_{name}.bin").write_bytes(header.tobytes() + tokens.tobytes())


def plan(record: Record, folder: Path) -> str:
    """Plan a record into ``folder / NAME.job``; returns what came of it."""
    begin = time.monotonic()
    script = folder / f"{record.name}.py"
    script.write_text(record.script)
    output = str(folder / f"{record.name}.ledger")
    command = [sys.executable, "-m", "torchledger", "plan", "-f", "--device", "H100", "--world", str(WORLD)]
    code, said = run_limited([*command, "-o", output, script.name], LIMIT_S, folder=folder, HF_HUB_OFFLINE="1")
    last = said.strip().splitlines()[-1:] if code else []
    return f"{record.name}: exit {code} after {time.monotonic() - begin:.0f} s {' '.join(last)}"


def row_of(record: Record, job: Path) -> Row:
    """A record beside the plan that a job keeps."""
    from torchledger.jobs.planned import plan_of
    from torchledger.store.job import read_head

    step = plan_of(read_head(job))
    assert step is not None
    return Row(
        record,
        step.duration_us / 1e3,
        step.low_us / 1e3,
        step.high_us / 1e3,
        step.exposed_us / 1e3,
        step.decides or "",
    )


def line_of(row: Row) -> str:
    """A row of the table."""
    said = [
        row.record.name,
        row.record.torch,
        f"{row.record.step_ms:.1f}",
        f"{row.step_ms:.1f} ({row.low_ms:.0f} to {row.high_ms:.0f})",
        f"{row.error:+.1%}",
        "yes" if row.holds else "no",
        row.decides,
        f"{row.exposed_ms:.1f}",
    ]
    return f"| {' | '.join(said)} |"


def summary(rows: Sequence[Row]) -> str:
    """What all records come to."""
    errors = [abs(row.error) for row in rows]
    mean, median = statistics.mean(errors), statistics.median(errors)
    return (
        f"{len(rows)} records: the step errs by {mean:.1%} in the mean, {median:.1%} in the median, "
        f"{max(errors):.1%} at worst; the interval holds {sum(row.holds for row in rows)}."
    )


def main() -> None:
    """Plan, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clone", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--plans", type=Path, help="plans that are there already, NAME.job; others are added")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--list", action="store_true", help="only say what the logs say")
    arguments = parser.parse_args()
    found = [each for each in records(arguments.clone) if each.name in (arguments.names or [each.name])]
    if arguments.list:
        told = {each.name: {"step_ms": each.step_ms, "cards": each.cards, "torch": each.torch} for each in found}
        print(json.dumps(told, indent=1))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = (arguments.plans or Path(made)).resolve()
        if not (folder / "data" / "fineweb10B").exists():
            make_tokens(folder / "data" / "fineweb10B")
        rows = []
        for record in found:
            job = folder / f"{record.name}.job"
            if not job.exists():
                print(plan(record, folder), flush=True)
            if job.exists():
                rows.append(row_of(record, job))
                print(line_of(rows[-1]), flush=True)
    text = "\n".join([HEAD, *map(line_of, rows), "", summary(rows) if rows else "nothing was planned", ""])
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
