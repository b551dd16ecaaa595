"""Costs of eager calls: found again from calls that obey them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from torchledger.errors import FitError
from torchledger.fitting.call_costs import CallCost, cost_keys, cost_of, fit_call_costs, read_calls

_BYTES_PER_US = 4e6


def _row(cost: CallCost, kernels: int, bytes_moved: int, **changes: Any) -> dict[str, Any]:
    us = cost.duration_us(kernels, bytes_moved, _BYTES_PER_US)
    fields = {"name": "aten::sort", "kernels": kernels, "bytes_moved": bytes_moved, "us": us, "arguments": []}
    return fields | changes


def test_costs_are_found_again_from_calls_that_obey_them() -> None:
    true = CallCost(3.0, 5.0, 0.0)
    rows = [_row(true, 1 + place % 4, 2 ** (10 + place)) for place in range(18)]
    found = cost_of(cost_keys("aten::sort"), fit_call_costs(rows, _BYTES_PER_US))
    assert found is not None
    assert found.kernel_us == pytest.approx(3.0, rel=0.15) and found.slowness == pytest.approx(5.0, rel=0.15)


def test_too_few_calls_and_unknown_bytes_teach_nothing() -> None:
    true = CallCost(3.0, 5.0, 0.0)
    assert not fit_call_costs([_row(true, 1, 4096)] * 3, _BYTES_PER_US)
    assert not fit_call_costs([_row(true, 1, 4096) | {"bytes_moved": None}] * 9, _BYTES_PER_US)


def test_a_call_is_known_by_its_dtype_and_layout_first() -> None:
    dense, across = ((64, 128), "float16", (128, 1)), ((64, 128), "float16", (1, 64))
    rows = [_row(CallCost(2.0, 1.0, 0.0), 1, 2**place, arguments=[dense]) for place in range(12, 24)]
    rows += [_row(CallCost(2.0, 9.0, 0.0), 1, 2**place, arguments=[across]) for place in range(12, 24)]
    costs = fit_call_costs(rows, _BYTES_PER_US)
    slowness = [cost_of(cost_keys("aten::sort", *first), costs) for first in (dense, across)]
    assert all(slowness) and slowness[1].slowness > 4 * slowness[0].slowness  # type: ignore[union-attr]
    other = cost_of(cost_keys("aten::sort", (64, 128), "float64", (128, 1)), costs)
    assert other == cost_of(cost_keys("aten::sort"), costs)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "calls.json.gz"
    path.write_bytes(b"x")
    with pytest.raises(FitError, match=r"calls\.json\.gz is no file of eager calls"):
        read_calls(path)
    path.write_bytes(gzip.compress(json.dumps([{"name": "aten::add", "us": 1.0}]).encode()))
    assert read_calls(path)[0]["name"] == "aten::add"


def test_how_many_kernels_an_operator_launches_is_learned_for_calls_that_no_device_ran() -> None:
    rows = [_row(CallCost(3.0, 1.0, 0.0), 5, 2 ** (10 + place)) for place in range(9)]
    found = cost_of(cost_keys("aten::sort"), fit_call_costs(rows, _BYTES_PER_US))
    assert found is not None and found.kernels == 5
    single = [_row(CallCost(3.0, 1.0, 0.0), 1, 2 ** (10 + place)) for place in range(9)]
    costs = fit_call_costs(single, _BYTES_PER_US)
    assert not any(name.endswith(" kernels") for name in costs)
