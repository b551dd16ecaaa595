"""Batch norms of pictures, priced by their channels."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchledger.fitting.picture_norms import PictureNorm, fit_picture_norms, key_of, picture_norm_us
from torchledger.nouns import TensorArgument

TRUE = PictureNorm(
    launch_us=2.5, turn_us=0.9, cached_ns=0.4, further_ns=0.2, again=0.5, held=60_000, at_once=2.0, bytes_per_ns=2200
)
NAME = "aten::cudnn_batch_norm"


def pictures(batch: int, channels: int, side: int) -> TensorArgument:
    stride = (channels * side * side, side * side, side, 1)
    return TensorArgument((batch, channels, side, side), "float32", stride)


def true_us(batch: int, channels: int, side: int) -> float:
    elements = batch * side * side
    given = (np.array([float(each)]) for each in (elements, channels, 8 * elements * channels))
    return float(TRUE.duration_us(*given, multiprocessors=132, slower=1.0, memory=1.0)[0])


@pytest.fixture(scope="module")
def learned() -> dict[str, float]:
    draw = random.Random("picture norms")
    sizes = [
        (draw.choice((2, 8, 32, 64, 128)), draw.choice((8, 64, 150, 512, 2048)), draw.choice((4, 7, 14, 28, 56, 112)))
        for _ in range(80)
    ]
    rows: list[dict[str, Any]] = [
        {"name": NAME, "us": true_us(*size), "arguments": [[one.shape, one.dtype, one.stride]]}
        for size in sizes
        for one in (pictures(*size),)
    ]
    return fit_picture_norms(rows, 132)


def said_us(extras: dict[str, float], *size: int, **on: float) -> float:
    on = {"slower": 1.0, "memory": 1.0} | on
    found = picture_norm_us(NAME, [pictures(*size)], extras, multiprocessors=132, **on)
    assert found is not None
    return found[0]


def test_what_calls_take_is_learned_from_calls(learned: dict[str, float]) -> None:
    sizes = [(16, 96, 28), (4, 1000, 14), (100, 32, 56), (64, 256, 7)]
    off = [abs(math.log(said_us(learned, *size) / true_us(*size))) for size in sizes]
    assert max(off) < 0.25 and sum(off) / len(off) < 0.12


@given(st.integers(1, 256), st.integers(2, 2048), st.sampled_from((4, 7, 14, 28, 56)))
def test_more_pictures_never_take_less_and_a_slower_device_never_less(batch: int, channels: int, side: int) -> None:
    extras = {f"{NAME} by channels, float32 {name}": value for name, value in vars(TRUE).items()}
    extras[f"{NAME} by channels, float32 spread"] = 0.2
    one, more = (said_us(extras, count, channels, side) for count in (batch, 2 * batch))
    assert one <= more <= 5 * one
    assert (
        one <= said_us(extras, batch, channels, side, slower=1.5)
        and said_us(extras, batch, channels, side, memory=2) <= one
    )


def test_other_layouts_and_operators_are_no_such_calls() -> None:
    last = TensorArgument((8, 64, 7, 7), "float32", (3136, 1, 448, 64))
    assert key_of(NAME, [last]) is None and key_of("aten::relu", [pictures(8, 64, 7)]) is None
    assert picture_norm_us(NAME, [pictures(8, 64, 7)], {}, multiprocessors=132, slower=1, memory=1) is None


def test_few_calls_teach_nothing() -> None:
    one = pictures(8, 64, 7)
    row = {"name": NAME, "us": 5.0, "arguments": [[one.shape, one.dtype, one.stride]]}
    assert fit_picture_norms([row] * 5, 132) == {}
