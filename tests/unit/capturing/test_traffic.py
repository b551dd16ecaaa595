from __future__ import annotations

import contextlib
import itertools
from unittest import mock

import pytest
import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, ModularIndexing

from torchledger.capturing import index_regions, progressions
from torchledger.capturing.index_trees import index_text
from torchledger.capturing.traffic import (
    AddressCount,
    Bound,
    Extent,
    IndexedAccess,
    TrafficCount,
    clear_caches,
    count_addresses,
    count_traffic,
)

x, y, z, w = sympy.symbols("x y z w", integer=True, nonnegative=True)
VARIABLES = (x, y, z)


def reached_one_by_one(access: IndexedAccess) -> set[int]:
    """The slow, obvious way: put every iteration into the expressions."""
    addresses = set()
    symbols = [symbol for symbol, _ in access.loops]
    for point in itertools.product(*(range(size) for _, size in access.loops)):
        values = dict(zip(symbols, map(sympy.Integer, point), strict=True))
        if all(
            (b.low is None or b.expression.xreplace(values) >= b.low)
            and (b.high is None or b.expression.xreplace(values) <= b.high)
            for b in access.bounds
        ):
            addresses.add(int(sympy.sympify(access.index).xreplace(values)))
    return addresses


def counted_one_by_one(accesses: list[IndexedAccess]) -> int:
    return len(set().union(*map(reached_one_by_one, accesses)))


def exact(count: int) -> AddressCount:
    return AddressCount(count, "exact")


# ---- shapes that kernels really have, with answers worked out by hand


def test_a_broadcast_operand_is_read_once():
    assert count_addresses([IndexedAccess(y, ((x, 1_000_000), (y, 64)))]) == exact(64)


def test_a_scalar_is_one_address():
    assert count_addresses([IndexedAccess(sympy.Integer(0), ((x, 4096),))]) == exact(1)


def test_an_empty_loop_reaches_nothing():
    assert count_addresses([IndexedAccess(x, ((x, 0),))]) == exact(0)


def test_a_transposed_read_covers_the_whole_matrix():
    assert count_addresses([IndexedAccess(x + 4096 * y, ((x, 4096), (y, 4096)))]) == exact(4096**2)


def test_a_strided_slice_counts_only_what_it_touches():
    assert count_addresses([IndexedAccess(128 * x + 2 * y, ((x, 50), (y, 32)))]) == exact(50 * 32)


def test_neighbours_share_all_but_the_ends():
    pair = [IndexedAccess(x + 16 * k, ((x, 31 * 16),)) for k in (0, 1)]
    assert count_addresses(pair) == exact(32 * 16)


def test_windows_that_overlap_are_counted_once():
    # An unfold of a 100 x 100 image with a 3 x 3 window at stride 2.
    window = IndexedAccess(2 * x + w + 100 * (2 * y + z), ((x, 49), (y, 49), (w, 3), (z, 3)))
    assert count_addresses([window]) == exact(99 * 99)


def test_windows_written_as_single_loads_are_counted_once():
    loads = [IndexedAccess(2 * x + i + 100 * (2 * y + j), ((x, 49), (y, 49))) for i in range(3) for j in range(3)]
    assert count_addresses(loads) == exact(99 * 99)


def test_windows_with_gaps_leave_the_gaps_out():
    loads = [IndexedAccess(5 * x + i + 100 * y, ((x, 20), (y, 1000))) for i in range(2)]
    assert count_addresses(loads) == exact(2 * 20 * 1000)


def test_padding_of_a_pooling_window_is_not_read():
    loads = [
        IndexedAccess(
            2 * x + i - 1 + 112 * (2 * y + j - 1) + 112 * 112 * z,
            ((z, 64), (y, 56), (x, 56)),
            bounds=(Bound(2 * x + i - 1, 0, 111), Bound(2 * y + j - 1, 0, 111)),
        )
        for i in range(3)
        for j in range(3)
    ]
    assert count_addresses(loads, Extent((64, 112, 112), (12544, 112, 1))) == exact(64 * 112 * 112)


