"""What the stages of a pipeline tell each other of the shapes that they send, in files that their ranks share.

A rank with several stages is told by ranks behind it: until those have run it takes what the nearest stage sends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

StageMail = Mapping[int, list[dict[str, Any]]]
"""By stage: shape, stride, dtype and whether a gradient comes back, of each tensor that it sends to the next one."""


@dataclass(frozen=True)
class StageReader:
    """The ``ranks`` of a pipeline, in order, and what one of them was told or took for it (``mail``)."""

    ranks: tuple[int, ...]
    mail: StageMail

    def write(self, folder: Path, rank: int) -> None:
        """Keep it as what that rank has read."""
        _path(folder, rank).write_text(json.dumps({"ranks": self.ranks, "mail": self.mail}))

    def is_current(self, known: StageMail) -> bool:
        """Whether the rank would read the same in what is known."""
        return all(known.get(_nearest_or(known, stage)) == tensors for stage, tensors in self.mail.items())

    def took_for(self, known: StageMail) -> bool:
        """Whether a stage that is not known has told it something: another one's shapes stood for it."""
        return any(stage not in known for stage in self.mail)


def stage_reader(folder: Path, rank: int) -> StageReader | None:
    """What a rank has read; ``None`` of a rank that has read nothing."""
    path = _path(folder, rank)
    if not path.exists():
        return None
    told = json.loads(path.read_text())
    return StageReader(tuple(told["ranks"]), {int(stage): mail for stage, mail in told["mail"].items()})


def stage_mail(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """What stages have told until now."""
    return {
        int(path.stem.partition("_")[2]): json.loads(path.read_text()) for path in sorted(folder.glob("stage_*.json"))
    }


def nearest_stage(known: Iterable[int], stage: int) -> int | None:
    """The stage itself, or the nearest known one before it.

    >>> nearest_stage([0, 1, 8], 7), nearest_stage([8], 7)
    (1, None)
    """
    return max((each for each in known if each <= stage), default=None)


def _nearest_or(known: StageMail, stage: int) -> int:
    nearest = nearest_stage(known, stage)
    return stage if nearest is None else nearest


def _path(folder: Path, rank: int) -> Path:
    return folder / f"read_{rank}.json"
