"""A real headless Chromium for tests and benchmarks of the report."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HOW_TO_GET_ONE = (
    "NO BROWSER: the HTML report is tested in a real Chromium, and none was found. On Debian or Ubuntu: "
    "`apt-get install chromium chromium-driver`; elsewhere put chromium (or google-chrome) and chromedriver on PATH. "
    "Then `make test` again."
)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> tuple[str, str] | None:
    """Paths of a browser and of its driver; ``None`` if one of them is missing."""
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def open_browser(*, width: int = 1360, height: int = 900, dark: bool = False) -> Iterator[Any]:
    """A driver with a fresh profile and no network services of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    found = find_browser()
    if found is None:
        raise RuntimeError(HOW_TO_GET_ONE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = found[0]
        for argument in (
            "--headless=new",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
        ):
            options.add_argument(argument)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")  # Chromium refuses its sandbox to root
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(found[1]))
        try:
            driver.set_page_load_timeout(120)
            driver.set_script_timeout(60)
            if dark:
                media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
                driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            yield driver
        finally:
            driver.quit()


def open_page(driver: Any, path: Path, fragment: str = "") -> None:
    """Load a file and wait until the page says that it is ready."""
    driver.get("about:blank")
    driver.get(path.resolve().as_uri() + fragment)
    wait_for(driver, "return document.documentElement.dataset.ready === 'yes'")


def wait_for(driver: Any, script: str, *, seconds: float = 60) -> Any:
    """The first true value of a script that is asked again and again."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, seconds, poll_frequency=0.05).until(lambda each: each.execute_script(script))


def complaints(driver: Any) -> list[str]:
    """What the console said since the last question: errors and warnings."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
