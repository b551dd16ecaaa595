"""Statistics of every kind of tensor, against a slow obvious count."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchledger.watching.device_reductions import COLUMNS, plain_row
from torchledger.watching.reductions import Layout, Reducer, Summary, flatten, summarize, unravel

VALUES = st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e-40, -1e-41, 3e38, math.nan, math.inf, -math.inf, 7.25])


def obvious(values: np.ndarray[Any, Any]) -> Summary:
    """The same by numpy, element by element."""
    flat = values.reshape(-1).astype(np.float64)
    finite = flat[np.isfinite(flat)]
    tiny = float(np.finfo(np.float32).tiny)
    some = finite.size > 0
    return Summary(
        numel=flat.size,
        n_nan=int(np.isnan(flat).sum()),
        n_inf=int(np.isinf(flat).sum()),
        minimum=float(finite.min()) if some else None,
        maximum=float(finite.max()) if some else None,
        mean=float(finite.mean()) if some else None,
        std=float(finite.std()) if some else None,
        n_zero=int((finite == 0).sum()),
        n_subnormal=int(((finite != 0) & (np.abs(finite) < tiny)).sum()),
    )


def views(x: Tensor) -> list[Tensor]:
    return [x, x.t(), x[::2], x[:, 1:], x[:1].expand(3, -1), x[0, 0], x.t()[1:, :1]]


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=12, max_size=12))
def test_summaries_are_those_of_an_obvious_count(values: list[float]) -> None:
    base = torch.tensor(values, dtype=torch.float32).view(3, 4)
    for view in views(base):
        found, expected = summarize(view), obvious(view.numpy())
        for name in ("numel", "n_nan", "n_inf", "n_zero", "n_subnormal", "minimum", "maximum"):
            assert getattr(found, name) == getattr(expected, name), (name, view)
        for name in ("mean", "std"):
            one, other = getattr(found, name), getattr(expected, name)
            assert (one is None) == (other is None)
            assert one is None or one == pytest.approx(other, rel=1e-9, abs=1e-30)


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=12, max_size=12))
def test_every_place_that_is_told_holds_a_bad_value(values: list[float]) -> None:
    base = torch.tensor(values, dtype=torch.float32).view(3, 4)
    for view in views(base):
        summary = summarize(view)
        for index in summary.not_finite:
            assert not view[index].isfinite()
        if view.stride() == view.contiguous().stride():
            assert len(summary.not_finite) == (summary.n_nan or 0) + (summary.n_inf or 0)


@given(st.lists(VALUES, min_size=1, max_size=40))
@settings(max_examples=40, deadline=None)
def test_the_row_of_a_device_says_the_same_as_the_summary(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    row = dict(zip(COLUMNS, plain_row(x).tolist(), strict=True))
    summary = summarize(x)
    for column, name in (("n_nan", "n_nan"), ("n_inf", "n_inf"), ("n_zero", "n_zero"), ("n_subnormal", "n_subnormal")):
        assert row[column] == getattr(summary, name)
    if summary.minimum is not None:
        assert (row["minimum"], row["maximum"]) == (summary.minimum, summary.maximum)
    if summary.not_finite:
        assert row["first"] == summary.not_finite[0][0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0, 3),
        torch.tensor(2.5),
        torch.tensor([True, False, True]),
        torch.arange(5),
        torch.arange(5, dtype=torch.uint8),
        torch.tensor([1, 2], dtype=torch.uint16),
        torch.tensor([1 + 2j, complex(math.nan, 0.0)]),
        torch.tensor([0.5, -448.0]).to(torch.float8_e4m3fn),
        torch.tensor([0.5, math.inf]).to(torch.float8_e5m2),
        torch.tensor([6e-8, 65504.0], dtype=torch.float16),
        torch.tensor([1e-40, 1.0], dtype=torch.bfloat16),
        torch.ones(2, 3).to_sparse(),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)
def test_no_kind_of_tensor_is_too_odd(tensor: Tensor) -> None:
    summary = summarize(tensor)
    assert summary.numel == tensor.numel()
    if tensor.is_complex():
        assert (summary.n_nan, summary.maximum) == (1, pytest.approx(math.sqrt(5)))
    if tensor.dtype == torch.float16:
        assert summary.n_subnormal == 1
    if tensor.dtype == torch.float8_e5m2:
        assert summary.n_inf == 1


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.permutations([0, 1, 2]))
@settings(max_examples=40, deadline=None)
def test_positions_lead_back_to_indices(a: int, b: int, c: int, order: list[int]) -> None:
    x = torch.arange(a * b * c).view(a, b, c).permute(*order)
    flat, layout = flatten(x)
    for position, value in enumerate(flat.tolist()):
        assert x[layout.index(position)] == value


def test_unravel_is_numpys() -> None:
    assert unravel(17, (2, 3, 4)) == tuple(int(i) for i in np.unravel_index(17, (2, 3, 4)))
    assert Layout((), ()).index(0) == ()


def test_a_reducer_forgets_nothing_when_tensors_are_overwritten() -> None:
    reducer = Reducer(predicate=lambda tensor: tensor > 2)
    x = torch.tensor([[1.0, 5.0], [math.nan, 3.0]])
    ticket = reducer.add(x)
    x.zero_()
    summary = reducer.fetch()[ticket]
    assert (summary.n_nan, summary.n_flagged, summary.flagged, summary.not_finite) == (1, 2, ((0, 1),), ((1, 0),))


def test_what_is_flattened_stands_in_one_piece():
    matrix = torch.arange(66.0).view(2, 33)
    for view in (matrix[:, :1], matrix[:, 1:], matrix[:, ::2], matrix.t()[:1], matrix[:1].expand(3, 33), matrix.t()):
        flat, layout = flatten(view)
        assert flat.is_contiguous()
        for position in range(flat.numel()):
            assert flat[position] == view[layout.index(position)]
