"""How fast the HTML report opens and searches in a real headless Chromium, and how large it is.

python -m benchmarks.reporting.report_browser [--launches 1000 10000] [--repeats 5] [-o docs/results/report.md]
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torchledger
from browser import open_browser, open_page, wait_for
from synthetic import write_ledger
from torchledger.device.describe import describe_cpu, describe_environment
from torchledger.nouns import Launch, Measurement, Profile
from torchledger.store import LedgerWriter, open_ledger

NEEDS: tuple[str, ...] = ("chromium",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "docs/results/report.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("--launches", "200", "--repeats", "1", "-o", "{out}/report.md"),)

WORDS = ("fused_gelu", "backward_0#99", "layers.7 mm")

_OPENED = """
const entry = performance.getEntriesByType("navigation")[0];
return [entry.domContentLoadedEventEnd, entry.loadEventEnd];
"""
_PAINTED = """
const done = arguments[arguments.length - 1];
requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())));
"""
_TYPE = """
const [text, done] = [arguments[0], arguments[arguments.length - 1]];
const input = document.getElementById("search");
const started = performance.now();
input.value = text;
input.dispatchEvent(new Event("input", {bubbles: true}));
const handled = performance.now() - started;
document.querySelector(".long-table-box").getBoundingClientRect();
requestAnimationFrame(() => setTimeout(() => done([handled, performance.now() - started]), 0));
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows, version = [], ""
    for launches in options.launches:
        with tempfile.TemporaryDirectory() as folder:
            ledger = add_times(write_ledger(Path(folder) / "large.ledger", launches=launches))
            started = time.perf_counter()
            page = torchledger.report(ledger)
            writing = time.perf_counter() - started
            with open_browser() as driver:
                version = driver.capabilities["browserVersion"]
                opened = [measure_opening(driver, page) for _ in range(options.repeats)]
                keys = measure_search(driver)
            sizes = f"{ledger.stat().st_size / 1e6:.1f} | {page.stat().st_size / 1e6:.2f} | {writing:.1f}"
            times = (
                f"{statistics.median(opened):.0f} | {max(opened):.0f} | {statistics.median(keys):.0f} | {max(keys):.0f}"
            )
            rows.append(f"| {launches:,} | {sizes} | {times} |")
    environment, cpu = describe_environment(), describe_cpu()
    report = "\n".join(
        [
            "# The HTML report in a browser",
            "",
            f"{datetime.date.today():%Y-%m-%d}, {cpu.name}, {cpu.num_cores} cores, Python {environment.python},",
            f"headless Chromium {version}. Made-up ledgers, every launch timed; {options.repeats} openings each.",
            f"Load of the machine at the end: {os.getloadavg()[0]:.1f}.",
            "Redo: `python -m benchmarks.reporting.report_browser -o docs/results/report.md`.",
            "",
            "| launches | ledger MB | page MB | writing s | opens in ms | slowest | key press ms | slowest |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            "Opening is from the start of the navigation to the second frame after the first screen was drawn. A key",
            "press is from the input event to the end of the next frame, for every prefix of "
            + ", ".join(f"`{word}`" for word in WORDS)
            + ",",
            "typed and deleted again; none is left out.",
            "",
        ]
    )
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(report)
    print(report)


def add_times(path: Path) -> Path:
    """Give every launch a time, so that all parts of the page have something to draw."""
    with open_ledger(path) as reader:
        names = [launch.launch_id for launch in reader.iterate(Launch)]
    times = [
        Measurement(name, "profile", "cupti", tuple(3.0 + place % 97 + sample / 10 for sample in range(5)))
        for place, name in enumerate(names)
    ]
    total = sum(sum(each.samples_us) for each in times)
    with LedgerWriter(path, append=True) as writer:
        writer.add(Profile("cupti", 5, plain_step_us=total / 5 * 1.1, inside_us=total, matched_us=total), *times)
    return path


def measure_opening(driver: Any, page: Path) -> float:
    """Milliseconds from the start of the navigation to a painted first screen."""
    open_page(driver, page)
    painted: float = driver.execute_async_script(_PAINTED)
    loaded = driver.execute_script(_OPENED)
    # The question arrives later than the paint by the driver's own way, so that the page's own mark is the better end.
    mark = driver.execute_script("return performance.getEntriesByName('first-screen')[0]?.startTime")
    return float(max(loaded[0], mark)) if mark is not None else painted


def measure_search(driver: Any) -> list[float]:
    """Milliseconds of each key press."""
    driver.execute_script("location.hash = '#kernels'")
    wait_for(driver, "return document.getElementById('search') !== null")
    driver.execute_async_script(_PAINTED)
    times = []
    for word in WORDS:
        prefixes = [word[: end + 1] for end in range(len(word))]
        for text in [*prefixes, *reversed(prefixes[:-1]), ""]:
            times.append(float(driver.execute_async_script(_TYPE, text)[1]))
    return times


if __name__ == "__main__":
    main()
