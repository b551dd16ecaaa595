"""One reader of arithmetic: what a grammar lacks is named, nothing is run, unknown stays unknown."""

from __future__ import annotations

import ast

import pytest

from torchledger.work.expressions import (
    ARITHMETIC,
    CONDITIONS,
    ExpressionError,
    Grammar,
    evaluate,
    parse_expression,
    parts_outside,
    power,
)

GRAMMAR = Grammar({**ARITHMETIC, **CONDITIONS, ast.Pow: power}, {"min": min, "math.gcd": lambda a, b: a % b or b})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 + 3 * n", 17),
        ("-n // 2 % 7", 4),
        ("min(n, 3) ** 2", 9),
        ("math.gcd(6, 4)", 2),
        ("1 < n <= 5 and not n == 4", True),
        ("n < 1 or n // 0", None),
        ("n == 5 or n // 0", True),
        ("absent + n", None),
        ("min(1, absent)", None),
    ],
)
def test_an_expression_has_the_value_that_arithmetic_gives_and_none_where_a_name_is_unknown(
    text: str, value: object
) -> None:
    tree = parse_expression(text)
    assert not list(parts_outside(tree, GRAMMAR))
    if text == "n < 1 or n // 0":
        with pytest.raises(ExpressionError, match="'n // 0' has no value: "):
            evaluate(tree, {"n": 5}.get, GRAMMAR)
    else:
        assert evaluate(tree, {"n": 5}.get, GRAMMAR) == value


@pytest.mark.parametrize("part", ["n.real", "[n]", "f(n)", "min(n, key=n)", "1.5", "True", "'n'", "n & 1", "lambda: n"])
def test_what_a_grammar_does_not_hold_is_named_and_not_computed(part: str) -> None:
    tree = parse_expression(f"1 + ({part})")
    assert list(parts_outside(tree, GRAMMAR))
    with pytest.raises(ExpressionError, match="is not of the grammar"):
        evaluate(tree, {"n": 5}.get, GRAMMAR)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot be read"),
        ("(1", "cannot be read"),
        ("1" * 2001, "of at most 2,000"),
        ("-" * 1990 + "1", "nested too deeply"),
        ("9 ** 9 ** 9", "exponent 387420489 is too large"),
    ],
)
def test_text_that_would_cost_time_or_is_no_expression_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        evaluate(parse_expression(text), {}.get, GRAMMAR)
