"""What a fused kernel's instructions, gathers and loads that stand still take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factories import make_buffer, make_h200, make_launch
from torchledger.expecting.kernel_details import KINDS, loop_time_us, moving_us, once
from torchledger.expecting.launch_features import LaunchFeatures, features_of_launches
from torchledger.nouns import Access, LoopNest

H200 = make_h200()
_ROWS, _WIDTH = 1 << 13, 1 << 13
_MOVE = H200.constants.kernels.move


def features(ops: dict[str, int], *more: Access, extents: tuple[int, ...] = (_ROWS, _WIDTH)) -> LaunchFeatures:
    size = 4 * _ROWS * _WIDTH
    strides = (extents[-1], 1)
    accesses = (
        Access("in", "load", index="p", strides=strides, dtype="float32"),
        *more,
        Access("out", "store", index="p", strides=strides, dtype="float32"),
    )
    launch = make_launch(
        category="pointwise",
        device="cuda:0",
        buffers=(
            make_buffer(name="in", role="input", dtype="float32", bytes_read=size, bytes_written=0),
            make_buffer(name="out", role="output", dtype="float32", bytes_read=0, bytes_written=size),
        ),
        loops=(LoopNest(extents, ops=ops, accesses=accesses),),
    )
    (found,) = features_of_launches([launch], H200)
    assert found is not None
    return found


def parts(ops: dict[str, int], *more: Access) -> dict[str, float]:
    found = features(ops, *more).parts_us
    assert found is not None
    return dict(found)


def time_us(part: dict[str, Any]) -> Any:
    costs = H200.constants.loops
    assert costs is not None
    return loop_time_us(part, costs["pointwise"], move=_MOVE, floor_us=H200.floor_us)


def test_an_error_function_takes_longer_than_an_exponential_and_a_sigmoid_is_two_operations() -> None:
    times = {name: float(time_us(parts({name: 40}))) for name in ("exp", "erf", "sigmoid", "mul")}
    assert times["erf"] > times["sigmoid"] > times["exp"] > times["mul"]
    both = parts({"sigmoid": 1})
    assert both["exponential"] == both["division"] == parts({"exp": 1})["exponential"] > 0
    assert parts({"libdevice_erf": 1})["error function"] > 0


def test_every_operation_is_of_one_kind_or_plain() -> None:
    named = {name: 1 for members in KINDS.values() for name in members if name != "sigmoid"}
    found = parts(named | {"mul": 1, "where": 1, "rand": 1, "sin": 1})
    lanes_us = _ROWS * _WIDTH / H200.vector_instructions_per_us
    kinds = (*KINDS, "circular", "random", "select", "plain")
    assert sum(found[kind] for kind in kinds) == pytest.approx((len(named) + 4) * lanes_us)


def test_what_several_sums_add_up_is_computed_once() -> None:
    assert once({"exp": 2, "mul": 9, "sum": 2, "neg": 1}) == {"exp": 1, "mul": 5, "sum": 2, "neg": 1}
    assert once({"exp": 2, "sum": 1}) == {"exp": 2, "sum": 1}


def test_a_load_that_stands_still_along_the_innermost_loop_is_free() -> None:
    still = Access("scale", "load", index="p0", strides=(1, 0), dtype="float32")
    moves = Access("other", "load", index="p1", strides=(0, 1), dtype="float32")
    alone, with_still, with_moving = (moving_us(parts({}, *more), _MOVE) for more in ((), (still,), (moves,)))
    assert with_still == pytest.approx(alone) and with_moving > alone


def test_a_gather_over_rows_fetches_a_sector_for_each_element() -> None:
    def gathered(index: str) -> float:
        access = Access("table", "load", index=index, strides=(0, 0), dtype="float32", is_indirect=True)
        return parts({}, access)["gathered"]

    near, far = gathered("48*indirect0 + indirect1"), gathered("9216*indirect0 + 192*indirect1")
    assert far == pytest.approx(8 * near)
    assert near == pytest.approx(4 * _ROWS * _WIDTH / H200.bytes_per_us)


def test_many_kernels_at_once_take_what_each_takes() -> None:
    several = [parts({"exp": count, "erf": 1}) for count in (1, 20, 200)]
    together = time_us({name: np.array([part[name] for part in several]) for name in several[0]})
    assert together == pytest.approx([float(time_us(part)) for part in several])


def test_the_last_loop_says_how_rows_are_aligned() -> None:
    odd, even = (features({}, extents=(64, width)).values for width in (2047, 2048))
    assert odd["last alignment"] == 0.0 and even["last alignment"] == 8.0
    assert even["log last extent"] > odd["log last extent"]


def test_a_running_sum_in_pieces_takes_a_row_at_a_time() -> None:
    def sectors(stride: int, other: int) -> float:
        accesses = (
            Access("in", "load", index="p", strides=(stride, other), dtype="float32"),
            Access("out", "store", index="p", strides=(stride, other), dtype="float32"),
        )
        size = 4 * 1024 * 512
        launch = make_launch(
            category="split_scan",
            device="cuda:0",
            buffers=(
                make_buffer(name="in", role="input", dtype="float32", bytes_read=size, bytes_written=0),
                make_buffer(name="out", role="output", dtype="float32", bytes_read=0, bytes_written=size),
            ),
            loops=(LoopNest((1024,), reduction_extents=(512,), reduction_type="scan", accesses=accesses),),
        )
        (found,) = features_of_launches([launch], H200)
        assert found is not None and found.parts_us is not None
        return found.parts_us["load"]

    assert sectors(1, 1024) == pytest.approx(8 * sectors(512, 1))


def test_an_index_that_is_computed_for_each_element_costs_what_one_that_is_loaded_does_not() -> None:
    buckets = Access("table", "load", index="16*indirect0", strides=(0, 0), dtype="float32", is_indirect=True)
    loaded = Access("indices", "load", index="p0", strides=(1, 0), dtype="int64")
    of_rows = Access("table", "load", index="64*indirect0 + p1", strides=(0, 1), dtype="float32", is_indirect=True)
    lanes_us = _ROWS * _WIDTH / H200.vector_instructions_per_us
    assert parts({}, buckets)["computed"] == pytest.approx(lanes_us)
    assert parts({}, buckets, loaded)["computed"] == parts({}, of_rows)["computed"] == parts({})["computed"] == 0


@pytest.mark.parametrize(
    ("category", "steps"), [("persistent_reduction", 9), ("reduction", 5), ("split_scan", 9), ("pointwise", 5)]
)
def test_a_running_sum_takes_a_step_for_each_doubling_of_what_a_block_has(category: str, steps: int) -> None:
    access = Access("in", "load", index="p", strides=(512, 1), dtype="float32")
    nest = LoopNest((1024,), reduction_extents=(512,), ops={"scan": 1}, accesses=(access,), reduction_type="scan")
    (found,) = features_of_launches([make_launch(category=category, device="cuda:0", loops=(nest,))], H200)
    assert found is not None and found.parts_us is not None
    assert found.parts_us["scan"] == pytest.approx(steps * 1024 * 512 / H200.vector_instructions_per_us)


def test_a_model_of_before_is_asked_as_it_learned() -> None:
    before = replace(H200, networks=4)
    access = Access("in", "load", index="p", strides=(512, 1), dtype="float32")
    nest = LoopNest((1024,), reduction_extents=(512,), ops={"scan": 1}, accesses=(access,), reduction_type="scan")
    (found,) = features_of_launches([make_launch(category="split_scan", device="cuda:0", loops=(nest,))], before)
    assert found is not None and found.parts_us is not None
    assert found.parts_us["scan"] == pytest.approx(1024 * 512 / H200.vector_instructions_per_us)
    assert before.loop_costs == H200.constants.former_loops and H200.loop_costs == H200.constants.loops
    assert before.loop_costs.keys() == H200.loop_costs.keys()
