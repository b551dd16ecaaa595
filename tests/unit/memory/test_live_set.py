"""The live set of a step added up from its storages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.factories import make_live_storage, make_step_memory

from torchledger.memory.live_set import add_up_memory, alive_at, areas, live_curve, rounded
from torchledger.nouns import LiveStorage


def make_lives(lives: list[tuple[int, int | None, int | None]]) -> list[LiveStorage]:
    """Storages of (bytes, born, freed)."""
    return [
        make_live_storage(number=number, nbytes=nbytes, born=born, born_in=born, freed=freed, freed_in=freed)
        for number, (nbytes, born, freed) in enumerate(lives)
    ]


def test_the_peak_is_the_most_that_is_alive_at_once() -> None:
    storages = make_lives([(100, None, None), (10, 1, 2), (20, 3, 5), (30, 4, None)])
    curve = live_curve(storages)
    assert [level.nbytes for level in curve.levels] == [100, 110, 100, 120, 150, 130]
    assert (curve.peak.order, curve.peak.nbytes) == (4, 150)
    assert curve.most_in(3) == 120
    assert curve.rise_in(5) == 0


def test_sizes_are_rounded_one_by_one_as_the_allocator_does() -> None:
    storages = make_lives([(1, None, None), (513, 0, None), (1024, 1, None)])
    assert add_up_memory(make_step_memory(rounding=512), storages).peak_allocated_bytes == 512 + 1024 + 1024
    assert add_up_memory(make_step_memory(), storages).peak_allocated_bytes == 1 + 513 + 1024


def test_what_is_freed_before_something_is_born_makes_room_for_it() -> None:
    assert live_curve(make_lives([(10, None, 0), (10, 1, None)])).peak.nbytes == 10
    assert live_curve(make_lives([(10, None, 1), (10, 0, None)])).peak.nbytes == 20


def test_a_step_in_which_nothing_is_allocated_is_at_its_peak_from_the_start() -> None:
    totals = add_up_memory(make_step_memory(), make_lives([(10, None, None)]))
    assert totals.peak_allocated_bytes == 10
    assert totals.curve.peak.order == -1


LIVES = st.lists(
    st.tuples(st.integers(1, 5000), st.none() | st.integers(0, 40), st.none() | st.integers(41, 80)), max_size=30
)


@given(LIVES, st.sampled_from([1, 512]))
def test_categories_modules_and_tensors_at_the_peak_each_add_to_it(
    lives: list[tuple[int, int | None, int | None]], rounding: int
) -> None:
    storages = make_lives(lives)
    totals = add_up_memory(make_step_memory(rounding=rounding), storages)
    assert sum(totals.by_category.values()) == sum(totals.by_module.values()) == totals.peak_allocated_bytes
    assert totals.peak_allocated_bytes == totals.peak_live_bytes + totals.by_category.get("blocks", 0)
    assert totals.by_category.get("blocks", 0) >= 0
    peak = totals.peak_live_bytes
    assert sum(rounded(each.nbytes, rounding) for each in totals.at_peak) == peak
    assert max(area.nbytes for area in areas(totals)) == peak
    assert all(sum(area.by_category.values()) == area.nbytes for area in areas(totals))


@given(LIVES)
def test_the_curve_is_at_each_place_what_a_look_at_every_storage_gives(
    lives: list[tuple[int, int | None, int | None]],
) -> None:
    storages = make_lives(lives)
    last = {level.place: level.nbytes for level in live_curve(storages).levels}
    for place, nbytes in last.items():
        assert nbytes == sum(each.nbytes for each in alive_at(storages, place))
