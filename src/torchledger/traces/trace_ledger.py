"""An imported trace as a ledger: the run, its breakdown, and every kernel's times."""

from __future__ import annotations

import datetime
import platform
import uuid
from collections import defaultdict
from collections.abc import Sequence
from os import PathLike
from typing import Any

from torchledger import __version__
from torchledger.nouns import Breakdown, DeviceEvent, Environment, Measurement, Run
from torchledger.nouns.run import IMPORTED
from torchledger.store import LedgerWriter
from torchledger.traces.timeline import step_timeline


def write_trace_ledger(
    path: str | PathLike[str], breakdown: Breakdown, events: Sequence[DeviceEvent], *, force: bool = False
) -> None:
    """Write a ledger that holds one imported trace; errors as ``LedgerWriter``."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    run = Run(
        run_id=uuid.uuid4().hex,
        started_utc=now,
        finished_utc=now,
        argv=("torchledger", "import", breakdown.source),
        environment=Environment(python=platform.python_version(), platform=IMPORTED, torchledger=__version__),
        devices=breakdown.devices,
        status="finished",
        rank=breakdown.rank,
        notes=(f"Imported from {breakdown.source}; torchledger did not see this program run.",),
    )
    with LedgerWriter(path, force=force) as writer:
        pictures = [step_timeline(events, clock=breakdown.clock)] if events else []
        writer.add(run, breakdown, *measurements_of(events), *pictures)


def measurements_of(events: Sequence[DeviceEvent]) -> list[Measurement]:
    """The times of each kernel, by symbol; what differs between its launches is left out of the record."""
    by_name: dict[str, list[DeviceEvent]] = defaultdict(list)
    for event in events:
        by_name[event.name].append(event)
    return [
        Measurement(
            subject=name,
            kind="profile",
            clock="trace",
            samples_us=tuple(event.duration_us for event in some),
            l2_state="step",
            symbols=(name,),
            grid=_same({event.grid for event in some}),
            block=_same({event.block for event in some}),
            n_regs=_same({event.n_regs for event in some}),
            shared_bytes=_same({event.shared_bytes for event in some}),
        )
        for name, some in by_name.items()
    ]


def _same(values: set[Any]) -> Any:
    return next(iter(values)) if len(values) == 1 else None
