"""A job as a folder: the ranks' ledgers (``rank0.ledger`` ...) and ``job.json``, what is known of all of them."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path

from torchledger.errors import StoreError
from torchledger.store.output import write_output

SUFFIX = ".job"
HEAD = "job.json"
_BEGIN = "ranks.begin"
_LONGEST_HEAD = 1 << 20
_OURS = re.compile(r"^(rank\d+(\.\d+)?\.(ledger|ledger-journal|trace\.json\.gz|ready)|ranks\.begin)$")
_FURTHER = re.compile(r"^rank\d{1,7}\.\d+\.ledger$")
_LEDGER = re.compile(r"^rank(?P<rank>\d{1,7})\.ledger$")


def is_job(path: str | PathLike[str]) -> bool:
    """True for a folder that holds a rank's ledger."""
    folder = Path(path)
    return folder.is_dir() and any(_LEDGER.match(each.name) for each in folder.iterdir())


def ledgers_of_job(path: str | PathLike[str]) -> dict[int, Path]:
    """Each rank's ledger, in order of the ranks. Raises ``StoreError`` naming the folder if there is none."""
    folder = Path(path)
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a job: a job is a folder of ranks' ledgers.")
    found = {int(match["rank"]): each for each in folder.iterdir() if (match := _LEDGER.match(each.name)) is not None}
    if not found:
        raise StoreError(
            f"{folder} holds no rank's ledger. Record a job with `torchledger run --profile -o NAME.ledger -m "
            "torch.distributed.run ...`."
        )
    return dict(sorted(found.items()))


def further_ledgers(folder: Path) -> list[Path]:
    """Second and later ledgers of one rank: of a rank that was started again, or of a process that it started."""
    return sorted(path for path in folder.iterdir() if _FURTHER.match(path.name))


def shared_ranks(first: str | PathLike[str], second: str | PathLike[str]) -> dict[int, tuple[Path, Path]]:
    """Both ledgers of each rank that two jobs share.

    Raises ``StoreError`` for a folder that is no job, and for two jobs without a common rank.
    """
    one, other = ledgers_of_job(first), ledgers_of_job(second)
    if not one.keys() & other.keys():
        raise StoreError(f"{first} and {second} have no rank in common: there is nothing to compare.")
    return {rank: (path, other[rank]) for rank, path in one.items() if rank in other}


def one_ledger(path: str | PathLike[str]) -> Path:
    """The ledger that stands for a path: the file itself, of a job the lowest rank's.

    Raises ``StoreError`` for a folder that is no job.
    """
    if not Path(path).is_dir():
        return Path(path)
    if not is_job(path):
        raise StoreError(f"{path} is a folder, not a ledger, and no job: it holds no rank's ledger (rank0.ledger).")
    return next(iter(ledgers_of_job(path).values()))


def own_ledger(output: Path) -> Path:
    """What a recording writes by itself: ``j.ledger`` also where the job's folder was named, ``j.job``."""
    return output.with_suffix(".ledger") if output.suffix == SUFFIX else output


def job_folder(ledger: Path) -> Path:
    """Where the ranks of a program go whose ledger was to be ``ledger``: ``j.job`` for ``j.ledger``."""
    return ledger.with_suffix(SUFFIX)


def job_folder_of(ledger: Path) -> Path:
    """The job that a rank's ledger lies in, or whose place it was asked for."""
    return ledger.parent if ledger.parent.suffix == SUFFIX else job_folder(ledger)


def rank_path(ledger: Path, rank: int) -> Path:
    """The ledger of one rank in the job that takes the place of ``ledger``; makes the folder.

    Raises ``StoreError`` if that cannot be made.
    """
    folder = job_folder(ledger)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make {folder}: {error.strerror}. Choose another name with -o.") from error
    return folder / f"rank{rank}.ledger"


def ready_path(folder: Path, rank: int) -> Path:
    """Where a rank that runs says which step it has ended when it is ready to be recorded."""
    return folder / f"rank{rank}.ready"


def begin_path(folder: Path) -> Path:
    """Where the step stands with which all ranks that run begin to be recorded."""
    return folder / _BEGIN


@contextlib.contextmanager
def job_in_place(folder: Path, *, force: bool) -> Iterator[Path]:
    """Where to make a job that takes the place of ``folder`` when all is done: what fails leaves what was there.

    Raises ``StoreError`` as ``empty_job``, before anything is made, and if it cannot be written.
    """
    _check_job(folder, force=force)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = tempfile.TemporaryDirectory(prefix=".torchledger-", dir=folder.parent)
    except OSError as error:
        raise StoreError(f"cannot make {folder}: {error.strerror}. Choose another name with -o.") from error
    with beside:
        made = Path(beside.name) / folder.name
        yield made
        empty_job(folder, force=force)
        try:
            folder.mkdir(exist_ok=True)
            for path in made.iterdir():
                path.replace(folder / path.name)
        except OSError as error:
            raise StoreError(f"cannot write into {folder}: {error.strerror}. Choose another name with -o.") from error


def empty_job(folder: Path, *, force: bool) -> None:
    """Take a former job's files out of the way. Raises ``StoreError`` if there is one (without ``force``)."""
    _check_job(folder, force=force)
    if not folder.exists():
        return
    for path in folder.iterdir():
        if path.name == HEAD or _OURS.match(path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def _check_job(folder: Path, *, force: bool) -> None:
    if not folder.exists():
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if not force:
        raise StoreError(f"{folder} exists. Choose another name, or pass --force to replace it.")
    if not folder.is_dir() or not any(path.name == HEAD or _OURS.match(path.name) for path in folder.iterdir()):
        raise StoreError(f"{folder} is no job, and is not replaced. Choose another name with -o.")


def end_meeting(folder: Path) -> None:
    """Take away what ranks that were killed left of ``ready_path`` and ``begin_path``."""
    for left in (*folder.glob("rank*.ready"), begin_path(folder)):
        with contextlib.suppress(OSError):
            left.unlink(missing_ok=True)


def read_head(folder: str | PathLike[str]) -> Mapping[str, object]:
    """What ``write_head`` wrote; empty where there is none, or it cannot be read."""
    try:
        with (Path(folder) / HEAD).open("rb") as file:
            head = json.loads(file.read(_LONGEST_HEAD))
    except (OSError, ValueError, RecursionError):
        return {}
    return head if isinstance(head, dict) else {}


def write_head(folder: Path, head: Mapping[str, object]) -> Path:
    """Write ``job.json``: what was run, how it ended, and which ledgers there are."""
    path = folder / HEAD
    write_output(path, (json.dumps(head, indent=2) + "\n").encode(), force=True)
    return path
