"""Whether code in a ledger was written by this user on this machine.

A ledger holds generated code. Reading it executes nothing; running it alone (``bench``) does, so that a file from
somebody else must not pass for one's own. Each graph's code is therefore sealed with a key that never leaves the user's
cache folder: a ledger that was sent, or changed since, does not carry a valid seal.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets

from torchledger.store.cache_folder import cache_folder

log = logging.getLogger(__name__)


def seal(*sources: str | None) -> str | None:
    """A seal of these texts, or ``None`` if this user's key cannot be kept anywhere.

    >>> is_sealed_here("forged", "import os")
    False
    """
    key = _key(create=True)
    return None if key is None else _digest(key, sources)


def is_sealed_here(found: str | None, *sources: str | None) -> bool:
    """True if this user sealed exactly these texts on this machine."""
    key = _key(create=False)
    return found is not None and key is not None and hmac.compare_digest(found.encode(), _digest(key, sources).encode())


def _digest(key: bytes, sources: tuple[str | None, ...]) -> str:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for source in sources:
        text = (source or "").encode("utf-8", "backslashreplace")
        digest.update(f"{len(text)}:".encode() + text)
    return digest.hexdigest()


def _key(*, create: bool) -> bytes | None:
    path = cache_folder() / "key"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        if not create:
            return None
    except OSError as error:
        log.debug("%s cannot be read: %s", path, error)
        return None
    unfinished = path.with_name(f".key.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
        log.info("the ledger's code is not sealed: %s cannot be written: %s", path, error)
        return None
