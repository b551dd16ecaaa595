"""Where torchledger keeps what belongs to this user on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``~/.cache/torchledger``; ``XDG_CACHE_HOME`` is respected, ``TORCHLEDGER_CACHE`` names another folder."""
    if folder := os.environ.get("TORCHLEDGER_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchledger"
