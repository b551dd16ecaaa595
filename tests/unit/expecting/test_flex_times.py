"""Kernels of flex_attention: by what is visited and what is done with each score."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchledger.expecting.flex_times import FlexCall, fit_flex, flex_us

_CALL = FlexCall(
    backward=False, is_float32=False, batch=4, heads=16, length=4096, length_kv=4096, d=64, visited=0.25, partial=0.05
)


@given(st.booleans(), st.sampled_from((32, 64, 128, 256)), st.floats(0.01, 1.0), st.integers(0, 8), st.integers(0, 3))
def test_more_to_do_takes_longer(backward: bool, d: int, visited: float, simple: int, hard: int) -> None:
    call = replace(_CALL, backward=backward, d=d, visited=visited, partial=0.01, simple=simple, hard=hard)
    us = flex_us(call)
    assert 0 < us < flex_us(replace(call, batch=8))
    assert us < flex_us(replace(call, simple=simple + 1)) < flex_us(replace(call, hard=hard + 1))
    assert us < flex_us(replace(call, is_float32=True))
    assert us <= flex_us(replace(call, visited=min(1.0, 2 * visited), partial=0.02))


def test_a_device_with_half_the_multiprocessors_takes_twice_as_long() -> None:
    assert flex_us(_CALL, multiprocessors=66) == pytest.approx(2 * flex_us(_CALL))


def test_constants_are_found_again_in_times_that_they_make() -> None:
    calls = [
        replace(_CALL, batch=batch, d=d, visited=visited, partial=visited / 5, simple=simple, hard=hard)
        for batch in (1, 4, 16)
        for d in (64, 128)
        for visited in (0.1, 0.5, 1.0)
        for simple, hard in ((0, 0), (4, 0), (2, 1))
    ]
    found = fit_flex([(call, flex_us(call)) for call in calls])
    errors = [abs(math.log(flex_us(call, found) / flex_us(call))) for call in calls]
    assert max(errors) < 0.05
