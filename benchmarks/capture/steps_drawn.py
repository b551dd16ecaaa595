"""Ordinary scripts drawn from ``step_programs``: does the ledger's step hold what a step of the script does?

    python -m benchmarks.capture.steps_drawn [--seed 0] [--draw 20 | NAME ...] [--steps 48] [--keep FOLDER] [-o FILE]
                                     [--jobs N] [--limit SECONDS]

Each script runs plain, under ``run --profile``, and once more with nothing compiled, where torch's own counter counts
the FLOPs of each of its steps. Compared are exit code and output, the FLOPs of a step, its time beside that of the
script's own timer (over the same steps), the operators of the step with those that a
dispatch mode heard, and whether ``show``, ``report``, ``diff``, ``export`` and ``predict-step`` read the ledger.

With ``--keep`` each script has a folder there, with its row; a later run takes the rows that are there (of the same
script, torch and number of steps) and records the others. After ``--limit`` seconds no script is begun; 0 records none.
The table is written of the rows that there are. Needs no GPU and uses none.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import importlib.metadata
import itertools
import json
import math
import multiprocessing
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.capture.step_programs import HEAD, PROGRAMS
from benchmarks.shared.places import ROOT, child_environment

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--draw", "999", "--keep", "{out}/kept", "-o", "{out}/steps_drawn.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("--steps", "30", "ema"),)

_MOST_IN_A_ROW = 4

_ENOUGH = 5
"""From so many times on a pattern is told."""

_LIKE = 0.5
"""The least correlation of two rows of times that are of the same steps."""

_LOGGED = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ ")
"""The moment and the process of a line of torch's own log."""

Moment = tuple[str, float, int]
"""The kind of a step that ended, when (seconds), and the FLOPs counted so far."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended, and the script's own steps."""

    exit_code: int
    stdout: str
    stderr: str
    moments: tuple[Moment, ...]


def run(script: Path, steps: int, *before: str, **environment: str) -> Outcome:
    """One run of a script behind ``python BEFORE``."""
    own = script.with_suffix(".json")
    own.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, *before, str(script), str(steps), str(own)],
        env=child_environment(ROOT, OMP_NUM_THREADS="1") | environment,
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=900,
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("torchledger")]
    errors = "\n".join(_LOGGED.sub("", line) for line in lines)
    moments = tuple((kind, at, flops) for kind, at, flops in json.loads(own.read_text())) if own.exists() else ()
    return Outcome(done.returncode, done.stdout, errors, moments)


def count_eagerly(script: str, *arguments: str) -> None:
    """Run a script in this process under torch's counter, which the script reads at the end of each step."""
    import runpy

    from eager_flops import flop_counter

    sys.argv = [script, *arguments]
    with flop_counter() as counter:
        runpy.run_path(script, {"counted": counter.get_total_flops}, run_name="__main__")


def runs_of_steps(moments: tuple[Moment, ...]) -> dict[tuple[str, ...], Counter[int]]:
    """FLOPs of each step by its kind, and of so many in a row as a round of optimizers may take, without the first,
    which holds the set-up."""
    found: dict[tuple[str, ...], Counter[int]] = defaultdict(Counter)
    for length in range(1, _MOST_IN_A_ROW + 1):
        for at in range(1, len(moments) - length + 1):
            kinds = tuple(kind for kind, _, _ in moments[at : at + length])
            found[kinds][moments[at + length - 1][2] - moments[at - 1][2]] += 1
    return found


def named_flops(ledger: Path) -> dict[str, int]:
    """FLOPs of the ledger's step that no eager count of torch's holds, by name: of operators for which it has no
    formula, and those that the ledger names."""
    from torch.utils.flop_counter import flop_registry

    from eager_flops import LACKING
    from torchledger.balance import differences_from_eager
    from torchledger.books import open_books
    from torchledger.capturing.flops import TORCH_NAMESPACES
    from torchledger.nouns import Launch
    from torchledger.store.ledger import open_ledger
    from torchledger.work.sizes import sizes_at

    known = {str(operator).replace(".", "::") for operator in flop_registry} | set(LACKING)
    found: Counter[str] = Counter()
    with open_ledger(ledger) as reader:
        books = open_books(reader)
        assert books.step is not None
        for call in books.step.calls:
            done = {call.name: call.flops or 0} if call.kind == "operator" else {}
            if call.kind == "graph":
                for launch in sizes_at(reader.read(Launch, graph=call.name), dict(call.sizes)):
                    done = Counter(done) + Counter(launch.flops_by_op)
            for operator, flops in done.items():
                # Of the program's own the counter has the formulas that it registers, or sees what they are made of.
                is_own = operator.replace(".", "::").partition("::")[0] not in TORCH_NAMESPACES
                if operator.replace(".", "::") not in known and not is_own:
                    found[f"{operator.replace('.', '::')}, without a formula in torch"] += flops
        for each in differences_from_eager(books, books.step):
            operator = each.reason.partition(" ")[0].rstrip(":").replace(".", "::")
            if operator in known or not operator.startswith("aten::"):  # others are counted above with all they do
                found[each.reason] += int(each.amount)
    return {name: count for name, count in found.items() if count}


