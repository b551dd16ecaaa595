"""Public rows: what their own times say of where they come from, and which of them are priced with checks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchledger.nouns import Layout
from torchledger.planning.transformer import Transformer

MODEL = Transformer(layers=12, hidden=1024, heads=16, ffn=4096, vocabulary=51200, length=1024, batch=8)


@pytest.fixture
def modules() -> Any:
    """The scripts."""
    from benchmarks.public import public_origin, public_rows, public_steps

    return SimpleNamespace(origin=public_origin, rows=public_rows, steps=public_steps)


def row(modules: Any, layers: int, batch: int, measured_us: float, dp: int = 1) -> Any:
    model = replace(MODEL, layers=layers, batch=batch * dp)
    return modules.rows.Row("a row", model, Layout(dp=dp), measured_us)


def test_composed_times_lie_on_a_plane_and_measured_ones_do_not(modules: Any) -> None:
    sizes = [(layers, batch) for layers in (12, 16, 20, 24) for batch in (4, 8)]
    composed = [row(modules, layers, n, 7.0 + 3.0 * n + 0.5 * layers + 2.0 * n * layers) for layers, n in sizes]
    ((count, error),) = modules.origin.plane_errors(composed)
    assert count == len(sizes) and error < 1e-12
    measured = [replace(each, measured_us=each.measured_us * (1 + 0.01 * (k % 3))) for k, each in enumerate(composed)]
    ((_, error),) = modules.origin.plane_errors(measured)
    assert error > 1e-3
    assert not list(modules.origin.plane_errors([replace(each, layout=Layout(dp=2)) for each in composed]))


def test_a_pair_equals_its_tables_or_does_not(modules: Any) -> None:
    one, two = row(modules, 12, 8, 1000.0), row(modules, 12, 8, 1250.5, dp=2)
    size = modules.origin.reduced_mebibytes(one)
    # 12 blocks of 12 h^2 parameters and twice the vocabulary, in half precision.
    assert size == pytest.approx(2 * (12 * 12 * 1024**2 + 2 * 50257 * 1024) / 2**20, rel=0.02)
    assert modules.origin.reduced_pairs([one, two], {2: {size: 250_500}}) == (1, 1)
    assert modules.origin.reduced_pairs([one, two], {2: {size: 250_501}}) == (1, 0)
    assert modules.origin.reduced_pairs([one, two], {2: {}}) == (0, 0)


def test_checks_are_of_tensor_parallel_pipelines_over_several_nodes(modules: Any, tmp_path: Path) -> None:
    checked = Layout(dp=2, tp=2, pp=4)
    assert modules.rows.is_checked(checked)
    for other in (replace(checked, dp=1), replace(checked, tp=1, dp=4), replace(checked, pp=1, dp=8)):
        assert not modules.rows.is_checked(other)
    path = tmp_path / "checks.json"
    path.write_text(json.dumps({"fixed_us": 100, "rank_us": 50}))
    assert modules.steps.read_checks(path) == (100.0, 50.0)
