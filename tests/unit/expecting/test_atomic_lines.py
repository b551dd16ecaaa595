"""Atomics that meet in one line of memory: what must hold for tables that are looked up in by distance."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import make_buffer, make_h200, make_launch
from torchledger.expecting.atomic_lines import LINE_BYTES, is_by_distance, most_in_line, waiting_in_lines
from torchledger.expecting.launch_costs import kernel_costs
from torchledger.nouns import Access, LoopNest


def _rows(places: int) -> list[int]:
    side = math.isqrt(places)
    found = [2 * places - 1, 16, 32, 33, 65]
    return [rows for rows in (*found, (2 * side - 1) ** 2) if is_by_distance(places, rows)]


@given(places=st.integers(2, 300), width=st.integers(1, 80), size=st.sampled_from((2, 4)))
def test_no_line_meets_more_than_all_atomics_and_the_fullest_no_less_than_an_equal_share(
    places: int, width: int, size: int
) -> None:
    elements = LINE_BYTES // size
    for rows in _rows(places):
        atomics = places**2 * width
        most = most_in_line(places, rows, width, size)
        lines = math.ceil(rows * width / elements)
        assert atomics / (lines + 1) <= most + 1e-6
        assert most <= atomics * max(1.0, elements / width) + 1e-6


@pytest.mark.parametrize("rows", [16, 32, 33, 65])
@given(places=st.integers(70, 300))
def test_more_places_meet_more_often(rows: int, places: int) -> None:
    assert most_in_line(places + 40, rows, 16, 4) > most_in_line(places, rows, 16, 4)


def test_buckets_crowd_more_than_a_row_for_each_distance() -> None:
    assert most_in_line(512, 32, 16, 4) > 20 * most_in_line(512, 1023, 16, 4)
    # As many rows as T5 has, of the distances beyond the 90th in either direction: a third of all pairs.
    pairs = most_in_line(512, 32, 32, 4) / 32
    assert pairs == sum(512 - apart for apart in range(91, 512))


@given(places=st.integers(70, 400), width=st.integers(1, 40), in_flight=st.integers(2**12, 2**22))
def test_no_more_atomics_wait_than_there_are_and_no_fewer_than_an_equal_share_of_the_lines(
    places: int, width: int, in_flight: int
) -> None:
    for rows in (16, 33, 64):
        waiting = waiting_in_lines(places, rows, width, 4, in_flight)
        atomics, lines = places**2 * width, math.ceil(rows * width * 4 / LINE_BYTES)
        # Those on different elements of a line wait a fifth less at most.
        assert 0.75 * atomics / lines <= waiting <= atomics + 1e-6


def test_of_two_rows_that_most_pairs_meet_at_first_one_waits_and_then_the_other() -> None:
    # 2,048 places of 20 heads took 96.7 ms on an H100, at 1.76 ns each: a head has more pairs than are in flight.
    alone = waiting_in_lines(2048, 32, 20, 4, 2**20)
    assert 1.3 < alone / most_in_line(2048, 32, 20, 4) < 1.6
    together = waiting_in_lines(2048, 32, 20, 4, 2**40)
    assert together < most_in_line(2048, 32, 20, 4)


def test_no_less_than_a_row_of_places_is_in_flight() -> None:
    assert waiting_in_lines(96, 32, 4, 4, 1) == waiting_in_lines(96, 32, 4, 4, 96)


def test_a_decoder_waits_longer_since_all_that_lies_ahead_has_one_bucket() -> None:
    assert waiting_in_lines(384, 32, 16, 4, 2**20, is_past=True) > 1.3 * waiting_in_lines(384, 32, 16, 4, 2**20)
    # Half of all pairs at one row, with 16 elements of the next in its line.
    assert waiting_in_lines(384, 32, 16, 4, 2**18, is_past=True) >= 384**2 / 2 * 16 * 0.75


def test_a_table_is_by_distance_where_it_has_a_row_for_each_or_fewer_than_places() -> None:
    assert is_by_distance(49, 169) and is_by_distance(64, 127) and is_by_distance(384, 32)
    assert not is_by_distance(64, 30522) and not is_by_distance(50, 169) and not is_by_distance(64, 1)


def _summed(index: tuple[int, ...], rows: int, networks: int | None = None, mask: tuple[int, ...] = ()) -> float:
    heads, places = 16, math.isqrt(math.prod(index))
    machine = make_h200() if networks is None else make_h200(networks=networks)
    nest = LoopNest(
        (heads, places**2),
        accesses=(
            Access("index", "load", "p1", (0, 1), "int64"),
            Access("table", "atomic", "16*indirect0 + p0", (1, 0), "float32", is_indirect=True),
        ),
    )
    buffers = (
        make_buffer(name="index", shape=index, stride=(1,) * len(index), dtype="int64", role="input"),
        make_buffer(name="table", shape=(rows, heads), stride=(heads, 1), dtype="float32", role="output"),
    )
    if mask:
        buffers += (make_buffer(name="mask", shape=mask, stride=(1,) * len(mask), dtype="bool", role="input"),)
    launch = make_launch(category="pointwise", loops=(nest,), buffers=buffers)
    return kernel_costs(launch, machine, cold_bytes=0.0, warm_us=0.0, vector_us=[0.0]).parts["crowded atomic"]


def test_a_kernel_of_few_buckets_waits_and_one_of_all_distances_does_not() -> None:
    # Measured on an H200: 8,023 us of 838 places in 32 buckets, and 315 of 896 places in as many rows as distances
    # (24 heads there), reading what they add up included.
    assert 7000 < _summed((838, 838), 32) < 9500
    assert _summed((896, 896), 1791) < 300
    assert _summed((49 * 49,), 169) == _summed((49, 49), 169) < 10


def test_a_mask_of_who_may_see_whom_says_that_a_kernel_is_a_decoders_and_one_of_dropout_does_not() -> None:
    # 2,140 us of 384 places in a decoder of T5, 1,424 in its encoder, both on an H200.
    assert 1800 < _summed((384, 384), 32, mask=(1, 1, 384, 384)) < 2300
    assert _summed((384, 384), 32, mask=(21, 16, 384, 384)) == _summed((384, 384), 32)
    assert 1200 < _summed((384, 384), 32) < 1600


def test_models_of_before_are_asked_as_they_learned() -> None:
    assert _summed((896, 896), 1791, networks=7) > 20 * _summed((896, 896), 1791)


def test_rows_that_any_index_picks_are_no_distances() -> None:
    # As many atomics on as few rows, by an index that is no square.
    assert _summed((128, 32), 1000) == _summed((128, 32), 1000, networks=7)