def test_a_part_of_a_concatenation_reads_only_its_own_rows():
    part = IndexedAccess(64 * x + y - 32, ((x, 100), (y, 96)), bounds=(Bound(y, 32, None),))
    assert count_addresses([part], Extent((100, 64), (64, 1))) == exact(6400)


def test_a_mask_that_only_data_decides_gives_an_upper_bound():
    access = IndexedAccess(x, ((x, 100),), is_masked=True)
    assert count_addresses([access], Extent((100,), (1,))) == AddressCount(100, "upper_bound")


def test_a_gather_is_bounded_by_its_iterations_and_by_its_buffer():
    row = sympy.Symbol("indirect0", integer=True)
    few = IndexedAccess(64 * row + y, ((x, 16), (y, 64)), indirect=((row, 1000),))
    many = IndexedAccess(64 * row + y, ((x, 5000), (y, 64)), indirect=((row, 1000),))
    extent = Extent((1000, 64), (64, 1))
    assert count_addresses([few], extent) == AddressCount(1024, "upper_bound")
    assert count_addresses([many], extent) == AddressCount(64000, "upper_bound")


def test_a_gather_of_a_buffer_that_is_read_whole_anyway_is_exact():
    row = sympy.Symbol("tmp0", integer=True)
    accesses = [IndexedAccess(row, ((x, 50),)), IndexedAccess(x, ((x, 100),))]
    assert count_addresses(accesses, Extent((100,), (1,))) == exact(100)


def test_a_flipped_read_covers_the_row():
    assert count_addresses([IndexedAccess(99 - x + 100 * y, ((x, 100), (y, 7)))]) == exact(700)


def test_a_diagonal_is_as_long_as_the_matrix_is_wide():
    assert count_addresses([IndexedAccess(1025 * x, ((x, 1024),))]) == exact(1024)


def test_nearest_upsampling_reads_every_pixel_once():
    index = FloorDiv(x, 2) + 512 * FloorDiv(y, 2)
    assert count_addresses([IndexedAccess(index, ((x, 1024), (y, 1024)))]) == exact(512 * 512)


def test_a_view_through_remainders_is_a_permutation():
    index = 64 * ModularIndexing(x, 1, 512) + ModularIndexing(x, 512, 64) + 32768 * FloorDiv(x, 32768)
    assert count_addresses([IndexedAccess(index, ((x, 32768 * 1000),))]) == exact(32768 * 1000)


def test_the_columns_of_a_view_are_counted_through_the_view():
    # Columns 0..7 of a matrix of 64 columns, read through a flat index.
    index = 64 * FloorDiv(x, 8) + ModularIndexing(x, 1, 8)
    assert count_addresses([IndexedAccess(index, ((x, 8 * 10_000),))]) == exact(80_000)


def test_interleaved_strides_are_counted_exactly():
    # Multiples of 2 and of 3 below 6 million: 3M + 2M - 1M.
    accesses = [IndexedAccess(2 * x, ((x, 3_000_000),)), IndexedAccess(3 * x, ((x, 2_000_000),))]
    assert count_addresses(accesses) == exact(4_000_000)


def test_in_place_update_reads_and_writes_each_address():
    loops = ((x, 1000),)
    traffic = count_traffic([IndexedAccess(x, loops), IndexedAccess(x, loops, "store")])
    assert traffic == TrafficCount(1000, 1000, "exact")


def test_a_value_stored_by_the_same_launch_is_not_read_again():
    loops = ((x, 1000),)
    traffic = count_traffic([IndexedAccess(x, loops, "store"), IndexedAccess(x, loops)])
    assert traffic == TrafficCount(0, 1000, "exact")


