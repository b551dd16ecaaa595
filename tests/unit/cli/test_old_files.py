"""Files that an earlier version wrote open, and commands give the answers that it gave."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from torchledger.cli import cli
from torchledger.store.launch_file import read_launches

DATA = Path(__file__).parents[2] / "data" / "old"
ANSWERS: dict[str, Any] = json.loads(gzip.decompress((DATA / "answers_torchledger0.1.0.json.gz").read_bytes()))
SENTENCES = {"note", "notes", "remarks", "reason", "problems", "verdict"}
"""Said in better words later, perhaps; what they speak of stands beside them as figures."""


_MODEL = "--device h200_torchledger0.1.0.tlmodel"
_ON_A_GPU = f"predict-step mlp_torchledger0.1.0_torch2.13_cpu.ledger.sqlite {_MODEL}"
_BLOCK = f"predict-step ../h200/gpt_block_torch2.11_cu130.ledger.sqlite {_MODEL}"
_ON_A_CPU = "predict-step mlp_torchledger0.1.0_torch2.13_cpu.ledger.sqlite --device cpu_torchledger0.1.0.tlmodel"
_WIDTH = ("step.low_us", "step.high_us")

CORRECTED = {
    _ON_A_GPU: ("range", "extrapolated", "error_pct", *_WIDTH),
    _BLOCK: _WIDTH,
    f"{_BLOCK} --graphs": _WIDTH,
    _ON_A_CPU: ("step.duration_us", *_WIDTH),
}
"""What the earlier version said wrongly: it called kernels of a CPU inside what a GPU was measured at and compared
their times with a GPU's, had a launch widen a step by more than the launch takes, and added medians of launches where
their sum is one of means."""


_ROUNDING = 3e-5
"""Single precision's: answers differ by 3e-6, ends of intervals by 1.3e-5 between the products of BLAS for one
processor and for another (``OPENBLAS_CORETYPE=Haswell`` and ``SkylakeX``)."""


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Where an answer is no longer what it was; keys that are new are none."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            if key not in new:
                yield f"{where}.{key} is gone"
            elif key not in SENTENCES:
                yield from differences(value, new[key], f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, f"{where}[{place}]")
    elif isinstance(old, float) and isinstance(new, float | int):
        # An error in per cent is what two figures that are near each other differ by.
        least = 100 * _ROUNDING if where.endswith("_pct") else 1e-9
        if not math.isclose(old, new, rel_tol=_ROUNDING, abs_tol=least):
            yield f"{where}: {old} became {new}"
    elif old != new:
        yield f"{where}: {old!r} became {new!r}"


@pytest.mark.parametrize("question", ANSWERS)
def test_an_old_file_gives_the_answer_that_it_gave(
    question: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(DATA)
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path))
    done = CliRunner().invoke(cli, [*question.split(), "--json"])
    assert done.exit_code in (0, 3), done.output
    found = differences(ANSWERS[question], json.loads(done.stdout))
    corrected = CORRECTED.get(question, ())
    assert not [each for each in found if not each.partition(":")[0].endswith(tuple(f".{key}" for key in corrected))]


def test_old_measured_launches_are_read() -> None:
    found = read_launches(DATA / "h200_torchledger0.1.0.launches")
    assert found.device == "NVIDIA H200" and len(found.launches) == 401


def test_a_value_that_changed_or_went_is_seen_and_a_new_key_is_not() -> None:
    old = {"a": 1.0, "b": [{"c": "x"}], "note": "some words"}
    assert not list(differences(old, {"a": 1.0, "b": [{"c": "x", "d": 2}], "note": "other words", "e": None}))
    assert list(differences(old, {"a": 1.1, "b": [{"c": "y"}], "note": "some words"})) == [
        ".a: 1.0 became 1.1",
        ".b[0].c: 'x' became 'y'",
    ]
    assert list(differences(old, {"b": [], "note": "some words"})) == [".a is gone", ".b: [{'c': 'x'}] became []"]
