"""Calls of compiled code that launch nothing."""

from __future__ import annotations

import pytest

from torchledger.nouns import Buffer, Launch
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches
from torchledger.work.views import launches_nothing

SHAPE, STRIDE = (24, 24, 64, 64, 1), (1536, 64, 36864, 1, 1)


def call(name: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> Launch:
    given = Buffer("a", "input", "complex64", SHAPE, STRIDE, "cuda:0", bytes_read=18874368, bytes_written=0)
    made = Buffer("b", "output", "complex64", shape, stride, "cuda:0", bytes_read=0, bytes_written=18874368)
    name = f"torch.ops.aten.{name}"
    return Launch("forward_0", 0, "k", name, "extern", "cuda:0", buffers=(given, made), call=name)


@pytest.mark.parametrize(
    "name", ["permute.default", "view_as_real.default", "view.dtype", "slice.Tensor", "_conj.default"]
)
def test_a_view_launches_nothing_and_has_no_time(name: str) -> None:
    launch = call(name, SHAPE, STRIDE)
    assert launches_nothing(launch)
    assert predict_launches(find_model("H200"), [launch]) == []


@pytest.mark.parametrize(
    ("shape", "stride", "is_view"),
    [
        ((576, 64, 64), (64, 36864, 1), True),
        ((1, 24, 24, 4096), (0, 1536, 64, 1), False),
        ((576, 64, 64), (4096, 64, 1), False),
    ],
)
def test_a_reshape_launches_something_where_its_elements_lie_otherwise_then(
    shape: tuple[int, ...], stride: tuple[int, ...], is_view: bool
) -> None:
    assert launches_nothing(call("reshape.default", shape, stride)) is is_view


def test_what_computes_or_copies_is_launched() -> None:
    assert not any(launches_nothing(call(name, SHAPE, STRIDE)) for name in ("clone.default", "slice_scatter.default"))
