"""What repeats in a sequence, beside a slow and obvious search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchledger.stepping.periods import Round, TokenSequence


def sequence_of(tokens: str) -> TokenSequence:
    sequence = TokenSequence()
    for token in tokens:
        sequence.add(token)
    return sequence


@given(st.text("ab", max_size=14))
def test_the_period_is_the_shortest_part_that_comes_twice(tokens: str) -> None:
    slow = [
        length
        for length in range(1, len(tokens) // 2 + 1)
        if all(tokens[at] == tokens[at + length] for at in range(len(tokens) - length))
    ]
    period = sequence_of(tokens).period()
    assert (None if period is None else len(period)) == (min(slow) if slow else None)


def test_a_long_repetition_at_the_end_is_found_where_the_whole_has_no_period() -> None:
    sequence = sequence_of("p" + 15 * "d")
    assert sequence.period() is None
    assert sequence.run() == ("d",)


@given(st.text("abc", min_size=1, max_size=6), st.integers(1, 5))
def test_rounds_of_a_regular_sequence_are_as_many_as_its_repetitions(period: str, times: int) -> None:
    ranks = {token: place for place, token in enumerate(dict.fromkeys(period))}
    by_begin, by_end = Round(tuple(period), ranks), Round(tuple(period), ranks)
    assert sum(by_begin.begins_with(token) for token in times * by_begin.tokens) == times
    assert sum(by_end.ends_with(token) for token in times * by_end.tokens) == times


def test_a_round_begins_with_what_was_met_first() -> None:
    assert Round(tuple("baa"), {"a": 0, "b": 1}).tokens == tuple("aab")


def test_what_is_not_in_the_round_is_a_round_of_its_own_until_the_next_one() -> None:
    found = Round(("a", "b"), {"a": 0, "b": 1})
    assert [found.begins_with(token) for token in "abxxab"] == [True, False, True, False, True, False]


def test_a_round_that_lacks_one_still_ends_with_its_last() -> None:
    found = Round(("d", "g"), {"d": 0, "g": 1})
    assert [found.ends_with(token) for token in "dgdgg"] == [False, True, False, True, True]


def test_a_sequence_longer_than_the_memory_is_looked_at_afresh() -> None:
    sequence = TokenSequence()
    for number in range(5000):
        sequence.add(number)
    assert len(sequence.tokens) < 4097
    sequence.clear()
    assert sequence.period() is None
