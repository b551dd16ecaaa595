"""Kill with ``kill -9`` at 50 random moments; what was finished must be there.

    python -m benchmarks.robustness.kill_and_resume [--of run] [--kills 50] [--points 1500] [--seed 0]

``run``, ``profile`` and ``values``: a training program recorded under that command, killed alone or with the command.
Each graph whose first call had returned must be in the ledger, each graph there whole, the calls whose values are there
those from the first on; ``show`` must answer, and the next run replace the ledger. ``job``: one of two gloo ranks under
torch's elastic agent, the same of both ledgers, and no rank has two; ``--how`` says what is done to the rank: ``kill``;
``term``, and ``kill`` soon after; ``interrupt``, twice; or to the agent in its place: ``agent``. ``signal``: SIGTERM,
whose handler raises, at a random line of our own code under ``run``, ``profile`` and ``values`` in turns; the program
hears it, no guard of ours keeps it. ``sample``: a sampling worker; what is on disk at the end must equal an
uninterrupted run, each shape once.

Needs no GPU. Processes are forks of this one, which has imported torch and has warm caches, so that most of a round is
our own work. A kill falls when the process has used a random part of the processor time that it needs in all, so that
other work on the machine moves none behind the end; a sampling worker's falls at a random time after its start. Exits
with 1 if anything is lost or repeated.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from click.testing import CliRunner
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from forked import EXIT_CODE, Mode, begin_anew, make_forkable, program, record
from interrupted import Lines, ToldToEndError, log_to, raise_told
from torchledger.capturing import process
from torchledger.cli import cli
from torchledger.errors import StoreError, TorchledgerError
from torchledger.nouns import Gap, Graph, Launch, Run, ValueStats
from torchledger.sampling.dataset import read_samples
from torchledger.sampling.journal import JOURNAL_FOLDER, read_journals
from torchledger.sampling.points import Plan, Point, save_plan, unique_points
from torchledger.sampling.worker import run_worker
from torchledger.store import open_ledger
from torchledger.store.job import rank_path

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)
QUICK: tuple[tuple[str, ...], ...] = (("--kills", "1", "--points", "60"),)

_CODES = "exit_codes_of_the_runs_before_and_after"
_SOUND = [EXIT_CODE, EXIT_CODE]

COMMANDS = ("run", "profile", "values", "job", "signal", "sample")

HOW = ("kill", "term", "interrupt", "agent")

_LONGEST_END_S = 90.0
"""After which a rank whose fellow or agent is gone is taken for one that waits for it for ever, and is killed."""


def start_worker(folder: Path) -> int:
    """A worker in a forked child, which spares it the second that importing torch takes."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        run_worker(folder, device="cpu")
        code = 0
    finally:
        os._exit(code)


