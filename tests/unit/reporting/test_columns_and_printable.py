"""Values become text: units, unknowns, and nothing that a terminal would obey."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchledger.printable import ended, one_line, printable
from torchledger.reporting.columns import COLUMNS, format_bytes, format_si, format_us


@given(st.text())
def test_printable_text_holds_no_control_character(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs") and c not in "\t\n"]


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1


@given(st.text(alphabet=st.characters(whitelist_categories=("L", "N", "P", "Zs"))))
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_an_escape_sequence_is_shown_and_not_obeyed() -> None:
    assert printable("\x1b]0;title\x07\x9b31m") == r"\x1b]0;title\x07\x9b31m"


def test_text_that_turns_around_is_shown_as_escapes() -> None:
    assert "\u202e" not in printable("abc\u202edef")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00 k"),
        (75_497_472, "75.5 M"),
        (999_950, "1.00 M"),
        (12e18, "12.0 E"),
        (-1500, "-1.50 k"),
    ],
)
def test_large_numbers_keep_three_digits(value: float, text: str) -> None:
    assert format_si(value) == text


@given(st.integers(min_value=1, max_value=10**20))
def test_rounding_errs_by_less_than_half_a_percent(value: int) -> None:
    number, _, prefix = format_si(value).partition(" ")
    shown = float(number) * 1000 ** " kMGTPE".index(prefix or " ")
    assert abs(shown - value) <= 0.005 * value


def test_bytes_are_decimal() -> None:
    assert format_bytes(1_000_000) == "1.00 MB"


def test_times_choose_their_unit() -> None:
    assert [format_us(value) for value in (0.5, 12.345, 4500.0, 7.5e6)] == ["0.5 us", "12.3 us", "4.50 ms", "7.50 s"]


def test_unknown_is_shown_and_differs_from_zero() -> None:
    for column in COLUMNS.values():
        assert column.format(None) == "?"
    assert COLUMNS["flops"].format(0) == "0"


def test_every_column_says_what_it_means() -> None:
    for key, column in COLUMNS.items():
        assert column.key == key
        assert column.meaning


@pytest.mark.parametrize(
    ("text", "said"),
    [("it broke", "it broke."), ("it broke.", "it broke."), ("it broke!", "it broke!"), ("it broke: ", "it broke.")],
)
def test_what_others_say_ends_in_one_mark(text: str, said: str) -> None:
    assert ended(text) == said


def test_what_was_cut_off_keeps_its_dots() -> None:
    assert ended("a very long...") == "a very long..."