def test_only_the_part_that_was_not_stored_before_is_read():
    accesses = [
        IndexedAccess(x, ((x, 10),)),
        IndexedAccess(x + 5, ((x, 10),), "store"),
        IndexedAccess(x, ((x, 100),)),
    ]
    assert count_traffic(accesses) == TrafficCount(95, 10, "exact")


def test_an_atomic_update_reads_what_it_writes():
    row = sympy.Symbol("indirect0", integer=True)
    access = IndexedAccess(row, ((x, 64),), "atomic", indirect=((row, 16),))
    assert count_traffic([access], Extent((16,), (1,))) == TrafficCount(16, 16, "upper_bound")


def test_an_update_of_what_the_launch_just_zeroed_reads_nothing():
    row = sympy.Symbol("indirect0", integer=True)
    accesses = [
        IndexedAccess(x, ((x, 16),), "store"),
        IndexedAccess(row, ((x, 64),), "atomic", indirect=((row, 16),)),
    ]
    assert count_traffic(accesses, Extent((16,), (1,))) == TrafficCount(0, 16, "exact")


def test_the_extent_of_a_padded_layout_leaves_its_gaps_out():
    assert Extent((10, 3), (8, 1), 5).count() == 30
    assert (Extent((10, 3), (8, 1), 5).low, Extent((10, 3), (8, 1), 5).high) == (5, 79)


def test_what_has_no_closed_form_is_an_upper_bound():
    # 1/4 of the products of a big multiplication table would have to be compared one by one.
    answer = count_addresses([IndexedAccess(x * y, ((x, 5000), (y, 5000)))])
    assert answer == AddressCount(25_000_000, "upper_bound")
    extent = Extent((1000,), (1,))
    assert count_addresses([IndexedAccess(x * y, ((x, 5000), (y, 5000)))], extent).count == 1000


def test_what_is_small_is_enumerated():
    accesses = [IndexedAccess(x * y, ((x, 50), (y, 50)))]
    assert count_addresses(accesses) == exact(counted_one_by_one(accesses))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (64 * x + y - 1, "64*x + y - 1"),
        (99 - x + 100 * y, "100*y - x + 99"),
        (FloorDiv(x + 3, 8) + 16 * ModularIndexing(y, 4, 5), "16*((y // 4) % 5) + ((x + 3) // 8)"),
        (sympy.Integer(0), "0"),
        (sympy.sqrt(x), "sqrt(x)"),
    ],
)
def test_an_index_reads_as_python(expression, text):
    assert index_text(expression) == text


@given(st.builds(lambda a, b, c: a * x + b * y + c, *[st.integers(-70, 70)] * 3))
def test_the_text_of_an_index_evaluates_to_the_index(expression):
    assert eval(index_text(expression), {"x": 5, "y": 11}) == expression.subs({x: 5, y: 11})


# ---- against brute force


@st.composite
def affine_expressions(draw, largest=40):
    terms = [draw(st.integers(-largest, largest)) * symbol for symbol in VARIABLES]
    return sum(terms, sympy.Integer(draw(st.integers(-20, 20))))


@st.composite
def index_expressions(draw):
    """Sums of affine, floor-divided, wrapped and clamped parts."""
    total = draw(affine_expressions())
    for _ in range(draw(st.integers(0, 2))):
        inner = draw(affine_expressions(12)) + 500  # torch's functions expect arguments that are not negative
        divisor, modulus = draw(st.integers(1, 12)), draw(st.integers(1, 12))
        other = draw(affine_expressions(12)) + 500
        part = draw(
            st.sampled_from(
                [
                    FloorDiv(inner, divisor),
                    ModularIndexing(inner, divisor, modulus),
                    Mod(inner, modulus),
                    Max(inner, other),
                    Min(inner, other),
                    FloorDiv(ModularIndexing(inner, 1, 24), divisor),
                ]
            )
        )
        total = total + draw(st.integers(-30, 30)) * part
    return total


