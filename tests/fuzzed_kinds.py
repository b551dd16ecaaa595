"""Each kind of file that strangers send: how one is made and changed, and every command that reads it."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mutations import (
    mutate_export,
    mutate_json,
    mutate_ledger,
    mutate_lines,
    mutate_model,
    mutate_parquet,
    mutate_text,
    zipped,
)
from small_files import (
    DATA,
    DATA_SHEET,
    GIVEN_LAYOUTS,
    LAYOUTS,
    LEDGER,
    PROFILED,
    SAMPLES,
    SWEEP,
    calibrated_model,
    collective_csv,
    guide_csv,
    host_file,
    job_folder,
    journal_file,
    kept_file,
    nccl_log,
    nsight_export,
    rank_ledger,
    rank_trace,
    rank_traces,
    read_bytes,
    samples_around,
    sealed_path,
    small_trace,
)
from torchledger.calibrating.collecting import FUSED, OPERATORS

_ASK = ("linear", "m=64", "k=32", "n=8")


_PROGRAM = ("-m", "timeit")
"""A program that is there; what `plan` records of it is a stand-in."""


@dataclass(frozen=True)
class Kind:
    """A kind of file: its name, a maker of its original, how its content is changed, and the commands that read it.

    ``name`` is the file's name in the case's folder; in a command ``FILE`` stands for the changed file, ``FOLDER`` for
    the folder that it is in, ``COPY`` for a copy of it, ``OTHER`` for the other rank's trace, ``LAYOUTS`` for a sound
    file of them, ``OUT`` for a path where nothing is yet.
    """

    name: str
    original: Callable[[], bytes]
    mutate: Callable[[random.Random, bytes], bytes]
    commands: tuple[tuple[str, ...], ...]
    around: Callable[[Path], object] | None = None
    """Makes the folder in which other files stand beside it."""


_CALIBRATE = ("calibrate", "-o", "OUT", "--budget", "4s", "--device", "cuda:0")


_OF_MODELS = (
    ("predict", *_ASK, "--dtype", "fp32", "--device", "FILE", "--json"),
    ("predict-step", str(LEDGER), "--device", "FILE"),
    ("plan", "--device", "FILE", *_PROGRAM),
    ("plan", "--layouts", "LAYOUTS", "--device", "FILE"),
    ("plan", "--world", "2", "--device", "FILE", "--fabric", "h200", "--json", *_PROGRAM),
    (*_CALIBRATE, "--base", "FILE"),
)


_SMALL_MODEL = str(DATA / "old" / "h200_torchledger0.1.0.tlmodel")


_CPU_MODEL = str(DATA / "old" / "cpu_torchledger0.1.0.tlmodel")


_OF_FABRICS = (
    ("plan", "--layouts", "LAYOUTS", "--world", "4", "--fabric", "FILE"),
    ("plan", "--world", "2", "--fabric", "FILE", *_PROGRAM),
    ("plan", "--world", "16", "--node", "4", "--fabric", "FILE", "--json", *_PROGRAM),
)


_OF_CALIBRATIONS = ((*_CALIBRATE, "--keep", "COPY", "--base", _SMALL_MODEL),)


_OF_SAMPLES = (
    ("samples", "show", "FOLDER"),
    ("samples", "check", "FOLDER"),
    ("samples", "merge", "FOLDER", "-o", "OUT"),
    ("fit", "FOLDER", "-o", "OUT"),
    ("samples", "export", "FOLDER", "-o", "OUT"),
    ("evaluate", "FOLDER", "--model", _CPU_MODEL, "--no-forest"),
    ("samples", "compact", "COPY"),
)


_OF_JOBS = (
    ("show", "FOLDER"),
    ("show", "FOLDER", "--json"),
    ("report", "FOLDER", "-o", "OUT.html"),
    ("diff", "FOLDER", "COPY"),
    ("diff", "COPY", "FOLDER", "--values", "--json"),
)


KINDS: Mapping[str, Kind] = {
    "ledger": Kind(
        "a.ledger",
        read_bytes(LEDGER),
        mutate_ledger,
        (
            ("show", "FILE"),
            ("show", "FILE", "--json"),
            ("show", "FILE", "forward_0#0"),
            ("show", "FILE", "--wrapper", "forward_0"),
            ("report", "FILE", "-o", "OUT.html"),
            ("export", "FILE", "--format", "inductor-json", "-o", "OUT"),
            ("export", "FILE", "--format", "parquet", "-o", "OUT"),
            ("diff", "FILE", str(LEDGER)),
            ("diff", "FILE", str(LEDGER), "--values"),
            ("predict-step", "FILE", "--device", "H200"),
            ("diff", "FILE", str(LEDGER), "--json"),
            ("diff", str(LEDGER), "FILE", "--fail-if", "launches > +0", "--markdown"),
            ("bench", "FILE", "--all", "--json", "--no-save"),
            ("extract", "FILE", "forward_0#0", "-o", "OUT"),
            ("extract", "FILE", "forward_0#0", "--trust", "-o", "OUT"),
            ("extract", "FILE", "--graph", "forward_0", "--trust", "-o", "OUT"),
            ("values", "FILE"),
            ("values", "FILE", "--json"),
        ),
    ),
    "profiled ledger": Kind(
        "b.ledger",
        read_bytes(PROFILED),
        mutate_ledger,
        (
            ("show", "FILE"),
            ("report", "FILE", "-o", "OUT.html"),
            ("diff", str(LEDGER), "FILE"),
            ("export", "FILE", "--format", "chrome", "-o", "OUT"),
            ("predict-step", "FILE", "--device", "H200", "--graphs"),
            ("export", "FILE", "--format", "step", "-o", "OUT.csv"),
            ("extract", "FILE", "--graph", "forward_0", "--trust", "-o", "OUT"),
            ("diff", "FILE", str(PROFILED), "--json"),
            ("fit", "FILE", "-o", "OUT"),
        ),
    ),
    "trace": Kind(
        "t.json",
        small_trace,
        mutate_json,
        (("import", "FILE"), ("import", "FILE", "--json"), ("import", "FILE", "-o", "OUT", "--chrome", "OUT.html")),
    ),
    "compressed trace": Kind(
        "t.json.gz",
        lambda: gzip.compress(small_trace(), mtime=0),
        zipped(mutate_json),
        (("import", "FILE"), ("import", "FILE", "-o", "OUT")),
    ),
    "Nsight export": Kind(
        "n.sqlite",
        nsight_export,
        mutate_export,
        (("import", "FILE"), ("import", "FILE", "--json"), ("import", "FILE", "-o", "OUT")),
    ),
    "rows of power": Kind(
        "p.json",
        read_bytes(DATA.parent.parent / "data" / "h200" / "power_torch2.11.json"),
        mutate_json,
        (("fit-constants", "FILE", "-o", "OUT"), ("fit-constants", "FILE", "-o", "OUT", "--json")),
    ),
    "launches": Kind(
        "l.launches",
        read_bytes(DATA / "old" / "h200_torchledger0.1.0.launches"),
        zipped(mutate_lines),
        (("predict-launches", "FILE"), ("fit", "FILE", "-o", "OUT"), ("fit-constants", "FILE", "-o", "OUT")),
    ),
    "samples": Kind(
        "s.parquet",
        read_bytes(DATA / "old" / "cpu_torchledger0.1.0.samples" / "samples.parquet"),
        mutate_parquet,
        (
            ("samples", "show", "FILE"),
            ("samples", "check", "FILE"),
            ("samples", "export", "FILE", "-o", "OUT"),
            ("report", "FILE", "-o", "OUT.html"),
            ("fit", "FILE", "-o", "OUT"),
            ("fit-constants", "FILE", "-o", "OUT"),
            ("evaluate", "FILE", "--model", _CPU_MODEL, "--no-forest"),
        ),
    ),
    "model": Kind(
        "m.tlmodel",
        read_bytes(DATA / "old" / "cpu_torchledger0.1.0.tlmodel"),
        mutate_model,
        (
            ("predict", *_ASK, "--device", "FILE"),
            ("predict", *_ASK, "--dtype", "fp32", "--device", "FILE", "--json"),
            ("predict-step", str(LEDGER), "--device", "FILE"),
            ("report", str(LEDGER), "--predict", "FILE", "-o", "OUT.html"),
            (
                "evaluate",
                str(DATA / "old" / "cpu_torchledger0.1.0.samples"),
                "--model",
                "FILE",
                "--no-forest",
                "--json",
            ),
        ),
    ),
    "sweep": Kind("sweep.yml", lambda: SWEEP, mutate_text, (("sample", "FILE", "--plan-only", "-o", "OUT"),)),
    "guide CSV": Kind(
        "NVIDIAA100_gelu_fp16.csv",
        guide_csv,
        mutate_text,
        (
            ("samples", "show", "FILE"),
            ("samples", "check", "FILE"),
            ("samples", "merge", "FILE", "-o", "OUT"),
            ("fit", "FILE", "-o", "OUT"),
            ("samples", "export", "FILE", "-o", "OUT"),
            ("evaluate", "FILE", "--model", _SMALL_MODEL, "--no-forest", "--json"),
        ),
    ),
    "journal": Kind(
        "journal/host-1-1.jsonl", lambda: journal_file().read_bytes(), mutate_lines, _OF_SAMPLES, samples_around
    ),
    "plan": Kind(
        "plan.jsonl", read_bytes(DATA / "old" / SAMPLES / "plan.jsonl"), mutate_lines, _OF_SAMPLES, samples_around
    ),
    "sealed ledger": Kind(
        "a.ledger",
        lambda: sealed_path().read_bytes(),
        mutate_ledger,
        (
            ("bench", "FILE", "--all", "--json", "--no-save"),
            ("extract", "FILE", "forward_0#0", "-o", "OUT"),
            ("extract", "FILE", "--graph", "forward_0", "-o", "OUT"),
        ),
    ),
    "rank of a job": Kind("rank0.ledger", lambda: rank_ledger(0), mutate_ledger, _OF_JOBS, job_folder),
    "trace of a rank": Kind(
        "trace_0.json",
        lambda: rank_trace(0),
        mutate_json,
        (("show", "FOLDER"), ("show", "FOLDER", "--json"), ("import", "FILE", "OTHER")),
        rank_traces,
    ),
    "calibrated model": Kind("m.tlmodel", calibrated_model, mutate_model, _OF_MODELS),
    "data sheet": Kind("card.yml", lambda: DATA_SHEET, mutate_text, _OF_MODELS),
    "layouts": Kind(
        "model.yml",
        lambda: LAYOUTS,
        mutate_text,
        (
            ("plan", "--layouts", "FILE", "--world", "4"),
            ("plan", "--layouts", "FILE", "--world", "16", "--fabric", "h200+800gb", "--node", "4", "--json"),
            ("plan", "--layouts", "FILE"),
        ),
    ),
    "given layouts": Kind(
        "model.yml",
        lambda: GIVEN_LAYOUTS,
        mutate_text,
        (("plan", "--layouts", "FILE", "--world", "4"), ("plan", "--layouts", "FILE", "--world", "4", "--json")),
    ),
    "host": Kind(
        "host.json",
        host_file,
        mutate_json,
        (
            ("plan", "--host", "FILE", *_PROGRAM),
            ("plan", "--world", "2", "--host", "FILE", "--graphs", "--json", *_PROGRAM),
            ("predict-step", str(LEDGER), "--device", "H200", "--host", "FILE"),
            ("predict-step", str(PROFILED), "--device", "H200", "--host", "FILE", "--graphs"),
        ),
    ),
    "nccl-tests": Kind("all_reduce.txt", lambda: nccl_log(1), mutate_text, _OF_FABRICS),
    "nccl-tests of nodes": Kind("all_reduce.txt", lambda: nccl_log(2), mutate_text, _OF_FABRICS),
    "table of collectives": Kind(
        "collectives.csv", collective_csv, mutate_text, (*_OF_FABRICS, ("samples", "show", "FILE"))
    ),
    "kept journal": Kind(
        f"{OPERATORS}/journal/host-1-1.jsonl",
        lambda: journal_file().read_bytes(),
        mutate_lines,
        _OF_CALIBRATIONS,
        kept_file,
    ),
    "kept plan": Kind(
        f"{OPERATORS}/plan.jsonl",
        read_bytes(DATA / "old" / SAMPLES / "plan.jsonl"),
        mutate_lines,
        _OF_CALIBRATIONS,
        kept_file,
    ),
    "kept launches": Kind(
        f"{FUSED}/part-0-0.launches",
        read_bytes(DATA / "old" / "h200_torchledger0.1.0.launches"),
        zipped(mutate_lines),
        _OF_CALIBRATIONS,
        kept_file,
    ),
}
