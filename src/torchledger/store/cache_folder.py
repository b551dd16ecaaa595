"""Where torchledger keeps what belongs to this user on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from torchledger.errors import StoreError


def cache_folder() -> Path:
    """``~/.cache/torchledger``; ``XDG_CACHE_HOME`` is respected, ``TORCHLEDGER_CACHE`` names another folder."""
    if folder := os.environ.get("TORCHLEDGER_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchledger"


def write_cached(path: Path, content: bytes) -> None:
    """Write a file of that folder, whole or not at all. Raises ``StoreError`` if it cannot be written."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}. Name another folder in TORCHLEDGER_CACHE.") from error
