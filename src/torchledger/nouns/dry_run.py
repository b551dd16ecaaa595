"""What a program was told that ran without its device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StandIn:
    """A value that the program was given in place of one that was not computed.

    ``source`` is the line that asked (``"train.py:12"``), ``asked`` what for, ``value`` what it got, and ``count`` how
    often.
    """

    source: str
    asked: str
    value: str
    count: int = 1


@dataclass(frozen=True)
class DryRun:
    """A ledger's program ran without ``device``: nothing was computed, and nothing in the ledger was measured.

    ``decisions`` counts what the compiler would have measured on the device and was decided by a rule.
    """

    device: str
    stand_ins: tuple[StandIn, ...] = ()
    decisions: Mapping[str, int] = field(default_factory=dict)
