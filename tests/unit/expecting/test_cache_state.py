"""What a launch finds in the cache, by the step that it runs in."""

from __future__ import annotations

import pytest

from factories import make_buffer, make_launch
from torchledger.expecting.cache_state import CacheState
from torchledger.expecting.rounded_products import as_bfloat16
from torchledger.nouns import Buffer, Launch
from torchledger.work.step_traffic import StepTraffic

KEPT, SIZE = 1_000_000.0, 400_000


def _buffer(name: str, role: str = "input", size: int = SIZE) -> Buffer:
    read, written = size * (role != "output"), size * (role != "input")
    return make_buffer(name=name, role=role, shape=(size // 4,), bytes_read=read, bytes_written=written)


def _launch(*buffers: Buffer) -> Launch:
    return make_launch(category="pointwise", device="cuda:0", buffers=buffers)


@pytest.mark.parametrize("step", [None, StepTraffic(10**9, 10**9), StepTraffic(10**9)])
def test_after_a_sweep_or_a_large_step_nothing_is_there_but_what_the_graph_touched(step: StepTraffic | None) -> None:
    cache = CacheState(KEPT, "forward_0", step)
    first = _launch(_buffer("weight"), _buffer("buf0", "output"))
    assert cache.warm_bytes(first) == 0
    cache.touch(first)
    assert cache.warm_bytes(_launch(_buffer("buf0"))) == SIZE
    cache.touch(_launch(_buffer("other", size=2_000_000)))
    assert cache.warm_bytes(_launch(_buffer("buf0"))) == 0


def test_a_small_step_leaves_everything_for_the_next() -> None:
    for step in (StepTraffic(500_000), StepTraffic(500_000, 100_000)):
        assert CacheState(KEPT, "forward_0", step).warm_bytes(_launch(_buffer("weight"))) == SIZE


def test_a_step_that_goes_often_over_little_memory_leaves_it_for_the_next() -> None:
    for held, found in ((500_000, SIZE), (2_000_000, 0), (None, 0)):
        cache = CacheState(KEPT, "forward_0", StepTraffic(10**9, None, held))
        assert cache.warm_bytes(_launch(_buffer("weight"))) == found
        cache.touch(_launch(_buffer("buf0", "output")))
        cache.touch(_launch(_buffer("other", size=2_000_000)))
        assert cache.warm_bytes(_launch(_buffer("buf0"))) == found


def test_weights_are_found_behind_what_the_optimizer_moves() -> None:
    found = [
        CacheState(KEPT, "forward_0", StepTraffic(10**9, moved)).warm_bytes(_launch(_buffer("weight")))
        for moved in (0, 800_000, 2_000_000)
    ]
    assert found == [SIZE, 200_000, 0]


def test_a_backward_finds_what_its_forward_left_last() -> None:
    cache = CacheState(KEPT, "backward_0", StepTraffic(10**9, 10**9))
    found = []
    for number in range(4):
        launch = _launch(_buffer(f"saved_{number}"))
        found.append(cache.warm_bytes(launch))
        cache.touch(launch)
    assert found[0] == SIZE and found == sorted(found, reverse=True) and found[-1] == 0


def test_memory_that_is_used_again_in_place_is_warm_under_its_new_name() -> None:
    cache = CacheState(KEPT)
    cache.touch(_launch(_buffer("a"), _buffer("buf0", "output")))
    assert cache.warm_bytes(_launch(_buffer("buf1", "inout"))) == SIZE
    assert cache.warm_bytes(_launch(_buffer("buf1", "inout", size=2 * SIZE))) == 0
    known_by_name = CacheState(KEPT, by_name=True)
    known_by_name.touch(_launch(_buffer("a"), _buffer("buf0", "output")))
    assert known_by_name.warm_bytes(_launch(_buffer("buf1", "inout"))) == 0
    only_itself = _launch(_buffer("buf1", "inout"), _buffer("a"), _buffer("buf0"))
    assert cache.warm_bytes(only_itself) == 2 * SIZE


def test_what_is_in_place_behind_a_rounded_product_is_warm() -> None:
    product = make_launch(
        category="extern",
        kernel_name="extern_kernels.mm",
        device="cuda:0",
        aten_ops=("aten.mm.default",),
        buffers=(
            make_buffer(name="a", role="input", dtype="float32", shape=(64, 32), bytes_read=8192, bytes_written=0),
            make_buffer(name="b", role="input", dtype="float32", shape=(32, 128), bytes_read=16384, bytes_written=0),
            make_buffer(
                name="buf0", role="output", dtype="float32", shape=(64, 128), bytes_read=0, bytes_written=32768
            ),
        ),
    )
    cache = CacheState(KEPT)
    stands_for_it = as_bfloat16(product)
    assert stands_for_it is not product
    cache.touch(stands_for_it)
    assert cache.warm_bytes(_launch(_buffer("buf1", "inout", size=32768))) == 32768
