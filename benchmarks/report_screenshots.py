"""Pictures of the HTML report for the docs, taken in a real headless Chromium.

python benchmarks/report_screenshots.py --gpu GPU.ledger --cpu CPU.ledger --other CPU2.ledger [-o docs/screenshots]

GPU.ledger: a profiled run on a GPU. CPU.ledger: one of `examples/train_gpt.py --layers 4`, into which
`torchledger doctor` wrote the machine's ceilings. CPU2.ledger: one of `examples/train_gpt.py`, to be compared with it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

import torchledger  # noqa: E402 - after the path is set
from browser import complaints, open_browser, open_page, wait_for  # noqa: E402

WIDTH = 1100
_AIM = """
const element = document.querySelector(arguments[0]);
const box = element.getBoundingClientRect();
return {x: Math.max(0, box.left - 8 + scrollX), y: Math.max(0, box.top - 8 + scrollY),
        width: box.width + 16, height: Math.min(box.height + 16, arguments[1])};
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=Path, required=True)
    parser.add_argument("--other", type=Path, required=True)
    parser.add_argument("--cpu", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "screenshots")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        gpu = torchledger.report(options.gpu, Path(folder) / "gpu.html")
        cpu = torchledger.report(options.cpu, Path(folder) / "cpu.html")
        both = torchledger.report(options.other, Path(folder) / "both.html", against=options.cpu)
        with open_browser(width=WIDTH, height=900) as driver:
            open_page(driver, gpu)
            for section in ("flame", "kernels"):
                take(driver, options.output / f"{section}.png", section)
            heaviest = "document.querySelector('.heaviest tbody tr:nth-child(5) a').getAttribute('href')"
            driver.execute_script(f"location.hash = {heaviest}")
            wait_for(driver, "return document.getElementById('source') !== null")
            picture(driver, options.output / "kernel.png", "#page", 800)
            picture(driver, options.output / "kernel-source.png", "#source", 520)
            open_page(driver, cpu)
            for section in ("overview", "roofline", "timeline"):
                take(driver, options.output / f"{section}.png", section)
            open_page(driver, both)
            take(driver, options.output / "comparison.png", "comparison")
            found = complaints(driver)
        with open_browser(width=WIDTH, height=900, dark=True) as driver:
            open_page(driver, gpu)
            take(driver, options.output / "dark.png", "flame")
        with open_browser(width=500, height=900) as driver:
            size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            open_page(driver, cpu)
            time.sleep(0.5)
            driver.save_screenshot(str(options.output / "phone.png"))
    for path in sorted(options.output.glob("*.png")):
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
    if found:
        sys.exit("\n".join(found))


def take(driver: Any, path: Path, section: str) -> None:
    """A picture of one section, once it has drawn."""
    driver.execute_script("location.hash = '#' + arguments[0]", section)
    wait_for(driver, f"return !document.getElementById('{section}').classList.contains('waiting')")
    time.sleep(0.6)  # plots and fonts settle
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