def flops_in_words(
    flops: int, runs: dict[tuple[str, ...], Counter[int]], named: dict[str, int]
) -> tuple[str, tuple[str, ...]] | None:
    """How the FLOPs of the ledger's step are those of the script's own, and of which of its steps in a row; ``None``
    where they are not. What is named and does not fit is said, too."""
    whole = {kinds: set(counts) for kinds, counts in runs.items()}
    for size in reversed(range(len(named) + 1)):
        for names in itertools.combinations(named, size):
            less = sum(named[name] for name in names)
            kinds = next((kinds for kinds, counts in whole.items() if flops - less in counts), None)
            if kinds is not None:
                of = "" if len({kind for run in runs for kind in run}) == 1 == len(kinds) else f" ({' + '.join(kinds)})"
                beside = "; ".join(f"{named[name]:+,}: {name}" for name in names)
                vain = "; ".join(f"{named[name]:+,} ({name})" for name in named if name not in names)
                said = f"equal{of}" + (f", but {beside}" if beside else "")
                return said + (f"; named in vain: {vain}" if vain else ""), kinds
    return None


def own_and_ratio(
    moments: tuple[Moment, ...], kinds: tuple[str, ...], after_us: tuple[float, ...]
) -> tuple[float | None, float | None]:
    """The script's own time of these steps in a row (median, milliseconds), and the ledger's step over it.

    The ratio is the median over the steps that the ledger timed after its recording, each beside the script's own time
    of the same step: other work on the machine falls into both. Which these are is told by the pattern of their times,
    whatever their scale.
    """
    own = []
    place = 1
    while place + len(kinds) <= len(moments):
        if kinds and tuple(kind for kind, _, _ in moments[place : place + len(kinds)]) == kinds:
            own.append(1e3 * (moments[place + len(kinds) - 1][1] - moments[place - 1][1]))
            place += len(kinds)
        else:
            place += 1
    if len(after_us) < _ENOUGH or len(own) < len(after_us):
        return statistics.median(own) if own else None, None
    windows = [own[at : at + len(after_us)] for at in range(len(own) - len(after_us) + 1)]
    pattern = [math.log(each) for each in after_us]
    likeness = [statistics.correlation([math.log(each) for each in window], pattern) for window in windows]
    alike = windows[likeness.index(max(likeness))]
    if max(likeness) < _LIKE:  # the script tells kinds of steps apart that the ledger does not
        return statistics.median(own), None
    ratios = [us / 1e3 / ms for us, ms in zip(after_us, alike, strict=True)]
    return statistics.median(alike), statistics.median(ratios)


def plain_after_us(ledger: Path) -> tuple[float, ...]:
    """The plain steps that the ledger timed after its recording."""
    from torchledger.nouns import Step
    from torchledger.profiling.profile import DEFAULT_TIMED
    from torchledger.store.latest import latest
    from torchledger.store.ledger import open_ledger

    with open_ledger(ledger) as reader:
        step = latest(reader, Step)
    return step.plain_us[DEFAULT_TIMED:] if step is not None else ()


