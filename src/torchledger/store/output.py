"""The one way to a file that a command writes: nothing is overwritten by accident, and a file is whole or not there."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torchledger.errors import StoreError

_UNSAFE = re.compile(r"[^\w.+,()=-]+")
_LONGEST_NAME = 120


def check_output(path: Path, *, force: bool) -> None:
    """Raise ``StoreError`` if ``path`` is a folder, or exists and may not be replaced (without ``force``)."""
    try:
        exists, is_folder = path.exists(), path.is_dir()
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}.") from error
    if is_folder:
        raise StoreError(f"{path} is a folder. Name a file inside it.")
    if exists and not force:
        raise StoreError(f"{path} exists. Choose another name, or pass --force to replace it.")


@contextlib.contextmanager
def output_file(path: Path, *, force: bool) -> Iterator[Path]:
    """A path to write to, which becomes ``path`` when all is written, and leaves nothing behind when it fails.

    Raises ``StoreError`` as ``check_output``, and if writing fails.
    """
    check_output(path, force=force)
    unfinished = path.with_name(f".{path.name[-_LONGEST_NAME:]}.{os.getpid()}")
    try:
        yield unfinished
        unfinished.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"cannot write {path}: {reason}. Name a file in a folder that can be written.") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_output(path: Path, content: bytes, *, force: bool) -> None:
    """Write one file, whole or not at all; errors as ``output_file``."""
    with output_file(path, force=force) as unfinished:
        unfinished.write_bytes(content)


def file_name(text: str) -> str:
    """A name that stands in a file (a device, an operator) as part of a file's name: never a path, never hidden.

    >>> file_name("../../etc/NVIDIA H200")
    'etc_NVIDIA_H200'
    """
    return _UNSAFE.sub("_", text).strip("._")[:_LONGEST_NAME] or "_"


def prepare_folder(folder: Path, names: Iterable[str], *, force: bool) -> list[Path]:
    """Make ``folder`` if needed and return the paths of ``names`` in it.

    Raises ``StoreError`` if one of them exists (without ``force``), would lie elsewhere, or the folder cannot be made.
    """
    paths = [folder / name for name in names]
    if strays := [path for path in paths if path.parent != folder or path.name in ("", ".", "..")]:
        raise StoreError(f"{str(strays[0])!r} would lie outside of {folder}: a name in the file is a path.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        existing = [path for path in paths if path.exists()]
    except OSError as error:
        raise StoreError(f"cannot write into {folder}: {error.strerror}. Name a folder that can be made.") from error
    if existing and not force:
        found = f"{existing[0]} exists" if len(existing) == 1 else f"{existing[0]} and {len(existing) - 1:,} more exist"
        raise StoreError(f"{found}. Choose another folder, or pass --force to replace it.")
    return paths


def write_files(folder: Path, contents: Mapping[str, bytes], *, force: bool) -> list[Path]:
    """Write files into ``folder``, each whole or not at all; returns their paths. Errors as ``prepare_folder``."""
    paths = prepare_folder(folder, contents, force=force)
    for path, content in zip(paths, contents.values(), strict=True):
        write_output(path, content, force=force)
    return paths
