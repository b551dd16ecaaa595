"""Convolutions along one dimension, and those of float32."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from factories import make_buffer, make_launch
from torchledger.expecting.convolution_times import result_sides
from torchledger.expecting.launch_convolutions import EXACT_FLOAT32
from torchledger.expecting.launch_features import LaunchFeatures, features_of_launches
from torchledger.expecting.volume_columns import DEEP, OF_VOLUMES
from torchledger.fitting.convolution_factors import fit_convolution_factors
from torchledger.nouns import Launch
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches
from torchledger.store.launch_file import MeasuredLaunch
from torchledger.work.convolution_shapes import convolution_shape
from torchledger.work.element_sizes import ELEMENT_SIZES

MODEL = find_model("H200")


def convolution(*shapes: tuple[int, ...], dtype: str = "float32", channels_last: bool = False) -> Launch:
    """A forward convolution of an image, by a filter, to a result."""

    def stride(shape: tuple[int, ...]) -> tuple[int, ...]:
        if channels_last:
            _, channels, *sides = shape
            inner = (channels * math.prod(sides[place + 1 :]) for place in range(len(sides)))
            return (channels * math.prod(sides), 1, *inner)
        return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))

    buffers = []
    for name, shape in zip(("image", "weight", "result"), shapes, strict=True):
        size, made = math.prod(shape) * ELEMENT_SIZES[dtype], name == "result"
        moved = {"bytes_read": 0 if made else size, "bytes_written": size if made else 0}
        role = "output" if made else "input"
        buffers.append(make_buffer(name=name, role=role, dtype=dtype, shape=shape, stride=stride(shape), **moved))
    macs = math.prod(shapes[2]) * math.prod(shapes[1][1:])
    name = "extern_kernels.convolution"
    return make_launch(category="extern", kernel_name=name, buffers=tuple(buffers), flops=2 * macs, device="cuda:0")


def described(launch: Launch, *, tf32: bool = True) -> LaunchFeatures:
    (found,) = features_of_launches([launch], MODEL.machine, convolution_tf32=tf32)
    assert found is not None
    return found


LINE = convolution((8, 64, 1000), (96, 64, 5), (8, 96, 1000))
PLANE = convolution((8, 64, 1, 1000), (96, 64, 1, 5), (8, 96, 1, 1000))
IMAGE = convolution((16, 128, 56, 56), (256, 128, 3, 3), (16, 256, 56, 56), channels_last=True)


def test_a_convolution_along_one_dimension_is_one_over_images_of_height_1() -> None:
    assert described(LINE).values == described(PLANE).values
    assert described(LINE).baseline_us == described(PLANE).baseline_us


def test_a_convolution_of_three_dimensions_is_one_over_images_with_its_filters_depth_in_channels() -> None:
    deep = convolution((2, 64, 16, 28, 28), (32, 64, 3, 3, 3), (2, 32, 16, 28, 28), dtype="bfloat16")
    flat = convolution((32, 192, 28, 28), (32, 192, 3, 3), (32, 32, 28, 28), dtype="bfloat16")
    found, like = described(deep), described(flat)
    moved = {name for name in like.values if found.values[name] != like.values[name]}
    assert found.values[DEEP] == 1 and like.values[DEEP] == 0
    assert not {name for name in moved if name.startswith(("log alone", "log expected", "conv ", "kernel", "groups"))}
    assert found.family == like.family + OF_VOLUMES
    (learned,) = predict_launches(MODEL, [deep])
    assert learned.model == "launch:convolution/forward of volumes"


def test_a_model_without_volumes_is_asked_about_the_images_that_they_fold_into_and_says_how_little_it_knows() -> None:
    deep = convolution((2, 64, 16, 28, 28), (32, 64, 3, 3, 3), (2, 32, 16, 28, 28), dtype="bfloat16")
    without = {key: entry for key, entry in MODEL.entries.items() if not key.endswith(OF_VOLUMES)}
    (said,) = predict_launches(replace(MODEL, entries=without), [deep])
    assert said.model == "launch:convolution/forward"
    assert said.low_us is not None and said.high_us is not None and said.high_us / said.low_us >= 3.9


def test_volumes_are_told_apart_by_what_folding_forgets() -> None:
    shapes = (4, 32, 16, 32, 32), (32, 32, 3, 3, 3), (4, 32, 16, 32, 32)
    first, last = (described(convolution(*shapes, channels_last=is_last)) for is_last in (False, True))
    assert (first.values["lies last"], last.values["lies last"]) == (0, 1)
    # As many multiplications, along the depth and across it.
    along = described(convolution((4, 32, 16, 32, 32), (32, 32, 9, 1, 1), (4, 32, 16, 32, 32)))
    across = described(convolution((4, 32, 16, 32, 32), (32, 32, 1, 3, 3), (4, 32, 16, 32, 32)))
    assert (along.values["taps along depth"], along.values["taps across depth"]) == (9, 1)
    assert (across.values["taps along depth"], across.values["taps across depth"]) == (1, 9)
    assert "taps along depth" not in described(IMAGE).values


def test_a_transposed_convolution_of_three_dimensions_is_told_apart() -> None:
    up = convolution((2, 64, 8, 14, 14), (64, 32, 2, 2, 2), (2, 32, 16, 28, 28), dtype="bfloat16")
    assert described(up).values["transposed"] == 1 and described(up).values["log alone"] > 0


def test_filters_that_step_down_alone_compute_what_their_result_holds() -> None:
    shapes = (8, 64, 128, 100), (64, 64, 5, 2), (8, 64, 64, 101)
    even, down = convolution(shapes[0], shapes[1], (8, 64, 128, 101)), convolution(*shapes)
    given = convolution_shape(down)
    assert given is not None and (given["stride"], given["stride_height"], given["padding_height"]) == (1, 2, 2)
    height, width, taps = result_sides({name: np.array(value) for name, value in given.items()})
    assert (height, width, taps) == (64, 101, 10)
    # Half as many rows of the result, half as much to compute.
    assert 0.4 < described(down).baseline_us / described(even).baseline_us < 0.7


def test_float32_convolutions_run_as_tf32_unless_that_is_switched_off() -> None:
    with_tf32, without = described(IMAGE), described(IMAGE, tf32=False)
    assert with_tf32.baseline_us < without.baseline_us / 3
    assert with_tf32.roofline_us < without.roofline_us / 3


def test_a_device_older_than_tf32_has_its_own_rate_of_float32() -> None:
    old = replace(MODEL.machine, device=replace(MODEL.machine.device, compute_capability=(7, 0)))
    assert old.convolution_peak("float32") == old.peak("float32")
    assert MODEL.machine.convolution_peak("bfloat16") == MODEL.machine.peak("bfloat16")


def test_float32_convolutions_are_learned_where_enough_were_measured_else_priced_by_their_library() -> None:
    half = convolution((8, 64, 1000), (96, 64, 5), (8, 96, 1000), dtype="bfloat16")
    learned, other = predict_launches(MODEL, [LINE, half])
    assert learned.model == other.model == "launch:convolution/forward"
    (exact,) = predict_launches(MODEL, [LINE], convolution_tf32=False)
    assert exact.duration_us > learned.duration_us
    entry = MODEL.entries["launch:convolution/forward"]
    names = tuple(name for name in entry.feature_names if name != EXACT_FLOAT32)
    of_few = replace(MODEL, entries={entry.key: replace(entry, feature_names=names)})
    (single,) = predict_launches(of_few, [LINE])
    assert single.model == "launch:convolution/forward float32"
    (without,) = predict_launches(of_few, [LINE], convolution_tf32=False)
    assert without.range == "extrapolated"
    assert without.duration_us > single.duration_us


def test_a_transposed_convolution_is_described_as_the_one_that_it_runs_backwards() -> None:
    small, large = (16, 128, 28, 28), (16, 64, 56, 56)
    transposed = convolution(small, (128, 64, 2, 2), large, dtype="bfloat16")
    plain = convolution(large, (128, 64, 2, 2), small, dtype="bfloat16")
    values, same = described(transposed).values, described(plain).values
    assert (values["transposed"], same["transposed"]) == (1, 0)
    assert values["log expected"] == pytest.approx(same["log expected"])
    assert values["log pixels"] == same["log pixels"]


def test_an_even_filter_that_makes_a_larger_signal_is_transposed_only_where_its_call_says_so() -> None:
    told = convolution((8, 768, 249), (768, 48, 128), (8, 768, 250))
    plain, back = (replace(told, kwargs={"transposed": each}) for each in ("False", "True"))
    shapes = [convolution_shape(each) for each in (told, plain, back)]
    assert [shape and shape["transposed"] for shape in shapes] == [1, 0, 1], "where nothing is told, its size decides"
    assert shapes[1] is not None and (shapes[1]["width"], shapes[1]["padding"]) == (249, 64)


def test_factors_of_convolutions_are_medians_of_measured_over_expected_times() -> None:
    expected_us = described(IMAGE).baseline_us
    measured = [MeasuredLaunch(IMAGE, (factor * expected_us,), "p") for factor in (1.5, 2.0, 2.5)]
    found = fit_convolution_factors(measured, MODEL.machine)
    assert found["launch:convolution/forward float32 slowness"] == pytest.approx(2.0)
    assert 0 < found["launch:convolution/forward float32 width"] <= math.log(2 / 1.5)


def depthwise(side: int, kernel: int, dtype: str = "bfloat16") -> Launch:
    image, weight = (61, 1024, side, side), (1024, 1, kernel, kernel)
    return convolution(image, weight, image, dtype=dtype, channels_last=True)


def test_channels_of_images_of_two_by_two_run_one_by_one_under_larger_filters_and_say_so_in_their_intervals() -> None:
    slow, quick, small = predict_launches(MODEL, [depthwise(2, 7), depthwise(3, 7), depthwise(2, 3)])
    assert slow.duration_us is not None and quick.duration_us is not None and small.duration_us is not None
    assert slow.duration_us > 30 * max(quick.duration_us, small.duration_us)
    assert slow.low_us is not None and slow.high_us is not None
    assert slow.high_us > 10 * slow.low_us
    (single,) = predict_launches(MODEL, [depthwise(2, 7, "float32")])
    assert single.duration_us is not None and single.duration_us < slow.duration_us / 30


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_copy_into_another_layout_takes_elements_as_long_whatever_their_size(dtype: str) -> None:
    shapes = (64, 128, 64, 64), (128, 128, 3, 3), (64, 128, 64, 64)
    last = convolution(*shapes, dtype=dtype, channels_last=True)
    first = convolution(*shapes, dtype=dtype)
    mixed = replace(last, buffers=(first.buffers[0], *last.buffers[1:]))
    shape = convolution_shape(mixed)
    assert shape is not None and shape["copied bytes"] == 4 * 2 * math.prod(shapes[0])
    assert all(convolution_shape(each)["copied bytes"] == 0 for each in (first, last))  # type: ignore[index]
    said, plain = (each.duration_us for each in predict_launches(MODEL, [mixed, last]))
    assert said > plain
