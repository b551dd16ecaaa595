"""Who writes a ledger holds it: nobody replaces it under a run, not even when told to."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from torchledger.errors import StoreError

log = logging.getLogger(__name__)

_held: set[int] = set()
"""Files of this process's holds. A child that was forked lets go of them, or they would outlast the run."""


class Hold:
    """A file that is held until released, or until the process ends, however it ends."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go; safe to call twice."""
        if self._descriptor is not None and self._descriptor in _held:
            _held.discard(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = None


def hold(path: Path) -> Hold:
    """Hold a file, beside others that do; where the file system knows no locks, nothing is held."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        log.debug("%s is not held: %s", path, error)
        return Hold(None)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        log.debug("%s is not held: %s", path, error)
        os.close(descriptor)
        return Hold(None)
    _held.add(descriptor)
    return Hold(descriptor)


def check_unheld(path: Path) -> None:
    """Raise ``StoreError`` if a run still writes a file, or it cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{path} is being written by another run, and is not replaced while that lasts. Choose another name, "
                "or wait until it has ended."
            ) from None
        except OSError as error:
            log.debug("whether %s is held is not known: %s", path, error)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _irreplaceable(path, error) from error


def remove_unheld(path: Path) -> None:
    """Remove a file that nobody holds. Raises ``StoreError`` as ``check_unheld``, and if it cannot be removed."""
    check_unheld(path)
    try:
        path.unlink()
    except OSError as error:
        raise _irreplaceable(path, error) from error


def _irreplaceable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot replace {path}: {error.strerror}. Name a file in a folder that can be written.")


def _let_go() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)
