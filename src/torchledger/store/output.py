"""Files that nothing overwrites by accident."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchledger.errors import StoreError


def prepare_folder(folder: Path, names: Iterable[str], *, force: bool) -> list[Path]:
    """Make ``folder`` if needed and return the paths of ``names`` in it.

    Raises ``StoreError`` if one of them exists (without ``force``) or the folder cannot be made.
    """
    paths = [folder / name for name in names]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        existing = [path for path in paths if path.exists()]
    except OSError as error:
        raise StoreError(f"cannot write into {folder}: {error.strerror}. Name a folder that can be made.") from error
    if existing and not force:
        others = f" and {len(existing) - 1:,} more" if len(existing) > 1 else ""
        raise StoreError(f"{existing[0]}{others} exists. Choose another folder, or pass --force to replace it.")
    return paths


def write_files(folder: Path, contents: Mapping[str, bytes], *, force: bool) -> list[Path]:
    """Write files into ``folder``, each whole or not at all; returns their paths. Errors as ``prepare_folder``."""
    paths = prepare_folder(folder, contents, force=force)
    for path, content in zip(paths, contents.values(), strict=True):
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(path)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise StoreError(f"cannot write {path}: {error.strerror}.") from error
    return paths
