"""What a file is that is given where a ledger is wanted, by its name, and which command takes it."""

from __future__ import annotations

from pathlib import Path

_KINDS = (
    ((".py",), "a Python script: `torchledger run {0}` records it"),
    ((".json", ".json.gz"), "a trace, by its name: `torchledger import {0}` reads it"),
    ((".sqlite", ".nsys-rep"), "a report of Nsight Systems, by its name: `torchledger import` reads its SQLite export"),
    ((".tlmodel",), "a model of times: `--device {0}` of predict and predict-step takes it"),
    ((".launches",), "measured launches: `torchledger fit {0}` learns from them"),
    ((".samples", ".parquet", ".csv"), "a set of samples, by its name: `torchledger samples show {0}` reads it"),
    (
        (".yml", ".yaml"),
        "a sweep, layouts or a data sheet, by its name: `torchledger sample`, `plan`, `predict` take these",
    ),
    ((".html",), "a page for a browser"),
)


def what_it_is(path: Path) -> str | None:
    """A few words on a file that is no ledger; ``None`` for a name that tells nothing.

    >>> what_it_is(Path("train.py"))
    'a Python script: `torchledger run train.py` records it'
    """
    for suffixes, words in _KINDS:
        if path.name.endswith(suffixes):
            return words.format(path)
    return None
