"""Commands that write, on disks that fill, in a folder that is read-only, and beside a run that writes the same ledger.

    python -m benchmarks.robustness.full_disk [--output docs/results/full_disk.md]

Needs Linux and the right to mount: each disk is a ``tmpfs`` of some size, mounted for one command. A command must end
without a traceback and in one sentence of what went wrong, must not say that it wrote what it did not, must leave no
part of a file behind, and must harm no file that was there; a program that is recorded must end as it does alone.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from click.testing import CliRunner

from benchmarks.shared.places import ROOT
from factories import make_run
from forked import EXIT_CODE, Mode, expected, forking, make_forkable
from torchledger.cli import cli
from torchledger.errors import TorchledgerError
from torchledger.nouns import Graph, Run
from torchledger.store import LedgerWriter, open_ledger

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--output", "docs/results/full_disk.md"),)

DATA = ROOT / "tests" / "data"
LEDGER = DATA / "h200" / "gpt_block_torch2.11_cu130.ledger.sqlite"
TRACE = DATA / "h200" / "gpt_block_torch2.11_cu130.trace.json.gz"
SAMPLES = DATA / "old" / "cpu_torchledger0.1.0.samples"
GUIDE_CSV = "mp,b,l,dim,F_dur(us),B_dur(us)\n" + "".join(f"1,1,{n},64,{n}.0,{n}.0\n" for n in range(1, 1000))

RECORDED: tuple[tuple[Mode, tuple[str, ...]], ...] = (
    ("run", ("run", "-f", "-o", "DISK/a.ledger", "-m", "program")),
    ("profile", ("run", "--profile", "--warmup", "1", "--repeats", "1", "-f", "-o", "DISK/a.ledger", "-m", "program")),
    ("values", ("values", "--quiet", "-f", "-o", "DISK/a.ledger", "-m", "program")),
)
SIZES_KB = (0, 8, 64, 120, 160, 200, 260, 320)
"""Disks from one that takes nothing to one that takes nearly all; a ledger of the program has some 300 KB."""

WRITERS: tuple[tuple[str, ...], ...] = (
    ("report", str(LEDGER), "-o", "DISK/a.html"),
    ("report", str(SAMPLES), "-o", "DISK/a.html"),
    ("export", str(LEDGER), "--format", "parquet", "-o", "DISK/a"),
    ("export", str(LEDGER), "--format", "inductor-json", "-o", "DISK/a.json"),
    ("import", str(TRACE), "-o", "DISK/a.ledger"),
    ("import", str(TRACE), "--chrome", "DISK/a.json"),
    ("samples", "merge", str(SAMPLES), "-o", "DISK/a.samples"),
    ("samples", "check", str(SAMPLES), "-o", "DISK/a.samples"),
    ("samples", "export", "GUIDE/NVIDIAA100_gelu_fp16.csv", "-o", "DISK/a"),
    ("extract", str(LEDGER), "--graph", "forward_0", "--trust", "-o", "DISK/a.py"),
)


@dataclass(frozen=True)
class Outcome:
    """What a command said and left on one disk, and what of it may not be."""

    disk: str
    command: str
    said: str
    faults: tuple[str, ...]


@contextlib.contextmanager
def disk(options: str) -> Iterator[Path]:
    """A folder that is a disk of its own, mounted with ``options``."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            gc.collect()
            subprocess.run(["umount", "-l", folder], check=True)


def call(arguments: Sequence[str], place: Path) -> tuple[int, str, BaseException | None]:
    """The exit code of a command, what it said, and an error that is none of ours."""
    result = CliRunner().invoke(cli, [argument.replace("DISK", str(place)) for argument in arguments])
    error = result.exception
    is_ours = error is None or isinstance(error, (SystemExit, TorchledgerError))
    said = result.output + (f"{error}\n" if isinstance(error, TorchledgerError) else "")
    return result.exit_code, said.strip(), None if is_ours else error


def judge_writer(name: str, place: Path, arguments: Sequence[str]) -> Outcome:
    """Run a command whose output has no room, or finds a file that it must not harm."""
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    code, said, error = call(arguments, place)
    after = {path for path in place.rglob("*") if path.is_file()}
    faults = [] if error is None else [f"ends in {error!r}"]
    if code == 0:
        faults += [] if after - before.keys() else ["says nothing of what it could not write"]
    else:
        faults += [f"leaves {path.name}" for path in sorted(after - before.keys())]
        faults += ["says that it wrote"] if "wrote" in said else []
        faults += [f"says {len(said.splitlines())} lines"] if len(said.splitlines()) != 1 else []
    faults += [f"harms {path.name}" for path in before if path not in after or path.read_bytes() != before[path]]
    return Outcome(name, _short(arguments), said.replace(str(place), "DISK"), tuple(faults))