@st.composite
def accesses_of_one_buffer(draw, expressions, most):
    accesses = []
    for _ in range(draw(st.integers(1, most))):
        loops = tuple((symbol, draw(st.integers(1, 7))) for symbol in VARIABLES)
        bounds = []
        for _ in range(draw(st.integers(0, 2))):
            low = draw(st.none() | st.integers(-30, 30))
            bounds.append(Bound(draw(affine_expressions(6)), low, draw(st.none() | st.integers(-10, 60))))
        accesses.append(IndexedAccess(draw(expressions), loops, bounds=tuple(bounds)))
    return accesses


LAYOUT_STRIDES = st.sampled_from([0, 1, 1, 2, 3, 4, 6, 7, 8, 12, 16, 21, 48, 49])


@st.composite
def layout_like_expressions(draw):
    return sum((draw(LAYOUT_STRIDES) * symbol for symbol in VARIABLES), sympy.Integer(draw(st.integers(0, 30))))


PATIENT = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def assert_holds(accesses: list[IndexedAccess]) -> None:
    answer, truth = count_addresses(accesses), counted_one_by_one(accesses)
    if answer.quality == "exact":
        assert answer.count == truth
    else:
        assert answer.count >= truth


@contextlib.contextmanager
def closed_form_alone():
    """Switch enumeration off: what big tensors get."""
    clear_caches()
    with (
        mock.patch.object(index_regions, "ENUMERATION_LIMIT", 0),
        mock.patch.object(progressions, "ENUMERATION_LIMIT", 0),
    ):
        yield
    clear_caches()


@PATIENT
@given(accesses_of_one_buffer(affine_expressions(), 3))
def test_affine_accesses_agree_with_brute_force(accesses):
    assert_holds(accesses)


@PATIENT
@given(accesses_of_one_buffer(layout_like_expressions(), 5))
def test_accesses_like_those_of_layouts_are_exact(accesses):
    answer = count_addresses(accesses)
    assert answer == exact(counted_one_by_one(accesses))


@PATIENT
@given(accesses_of_one_buffer(index_expressions(), 2))
def test_modular_accesses_agree_with_brute_force(accesses):
    assert_holds(accesses)


@PATIENT
@given(accesses_of_one_buffer(layout_like_expressions(), 5))
def test_accesses_like_those_of_layouts_need_no_enumeration(accesses):
    with closed_form_alone():
        assert count_addresses(accesses) == exact(counted_one_by_one(accesses))


@PATIENT
@given(accesses_of_one_buffer(index_expressions(), 2))
def test_modular_accesses_hold_without_enumeration(accesses):
    with closed_form_alone():
        assert_holds(accesses)


@PATIENT
@given(accesses_of_one_buffer(layout_like_expressions(), 4), st.data())
def test_reads_after_stores_agree_with_brute_force(accesses, data):
    kinds = [data.draw(st.sampled_from(["load", "store", "atomic"])) for _ in accesses]
    ordered = [
        IndexedAccess(access.index, access.loops, kind, access.bounds)
        for access, kind in zip(accesses, kinds, strict=True)
    ]
    read: set[int] = set()
    written: set[int] = set()
    for access in ordered:
        addresses = reached_one_by_one(access)
        if access.kind != "store":
            read |= addresses - written
        if access.kind != "load":
            written |= addresses
    assert count_traffic(ordered) == TrafficCount(len(read), len(written), "exact")


@pytest.mark.parametrize("scale", [1, 1000, 1_000_000])
def test_the_answer_follows_the_size_without_looking_at_each_address(scale):
    index = 64 * ModularIndexing(x, 1, 512) + ModularIndexing(x, 512, 64) + 32768 * FloorDiv(x, 32768)
    loads = [IndexedAccess(index + 32768 * k, ((x, 32768 * 8 * scale),)) for k in range(3)]
    assert count_addresses(loads) == exact(32768 * (8 * scale + 2))
