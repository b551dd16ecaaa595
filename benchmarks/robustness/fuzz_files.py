"""Changed files of every kind through every command that reads them: what ends in a traceback, hangs or fills memory.

python -m benchmarks.robustness.fuzz_files [--cases 10000] [--seed 1] [--kind host] [--jobs 8] [--keep]
        [-o docs/results/fuzz.md]

Of the page it writes the part between the marks ``<!-- fuzz -->``.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import sys
import time
from collections import Counter, defaultdict
from operator import attrgetter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processor time is limited, and threads that wait for work take it

from benchmarks.shared.marked import write_between_marks
from fuzzed_kinds import KINDS
from fuzzing import Fault, keep, make_cases, run_cases

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("-o", "docs/results/fuzz.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("--cases", "150", "-o", "{out}/fuzz.md"),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=tuple(KINDS), action="append", help="Default: all.")
    parser.add_argument("--jobs", type=int, default=1, help="Cases at a time.")
    parser.add_argument("--keep", action="store_true", help="Put one case of each place that fails into the corpus.")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    cases = make_cases(options.cases, options.seed * 1_000_000, options.kind or tuple(KINDS))
    began = time.perf_counter()
    found_faults: list[Fault] = []
    for fault in run_cases(cases, jobs=options.jobs):
        found_faults.append(fault)
        print(f"{fault.case} (one of {len(cases):,}, {time.perf_counter() - began:.0f} s): {fault.what}", flush=True)
    seconds = time.perf_counter() - began
    faults: dict[str, list[Fault]] = defaultdict(list)
    for fault in sorted(found_faults, key=attrgetter("case.seed")):  # as they would be found one after another
        faults[re.sub(r".* at ", "", fault.what)].append(fault)
    if options.keep:
        for found in faults.values():
            keep(found[0].case)
    failed = Counter(fault.case.kind for fault in found_faults)
    run = Counter(case.kind for case in cases)
    arguments = "".join(f' --kind "{kind}"' for kind in options.kind or ())
    report = "\n".join(
        [
            f"{datetime.date.today():%Y-%m-%d}, Python {platform.python_version()}, {os.cpu_count()} cores, "
            f"`python -m benchmarks.robustness.fuzz_files --cases {options.cases} --seed {options.seed}{arguments} "
            f"--jobs {options.jobs}`: {len(cases):,} files in {seconds:.0f} s, {len(found_faults):,} faults.",
            "",
            "| kind of file | commands | files | faults |",
            "|---|---|---|---|",
            *(f"| {kind} | {len(KINDS[kind].commands)} | {run[kind]:,} | {failed[kind]:,} |" for kind in run),
            f"| all | {sum(len(KINDS[kind].commands) for kind in run)} | {len(cases):,} | {failed.total():,} |",
            "",
            *(f"- {len(found):,} at `{place}`" for place, found in faults.items()),
        ]
    )
    print(report)
    if options.output:
        write_between_marks(options.output, "fuzz", report)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
