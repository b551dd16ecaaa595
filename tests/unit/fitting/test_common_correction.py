"""What operators have in common in how a device differs, and how far a correction goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.factories import make_sample

from torchledger.device.datasheets import find_data_sheet
from torchledger.fitting.correcting import correct_model, error_pct
from torchledger.fitting.time_model import TimeModel
from torchledger.fitting.transfer import transfer_model
from torchledger.nouns import Sample
from torchledger.operators import find_operator
from torchledger.predicting import find_model, predict_table

ELEMENTS, LENGTHS = (18, 28), (8, 13)
SHAPES: Mapping[str, tuple[str, tuple[int, int], Mapping[str, int]]] = {
    **dict.fromkeys(("add", "mul", "gelu"), ("numel", ELEMENTS, {})),
    **dict.fromkeys(("softmax", "layer_norm", "rms_norm", "swiglu"), ("rows", (8, 16), {"dim": 2048})),
    "embedding": ("tokens", (8, 16), {"vocab": 32768, "dim": 2048}),
    "guide.res_add": ("l", LENGTHS, {"b": 4, "dim": 4096}),
    "guide.RoPE": ("l", LENGTHS, {"mp": 1, "b": 2, "h": 32, "dim": 4096}),
    "guide.fillmask": ("l", LENGTHS, {"mp": 1, "b": 2, "h": 16, "dim": 2048}),
    "guide.ScaledUpperTriangMaskedSoftmax": ("l", LENGTHS, {"mp": 1, "b": 2, "h": 16}),
}
"""Of each operator the size that is drawn, between which powers of two, and the others."""
KEPT_US = 20.0
"""The made-up device is slower for what takes longer than that: its memory is, its cache is not."""


@cache
def transferred() -> TimeModel:
    sheet = find_data_sheet("H20")
    assert sheet is not None
    return transfer_model(find_model("H200"), sheet.device)


def slower_memory(times_us: np.ndarray) -> np.ndarray:
    return np.where(times_us > KEPT_US, 1.4, 1.0)


def two_of_them(operator: str, times_us: np.ndarray) -> np.ndarray:
    """Slower by a factor that tells nothing of the other operators."""
    return np.full_like(times_us, 1.4 if operator in ("gelu", "softmax") else 1.0)


def samples(
    operators: Iterable[str], count: int, seed: int, *, factor: Callable[[str, np.ndarray], np.ndarray]
) -> list[Sample]:
    pick = np.random.default_rng(seed)
    found = []
    for operator in operators:
        drawn, powers, others = SHAPES[operator]
        shapes = {name: np.full(count, value) for name, value in others.items()}
        shapes[drawn] = (2 ** pick.uniform(*powers, count)).astype(int)
        for direction in find_operator(operator.removeprefix("guide."), prefer_guide="." in operator).directions:
            times = predict_table(transferred(), operator, shapes, direction=direction).duration_us
            times = times * factor(operator, times)
            for place, time_us in enumerate(times):
                parameters = {name: int(column[place]) for name, column in shapes.items()}
                made = make_sample(f"{operator}{seed}{place}", None, operator, parameters=parameters, dtype="bfloat16")
                found.append(replace(made, direction=direction, device="H20", times_us=(float(time_us),)))
    return found


def test_an_operator_that_nobody_measured_has_what_the_others_have_in_common() -> None:
    measured = samples(SHAPES, 12, 0, factor=lambda _, times: slower_memory(times))
    model, _ = correct_model(transferred(), measured, jobs=1)
    shape = {"tokens": np.array([256, 65536]), "vocab": np.array([2048, 32768])}
    before, after = (predict_table(each, "cross_entropy", shape).duration_us for each in (transferred(), model))
    assert after[0] / before[0] == pytest.approx(1.0, abs=0.12)
    assert after[1] / before[1] == pytest.approx(1.4, abs=0.15)
    assert model.entries["cross_entropy/forward"].n_rows == 0


def test_what_says_nothing_of_other_operators_is_not_shared() -> None:
    measured = samples(SHAPES, 12, 0, factor=two_of_them)
    model, _ = correct_model(transferred(), measured, jobs=1)
    ask = {"tokens": np.array([4096]), "vocab": np.array([8192])}
    one, other = (predict_table(each, "cross_entropy", ask) for each in (transferred(), model))
    assert one.duration_us == other.duration_us


def test_beyond_its_rows_a_correction_stays_what_it_is_at_their_edge() -> None:
    small = [s for s in samples(("mul",), 60, 0, factor=lambda _, times: times**0.2) if s.parameters["numel"] < 2**24]
    model, _ = correct_model(transferred(), small, jobs=1)
    ask = {"numel": np.array([2**24, 2**28, 2**30])}
    one, other = (predict_table(each, "mul", ask).duration_us for each in (transferred(), model))
    shift = np.log(other / one)
    assert shift[0] > 0.2 and shift[1:] == pytest.approx(shift[0], abs=0.08)
    assert error_pct(model, small)[0] < 10
