"""Fused kernels beyond the cache: of all sizes alike, quicker with none and slower with none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from factories import make_buffer, make_h200, make_launch
from launch_times import pointwise
from torchledger.expecting.launch_features import LaunchFeatures, features_of_launches
from torchledger.expecting.streaming import STREAMED, UNSEEN, excess_of, over_fewer_rows
from torchledger.fitting.launches import as_matrix
from torchledger.nouns import Access, Launch, LoopNest
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches

H200 = make_h200()


def reduction(rows: int, width: int) -> Launch:
    """Sums of the rows of a bfloat16 tensor, and the same tensor times two."""
    size = 2 * rows * width
    loads = (Access("in", "load", index="p", strides=(width, 1), dtype="bfloat16"),)
    stores = (Access("out", "store", index="p", strides=(width, 1), dtype="bfloat16"),)
    sums = (Access("sums", "store", index="p0", strides=(1, 0), dtype="float32"),)
    return make_launch(
        kernel_name="triton_red_fused_sum_0",
        category="reduction",
        device="cuda:0",
        buffers=(
            make_buffer(name="in", role="input", dtype="bfloat16", bytes_read=size, bytes_written=0),
            make_buffer(name="out", role="output", dtype="bfloat16", bytes_read=0, bytes_written=size),
            make_buffer(name="sums", role="output", dtype="float32", bytes_read=0, bytes_written=4 * rows),
        ),
        loops=(
            LoopNest((rows,), reduction_extents=(width,), reduction_type="sum", ops={"sum": 1}, accesses=loads + sums),
            LoopNest((rows, width), ops={"mul": 1}, accesses=loads + stores),
        ),
    )


KERNELS = {
    "one exponential": lambda rows: pointwise(rows, 4096, 1),
    "many exponentials": lambda rows: pointwise(rows, 4096, 40),
    "odd rows": lambda rows: pointwise(rows, 4097, 2),
    "a reduction": lambda rows: reduction(rows, 4096),
}


def described(launch: Launch) -> LaunchFeatures:
    (found,) = features_of_launches([launch], H200)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KERNELS)
def test_beyond_the_cache_a_regressor_sees_one_kernel_of_any_size(kind: str) -> None:
    small, large = (described(KERNELS[kind](rows)).streamed for rows in (1 << 16, 1 << 19))
    assert small is not None and large is not None
    differing = {name: (small[name], large[name]) for name in small if abs(small[name] - large[name]) > 0.02}
    assert set(differing) <= set(UNSEEN), differing


def test_a_kernel_within_it_is_seen_as_it_is_and_one_just_beyond_nearly_so() -> None:
    rows = int(5 * H200.l2_kept_bytes / (4 * 4096))
    within, beyond = described(pointwise(rows - 8, 4096, 1)), described(pointwise(rows + 8, 4096, 1))
    assert within.streamed is None
    names = tuple(within.values)
    assert STREAMED in names
    near = as_matrix([within], names) - as_matrix([beyond], names)
    assert np.abs(near).max() < 0.01


def test_a_regressor_of_before_sees_every_size() -> None:
    features = described(pointwise(1 << 18, 4096, 1))
    (moved,) = as_matrix([features], ("log moved",))[0]
    assert moved == pytest.approx(math.log(4 * 4096 * (1 << 18)))
    (shrunk, _) = as_matrix([features], ("log moved", STREAMED))[0]
    assert shrunk == pytest.approx(math.log(5 * H200.l2_kept_bytes))


def test_nothing_shrinks_below_what_one_block_is() -> None:
    shrunk = over_fewer_rows({"log kept": 0.5, "kept waves": -3.0, "log cost": 3.0, "loads": 2.0}, 9.0, H200)
    floors = H200.constants.kernels.floors * H200.floor_us
    assert shrunk["log kept"] == 0.0 and shrunk["kept waves"] == -3.5
    assert shrunk["log cost"] == pytest.approx(math.log((math.exp(3.0) - floors) * math.exp(-9.0) + floors))
    assert shrunk["loads"] == 2.0
    assert excess_of(1.0, H200) == 0.0


@pytest.mark.parametrize("kind", KERNELS)
def test_time_grows_with_size_and_bandwidth_does_not_fall_beyond_what_was_learned(kind: str) -> None:
    model = find_model("H200")
    rows = np.unique(np.geomspace(1 << 14, 1 << 22, 65).astype(int) // 8 * 8)
    launches = [replace(KERNELS[kind](int(count)), graph=f"forward_{count}") for count in rows]
    times = np.array([found.duration_us for found in predict_launches(model, launches)])
    moved = np.array([float(launch.bytes_moved or 0) for launch in launches])
    streams = moved > 5 * model.machine.l2_kept_bytes
    assert streams.sum() > 40
    times, moved = times[streams], moved[streams]
    assert (np.diff(times) > 0).all()
    rates = moved / times
    assert (rates[1:] > 0.99 * rates[:-1]).all()
    assert rates[-1] >= 0.995 * rates.max()
    assert rates[-1] < 1.1 * model.machine.bytes_per_us
