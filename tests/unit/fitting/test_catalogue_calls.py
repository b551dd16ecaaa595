"""What calls in steps take beside the catalogue's word."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchledger.fitting.catalogue_calls import beside_catalogue, fit_beside_catalogue


@given(st.floats(0.85, 1.5), st.sampled_from([0.0, 0.2, 0.8]))
def test_a_factor_and_an_offset_are_found_again(factor: float, offset: float) -> None:
    said = [2.0**place for place in range(12)]
    taken = [factor * each + offset for each in said]
    found = beside_catalogue("aten::mul", fit_beside_catalogue(["aten::mul"] * 12, taken, said))
    assert found is not None
    for each, us in zip(said, taken, strict=True):
        assert found.duration_us(each) == pytest.approx(us, rel=0.12)
    assert math.exp(found.spread) > 1.1


def test_of_few_calls_nothing_is_learned() -> None:
    assert fit_beside_catalogue(["aten::mul"] * 5, [1.0] * 5, [1.0] * 5) == {}
    assert beside_catalogue("aten::mul", {}) is None


def test_operators_are_learned_apart() -> None:
    learned = fit_beside_catalogue(["aten::mul"] * 6 + ["aten::add"] * 6, [1.4] * 6 + [1.0] * 6, [1.0] * 12)
    mul, add = beside_catalogue("aten::mul", learned), beside_catalogue("aten::add", learned)
    assert mul is not None and add is not None
    assert mul.duration_us(1.0) == pytest.approx(1.4, rel=0.05) and add.duration_us(1.0) == pytest.approx(1.0, rel=0.05)
