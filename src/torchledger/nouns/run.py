"""One recorded session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchledger.nouns.device import Device, Environment

RunStatus = Literal["running", "finished", "failed"]


@dataclass(frozen=True)
class Run:
    """Who ran what, when, on which machine. A ledger file holds exactly one."""

    run_id: str
    started_utc: str
    argv: tuple[str, ...]
    environment: Environment
    devices: tuple[Device, ...] = ()
    status: RunStatus = "running"
    exit_code: int | None = None
    finished_utc: str | None = None
    rank: int | None = None
    world_size: int | None = None
    parent_run_id: str | None = None
    notes: tuple[str, ...] = ()
