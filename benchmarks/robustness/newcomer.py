"""How long a newcomer waits: from a clean clone to a report in a browser, by the README's first command alone.

python -m benchmarks.robustness.newcomer [--repeats 1] [--packages "WHERE PACKAGES COME FROM"]
        [-o docs/results/newcomer.md]

Clones this repository's committed state into a new folder, runs `make demo` there, and opens the page that it wrote in
a headless Chromium. Compilers' caches start empty; pip's cache is off unless --pip-cache is given.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.shared.places import ROOT
from browser import complaints, open_browser, open_page
from torchledger.device.describe import describe_cpu

NEEDS: tuple[str, ...] = ("chromium", "network")
RUNS: tuple[tuple[str, ...], ...] = (("-o", "docs/results/newcomer.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("-o", "{out}/newcomer.md"),)

COMMAND = "make demo"
PYTHON = subprocess.run(["python3", "--version"], capture_output=True, text=True, check=True).stdout.strip()
"""The one that `make` makes its environment with."""

STAGES = (
    ("clone", "git clone"),
    ("installed", "packages installed into a new .venv"),
    ("recorded", "the example recorded: gpt.ledger"),
    ("shown", "its ledger on the terminal"),
    ("written", "its page written: gpt.html"),
    ("on_screen", "the first screen drawn by a browser"),
)
# `make` says each command before it runs it: what comes before is then done.
_SAID = {"recorded": "/torchledger show ", "shown": "/torchledger report "}
_MADE = {"installed": ".venv/.installed", "written": "gpt.html"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--packages", default="the default package index", help="Said in the result, nothing else.")
    parser.add_argument("--pip-cache", action="store_true", help="Let pip use its cache, as for a second project.")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    check_readme()
    before = os.getloadavg()[0]
    runs = [run_once(options.pip_cache) for _ in range(options.repeats)]
    report = describe(runs, options.packages, options.pip_cache, (before, os.getloadavg()[0]))
    if options.output:
        options.output.write_text(report)
    print(report)


def check_readme() -> None:
    """The command timed is the first one that the README's first screen gives."""
    first = re.search(r"^\$ ([^#\n]*)", (ROOT / "README.md").read_text(), re.M)
    if first is None or first[1].strip() != COMMAND:
        sys.exit(f"the README begins with {first and first[1].strip()!r}, this script times {COMMAND!r}.")


def run_once(with_pip_cache: bool) -> dict[str, float]:
    """Seconds from the start until each stage was reached."""
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        home = Path(folder)
        clone = home / "torchledger"
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        environment |= {"TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"), "TORCHLEDGER_CACHE": str(home / "ledgers")}
        if not with_pip_cache:
            environment["PIP_NO_CACHE_DIR"] = "1"
        started = time.monotonic()
        reached: dict[str, float] = {}
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        reached["clone"] = time.monotonic() - started
        with open(home / "log", "w") as log:
            made = subprocess.Popen(COMMAND.split(), cwd=clone, env=environment, stdout=log, stderr=subprocess.STDOUT)
            watch(made, clone, home / "log", started, reached)
        if made.returncode:
            sys.exit(f"`{COMMAND}` ended with {made.returncode}:\n{(home / 'log').read_text()[-3000:]}")
        with open_browser() as driver:
            before = time.monotonic()
            open_page(driver, clone / "gpt.html")
            text = driver.find_element("id", "overview").text
            found = complaints(driver)
            reached["on_screen"] = reached["written"] + time.monotonic() - before  # the browser was open already
        if "One step takes" not in text or found:
            sys.exit(f"the page does not tell the step: {text[:300]} {found}")
        return reached


def watch(process: subprocess.Popen[bytes], clone: Path, log: Path, started: float, reached: dict[str, float]) -> None:
    """Note when each stage is reached, to a tenth of a second."""
    while True:
        is_over = process.poll() is not None
        text = log.read_text()
        done = {stage for stage, name in _MADE.items() if (clone / name).exists()}
        done |= {stage for stage, command in _SAID.items() if command in text}
        for stage in done - reached.keys():
            reached[stage] = time.monotonic() - started
        if is_over:
            return
        time.sleep(0.1)


def describe(runs: list[dict[str, float]], packages: str, with_pip_cache: bool, loads: tuple[float, float]) -> str:
    """The result as a page."""
    cpu = describe_cpu()
    memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB of memory"
    repeats = "one run" if len(runs) == 1 else f"median of {len(runs)} runs"
    rows = []
    for stage, meaning in STAGES:
        times = [run[stage] for run in runs if stage in run]
        if times:
            rows.append(f"| {meaning} | {statistics.median(times):.1f} |")
    total = statistics.median(run["on_screen"] for run in runs)
    return "\n".join(
        [
            "# A newcomer's path",
            "",
            f"{datetime.date.today():%Y-%m-%d}, {cpu.name}, {cpu.num_cores} cores, {memory}, {PYTHON};",
            f"packages from {packages}, pip's cache {'warm' if with_pip_cache else 'off'}; compilers' caches empty;",
            f"{repeats}. Load of the machine before and after: {loads[0]:.1f} and {loads[1]:.1f}.",
            "Redo: `python -m benchmarks.robustness.newcomer -o docs/results/newcomer.md`.",
            "",
            f"From an empty folder to a report on screen by the README's first command, `{COMMAND}`: {total:.0f} s.",
            "",
            "| reached | seconds after the start |",
            "|---|---|",
            *rows,
            "",
            "The first stage is mostly the download of PyTorch, the second the compilation of the example's kernels.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
