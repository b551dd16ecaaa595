"""Networks that know single passes of any convolution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from factories import make_h200
from torchledger.device.datasheets import device_of_name
from torchledger.expecting.convolution_times import convolution_times
from torchledger.expecting.machine import FIRST_NETWORKS, LATEST_NETWORKS, Machine
from torchledger.expecting.pass_networks import PASSES, Elements, passes_and_choices, passes_of_call, time_passes

H200 = make_h200()
LATEST_WITHOUT_TREES = 12
NAMES = ("n", "c_in", "height", "width", "c_out", "kernel", "kernel_height", "stride", "padding", "padding_height")
LAYERS = (
    (32, 64, 56, 56, 64, 3, 3, 1, 1, 1),
    (8, 256, 1, 512, 128, 3, 1, 1, 1, 0),
    (4, 512, 1, 8000, 512, 3, 1, 2, 0, 0),
)
COLUMNS = zip(NAMES, zip(*LAYERS, strict=True), strict=True)
P = {name: np.array(column, dtype=np.float64) for name, column in COLUMNS} | {
    "groups": np.ones(3),
    "channels_last": np.zeros(3),
}
PRECISIONS = {"bfloat16": (2.0, False), "float16": (2.0, True), "tf32": (4.0, False), "float32": (4.0, True)}


def elements(precision: str, machine: Machine = H200) -> Elements:
    size, is_other = PRECISIONS[precision]
    dtype = "float32" if precision == "tf32" else precision
    peak = machine.convolution_peak(dtype, allow_tf32=precision == "tf32")
    return Elements(np.full(3, size), np.full(3, is_other), np.full(3, peak))


def times(passes: tuple[str, ...], precision: str, rows: slice = slice(None)) -> np.ndarray:
    own = elements(precision)
    found = time_passes({name: value[rows] for name, value in P.items()}, passes, own.some(np.arange(3)[rows]), H200)
    assert found is not None
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("one", PASSES)
def test_a_pass_is_of_the_order_of_the_way_expected(one: str, precision: str) -> None:
    own = elements(precision)
    expected = convolution_times(P, one, own.size, own.peak, H200)["expected"]
    assert np.all(np.abs(np.log(times((one,), precision) / expected)) < np.log(12))


def test_a_backward_is_the_sum_of_both_gradients() -> None:
    both = times(passes_of_call("backward", is_transposed=False), "bfloat16")
    assert both == pytest.approx(times(("image",), "bfloat16") + times(("weight",), "bfloat16"))


def test_a_transposed_convolution_runs_the_passes_of_the_one_that_leads_back() -> None:
    assert passes_of_call("forward", is_transposed=True) == ("image",)
    assert passes_of_call("backward", is_transposed=True) == ("forward", "weight")
    assert passes_of_call("weight", is_transposed=True) == ("weight",)


def test_float32_that_is_not_rounded_takes_longer() -> None:
    assert np.all(times(("forward",), "float32") > 1.3 * times(("forward",), "tf32"))


def test_a_convolution_costs_the_same_alone_as_among_others() -> None:
    together = times(("weight",), "float16")
    for row in range(3):
        assert times(("weight",), "float16", slice(row, row + 1)) == pytest.approx(together[row : row + 1], rel=1e-4)


def test_a_machine_of_another_generation_has_no_networks() -> None:
    other = Machine(device_of_name("NVIDIA A100-SXM4-80GB"), {"bfloat16": 2.5e8}, bytes_per_us=1.8e6, floor_us=2.0)
    assert time_passes(P, ("forward",), elements("bfloat16", other), other) is None


def test_a_model_of_before_keeps_the_passes_that_it_learned_beside() -> None:
    numbers = (FIRST_NETWORKS, 3, 4, 5, 6, 8, LATEST_NETWORKS)
    machines = [replace(H200, networks=networks) for networks in numbers]
    found = [time_passes(P, ("forward",), elements("bfloat16", each), each) for each in machines]
    first, third, fourth, fifth, sixth, eighth, now = (each for each in found if each is not None)
    assert np.array_equal(first, third) and not np.array_equal(first, fourth)
    # Passes without groups are those of before.
    assert np.array_equal(fourth, fifth) and not np.array_equal(fifth, sixth)
    assert np.array_equal(sixth, eighth) and not np.array_equal(eighth, now)


def test_layers_of_half_precision_alone_taught_the_networks_of_passes_since_the_ninth() -> None:
    now, before = (replace(H200, networks=networks) for networks in (LATEST_WITHOUT_TREES, 8))
    rounded = (time_passes(P, ("weight",), elements("tf32", each), each) for each in (now, before))
    assert np.array_equal(*(each for each in rounded if each is not None))


GROUPS = {name: np.full(3, value) for name, value in zip(NAMES, (29, 192, 12, 12, 192, 3, 3, 1, 1, 1), strict=True)}
GROUPS |= {"groups": np.array([12.0, 1.0, 192.0]), "channels_last": np.ones(3)}


@pytest.mark.parametrize("one", PASSES)
def test_passes_in_groups_have_networks_of_their_own_which_say_how_open_a_choice_is(one: str) -> None:
    first_with, before = (replace(H200, networks=networks) for networks in (5, 4))
    found = passes_and_choices(GROUPS, (one,), elements("bfloat16"), first_with)
    of_before = passes_and_choices(GROUPS, (one,), elements("bfloat16", before), before)
    assert found is not None and of_before is not None
    (now_us, is_open), (before_us, was_open) = found, of_before
    assert now_us[0] != before_us[0] and now_us[1:] == pytest.approx(before_us[1:], rel=1e-5)
    assert is_open[0] >= 0 and not is_open[1:].any() and not was_open.any()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("one", PASSES)
def test_how_open_a_choice_is_is_said_of_groups_in_every_precision_alone(one: str, precision: str) -> None:
    found = passes_and_choices(GROUPS, (one,), elements(precision), H200)
    assert found is not None
    times_us, is_open = found
    assert np.all(times_us > 0) and is_open[0] >= 0 and not is_open[1:].any()


def test_groups_in_single_precision_are_asked_of_networks_of_their_own_since_the_sixth() -> None:
    fifth = replace(H200, networks=5)
    before = passes_and_choices(GROUPS, ("weight",), elements("float32", fifth), fifth)
    now = passes_and_choices(GROUPS, ("weight",), elements("float32"), H200)
    assert before is not None and now is not None
    assert not before[1].any() and now[1][0] > 0


def test_how_open_a_choice_is_counts_by_the_share_of_each_pass() -> None:
    own = elements("bfloat16")
    parts = [passes_and_choices(GROUPS, (one,), own, H200) for one in PASSES[1:]]
    both = passes_and_choices(GROUPS, PASSES[1:], own, H200)
    assert both is not None and parts[0] is not None and parts[1] is not None
    (image_us, of_image), (weight_us, of_weight) = parts
    together = np.hypot(image_us * of_image, weight_us * of_weight) / (image_us + weight_us)
    assert both[1] == pytest.approx(together) and both[1][0] > 0