def journaled_points(folder: Path) -> list[str]:
    """Every finished point in every journal, repeats and all."""
    points = []
    for path in sorted((folder / JOURNAL_FOLDER).glob("*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n") and (entry := json.loads(line))["kind"] == "point":
                points.append(entry["point"])
    return points


def kill_command(of: Mode, kills: int, source: random.Random) -> dict[str, object]:
    """Kill a recorded program again and again, and judge what each left.

    In each second round the command is killed together with the program, else the program alone.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        record(of, folder, force=True)
        before_s = _cpu_s_here()
        codes = [record(of, folder, force=True)[0]]
        usual_s = _cpu_s_here() - before_s
        faults: list[str] = []
        early = 0
        graphs: list[int] = []
        for number in range(kills):
            command = os.fork()
            if command == 0:
                os.setpgrp()
                (folder / "result").unlink(missing_ok=True)
                record(of, folder, force=True)
                os._exit(0)
            _wait_for_cpu(command, source.uniform(0, usual_s))
            early += (folder / "result").exists()
            _kill(command, is_whole=number % 2 == 0)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(command, 0)
            finished = _progress(folder / "progress")
            faults += [f"kill {number}: {text}" for text in faults_of(folder / "a.ledger", finished)]
            graphs.append(_n_graphs(folder / "a.ledger"))
        codes.append(record(of, folder, force=True)[0])
        known = ("result", "progress", "messages", "a.ledger", "a.trace.json.gz")
        left = sorted(path.name for path in folder.iterdir() if path.name not in known)
    return {
        "command": of,
        "kills": kills,
        "programs_that_had_ended": early,
        "uninterrupted_run_cpu_s": round(usual_s, 2),
        "graphs_found_after_each_kill": dict(sorted(Counter(graphs).items())),
        "faults": faults,
        _CODES: codes,
        "files_left_beside_it": left,
    }


def _cpu_s_here() -> float:
    """Processor time of this process and of those that it waited for, in seconds."""
    return sum(os.times()[:4])


def _wait_for_cpu(process_id: int, until_s: float) -> None:
    """Until a child and its children have used so many seconds of processor time, or it has ended."""
    while not os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
            if sum(_cpu_s(int(each)) for each in (process_id, *children)) >= until_s:
                return
        time.sleep(0.005)


def _cpu_s(process_id: int) -> float:
    """Processor time of a process and of those that it waited for, in seconds; ``ProcessLookupError`` if it ended."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    if fields[0] == "Z":
        raise ProcessLookupError(process_id)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _kill(command: int, *, is_whole: bool) -> None:
    """Kill a command with its process group, or the program that it started, as soon as there is one."""
    with contextlib.suppress(ProcessLookupError):
        if is_whole:
            os.killpg(command, signal.SIGKILL)
            os.waitpid(command, 0)
            while True:  # until the system has taken the last of them down
                os.killpg(command, 0)
                time.sleep(0.005)
        children = Path(f"/proc/{command}/task/{command}/children")
        while not (started := children.read_text().split()):
            if os.waitid(os.P_PID, command, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
            time.sleep(0.005)
        os.kill(int(started[0]), signal.SIGKILL)


def kill_rank(kills: int, source: random.Random, how: str) -> dict[str, object]:
    """End one of two ranks of a job under torch's elastic agent again and again, and judge both ledgers."""
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        faults = [] if _job(whole, None, 0.0, how, source) else ["a job that nobody kills fails"]
        usual_s = float((whole / "cpu0").read_text())
        graphs: list[tuple[int, ...]] = []
        waiting = 0
        for number in range(kills):
            folder = Path(scratch) / str(number)
            _job(folder, number % 2, source.uniform(0, usual_s), how, source)
            waiting += _end_of_ranks(folder)
            for rank in (0, 1):
                wrong = faults_of(rank_path(folder / "a.ledger", rank), _progress(folder / f"progress{rank}"))
                others = [path.name for path in folder.glob(f"a.*/rank{rank}.*.ledger")]
                for text in wrong + [f"there is another ledger, {name}" for name in others]:
                    said = (folder / f"messages{rank}").read_text(errors="replace")[-1000:]
                    left = " ".join(str(path.relative_to(folder)) for path in sorted(folder.glob("a.*/*")))
                    faults.append(f"kill {number} of rank {number % 2}, rank {rank}: {text}; {left}; it said: {said}")
            graphs.append(
                tuple(_n_graphs(rank_path(folder / "a.ledger", rank)) for rank in (number % 2, 1 - number % 2))
            )
    return {
        "command": f"run of a job of two gloo ranks, {how}",
        "kills": kills,
        "uninterrupted_rank_cpu_s": round(usual_s, 2),
        "graphs_of_killed_and_other_rank": {f"{a} and {b}": n for (a, b), n in sorted(Counter(graphs).items())},
        "ranks_that_waited_for_ever": waiting,
        "faults": faults,
    }


def _end_of_ranks(folder: Path) -> int:
    """Wait until no rank runs any more; returns how many had to be killed."""
    until, killed = time.monotonic() + _LONGEST_END_S, 0
    for place in folder.glob("pid?"):
        rank = int(place.read_text())
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            while time.monotonic() < until:
                _cpu_s(rank)
                time.sleep(0.02)
            os.kill(rank, signal.SIGKILL)
            killed += 1
    return killed


def _job(folder: Path, rank_to_kill: int | None, after_s: float, how: str, source: random.Random) -> bool:
    """Record a job of two ranks, one of which is ended after so much processor time; true if the job ends well."""
    folder.mkdir()
    request = {"path": str(folder / "a.ledger"), "parent": 0, "run_id": None, "argv": ["job"], "attached": {}}
    agent = os.fork()
    if agent == 0:
        os.setpgrp()
        begin_anew(folder / "messages")
        os.environ[process._VARIABLE] = json.dumps(request)
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=2, start_method="fork", rdzv_backend="c10d",
            rdzv_endpoint="localhost:0", run_id=str(os.getpid()), max_restarts=0, monitor_interval=0.05,
            logs_specs=DefaultLogsSpecs(str(folder / "logs")),
        )  # fmt: skip
        code = 1
        try:
            elastic_launch(config, _rank)(str(folder))
            code = 0
        finally:
            os._exit(code)
    if rank_to_kill is not None:
        place = folder / f"pid{rank_to_kill}"
        while not place.exists() and not os.waitid(os.P_PID, agent, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            rank = int(place.read_text())
            while _cpu_s(rank) < after_s:
                time.sleep(0.005)
            _end_rank(rank, agent, how, source)
    return os.waitpid(agent, 0)[1] == 0


def _end_rank(rank: int, agent: int, how: str, source: random.Random) -> None:
    if how == "agent":
        os.kill(agent, signal.SIGKILL)
        return
    if how == "term":
        os.kill(rank, signal.SIGTERM)
    elif how == "interrupt":
        os.kill(rank, signal.SIGINT)
    if how != "kill":
        time.sleep(source.uniform(0, 0.3))
    os.kill(rank, signal.SIGINT if how == "interrupt" else signal.SIGKILL)


def signal_at_lines(times: int, source: random.Random) -> dict[str, object]:
    """Tell a recorded program to end at a random line of our own code again and again; its handler raises."""
    modes: tuple[Mode, ...] = ("run", "profile", "values")
    faults: list[str] = []
    rooms: Counter[str] = Counter()
    after_the_end = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        n_lines = {}
        for mode in modes:
            record(mode, folder, _told_at(None, folder), force=True)
            n_lines[mode] = int((folder / "where").read_text().split()[0])
        for number in range(times):
            mode = modes[number % len(modes)]
            record(mode, folder, _told_at(source.randrange(n_lines[mode]) + 1, folder), force=True)
            _, _, where = (folder / "where").read_text().partition(" ")
            has_ended = (folder / "result").exists()
            after_the_end += has_ended
            rooms["not reached" if where == "None" else where.split("/")[0]] += 1
            found = faults_of(folder / "a.ledger", _progress(folder / "progress"))
            found += _kept_by_a_guard(folder, has_ended or where == "None")
            faults += [f"{mode}, signal {number} at {where}: {text}" for text in found]
    return {
        "command": "run, profile and values in turns; a signal at a line of ours, whose handler raises",
        "signals": times,
        "lines_of_ours_that_run": n_lines,
        "after_the_programs_end": after_the_end,
        "in_the_room": dict(sorted(rooms.items())),
        "faults": faults,
    }


def _told_at(at: int | None, folder: Path) -> Callable[[], None]:
    """What a program does before it is recorded: it has a handler, and hears the signal at the ``at``-th line."""

    def prepare() -> None:
        signal.signal(signal.SIGTERM, raise_told)
        for name in ("where", "log"):
            (folder / name).unlink(missing_ok=True)
        log_to(folder / "log")
        lines = Lines(at)
        atexit.register(lambda: (folder / "where").write_text(f"{lines.n_run} {lines.where}"))
        lines.listen()

    return prepare


def _kept_by_a_guard(folder: Path, has_ended: bool) -> list[str]:
    """What shows that the program did not hear its signal, or that a guard took it for a fault of ours."""
    found = []
    if not has_ended and ToldToEndError.__name__ not in (folder / "messages").read_text(errors="replace"):
        found.append("the program did not hear it")
    if ToldToEndError.__name__ in (folder / "log").read_text(errors="replace"):
        found.append("a guard kept it")
    with contextlib.suppress(StoreError), open_ledger(folder / "a.ledger") as ledger:
        found += [str(gap) for gap in ledger.read(Gap) if ToldToEndError.__name__ in gap.reason]
        if ledger.run().status == "running":
            found.append("the run is not ended")
    return found


def _rank(folder: str) -> None:
    """One rank: gradients of the recorded program are reduced over both at each step."""
    os.dup2(os.open(Path(folder) / f"messages{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT), 2)
    place = Path(folder) / f"pid{os.environ['RANK']}"
    place.with_suffix(".new").write_text(str(os.getpid()))
    place.with_suffix(".new").rename(place)
    torch.distributed.init_process_group("gloo")
    process.start_in_process()
    try:
        program(
            Path(folder), at_step=lambda parameters: [torch.distributed.all_reduce(each.grad) for each in parameters]
        )
    except SystemExit:
        torch.distributed.destroy_process_group()
    finally:
        atexit._run_exitfuncs()
        (Path(folder) / f"cpu{os.environ['RANK']}").write_text(str(time.process_time()))


def faults_of(path: Path, finished: int) -> list[str]:
    """What is wrong with the ledger of a killed run, of which the first calls of so many graphs had returned."""
    if not path.exists():
        return [f"{finished} graphs had run, and there is no ledger"] if finished else []
    try:
        with open_ledger(path) as reader:
            launches = Counter(launch.graph for launch in reader.read(Launch) if launch.is_call)
            graphs = reader.read(Graph)
            reader.read(Run)
            calls: dict[str, set[int]] = {}
            for stats in reader.read(ValueStats):
                calls.setdefault(stats.subject.split("#")[0], set()).add(stats.call_index)
    except StoreError as error:
        return [f"does not open: {error}"]
    found = [f"{graph.name} is not whole" for graph in graphs if len(graph.wrapper_calls) != launches[graph.name]]
    found += [f"calls of {name} are missing" for name, seen in calls.items() if seen != set(range(max(seen) + 1))]
    if len(graphs) < finished:
        found.append(f"{finished} graphs had run, and {len(graphs)} are there")
    shown = CliRunner().invoke(cli, ["show", str(path)])
    if shown.exception is not None and not isinstance(shown.exception, (SystemExit, TorchledgerError)):
        found.append(f"show ends in {shown.exception!r}")
    return found


def _progress(path: Path) -> int:
    return len(path.read_text()) if path.exists() else 0


def _n_graphs(path: Path) -> int:
    if not path.exists():
        return 0
    with contextlib.suppress(StoreError), open_ledger(path) as reader:
        return reader.count(Graph)
    return 0


def kill_sampling(kills: int, n_points: int, source: random.Random) -> dict[str, object]:
    """Kill a sampling worker again and again; what is on disk at the end must equal an uninterrupted run."""
    points = unique_points(
        [Point("linear", {"m": 8 + i % 40, "k": 8 + i // 40, "n": 16}, "float32") for i in range(n_points)]
    )
    plan = Plan(points, warmup=1, active=10)
    with tempfile.TemporaryDirectory() as scratch:
        whole, killed = Path(scratch, "whole"), Path(scratch, "killed")
        for folder in (whole, killed):
            save_plan(plan, folder)
        started, started_utc = time.monotonic(), time.time()
        os.waitpid(start_worker(whole), 0)
        usual_s = time.monotonic() - started
        start_up_s = min(read_journals(whole, samples=False).finished_utc.values()) - started_utc
        share_s = (usual_s - start_up_s) / kills
        done = early = 0
        while done < kills:
            worker = start_worker(killed)
            # On average the kills leave each run its share of the points, and some fall into its start-up.
            time.sleep(source.uniform(0.5 * start_up_s, 1.5 * start_up_s + share_s))
            ended, _ = os.waitpid(worker, os.WNOHANG)
            if ended:
                early += 1
                break
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            done += 1
        before = len(journaled_points(killed))
        os.waitpid(start_worker(killed), 0)
        finished = journaled_points(killed)
        repeats = {point: count for point, count in Counter(finished).items() if count > 1}
        expected = {(s.point_id, s.direction, s.status) for s in read_samples(whole)}
        found = {(s.point_id, s.direction, s.status) for s in read_samples(killed)}
        torn = read_journals(killed, samples=False).torn_lines
    faults = [f"{len(expected - found)} lost"] if expected - found else []
    faults += [f"{len(found - expected)} extra"] if found - expected else []
    faults += [f"{len(repeats)} measured twice"] if repeats else []
    return {
        "command": "sample",
        "points": len(points),
        "kills": done,
        "runs_that_ended_before_their_kill": early,
        "uninterrupted_run_s": round(usual_s, 2),
        "start_up_s": round(start_up_s, 2),
        "finished_before_the_last_run": before,
        "torn_lines": torn,
        "faults": faults,
    }


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=COMMANDS, action="append", help="Default: all.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--how", choices=HOW, default="kill", help="What is done to a rank of a job.")
    parser.add_argument("--points", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    source = random.Random(options.seed)
    make_forkable()
    is_fine = True
    for of in options.of or COMMANDS:
        if of == "sample":
            result = kill_sampling(options.kills, options.points, source)
        elif of == "job":
            result = kill_rank(options.kills, source, options.how)
        elif of == "signal":
            result = signal_at_lines(options.kills, source)
        else:
            result = kill_command(of, options.kills, source)
        print(json.dumps(result, indent=1), flush=True)
        is_fine = is_fine and not result["faults"] and result.get(_CODES, _SOUND) == _SOUND
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
