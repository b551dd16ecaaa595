"""What the power limit adds to a step: the clocks that mixed work was measured at follow from each kind's alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import make_step_call

from torchledger.nouns import Prediction, TensorArgument
from torchledger.predicting.devices import find_model
from torchledger.predicting.power import StepWork, mean_clock, sustained_share, work_of

MACHINE = find_model("H200").machine
MEASURED = json.loads((Path(__file__).parents[3] / "data" / "h200" / "power_torch2.11.json").read_text())
FLOPS = {"mm and add": 2.0 * 4096**3, "mm and layer_norm": 2.0 * 8192 * 9216 * 2304}


@pytest.mark.parametrize("share", [0.5, 0.75])
@pytest.mark.parametrize("name", FLOPS)
def test_the_clock_of_a_mixture_that_nothing_was_fitted_to_is_foreseen(name: str, share: float) -> None:
    row = MEASURED["rows"][f"{name} {share}"]
    other = name.rpartition(" ")[2]
    spent = {kernel: row["counts"][kernel] * row["cold"][kernel] for kernel in ("mm", other)}
    work = StepWork(spent["mm"], row["counts"]["mm"] * FLOPS[name], 0.0, spent[other])
    clock = mean_clock(work, sum(spent.values()), MACHINE)
    assert clock == pytest.approx(row["sm_mhz"] / 1980, rel=0.05)
    product = StepWork(1.0, 1.0)
    assert 1 + sustained_share(product, clock, MACHINE) == pytest.approx(row["hot"]["mm"] / row["cold"]["mm"], rel=0.05)


@given(st.floats(1, 1e6), st.floats(0, 900), st.floats(1, 4))
def test_a_step_that_rests_longer_is_never_at_lower_clocks(busy_us: float, tflops: float, rest: float) -> None:
    work = StepWork(busy_us, tflops * 1e6 * busy_us)
    busy, rested = mean_clock(work, busy_us, MACHINE), mean_clock(work, busy_us * rest, MACHINE)
    assert 0 < busy <= rested <= 1
    assert sustained_share(work, busy, MACHINE) >= sustained_share(work, rested, MACHINE) >= 0


@given(st.floats(1, 1e6), st.floats(0, 900))
def test_training_that_lasts_is_never_at_higher_clocks_than_a_short_run(busy_us: float, tflops: float) -> None:
    work = StepWork(busy_us, tflops * 1e6 * busy_us)
    assert 0 < mean_clock(work, busy_us, MACHINE, is_lasting=True) <= mean_clock(work, busy_us, MACHINE)


@pytest.mark.parametrize("size", MEASURED["steps"])
def test_the_clock_of_training_that_lasts_is_as_it_was_read(size: str) -> None:
    step = MEASURED["steps"][size]
    work = StepWork(
        step["products_us"],
        step["product_flops"],
        step["attention_us"],
        step["others_us"],
        step.get("collectives_us", 0.0),
    )
    clock = mean_clock(work, step["step_us"], MACHINE, is_lasting=True)
    assert clock == pytest.approx(step["sm_mhz"] / 1980, rel=0.06)


def test_where_no_lasting_run_was_measured_the_short_one_stands() -> None:
    power = MACHINE.power
    assert power is not None
    work, short = StepWork(1e3, 1e12), mean_clock(StepWork(1e3, 1e12), 1e3, MACHINE)
    brief = replace(MACHINE, own_power=replace(power, lasting_share=None))
    assert mean_clock(work, 1e3, brief, is_lasting=True) == short


def test_what_a_device_draws_itself_stands_for_what_its_generation_does() -> None:
    power = MACHINE.power
    assert power is not None
    work = StepWork(1e3, 1e12)
    hungry = replace(power, product_j_per_tflop=2 * power.product_j_per_tflop)
    other = replace(MACHINE.device, name="NVIDIA H100 80GB HBM3")
    assert not replace(MACHINE, device=other).power_is_its_own
    own = replace(MACHINE, device=other, own_power=hungry)
    assert own.power_is_its_own
    assert mean_clock(work, 1e3, own) < mean_clock(work, 1e3, MACHINE)


def test_nothing_is_slowed_where_the_limit_is_unknown() -> None:
    unknown = replace(MACHINE, device=replace(MACHINE.device, power_limit_w=None))
    assert mean_clock(StepWork(1e3, 1e12), 1e3, unknown) == 1


def test_nothing_is_slowed_on_a_device_of_another_size_than_the_one_that_was_measured() -> None:
    device = replace(MACHINE.device, num_multiprocessors=78, power_limit_w=210.0)
    other = replace(MACHINE, device=device)
    assert mean_clock(StepWork(1e3, 1e12), 1e3, other) == 1
    assert sustained_share(StepWork(1e3, 1e12), 0.5, other) == 0


def test_only_half_precision_products_are_counted_by_their_flops() -> None:
    def work(dtype: str, family: str) -> StepWork:
        call = make_step_call(name="aten::mm", flops=100, arguments=(TensorArgument((4, 4), dtype),))
        return work_of(call, Prediction("mm", 2.0, 1.0, 3.0, 0.9, "inside", "NVIDIA H200", family))

    assert work("bfloat16", "linear/forward") == StepWork(2.0, 100.0)
    assert work("float32", "linear/forward") == StepWork(others_us=2.0)
    assert work("bfloat16", "sdpa/forward") == StepWork(attention_us=2.0)
