"""Two paths that users walk every day, walked without a screen and pictured: a notebook, and a pull request's check.

python -m benchmarks.reporting.daily_pictures [-o docs/screenshots]

The notebook is run by Jupyter's own client (`pip install nbconvert ipykernel`, beside the extra `notebook`), cell by
cell, as a user types it: the magic, its ledger drawn below, a data frame, a comparison, a prediction, the page inside
the notebook. The check is docs/ci.md's: two ledgers, `diff --markdown` with its limits, and its exit code. Both pages
are opened in a real headless Chromium; a cell that fails, a page with an empty frame or a wrong exit code ends this
with an error. Compiles, so it takes about two minutes.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.shared.places import ROOT
from browser import open_browser, wait_for

NEEDS: tuple[str, ...] = ("chromium", "jupyter")
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}"),)

WIDTH = 1000
MODEL = """\
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = torch.nn.Linear(32, 64), torch.nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(torch.nn.functional.gelu(self.up(x)))

torch.compile(Block())(torch.randn(16, 32)).sum().backward()"""
CELLS = (
    "%load_ext torchledger\nimport torch, torchledger",
    f"%%ledger -o before.ledger\n{MODEL}",
    'ledger.to_frame()[["launch", "kernel", "category", "source", "bytes_moved"]]',
    f"%%ledger -o after.ledger\n{MODEL.replace('gelu', 'relu')}",
    'torchledger.diff("before.ledger", "after.ledger")',
    'torchledger.predict_step("after.ledger", device="H200")',
    'from torchledger.integrations.notebook import page\npage("after.ledger", height=520)',
)
"""What is typed."""
PICTURES = {"notebook": (1, 2), "notebook-frame": (3, 3), "notebook-asks": (5, 6), "notebook-page": (7, 7)}
"""The first and the last cell of each picture, from 1."""

STYLE = """<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 8px; color: #1f2328; }
table { border-collapse: collapse; } th, td { border: 1px solid #d0d7de; padding: 5px 12px; }
h2 { font-size: 20px; } h3 { font-size: 18px; }
</style>"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "screenshots")
    out = parser.parse_args().output.resolve()
    out.mkdir(parents=True, exist_ok=True)
    # Inside the folder, so that no path of this machine is pictured.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        notebook = run_notebook(Path(folder))
        summary = check_pull_request(Path(folder))
        with open_browser(width=WIDTH, height=900) as driver:
            driver.get(notebook.as_uri())
            time.sleep(3)  # the page inside the notebook draws itself
            look_into_frame(driver)
            for name, (first, last) in PICTURES.items():
                picture(driver, out / f"{name}.png", ".jp-Cell", first - 1, last - 1)
            driver.get(summary.as_uri())
            picture(driver, out / "ci.png", "body > *", 0, -1)
    for name in (*PICTURES, "ci"):
        path = out / f"{name}.png"
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


def run_notebook(folder: Path) -> Path:
    """The notebook with what its cells gave, as a page. A cell that fails raises."""
    import nbclient
    import nbconvert
    import nbformat

    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    written = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "P"}})
    nbclient.NotebookClient(written, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in written.cells[1:]:
        if not any("text/html" in output.get("data", {}) for output in cell.outputs):
            raise SystemExit(f"nothing is drawn below this cell:\n{cell.source}\n{cell.outputs}")
    exporter = nbconvert.HTMLExporter(mathjax_url="", require_js_url="", jquery_url="")
    text, _ = exporter.from_notebook_node(written)
    path = folder / "notebook.html"
    path.write_text(text, encoding="utf-8")
    return path


def look_into_frame(driver: Any) -> None:
    """The page inside the notebook must have drawn itself in its frame."""
    driver.switch_to.frame(driver.find_element("tag name", "iframe"))
    wait_for(driver, "return document.documentElement.dataset.ready === 'yes'")
    if not driver.find_element("id", "overview").text.strip():
        raise SystemExit("the page inside the notebook is empty")
    driver.switch_to.default_content()


def check_pull_request(folder: Path) -> Path:
    """The summary of a change that breaks its limits, as a page. Any other exit code than 3 raises."""
    import mistune

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "torchledger", *arguments], capture_output=True, text=True)

    script = shutil.copy(ROOT / "examples" / "train_gpt.py", "train.py")
    for name, options in (("main", ()), ("branch", ("--layers", "4"))):
        done = ask("run", "-o", f"{name}.ledger", script, *options)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    limits = [word for text in ("launches > +0", "bytes > +2%", "predicted > +3%") for word in ("--fail-if", text)]
    compared = ask("diff", "main.ledger", "branch.ledger", "--markdown", *limits)
    if compared.returncode != 3:
        raise SystemExit(f"the limits are broken, and diff ended with {compared.returncode}: {compared.stderr[-2000:]}")
    page = folder / "ci.html"
    drawn = mistune.create_markdown(plugins=["table"])(compared.stdout)
    page.write_text(f"<!doctype html><meta charset=utf-8>{STYLE}{drawn}", encoding="utf-8")
    return page


_AIM = """
const found = [...document.querySelectorAll(arguments[0])];
const boxes = [found.at(arguments[1]), found.at(arguments[2])].map((each) => each.getBoundingClientRect());
return {x: 0, y: Math.max(0, boxes[0].top - 8 + scrollY), width: arguments[3],
        height: boxes[1].bottom - boxes[0].top + 16};
"""


def picture(driver: Any, path: Path, selector: str, first: int, last: int) -> None:
    """What stands from the first to the last of some elements, in the page's whole width."""
    script = "[...document.querySelectorAll(arguments[0])].at(arguments[1]).scrollIntoView()"
    driver.execute_script(script, selector, last)
    time.sleep(1)  # a frame draws itself where it is in sight
    clip = driver.execute_script(_AIM, selector, first, last, WIDTH)
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip | {"scale": 1}}
    )
    path.write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main()
