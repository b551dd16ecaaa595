"""Whether what a ledger holds was written by this user on this machine.

Reading a ledger executes nothing; running its kernels alone (``bench``) or writing them as a module (``extract``) makes
code out of it, so that a file from somebody else must not pass for one's own. Each graph is therefore sealed together
with all its launches, and each kernel by itself, with a key that never leaves the user's cache folder: every field of
every record that code is made of is under a seal, and a ledger that was sent, or changed since, carries no valid one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import logging
import os
import secrets
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from torchledger.errors import StoreError
from torchledger.nouns import Graph, Kernel, Launch
from torchledger.store.cache_folder import cache_folder
from torchledger.store.codec import encode

log = logging.getLogger(__name__)

Sealed = TypeVar("Sealed", Graph, Kernel)

_VERSION = "2:"
"""Seals without it are older than this version's: they covered the text of a graph alone."""


def sealed_graph(graph: Graph, launches: Iterable[Launch]) -> Graph:
    """The graph with a seal over itself and its launches in their order; without one if no key can be kept."""
    return dataclasses.replace(graph, seal=seal("graph", *_texts(graph, *launches)))


def sealed_kernel(kernel: Kernel) -> Kernel:
    """The kernel with a seal over itself; as ``sealed_graph``."""
    return dataclasses.replace(kernel, seal=seal("kernel", *_texts(kernel)))


def seal_fault(graph: Graph, launches: Sequence[Launch], kernels: Sequence[Kernel]) -> str | None:
    """Why these records, exactly as they are, are not known to be this user's; ``None`` if they are.

    Raises ``StoreError`` if the key's folder or file could be read or replaced by others.
    """
    if graph.seal is not None and not graph.seal.startswith(_VERSION):
        return f"{graph.name} was sealed by an older version, whose seal does not cover all that would run"
    if not is_sealed_here(graph.seal, "graph", *_texts(graph, *launches)):
        return f"{graph.name} carries no valid seal"
    present = {kernel.key for kernel in kernels}
    parts = {part for kernel in kernels for part in kernel.sub_kernels}
    missing = ({launch.kernel for launch in launches if launch.category != "nop"} | parts) - present
    if missing:
        return f"{graph.name} launches {min(missing)}, of which no kernel is in the ledger"
    for kernel in kernels:
        if not is_sealed_here(kernel.seal, "kernel", *_texts(kernel)):
            return f"{kernel.name}, a kernel of {graph.name}, carries no valid seal"
    return None


def seal(kind: str, *texts: bytes) -> str | None:
    """A seal of these texts as one thing of its kind, or ``None`` (with a warning) if no key can be kept."""
    try:
        key = _key(create=True)
    except StoreError as error:
        log.warning("the ledger is not sealed: %s", error)
        return None
    return None if key is None else _digest(key, kind, texts)


def is_sealed_here(found: str | None, kind: str, *texts: bytes) -> bool:
    """True if this user sealed exactly these texts on this machine.

    Raises ``StoreError`` if the key's folder or file could be read or replaced by others.

    >>> is_sealed_here("forged", "graph", b"import os")
    False
    """
    key = _key(create=False) if found is not None else None
    return (
        found is not None
        and key is not None
        and hmac.compare_digest(found.encode("utf-8", "backslashreplace"), _digest(key, kind, texts).encode())
    )


def _texts(first: Sealed, *launches: Launch) -> list[bytes]:
    return [encode(dataclasses.replace(first, seal=None)), *map(encode, launches)]


def _digest(key: bytes, kind: str, texts: Sequence[bytes]) -> str:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for text in (kind.encode(), *texts):
        digest.update(f"{len(text)}:".encode() + text)
    return _VERSION + digest.hexdigest()


def _key(*, create: bool) -> bytes | None:
    """This user's key; ``None`` if there is none, or none can be made. Raises ``StoreError`` if it is not private."""
    path = cache_folder() / "seal" / "key"
    try:
        _check_private(path.parent)
        _check_private(path)
        return path.read_bytes()
    except FileNotFoundError:
        if not create:
            return None
    except OSError as error:
        log.debug("%s cannot be read: %s", path, error)
        return None
    unfinished = path.with_name(f".key.{os.getpid()}")
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _check_private(path.parent)
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        try:
            os.link(unfinished, path)  # the first of two processes wins, and both read its key
        except FileExistsError:
            pass
        finally:
            unfinished.unlink()
        return path.read_bytes()
    except OSError as error:
        log.info("the ledger is not sealed: %s cannot be written: %s", path, error)
        return None


def _check_private(path: Path) -> None:
    """Raise ``StoreError`` if somebody else owns a file or folder, or may read or change it."""
    facts = path.stat()
    mode = stat.S_IMODE(facts.st_mode)
    if facts.st_uid != os.geteuid():
        raise StoreError(f"{path} belongs to another user (uid {facts.st_uid}). Remove it, and record again.")
    if mode & 0o077:
        wanted = "700" if stat.S_ISDIR(facts.st_mode) else "600"
        raise StoreError(
            f"{path} is open to other users (mode {mode:o}), so that its key proves nothing. "
            f"Remove it and record again, or, if nobody else can have used it, `chmod {wanted} {path}`."
        )
