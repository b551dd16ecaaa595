"""Constants are made again from measurements, and kept where these say nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from factories import make_device
from launch_times import make_launch_set
from torchledger.errors import FitError, StoreError
from torchledger.expecting.constants import Constants, constants_of_package, read_constants, write_constants
from torchledger.expecting.launch_features import features_of_launches
from torchledger.expecting.machine import Machine
from torchledger.expecting.product_times import product_times
from torchledger.fitting.constants_data import Measurements, Products, read_measurements
from torchledger.fitting.fit_constants import fit_constants
from torchledger.fitting.power_costs import fit_power, read_power

SHIPPED = constants_of_package("hopper")
DEVICE = SHIPPED.reference.device


def _altered(factor: float) -> Constants:
    """Constants of a device whose tiles take so many times as long to begin and to go on."""
    tiles = SHIPPED.products.aligned_16
    slow = replace(tiles, launch=tiles.launch * factor, step_area=tiles.step_area * factor, byte=tiles.byte * factor)
    folded = {kind: rate / factor for kind, rate in SHIPPED.kernels.folded.items()}
    kernels = replace(SHIPPED.kernels, near_bytes=SHIPPED.kernels.near_bytes / factor, floors=3.0, folded=folded)
    return replace(SHIPPED, products=replace(SHIPPED.products, aligned_16=slow), kernels=kernels)


def _machine(constants: Constants) -> Machine:
    reference = constants.reference
    rates = {"bfloat16": reference.half_flops_per_us, "float32": reference.single_flops_per_us}
    return Machine(DEVICE, rates, reference.bytes_per_us, 1.0, constants)


def _products(constants: Constants, count: int = 1200) -> Products:
    """Products whose times are exactly those of their quickest tile."""
    draw = np.random.default_rng(0)
    m, n, k = (16.0 * np.round(np.exp(draw.uniform(np.log(2), np.log(400), count))) for _ in range(3))
    sides, size = (np.ones(count), m, n, k), np.full(count, 2.0)
    machine = _machine(constants)
    peak = np.full(count, machine.peak("bfloat16"))
    time_us = np.minimum(*product_times(sides, np.full(count, 16.0), size, peak, machine))
    return Products(np.zeros(count, dtype=np.int64), sides, size, time_us)


def test_products_of_another_device_teach_its_tiles() -> None:
    found, groups = fit_constants(Measurements(DEVICE, products=_products(_altered(2.5))), SHIPPED, name="slow")
    (group,) = groups
    assert group.is_taken and group.before_pct > 30 and group.after_pct < 2
    assert found.products.aligned_16.launch == pytest.approx(2.5 * SHIPPED.products.aligned_16.launch, rel=0.1)
    assert "held-out error" in found.made_of[group.group]


def test_what_the_data_say_nothing_of_is_taken_from_the_base() -> None:
    found, _ = fit_constants(Measurements(DEVICE, products=_products(_altered(2.5))), SHIPPED, name="slow")
    assert (found.convolutions, found.kernels) == (SHIPPED.convolutions, SHIPPED.kernels)
    assert found.products.single_precision == SHIPPED.products.single_precision
    assert found.made_of["all else"] == "as in hopper"


def test_a_group_that_errs_no_less_is_left_as_it_was() -> None:
    found, (group,) = fit_constants(Measurements(DEVICE, products=_products(SHIPPED)), SHIPPED, name="same")
    assert group.before_pct == 0.0 and not group.is_taken
    assert found.products == SHIPPED.products


def test_fused_kernels_teach_what_their_parts_cost() -> None:
    machine = _machine(_altered(2.0))
    launches = make_launch_set(120).launches
    described = features_of_launches([item.launch for item in launches], machine)
    timed = tuple(
        replace(item, times_us=(features.baseline_us,) if features is not None and features.parts_us else ())
        for item, features in zip(launches, described, strict=True)
    )
    _, (group,) = fit_constants(Measurements(DEVICE, launches=timed), SHIPPED, name="slow")
    assert group.group == "fused kernels" and group.after_pct < group.before_pct / 4


def test_a_device_of_unknown_multiprocessors_is_refused() -> None:
    unknown = Measurements(make_device(name="Some card", kind="cuda"), products=_products(SHIPPED))
    with pytest.raises(FitError, match="multiprocessors of Some card are unknown"):
        fit_constants(unknown, SHIPPED, name="none")


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(FitError, match="too few products, convolutions and fused kernels"):
        fit_constants(Measurements(DEVICE, products=_products(SHIPPED, 20)), SHIPPED, name="few")


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write_constants(_altered(1.5), path)
    assert read_constants(path) == _altered(1.5)
    with pytest.raises(StoreError, match=r"exists\. Choose another name"):
        write_constants(SHIPPED, path)


def test_a_file_of_the_first_format_gets_the_numbers_that_the_code_held(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write_constants(_altered(1.5), path)
    plain = json.loads(path.read_text())
    del plain["steps"], plain["kernels"]["row_crowd"], plain["kernels"]["shift"]
    path.write_text(json.dumps({**plain, "format": 1}))
    assert read_constants(path) == _altered(1.5)
    path.write_text(json.dumps(plain))
    with pytest.raises(FitError, match=r"holds no constants of a device.*`kernels`: object missing"):
        read_constants(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "holds no constants"), ('{"format": 9}', "has format 9"), ('{"format": 1, "name": 3}', "holds no constants")],
)
def test_a_file_that_holds_none_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(FitError, match=rf"mine.json {reason}"):
        read_constants(path)


def test_data_of_a_device_without_a_name_need_one(tmp_path: Path) -> None:
    products = _products(SHIPPED, 10)
    columns = dict(zip(("b", "m", "n", "k"), products.sides, strict=True))
    arrays = {"layout": products.layout, "dtype": np.full(10, "bfloat16"), "time_us": products.time_us, **columns}
    np.savez(tmp_path / "p.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(FitError, match="Name it with --device"):
        read_measurements([tmp_path / "p.npz"])
    found = read_measurements([tmp_path / "p.npz"], device="NVIDIA A10")
    assert found.device.num_multiprocessors == 72 and found.products is not None
    (tmp_path / "torn.npz").write_bytes((tmp_path / "p.npz").read_bytes()[:100])
    with pytest.raises(FitError, match=r"torn\.npz holds neither products nor convolutions, or is damaged"):
        read_measurements([tmp_path / "torn.npz"], device="NVIDIA A10")


POWER = Path(__file__).parents[3] / "data" / "h200" / "power_torch2.11.json"


def test_what_kernels_draw_is_made_again_from_what_was_measured() -> None:
    made, groups = fit_constants(read_measurements([POWER]), SHIPPED, name="mine")
    assert made.power == SHIPPED.power and "drew on NVIDIA H200" in made.made_of["power"]
    assert groups == []


def test_what_kernels_draw_on_another_device_makes_no_constants_alone() -> None:
    other = replace(read_measurements([POWER]), device=make_device(name="other", num_multiprocessors=78))
    with pytest.raises(FitError, match="makes no constants alone"):
        fit_constants(other, SHIPPED, name="mine")


def test_kernels_that_drew_twice_as_much_cost_twice_as_much(tmp_path: Path) -> None:
    rows = json.loads(POWER.read_text())
    for row in rows["rows"].values():
        row["watts"] *= 2
    (twice := tmp_path / "twice.json").write_text(json.dumps(rows))
    costs, shipped = fit_power(read_power(twice)), SHIPPED.power
    assert shipped is not None
    for name in ("idle_w", "product_j_per_tflop", "attention_w", "other_w", "limit_share"):
        assert getattr(costs, name) == pytest.approx(2 * getattr(shipped, name), rel=0.01)
    assert costs.product_clock == shipped.product_clock


def test_steps_at_lower_clocks_leave_less_of_the_limit_and_without_steps_nothing_is_said(tmp_path: Path) -> None:
    rows = json.loads(POWER.read_text())
    for step in rows["steps"].values():
        step["sm_mhz"] *= 0.9
    (slower := tmp_path / "slower.json").write_text(json.dumps(rows))
    (without := tmp_path / "without.json").write_text(json.dumps(rows | {"steps": {}}))
    costs, shipped = fit_power(read_power(slower)), SHIPPED.power
    assert shipped is not None and costs.lasting_share is not None and shipped.lasting_share is not None
    assert costs.lasting_share < shipped.lasting_share < shipped.limit_share
    assert fit_power(read_power(without)) == replace(shipped, lasting_share=None, collective_w=0.0)


def test_steps_whose_length_is_known_say_below_which_clock_products_are_slower(tmp_path: Path) -> None:
    rows = json.loads(POWER.read_text())
    most_mhz, slower_below = float(rows["limits"].split(",")[1]), 0.95
    for step in rows["steps"].values():
        share = step["sm_mhz"] / most_mhz
        longer_us = step["products_us"] * (slower_below / share - 1) + step["attention_us"] * (1 / share - 1)
        step["measured_us"] = step["step_us"] + longer_us
    (measured := tmp_path / "measured.json").write_text(json.dumps(rows))
    assert fit_power(read_power(measured)) == replace(fit_power(read_power(POWER)), product_clock=slower_below)
    next(iter(rows["steps"].values()))["measured_us"] = -1.0
    measured.write_text(json.dumps(rows))
    with pytest.raises(FitError, match="not above 0"):
        read_power(measured)


def test_ranks_at_lower_clocks_say_that_their_collectives_draw_more(tmp_path: Path) -> None:
    rows = json.loads(POWER.read_text())
    ranks = {name: step for name, step in rows["steps"].items() if step.get("collectives_us")}
    assert len(ranks) >= 3
    for step in ranks.values():
        step["sm_mhz"] *= 0.95
    (slower := tmp_path / "slower.json").write_text(json.dumps(rows))
    (alone := tmp_path / "alone.json").write_text(
        json.dumps(rows | {"steps": {name: step for name, step in rows["steps"].items() if name not in ranks}})
    )
    shipped = SHIPPED.power
    assert shipped is not None
    costs = fit_power(read_power(slower))
    assert costs.lasting_share == shipped.lasting_share and costs.collective_w > shipped.collective_w > 0
    assert fit_power(read_power(alone)) == replace(shipped, collective_w=0.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": {}}, "lacks mm and pause 0.25"),
        ({"limits": "700"}, "or is damaged"),
        ({"limits": "0, 1980"}, "not above 0"),
        ({"rows": 3}, "or is damaged"),
    ],
)
def test_rows_of_power_that_say_nothing_are_refused_by_name(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    (file := tmp_path / "power.json").write_text(json.dumps(json.loads(POWER.read_text()) | change))
    with pytest.raises(FitError, match=said):
        read_power(file)
