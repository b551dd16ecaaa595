"""Recorded jobs of two GPUs played again: does the simulation of streams make the measured step of the measured parts?

    python -m benchmarks.jobs.replay_jobs FOLDER_OF_JOBS [--output docs/results/replay.md]

Each rank's calls are launched when its host launched them, each with its own measured time on the device, each
collective with the time that it moved for (the shorter of both ranks' kernels: the rank that came last did not wait).
When kernels and collectives then run, and how long the step is, comes from the simulation alone. Times of kernels
beside collectives are measured there, so nothing is slowed once more.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchledger.nouns import Collective, RankActivity, Step, StepCall
from torchledger.planning.timeline import COMPUTE_STREAM, PlayedStep, Sharing, TimedEntry, play
from torchledger.store import open_ledger

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ()

Rank = tuple[Step, list[StepCall], list[Collective]]


def read_rank(path: Path) -> Rank:
    """A rank's step, its calls in the order in which the host made them, and its collectives."""
    with open_ledger(path) as ledger:
        step = ledger.read(Step)[-1]
        calls = [call for call in ledger.read(StepCall) if call.step == step.name and call.start_us is not None]
        found = [each for each in ledger.read(Collective) if each.step == step.name]
    return step, sorted(calls, key=lambda call: call.start_us or 0.0), found


def moving_us(ranks: Sequence[Rank]) -> list[float]:
    """Of each collective of the first recorded step, in order: the time of the rank that came last."""
    by_place: dict[int, list[float]] = {}
    for _, _, collectives in ranks:
        own = sorted((each for each in collectives if each.index == 0), key=lambda each: each.issued_ns)
        for place, each in enumerate(own):
            by_place.setdefault(place, []).append(each.duration_us or 0.0)
    return [min(by_place[place]) for place in sorted(by_place)]


def entries_of(calls: Sequence[StepCall], moving: Sequence[float]) -> list[TimedEntry]:
    """A rank's entries, launched as its host did."""
    entries: list[TimedEntry] = []
    launched_us, collective, gathered = 0.0, 0, list[int]()
    scattered: list[int] = []
    main = _main_stream(calls)
    for call in calls:
        begun = call.start_us or 0.0
        ended = begun + (call.host_us or 0.0)
        last = [k for k, entry in enumerate(entries) if entry.stream == COMPUTE_STREAM][-1:]
        if call.kind == "synchronization":
            if entries and "Device" in call.name:
                waited = tuple(_last_of_streams(entries))
                entries.append(
                    TimedEntry(call.name, "host", 0.0, "host", max(0.0, begun - launched_us), host_after=waited)
                )
            launched_us = ended
            continue
        if call.kind == "collective":
            if call.kernels == 0 or not call.samples_us:
                continue
            after = tuple(last)
            is_gather = "gather" in call.name
            (gathered if is_gather else scattered).append(len(entries))
            entries.append(
                TimedEntry(call.name, "communication", moving[collective], call.streams[0] if call.streams else "comm",
                           max(0.0, ended - launched_us), after, meets=("collective", (0, 1), collective))
            )  # fmt: skip
            collective += 1
            launched_us = max(launched_us, ended)
            continue
        device_us = call.samples_us[0] if call.samples_us else 0.0
        if device_us <= 0:
            continue
        waits: tuple[int, ...] = ()
        if "split_with_sizes_copy" in call.name and gathered:
            waits = (gathered.pop(0),)
        elif call.phase in ("clipping", "optimizer") and (scattered or gathered):
            waits = (*scattered, *gathered)
            scattered, gathered = [], []
        stream = COMPUTE_STREAM if not call.streams or call.streams[0] == main else call.streams[0]
        parts = max(1, call.kernels)
        for part in range(parts):
            moment = begun + (ended - begun) * (part + 1) / parts
            entries.append(
                TimedEntry(call.name, "compute", device_us / parts, stream, max(0.0, moment - launched_us),
                           waits if part == 0 else ())
            )  # fmt: skip
            launched_us = max(launched_us, moment)
    return entries


