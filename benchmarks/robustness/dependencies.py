"""Installed size and import time of each direct dependency, as a Markdown table.

python -m benchmarks.robustness.dependencies [-o docs/results/dependencies.md]
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import re
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from benchmarks.shared.places import ROOT

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("-o", "docs/results/dependencies.md"),)
QUICK: tuple[tuple[str, ...], ...] = (("-o", "{out}/dependencies.md"),)

MODULES = {"PyYAML": "yaml", "scikit-learn": "sklearn"}
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bare = import_seconds("pass")
    rows = []
    for requirement in project["dependencies"]:
        name = re.split(r"[<>=!~ ]", requirement)[0]
        module = MODULES.get(name, name)
        milliseconds = (import_seconds(f"import {module}") - bare) * 1e3
        rows.append(
            f"| {name} | {importlib.metadata.version(name)} | {installed_megabytes(name):.1f} | {milliseconds:.0f} |"
        )
    report = "\n".join(
        [
            "# Direct dependencies: size and import time",
            "",
            f"{datetime.date.today():%Y-%m-%d}, Python {platform.python_version()}.",
            "Size: each distribution's own files, compiled ones included.",
            f"Import time: over a bare interpreter, median of {REPEATS}.",
            "Redo: `python -m benchmarks.robustness.dependencies`.",
            "",
            "| distribution | version | MB | import ms |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )
    print(report)
    if options.output:
        options.output.write_text(report)


def installed_megabytes(name: str) -> float:
    files = importlib.metadata.files(name) or []
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file()) / 1e6


def import_seconds(code: str) -> float:
    subprocess.run([sys.executable, "-c", code], check=True)
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
