"""``torchledger run``: a script in a process of its own, captured from within.

The script runs under a plain ``python SCRIPT ARGS``: its argv, ``__main__``, exit code, signals and traceback are its
own. What starts the capture inside is a ``sitecustomize`` module put first on ``PYTHONPATH``, which processes that the
script starts inherit; those write ledgers of their own, and only if they compile something. Ranks of a distributed
program, whether a launcher starts them here or a cluster starts one ``torchledger run`` for each, write into one job.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torchledger
from torchledger.capturing.module_names import check_module
from torchledger.capturing.session import Capture
from torchledger.errors import StoreError, TorchledgerError, UsageError
from torchledger.nouns import Gap, Graph, Profile, Run
from torchledger.nouns.run import RunStatus
from torchledger.printable import ended
from torchledger.signals import let_through
from torchledger.store import LedgerWriter, is_ledger, open_ledger
from torchledger.store.job import (
    begin_path,
    empty_job,
    end_meeting,
    further_ledgers,
    is_job,
    job_folder,
    ledgers_of_job,
    own_ledger,
    rank_path,
    ready_path,
    write_head,
)

log = logging.getLogger(__name__)

_VARIABLE = "TORCHLEDGER_CAPTURE"
_HOOK_FOLDER = Path(__file__).parent / "child_hook"


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """What became of a script: its exit code (128 + n for signal n), its ledger or job, and its children's ledgers.

    ``warnings`` say what whoever asked for the run should know at once: no graph, or no profile, and why.
    """

    exit_code: int
    path: Path
    child_paths: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()


def run_script(
    arguments: Sequence[str],
    output: Path,
    *,
    is_module: bool = False,
    force: bool = False,
    attached: Mapping[str, Mapping[str, object]] | None = None,
    environment: Mapping[str, str | None] | None = None,
    is_profiled: bool = False,
    stdout: int | None = None,
) -> RunOutcome:
    """Run ``python ARGUMENTS`` (or ``python -m ARGUMENTS``) and record what it compiles into ``output``.

    ``attached`` maps modules of torchledger to settings: in the process, each module's ``attach(capture, settings)`` is
    called once the capture has started (the settings are JSON). ``environment`` holds variables to change for the
    script, or to remove (``None``). ``is_profiled``: a profile was asked for, so a ledger without one is told. The
    script writes its output to the descriptor ``stdout``, where one is given. Raises ``UsageError`` if the script does
    not exist and ``StoreError`` if ``output`` cannot be written; both before anything runs.
    """
    if is_module:
        check_module(arguments[0])
    elif Path(arguments[0]).is_file():
        check_script(arguments[0])
    else:
        arguments = (_console_script(arguments[0]), *arguments[1:])
    output = own_ledger(output.absolute())
    own_rank = _own_rank()
    if own_rank is not None:
        output = rank_path(output, own_rank)
        for left in (ready_path(output.parent, own_rank), begin_path(output.parent)):  # by a run that was killed
            left.unlink(missing_ok=True)
    else:
        empty_job(job_folder(output), force=force)
    with LedgerWriter(output, force=force) as held:  # until the run has ended, also where it never writes itself
        outcome = _run_held(arguments, held, is_module, attached or {}, environment or {}, is_profiled, stdout)
    return _as_job(outcome, arguments, is_rank=own_rank is not None, is_profiled=is_profiled)


def check_script(path: str) -> None:
    """Raise ``UsageError`` where there is no such file, or where it is a ledger, which `--force` would replace."""
    if not Path(path).is_file():
        raise UsageError(f"{path} is not a file. Name a Python script, or use -m for a module.")
    if is_ledger(path):
        raise UsageError(
            f"{path} is a ledger, not a script: `torchledger show {path}` shows it, `predict-step` prices its step."
        )


def _console_script(name: str) -> str:
    """The Python script behind a command such as ``torchrun``. Raises ``UsageError`` for anything else."""
    found = shutil.which(name)
    if found is not None:
        with open(found, "rb") as file:
            first = file.readline(200)
        if first.startswith(b"#!") and b"python" in first:
            return found
    raise UsageError(f"{name} is not a file. Name a Python script, or use -m for a module.")


def _own_rank() -> int | None:
    """This process's rank where a cluster starts one ``torchledger run`` for each; ``None`` where it starts one."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if os.environ.get(size, "").isdigit() and int(os.environ[size]) > 1 and os.environ.get(rank, "").isdigit():
            return int(os.environ[rank])
    return None