def read_everywhere(ledger: Path, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """What ``show --json`` says of a ledger, and which commands failed on it."""
    from click.testing import CliRunner

    from torchledger.cli import cli

    commands: dict[str, list[str]] = {
        "show": ["show", str(ledger)],
        "show --json": ["show", str(ledger), "--json"],
        "report": ["report", str(ledger), "-o", str(folder / "page.html"), "--force"],
        "diff": ["diff", str(ledger), str(ledger)],
        "export": ["export", str(ledger), "--format", "step", "-o", str(folder / "step.csv"), "--force"],
        "predict-step": ["predict-step", str(ledger)],
    }
    shown: dict[str, Any] = {}
    failed = []
    for name, command in commands.items():
        done = CliRunner().invoke(cli, command)
        (folder / f"{name.replace(' --', '_')}.txt").write_text(done.output)
        if done.exit_code:
            failed.append(
                f"{name} ({done.exit_code}: {(done.output.strip() or repr(done.exception)).splitlines()[-1]})"
            )
        elif name == "show --json":
            shown = json.loads(done.output)
    return shown, failed


def row_of(name: str, steps: int, folder: Path) -> tuple[str, list[str]]:
    """One script as a line of the table, and in what it failed."""
    script, ledger = folder / "script.py", folder / "step.ledger"
    script.write_text(HEAD + PROGRAMS[name])
    plain = run(script, steps)
    profiled = run(script, steps, "-m", "torchledger", "run", "--profile", "--force", "-o", str(ledger))
    (folder / "profiled.json").write_text(json.dumps(profiled.moments))
    eager = run(script, steps, "-m", __spec__.name, "--count", TORCHDYNAMO_DISABLE="1")
    (folder / "errors.txt").write_text(f"{plain.stderr}\n--- profiled\n{profiled.stderr}\n--- eager\n{eager.stderr}")
    failed = []
    if (plain.exit_code, plain.stdout, plain.stderr) != (profiled.exit_code, profiled.stdout, profiled.stderr):
        failed.append("ends otherwise")
    shown, unread = read_everywhere(ledger, folder) if ledger.exists() else ({}, ["no ledger was written"])
    failed += unread
    step = shown.get("step")
    if step is None:
        why = (shown.get("verdict") or ["nothing was said"])[0]
        failed = [each for each in failed if "holds no step" not in each]
        return f"| {name} | no step: {why} | | | | | {', '.join(failed) or 'none'} |", failed
    runs = runs_of_steps(eager.moments)
    named = named_flops(ledger)
    said, kinds = flops_in_words(step["flops"], runs, named) or (None, ())
    if said is None and eager.exit_code != plain.exit_code:
        said = f"{step['flops']:,}; no reference: the script does not end as it does under torch's counter"
    elif said is None:
        usual = {kinds[0]: counts.most_common(1)[0][0] for kinds, counts in runs.items() if len(kinds) == 1}
        said = f"{step['flops']:,}; eager: {', '.join(f'{kind} {count:,}' for kind, count in usual.items())}"
        failed.append("FLOPs")
    elif "named in vain" in said:
        failed.append("FLOPs named in vain")
    own, ratio = own_and_ratio(profiled.moments, kinds, plain_after_us(ledger))
    operators = shown["balance"].get("step_operators", {})
    heard = operators.get("reference") or "not comparable"
    seen = f"{step['count']:,}" + (f" of {len(step['kinds'])} kinds" if len(step["kinds"]) > 1 else "")
    unbalanced = [key for key, account in shown["balance"].items() if account.get("is_balanced") is False]
    failed += [f"{key} does not balance" for key in unbalanced]
    return (
        f"| {name} | {said} | {seen}, by {step['found_by']} | {'' if own is None else f'{own:.2f}'} | "
        f"{'' if ratio is None else f'{ratio:.3f}'} | {operators.get('ledger')}, {heard} | "
        f"{', '.join(failed) or 'none'} |"
    ), failed


def record(name: str, steps: int, folder: Path, until: float) -> str | None:
    """A script's row: the kept one, else recorded and kept; ``None`` where there is none and it is too late to begin.

    ``until`` is a moment of ``time.time``.
    """
    kept = folder / "row.json"
    of = {"script": HEAD + PROGRAMS[name], "steps": steps, "torch": importlib.metadata.version("torch")}
    if kept.exists():
        row = json.loads(kept.read_text())
        if {key: row[key] for key in of} == of:
            return str(row["line"])
    if time.time() >= until:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    line, failed = row_of(name, steps, folder)
    row = {**of, "line": line, "failed": failed, "date": str(datetime.date.today()), "seconds": time.time() - began}
    half = folder / "row.half"
    half.write_text(json.dumps(row, indent=1))
    half.replace(kept)
    return line


def record_all(names: list[str], steps: int, keep: Path, jobs: int, until: float) -> dict[str, str]:
    """The row of each script that has one, ``jobs`` of them recorded at a time, each in a process of its own."""
    rows = {}
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=spawn, max_tasks_per_child=1) as pool:
        under_way = {
            pool.submit(record, name, steps, keep / name.replace(" ", "_").replace(",", ""), until): name
            for name in names
        }
        for done in concurrent.futures.as_completed(under_way):
            name, error = under_way[done], done.exception()
            if error is not None:
                print(f"{name} could not be recorded: {error!r}", file=sys.stderr, flush=True)
            elif (line := done.result()) is not None:
                rows[name] = line
                print(line, flush=True)
    return rows


def main() -> None:
    """Draw scripts, record them and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="Instead of drawing.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", type=int, default=20, help="How many; more than there are takes all.")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--keep", type=Path, help="Leave each script, its ledger, its row and what commands say here.")
    parser.add_argument("--jobs", type=int, default=1, help="How many scripts at a time.")
    parser.add_argument("--limit", type=float, default=math.inf, help="Begin none after so many seconds.")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    until = time.time() + options.limit
    cores = os.cpu_count() or 1
    drawn = random.Random(options.seed).sample(sorted(PROGRAMS), min(options.draw, len(PROGRAMS)))
    names = options.names or drawn
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, cores // options.jobs)))
    with tempfile.TemporaryDirectory() as temporary:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(temporary, "cache")))
        rows = record_all(names, options.steps, options.keep or Path(temporary), options.jobs, until)
    lines = [
        "# Steps of drawn scripts on a CPU",
        "",
        f"Seed {options.seed}, {len(rows)} of {len(PROGRAMS)} scripts, {options.steps} steps each, "
        f"{options.jobs} at a time. {datetime.date.today()}, torch {importlib.metadata.version('torch')}, "
        f"{platform.machine()}, {cores} cores. `python -m benchmarks.capture.steps_drawn`.",
        "",
        "| script | FLOPs of a step | steps seen | the script's, ms | ledger's over it | operators, heard | failed |",
        "|---|---|---|---|---|---|---|",
        *(rows[name] for name in names if name in rows),
    ]
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")
    if missing := [name for name in names if name not in rows]:
        print(f"no row of {len(missing)}: {', '.join(missing)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        count_eagerly(*sys.argv[2:])
    else:
        main()
