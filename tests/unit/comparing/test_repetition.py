"""One layer's operators, found again in a graph of many layers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchledger.comparing.repetition import align_repeated

OPS = st.sampled_from(["mm", "add", "gelu", "mul", "view"])


@given(st.lists(OPS, min_size=1, max_size=8), st.integers(1, 6))
def test_every_element_of_repeated_layers_has_its_place(layer: list[str], times: int) -> None:
    places = align_repeated(layer, layer * times)
    assert None not in places
    assert all(layer[place] == op for place, op in zip(places, layer * times, strict=True) if place is not None)


@given(st.lists(OPS, max_size=8), st.lists(OPS, max_size=30))
def test_places_hold_equal_operators(layer: list[str], whole: list[str]) -> None:
    places = align_repeated(layer, whole)
    assert len(places) == len(whole)
    assert all(place is None or layer[place] == op for place, op in zip(places, whole, strict=True))


def test_what_stands_before_between_and_after_the_layers_is_left_over() -> None:
    layer = ["norm", "mm", "gelu", "mm", "add"]
    whole = ["embedding", *layer, "residual", *layer, *layer, "norm", "loss"]
    places = align_repeated(layer, whole)
    assert places[0] is None and places[6] is None and places[-1] is None
    assert places[1:6] == places[7:12] == places[12:17] == [0, 1, 2, 3, 4]


def test_layers_that_were_changed_in_the_middle_keep_their_ends() -> None:
    assert align_repeated(["a", "b", "c", "d"], ["a", "x", "c", "d"] * 2) == [0, None, 2, 3] * 2
