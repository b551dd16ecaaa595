"""Pictures of the HTML report for the docs, taken in a real headless Chromium.

python -m benchmarks.reporting.report_screenshots --gpu GPU.ledger --one A.ledger --other B.ledger [--samples SET]
        [-o FOLDER]

GPU.ledger: a profiled run on a GPU, pictured under the name train.ledger; `--ceilings 4251,bfloat16=819` gives its
device what was measured of it (copy in GB/s, products in TFLOP/s), where the ledger has none. A and B: two captures of
`examples/train_gpt.py`, with two layers and with `--layers 4`. Paths of temporary folders are left out of the pictures.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torchledger
from benchmarks.shared.places import ROOT
from browser import complaints, open_browser, open_page, wait_for
from torchledger.device.ceilings import put_ceilings_into
from torchledger.nouns import Ceilings
from torchledger.store import open_ledger

WIDTH = 1100
SECTIONS = ("overview", "step", "memory", "roofline", "flame", "timeline", "kernels", "predictions", "balance")
_TEMPORARY = re.compile(r"(?<![\w.])/(?:tmp|work|root|home)/(?:[\w.-]+/)*")
_AIM = """
const element = document.querySelector(arguments[0]);
const box = element.getBoundingClientRect();
return {x: Math.max(0, box.left - 8 + scrollX), y: Math.max(0, box.top - 8 + scrollY),
        width: box.width + 16, height: Math.min(box.height + 16, arguments[1])};
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=Path, required=True)
    parser.add_argument("--ceilings", help="COPY[,DTYPE=TFLOPS...] of the device of GPU.ledger")
    parser.add_argument("--predict", default="H200", help="whose model stands beside GPU.ledger")
    parser.add_argument("--one", type=Path, required=True)
    parser.add_argument("--other", type=Path, required=True)
    parser.add_argument("--samples", type=Path, default=ROOT / "data" / "h200" / "operators_torch2.11.parquet")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "screenshots")
    options = parser.parse_args()
    out = options.output.resolve()
    gpu_ledger, one_ledger, other_ledger, set_of_samples = (
        path.resolve() for path in (options.gpu, options.one, options.other, options.samples)
    )
    out.mkdir(parents=True, exist_ok=True)
    # Inside the folder, so that no path of this machine is pictured.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        gpu = torchledger.report(prepare(gpu_ledger, Path("train.ledger"), options.ceilings), predict=options.predict)
        one, other = (prepare(path, Path(path.name), None) for path in (one_ledger, other_ledger))
        both = torchledger.report(one, "both.html", against=other)
        samples = torchledger.report(set_of_samples, "samples.html")
        with open_browser(width=WIDTH, height=900) as driver:
            open_page(driver, gpu)
            for section in SECTIONS:
                take(driver, out / f"{section}.png", section)
            links = "[...document.querySelectorAll('.heaviest tbody a')]"
            generated = f"{links}.find((each) => each.textContent.includes('triton_'))"
            driver.execute_script(f"location.hash = {generated}.getAttribute('href')")
            wait_for(driver, "return document.getElementById('source') !== null")
            picture(driver, out / "kernel.png", "#page", 800)
            picture(driver, out / "kernel-source.png", "#source", 520)
            open_page(driver, both)
            take(driver, out / "comparison.png", "comparison")
            open_page(driver, samples)
            take(driver, out / "samples.png", "samples")
            found = complaints(driver)
        with open_browser(width=WIDTH, height=900, dark=True) as driver:
            open_page(driver, gpu)
            take(driver, out / "dark.png", "overview")
        with open_browser(width=500, height=900) as driver:
            size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            open_page(driver, gpu)
            time.sleep(0.5)
            driver.save_screenshot(str(out / "phone.png"))
    for path in sorted(out.glob("*.png")):
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
    if found:
        sys.exit("\n".join(found))


def prepare(ledger: Path, target: Path, ceilings: str | None) -> Path:
    """A copy without the paths of the recording machine's temporary folders, its device with ceilings."""
    shutil.copy(ledger, target)
    target.chmod(0o644)
    with sqlite3.connect(target) as database:
        for (table,) in database.execute("select name from sqlite_master where type = 'table'").fetchall():
            columns = [row[1] for row in database.execute(f'pragma table_info("{table}")')]
            for rowid, *values in database.execute(
                f'select rowid, {", ".join(f"{chr(34)}{each}{chr(34)}" for each in columns)} from "{table}"'
            ).fetchall():
                for column, value in zip(columns, values, strict=True):
                    plain = _TEMPORARY.sub("", value) if isinstance(value, str) else value
                    if plain != value:
                        database.execute(f'update "{table}" set "{column}" = ? where rowid = ?', (plain, rowid))
    if ceilings is not None:
        copy, *rates = ceilings.split(",")
        by_dtype = {name: float(rate) for name, _, rate in (each.partition("=") for each in rates)}
        measured = Ceilings(float(copy), by_dtype)
        with open_ledger(target) as reader:
            run = reader.run()
        put_ceilings_into(target, {each.name: (each, measured) for each in run.devices if each.kind == "cuda"})
    return target


def take(driver: Any, path: Path, section: str) -> None:
    """A picture of one section, once it has drawn."""
    driver.execute_script("location.hash = '#' + arguments[0]", section)
    wait_for(driver, f"return !document.getElementById('{section}').classList.contains('waiting')")
    plots = f"[...document.querySelectorAll('#{section} .plot')]"
    wait_for(driver, f"return {plots}.every((each) => each.querySelector('.main-svg'))")
    time.sleep(1)  # plots and fonts settle
    picture(driver, path, f"#{section}", 560 if section == "kernels" else 700)


def picture(driver: Any, path: Path, selector: str, height: int) -> None:
    """The element as it is on the page, cut at a height in pixels."""
    import base64

    clip = driver.execute_script(_AIM, selector, height)
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip | {"scale": 1}}
    )
    path.write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main()
