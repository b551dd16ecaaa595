"""A device's facts in the baselines: from its record, its generation's, or nowhere."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import torchledger
from factories import make_h200, make_machine
from launch_times import pointwise, product
from torchledger.device.datasheets import data_sheets
from torchledger.expecting.generations import GENERATIONS, UNKNOWN, find_generation
from torchledger.expecting.launch_features import features_of_launches
from torchledger.expecting.machine import assumptions
from torchledger.expecting.operator_features import operator_features
from torchledger.operators import find_operator

_HOUSE = Path(torchledger.__file__).parent
_SHAPE = {"m": np.array([640, 4096]), "k": np.array([320, 4096]), "n": np.array([96, 4096])}


def _linear(machine: object) -> dict[str, np.ndarray]:
    table = operator_features(find_operator("linear"), _SHAPE, "forward", np.array(["bfloat16"] * 2), machine)  # type: ignore[arg-type]
    return dict(zip(table.names, table.values.T, strict=True)) | {"baseline": table.log_baseline}


@pytest.mark.parametrize(
    ("capability", "name"),
    [((9, 0), "Hopper"), ((8, 0), "Ampere"), ((8, 7), "Ampere (8.6)"), ((8, 9), "Ada"), ((3, 5), "unknown")],
)
def test_a_generation_is_known_by_compute_capability(capability: tuple[int, int], name: str) -> None:
    assert find_generation(capability).name == name


def test_a_device_without_compute_capability_is_of_no_generation() -> None:
    assert find_generation(None) is UNKNOWN
    assert len({one.compute_capability for one in GENERATIONS}) == len(GENERATIONS)


def test_what_a_device_is_called_plays_no_part() -> None:
    facts = {"compute_capability": (9, 0), "clock_rate_mhz": 1500.0, "l2_cache_bytes": 40 * 2**20}
    one, other = (make_machine(name, 78, {"bfloat16": 5e8}, **facts) for name in ("NVIDIA H200", "Nobody's"))
    for column, values in _linear(one).items():
        np.testing.assert_array_equal(values, _linear(other)[column])
    launches = [pointwise(512, 512, 2), product(640, 320, 96, order=1)]
    of_one, of_other = (features_of_launches(launches, machine) for machine in (one, other))
    assert of_one == of_other


@pytest.mark.parametrize("fact", ["num_multiprocessors", "clock_rate_mhz", "l2_cache_bytes"])
def test_each_fact_of_the_record_decides_something(fact: str) -> None:
    facts = {"clock_rate_mhz": 1500.0, "l2_cache_bytes": 1 << 20, "num_multiprocessors": 78}
    first = pointwise(512, 512, 6)
    again = replace(pointwise(512, 512, 6, order=1), buffers=first.buffers)
    one, other = (
        features_of_launches([first, again], make_machine(flops_per_us={"bfloat16": 5e8}, **own))
        for own in (facts, facts | {fact: 64 * facts[fact]})
    )
    assert one != other


def test_without_multiprocessors_the_baseline_is_the_roofline_and_the_model_says_so() -> None:
    machine = make_machine("Some card", None, {"bfloat16": 5e8}, compute_capability=(9, 0))
    columns = _linear(machine)
    assert not [name for name in columns if "tiles" in name or "split gain" in name]
    assert columns["gemm 0 waves"][1] == pytest.approx(np.log(32 * 32))
    roofline_us = max(2 * 4096**3 / 5e8, 3 * 2 * 4096**2 / machine.bytes_per_us)
    assert columns["baseline"][1] == pytest.approx(np.log(roofline_us + machine.floor_us))
    (features,) = features_of_launches([pointwise(512, 512, 2)], machine)
    assert features is not None and features.parts_us is None
    assert features.baseline_us == pytest.approx(features.roofline_us + machine.floor_us)
    assert "the multiprocessors of Some card are unknown" in assumptions(machine)[0]


def test_a_generation_without_constants_borrows_them_for_features_alone_and_says_so() -> None:
    machine = make_machine("Some card", 78, {"bfloat16": 5e8}, compute_capability=(8, 6), l2_cache_bytes=6 << 20)
    columns = _linear(machine)
    assert "gemm 0 log tiles" in columns and not machine.has_tile_baseline
    said = " ".join(assumptions(machine))
    assert "no constants were fitted on devices like Some card (Ampere (8.6) generation)" in said
    assert "clock of Some card unknown" in said and "L2" not in said


def test_a_device_whose_generation_was_measured_assumes_nothing() -> None:
    assert assumptions(make_h200()) == ()


def test_no_file_that_fits_or_predicts_knows_a_device() -> None:
    names = {"hopper", "ampere", *(name.lower() for sheet in data_sheets() for name in sheet.names)}
    # Counts that are also sides of tiles or powers of two say nothing.
    counts = {sheet.device.num_multiprocessors for sheet in data_sheets()} - {40, 72, 80, 128}
    found = []
    for path in [*(_HOUSE / "fitting").glob("*.py"), *(_HOUSE / "predicting").glob("*.py")]:
        if path.name == "generations.py":
            continue
        tree = ast.parse(path.read_text())
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in prose:
                is_name = isinstance(node.value, str) and any(name in node.value.lower() for name in names)
                if is_name or (type(node.value) is int and node.value in counts):
                    found.append(f"{path.name}:{node.lineno} {node.value!r}")
            elif isinstance(node, ast.Name | ast.Attribute | ast.FunctionDef):
                word = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", "")
                if any(name in word.lower() for name in ("hopper", "ampere")):
                    found.append(f"{path.name}:{node.lineno} {word}")
    assert not found
