"""One recorded session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchledger.nouns.device import Device, Environment, Host

IMPORTED = "imported trace"
"""The platform of a program that only its trace tells of."""

RunStatus = Literal["running", "finished", "failed"]

ValuesLack = Literal["nothing matched", "not saved", "predicate failed", "not watched"]
"""Why what was recorded of values is not all that was asked for: the filters passed no launch, launches were not saved
for want of room, the predicate could not be asked of a tensor."""


@dataclass(frozen=True)
class Run:
    """Who ran what, when, on which machine. A ledger file holds exactly one.

    ``left_eager`` says what ``torch.compile`` was given and left to run eagerly, with Dynamo's reasons; it is one of
    the ``notes`` too. ``None``: nothing, or the file is older than the field. ``host`` is what `torchledger doctor`
    measured of this host before; ``None`` where it did not. ``values_lack`` says what is missing of the values that
    were watched; ``None``: none were, or the file is older than the field.
    """

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
    left_eager: str | None = None
    host: Host | None = None
    values_lack: tuple[ValuesLack, ...] | None = None

    @property
    def is_imported(self) -> bool:
        """True for a trace that somebody else recorded: torchledger did not see the program run."""
        return self.environment.platform == IMPORTED