def judge_recorded(name: str, place: Path, mode: Mode, arguments: Sequence[str], folder: Path, graphs: int) -> Outcome:
    """Record the program where the ledger has no room."""
    for path in folder.iterdir():
        path.unlink()
    with forking(mode, folder):
        code, said, error = call(arguments, place)
    inside = (folder / "messages").read_text() if (folder / "messages").exists() else None
    faults = [] if error is None else [f"ends in {error!r}"]
    found = None
    if inside is None:
        faults += ["says that it wrote"] if "wrote" in said else []
        faults += [f"leaves {path.name}" for path in place.iterdir()]
        faults += [] if code == 1 and said else ["does not say why nothing runs"]
    else:
        is_right = code == EXIT_CODE and (folder / "result").read_bytes() == expected(mode)
        faults += [] if is_right else [f"the program ends with {code}"]
        faults += ["a traceback in the program"] if "Traceback" in inside else []
        try:
            with open_ledger(place / "a.ledger") as reader:
                found = reader.count(Graph)
                faults += ["the run goes on for ever"] if reader.read(Run)[-1].status == "running" else []
        except (TorchledgerError, IndexError) as reason:
            found = None
            faults += [] if "wrote" not in said else [f"says that it wrote: {reason}"]
        lines = said.splitlines()
        wrote = next((at for at, line in enumerate(lines) if "wrote" in line), None)
        if found != graphs and not inside and not lines[:wrote]:
            faults.append(f"{found} of {graphs} graphs, and no word of it")
        if found != graphs and wrote == 0 and "lost" not in inside:
            faults.append("says that it wrote before it says what is missing")
        said = f"{inside.strip()} || {said}".strip(" |")
    text = said.replace(str(place), "DISK").replace("\n", " | ")
    return Outcome(name, _short(arguments), f"{found} of {graphs} graphs; {text}", tuple(faults))


def _short(arguments: Sequence[str]) -> str:
    return " ".join(Path(argument).name if "/" in argument else argument for argument in arguments)


def _cell(said: str) -> str:
    return said.replace(f"{DATA}/", "")[:220].replace("|", "/")


def written() -> Iterator[Outcome]:
    """Every command that writes, on disks without room and on one that is read-only."""
    with tempfile.TemporaryDirectory() as guide:
        (Path(guide) / "NVIDIAA100_gelu_fp16.csv").write_text(GUIDE_CSV)
        writers = [tuple(word.replace("GUIDE", guide) for word in arguments) for arguments in WRITERS]
        for name, options in (
            ("0 KB", "size=4k,nr_inodes=1"),
            ("8 KB", "size=8k,nr_inodes=20"),
            ("read-only", "size=1m,ro"),
        ):
            for arguments in writers:
                with disk(options) as place:
                    yield judge_writer(name, place, arguments)


def recorded() -> Iterator[Outcome]:
    """Every command that records, on disks of each size, on one that is read-only and beside a run that writes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for mode, arguments in RECORDED:
            with disk("size=10m") as place, forking(mode, folder):
                call(arguments, place)
                with open_ledger(place / "a.ledger") as reader:
                    graphs = reader.count(Graph)
            for size_kb in SIZES_KB:
                options = f"size={size_kb}k" if size_kb else "size=4k,nr_inodes=1"
                with disk(options) as place:
                    yield judge_recorded(f"{size_kb} KB", place, mode, arguments, folder, graphs)
            with disk("size=1m,ro") as place:
                yield judge_recorded("read-only", place, mode, arguments, folder, graphs)
            with disk("size=10m") as place, LedgerWriter(place / "a.ledger") as other:
                other.add(make_run())
                yield judge_writer("beside a run that writes it", place, arguments)


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    make_forkable()
    found = []
    for outcome in itertools.chain(written(), recorded()):
        found.append(outcome)
        print(f"{'FAULT ' + str(outcome.faults) if outcome.faults else 'fine'}: {outcome.disk}: {outcome.command}")
        print(f"    {outcome.said}", flush=True)
    bad = [outcome for outcome in found if outcome.faults]
    lines = [
        "# Full disks, read-only folders, and ledgers that another run writes",
        "",
        "`python -m benchmarks.robustness.full_disk` mounts a `tmpfs` for each command: of some size, read-only, or",
        "with a ledger on it that another run holds. Right: no traceback, one sentence of what is wrong, no part of a",
        "file left, nothing harmed that was there, no word of having written what is not there; a recorded program's",
        "result and exit code are its own, and `wrote` is said after what is missing.",
        "",
        f"{time.strftime('%Y-%m-%d')}, Python {sys.version.split()[0]}, torch {torch.__version__}, a virtual machine",
        f"of {os.cpu_count()} cores that others used too; {len(found)} cases, {len(found) - len(bad)} right.",
        "",
        "| disk | command | right | said |",
        "|---|---|---|---|",
        *(
            f"| {each.disk} | `{each.command}` | {'; '.join(each.faults) or 'yes'} | {_cell(each.said)} |"
            for each in found
        ),
    ]
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