def _as_job(outcome: RunOutcome, arguments: Sequence[str], *, is_rank: bool, is_profiled: bool) -> RunOutcome:
    """The outcome with the job in place of its ranks' ledgers, and of a launcher's own that holds nothing."""
    folder = outcome.path.parent if is_rank else job_folder(outcome.path)
    if not is_rank:
        end_meeting(folder)
    if not is_job(folder):
        return outcome
    ranks = ledgers_of_job(folder)
    head = {"argv": list(arguments), "exit_code": outcome.exit_code, "ranks": [path.name for path in ranks.values()]}
    warnings = list(outcome.warnings)
    try:
        if not is_rank or outcome.path == next(iter(ranks.values())):
            write_head(folder, head | {"torchledger": torchledger.__version__})
        if is_rank:
            return dataclasses.replace(outcome, path=folder)
        with open_ledger(outcome.path) as ledger:
            is_empty = ledger.count(Graph) == 0
        by_warning: dict[str, list[int]] = {}
        for rank, path in ranks.items():
            for warning in run_warnings(path, has_children=False, is_profiled=is_profiled):
                by_warning.setdefault(warning, []).append(rank)
        warnings += [f"{counted_ranks(some, len(ranks))}: {warning}" for warning, some in by_warning.items()]
        absent = [rank for rank in range(_world_size(ranks.values())) if rank not in ranks]
        if absent and outcome.exit_code:
            warnings.append(f"{counted_ranks(absent, 0)}: left no ledger (killed, or os._exit, before it was written).")
        if further := further_ledgers(folder):
            more = f" and {len(further) - 1} more" if len(further) > 1 else ""
            warnings.append(
                f"{further[0].name}{more} in {folder.name}: of ranks that were started again, or of processes that "
                "they started. A job is shown by the first ledger of each rank."
            )
        if not is_empty:
            return dataclasses.replace(
                outcome, child_paths=(*outcome.child_paths, folder), warnings=tuple(dict.fromkeys(warnings))
            )
        outcome.path.unlink()
        warnings = [warning for warning in warnings if warning not in outcome.warnings]
        return dataclasses.replace(outcome, path=folder, warnings=tuple(dict.fromkeys(warnings)))
    except (StoreError, OSError) as error:
        return dataclasses.replace(outcome, path=folder, warnings=(*warnings, f"the job is not complete: {error}"))


def _world_size(ledgers: Iterable[Path]) -> int:
    """How many ranks a job has by its ledgers' own word, 0 where they do not know."""
    sizes = []
    for path in ledgers:
        with contextlib.suppress(StoreError), open_ledger(path) as ledger:
            sizes += [run.world_size or 0 for run in ledger.read(Run)]
    return max(sizes, default=0)


def counted_ranks(ranks: Sequence[int], of: int) -> str:
    """Ranks in words.

    >>> counted_ranks([3], 8), counted_ranks([0, 2], 8), counted_ranks([0, 1], 2)
    ('rank 3', 'ranks 0, 2', 'all ranks')
    """
    if len(ranks) == of and of > 1:
        return "all ranks"
    return f"rank{'s'[: len(ranks) > 1]} {', '.join(map(str, ranks))}"


def _run_held(
    arguments: Sequence[str],
    held: LedgerWriter,
    is_module: bool,
    attached: Mapping[str, Mapping[str, object]],
    environment: Mapping[str, str | None],
    is_profiled: bool,
    stdout: int | None,
) -> RunOutcome:
    output = held.path
    started = {path.name for path in output.parent.iterdir()}
    run_id = uuid.uuid4().hex
    request = {
        "path": str(output),
        "parent": os.getpid(),
        "run_id": run_id,
        "argv": list(arguments),
        "attached": dict(attached),
    }
    command = [sys.executable, *(["-m"] if is_module else []), *arguments]
    changed = _environment(request) | dict(environment)
    kept = {name: value for name, value in changed.items() if value is not None}
    process = subprocess.Popen(command, env=kept, stdout=stdout)
    exit_code = _wait(process)
    was_ended, unmarked = _mark_ended(held, run_id, exit_code, tuple(arguments))
    pattern = f"{output.stem}.*{output.suffix}"
    children = sorted(path for path in output.parent.glob(pattern) if path.name not in started)
    if is_profiled:
        _lose_profile(held, _NOTHING_RAN if was_ended else _KILLED)
    warnings = run_warnings(output, has_children=bool(children), is_profiled=is_profiled, was_ended=was_ended)
    return RunOutcome(exit_code, output, tuple(children), (*unmarked, *warnings))


def start_in_process() -> None:
    """Start the capture that ``run_script`` asked for in this process; never raises."""
    try:
        request = json.loads(os.environ[_VARIABLE])
        path = Path(request["path"])
        is_first = os.getppid() == request["parent"] and not _is_claimed(path)
        argv = tuple(request["argv"]) if is_first else tuple(sys.orig_argv[1:])
        capture = Capture(path, argv=argv, is_child=not is_first, run_id=request["run_id"] if is_first else None)
        log.debug("process %d is run %s", os.getpid(), capture.run.run_id)
        atexit.register(_end, capture)
        for module, settings in request["attached"].items():
            try:
                if importlib.import_module(module).attach(capture, settings) is None:
                    raise TorchledgerError("it does not say that it watches")
            except Exception as error:  # the rest is recorded
                let_through(error)
                reason = f"could not be attached: {type(error).__name__}: {error}"
                capture.lose(Gap("run", module.rpartition(".")[2], reason))
    except Exception as error:  # a capture that cannot start must not stop the user's program
        let_through(error)
        sys.stderr.write(
            f"torchledger: nothing is captured in process {os.getpid()}: {type(error).__name__}: {error}\n"
        )