def _main_stream(calls: Sequence[StepCall]) -> str | None:
    streams = [call.streams[0] for call in calls if call.kind != "collective" and call.streams]
    return statistics.mode(streams) if streams else None


def _last_of_streams(entries: Sequence[TimedEntry]) -> list[int]:
    last = {entry.stream: place for place, entry in enumerate(entries) if entry.stream != "host"}
    return sorted(last.values())


def replay(path: Path) -> tuple[PlayedStep, Sequence[Rank]]:
    """A job's step, simulated from its parts."""
    ranks = [read_rank(each) for each in sorted(path.glob("rank*.ledger"))]
    moving = moving_us(ranks)
    return play({k: entries_of(calls, moving) for k, (_, calls, _) in enumerate(ranks)}, sharing=Sharing()), ranks


@dataclass(frozen=True)
class FirstStep:
    """What the trace says of the first recorded step of a rank, in microseconds."""

    wall_us: float
    compute_us: float
    exposed_us: float


def first_step(path: Path) -> FirstStep:
    """The first recorded step of a rank: its length, and the pieces that fill it."""
    with open_ledger(path) as ledger:
        activity = ledger.read(RankActivity)[-1]
    starts = [*(start - activity.start_ns for start in activity.step_start_ns), activity.wall_ns]
    begin, end = starts[0], starts[1]
    sums = [0, 0, 0]
    for start, length, kind in zip(activity.piece_start_ns, activity.piece_ns, activity.kind, strict=True):
        sums[kind] += max(0, min(start + length, end) - max(start, begin))
    return FirstStep((end - begin) / 1e3, sums[0] / 1e3, sums[1] / 1e3)


def main() -> None:
    """Replay, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [
        "| job | step of the slower rank, ms | simulated | error, % | rank | kernels, ms | simulated | exposed, ms |"
        " simulated |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(options.folder.glob("*.job")):
        if path.name.startswith("pp"):
            continue
        played, _ = replay(path)
        measured = [first_step(each) for each in sorted(path.glob("rank*.ledger"))]
        slower = max(each.wall_us for each in measured)
        for rank, own in enumerate(measured):
            line = played.ranks[rank]
            cells: list[object] = [path.stem if rank == 0 else "", "", "", "", rank]
            if rank == 0:
                error = 100 * (played.duration_us / slower - 1)
                cells[1:4] = [f"{slower / 1e3:.1f}", f"{played.duration_us / 1e3:.1f}", f"{error:+.1f}"]
            # A profiler sees a collective that waits for other ranks run.
            exposed_us = line.exposed_us + line.bubble_us
            pairs = (own.compute_us, line.compute_us, own.exposed_us, exposed_us)
            lines.append("| " + " | ".join(map(str, [*cells, *(f"{us / 1e3:.1f}" for us in pairs)])) + " |")
            print(lines[-1], flush=True)
    if options.output:
        head = f"{datetime.date.today().isoformat()}, two H200s, torch 2.11.0, Python {platform.python_version()}."
        command = ["```console", "$ python -m benchmarks.jobs.replay_jobs JOBS --output docs/results/replay.md", "```"]
        options.output.write_text(
            "\n".join(
                ["# Recorded jobs, simulated from their parts", "", head, "", *command, "", textwrap.fill(WHAT, 120),
                 "", *lines, ""]
            )
        )  # fmt: skip


WHAT = """The first recorded step of each job: each call is launched when its host launched it, takes its own
measured time, and each collective the time of the rank that came last. Order, waiting for other ranks and the
step's length come from the simulation, nothing is fitted. Under the profiler these steps wait for their hosts; an
exposed time is where a small error of a host's launch moves waiting from one rank to the other."""


if __name__ == "__main__":
    main()
