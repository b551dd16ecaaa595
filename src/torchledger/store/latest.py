"""What a ledger may hold several times, and which one counts: the one that was written last.

A ledger can be profiled, benched and watched again, and each time is appended. Whoever asks for its profile, the times
of a launch or what it read asks here, so that every report speaks of the same one. Exports hold them all.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, TypeVar

from torchledger.nouns import Measurement, ValueStats
from torchledger.store.ledger import LedgerReader

Record = TypeVar("Record")


def latest(reader: LedgerReader, record_type: type[Record], **where: Any) -> Record | None:
    """The record of a type (``Profile``, ``Breakdown``, ``Timeline``, ...) that counts; ``None`` if there is none.

    ``where`` selects by columns, as in ``reader.read``.
    """
    return next(iter(deque(reader.iterate(record_type, **where), maxlen=1)), None)


def latest_measurements(reader: LedgerReader, **where: Any) -> list[Measurement]:
    """The measurements that count: of each subject, kind, cache state and configuration the latest that has samples.

    ``where`` selects by columns, as in ``reader.read``.
    """
    found = {
        (each.subject, each.kind, each.l2_state, each.configuration): each
        for each in reader.iterate(Measurement, **where)
        if each.samples_us
    }
    return list(found.values())


def step_measurements(reader: LedgerReader) -> dict[str, Measurement]:
    """By launch id, its time inside the step that counts; launches that no profile saw are not in it."""
    return {each.subject: each for each in latest_measurements(reader, kind="profile")}


def saved_inputs(reader: LedgerReader, **where: Any) -> dict[str, str]:
    """By launch id, the file of what it read: of the last call whose file is still there, else of the last call.

    ``where`` selects by columns of ``ValueStats``. A tensor saved in a file of its own is not all that a launch read.
    """
    found: dict[str, str] = {}
    for stats in reader.iterate(ValueStats, moment="before", **where):
        if stats.path is None or Path(stats.path).name.startswith("before."):
            continue
        if stats.subject not in found or Path(stats.path).exists() or not Path(found[stats.subject]).exists():
            found[stats.subject] = stats.path
    return found