def _end(capture: Capture) -> None:
    try:
        capture.close()
    except Exception as error:  # Python would print it after the user's program
        let_through(error)
        sys.stderr.write(f"torchledger: the ledger is not ended: {type(error).__name__}: {error}\n")


def _is_claimed(path: Path) -> bool:
    """True once the first process has written its run record."""
    with open_ledger(path) as ledger:
        return ledger.count(Run) > 0


def _environment(request: Mapping[str, object]) -> dict[str, str]:
    """The caller's environment with the hook folder (and torchledger itself) first on the path."""
    package_folder = str(Path(torchledger.__file__).parent.parent)
    former = os.environ.get("PYTHONPATH")
    paths = [str(_HOOK_FOLDER), *([former] if former else []), package_folder]
    return os.environ | {_VARIABLE: json.dumps(request), "PYTHONPATH": os.pathsep.join(paths)}


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the script; what interrupts us is the script's to answer."""

    def pass_on(number: int, frame: object) -> None:
        process.send_signal(number)

    former = {signal.SIGTERM: signal.signal(signal.SIGTERM, pass_on)}
    former[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the script too
    try:
        code = process.wait()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


_NOTHING_RAN = "no graph was compiled, and neither an optimizer's step nor torchledger.step() ended a step"

_KILLED = "the process ended before it could write one (killed, or os._exit)"


def run_warnings(
    path: Path, *, has_children: bool, is_profiled: bool = False, was_ended: bool = True
) -> tuple[str, ...]:
    """What whoever asked for the ledger at ``path`` should know at once, a sentence each.

    That is what it lacks (children hold their own graphs), and what was done again although a plain run had done it.
    ``was_ended``: the process that was recorded has ended its ledger itself.
    """
    try:
        with open_ledger(path) as ledger:
            runs, graphs, has_profile = ledger.read(Run), ledger.read(Graph), ledger.count(Profile) > 0
            gaps = [gap for gap in ledger.read(Gap) if gap.where == "profile" and gap.account in ("device_time", "run")]
    except StoreError as error:
        return (str(error),)
    # Where children hold the graphs, it is theirs to have a profile.
    found = [f"no profile: {ended(gap.reason)}" for gap in gaps if graphs or not has_children]
    if is_profiled and graphs and not has_profile and not gaps:
        found.append(f"no profile: {_KILLED}.")
    if not runs:
        found.append("nothing was captured: see the messages above.")
    elif not graphs and not has_children:
        found.append(f"no compiled graph: {runs[-1].left_eager or _why_no_graph(runs[-1], was_ended=was_ended)}")
    return (*found, *_lowered_again(graphs))


def _why_no_graph(run: Run, *, was_ended: bool) -> str:
    if not was_ended:
        return "the process ended without ending its ledger."
    if run.status == "failed" and run.exit_code:
        return f"the script ended with exit code {run.exit_code} before one was compiled."
    return "is torch.compile called?"


def _lowered_again(graphs: Sequence[Graph]) -> Iterator[str]:
    """What recording cost although a plain run had compiled the model, in one sentence, if it did."""
    again = [graph for graph in graphs if graph.lowered_again is not None]
    if not again:
        return
    other = sum(graph.lowered_again == "other_code" for graph in again)
    were, their, them = ("was", "its", "it") if len(again) == 1 else ("were", "their", "them")
    came = (
        f"{their} kernels and tuning results came from the caches"
        if not other
        else f"the code of {other} differs from what was there, and {'its' if other == 1 else 'their'} kernels were "
        "compiled anew"
    )
    yield (
        f"{len(again)} of {len(graphs)} graph{'s'[: len(graphs) != 1]} {were} lowered again, as a program that is not "
        f"recorded leaves no entries in the cache; {came}. The next recording finds {them}."
    )


def _lose_profile(held: LedgerWriter, reason: str) -> None:
    """Let the ledger of a process that said nothing of its profile say why there is none: ``_KILLED`` where something
    was compiled, ``_NOTHING_RAN`` where nothing was."""
    try:
        with open_ledger(held.path) as ledger:
            told = any(gap.where == "profile" for gap in ledger.read(Gap)) or ledger.count(Profile) > 0
            if not told and (ledger.count(Graph) > 0) is (reason == _KILLED) and ledger.count(Run):
                held.add(Gap("device_time", "profile", reason))
    except StoreError:
        return  # the ledger cannot be read, which is told of it already


def _mark_ended(held: LedgerWriter, run_id: str, exit_code: int, argv: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """Put the exit code into the run's own record, which a killed script could not.

    Returns whether the script's process had ended it, and what stood against it.
    """
    was_ended = False
    try:
        with open_ledger(held.path) as ledger:
            runs = [run for run in ledger.read(Run) if run.run_id == run_id]
        was_ended = any(run.status != "running" for run in runs)
        for run in runs:
            status: RunStatus = "finished" if exit_code == 0 else "failed"
            held.add(dataclasses.replace(run, status=status, exit_code=exit_code, argv=argv), replace=True)
    except StoreError as error:
        return was_ended, (f"the end of the run is not in the ledger: {error}",)
    return was_ended, ()
