"""A yes or no that is neither is a fault."""

from __future__ import annotations

from typing import Any, cast

import pytest

from torchledger.claims import claim


def test_a_claim_answers_as_the_function_does_and_keeps_its_name() -> None:
    @claim
    def is_even(number: int) -> bool:
        """True for even numbers."""
        return number % 2 == 0

    assert (is_even(2), is_even(3)) == (True, False)
    assert (is_even.__name__, is_even.__doc__) == ("is_even", "True for even numbers.")


def test_no_answer_is_not_taken_for_a_no() -> None:
    with pytest.raises(TypeError, match="<lambda> answers neither yes nor no"):
        claim(lambda: cast(Any, None))()
