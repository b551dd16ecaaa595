"""Where the repository lies, and what a process that a benchmark starts is given to find its parts."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"


def child_environment(*folders: Path, **variables: str) -> dict[str, str]:
    """This process's environment with ``variables``, for a process that it starts.

    torchledger's source and ``folders`` stand in front of the ``PYTHONPATH`` that is there. Modules of ``benchmarks``
    are found as they were here, but for a process that begins in another folder: that one needs ``ROOT``.
    """
    paths = [*map(str, (SOURCE, *folders)), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | variables
