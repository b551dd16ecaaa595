"""Which rank of a distributed program this process is, and where the ledger of a child process goes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torchledger.store.job import rank_path


def child_path(path: Path) -> Path:
    """The ledger of a child process: ``gpt.job/rank1.ledger``, or ``gpt.pid4711.ledger`` where there is no rank.

    An empty file keeps the place, so that no other child of the rank takes it before something is written.
    """
    rank = own_rank()
    first = rank_path(path, rank) if rank is not None else path.with_name(f"{path.stem}.pid{os.getpid()}{path.suffix}")
    candidate, number = first, 1
    while not _is_reserved(candidate):
        number += 1
        candidate = first.with_name(f"{first.stem}.{number}{first.suffix}")
    return candidate


def _is_reserved(path: Path) -> bool:
    """Whether a path was free and has an empty file now; also where none can be made: the writer says why."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def own_rank() -> int | None:
    """This process's rank in a distributed program; ``None`` where nothing says so."""
    text = os.environ.get("RANK", os.environ.get("SLURM_PROCID"))
    if text is not None and text.isdigit():
        return int(text)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return None


def own_world_size() -> int | None:
    """How many ranks this process's program has; ``None`` where nothing says so."""
    text = os.environ.get("WORLD_SIZE")
    return int(text) if text is not None and text.isdigit() else None
