"""The command line, as a user calls it: in a folder, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_cli(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``torchledger ARGUMENTS`` in a folder, with a cache of compiled code in it."""
    return subprocess.run(
        [sys.executable, "-m", "torchledger", *arguments],
        cwd=folder,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")} | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
