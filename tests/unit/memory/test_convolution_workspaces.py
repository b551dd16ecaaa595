"""The network of cuDNN's workspaces beside what an H200 asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchledger.memory.convolution_workspaces import PASSES, PRECISIONS, ConvolutionPass, workspace_bytes

RECORDED = Path(__file__).resolve().parents[3] / "data" / "h200" / "convolution_workspaces_torch2.11.npz"
SOME = 1500
SIZES = ("count", "c_in", "c_out", "height", "width", "kernel", "stride", "padding", "groups")


@pytest.fixture(scope="module")
def recorded() -> tuple[list[ConvolutionPass], list[int]]:
    with np.load(RECORDED) as rows:
        chosen = np.random.default_rng(7).permutation(len(rows["count"]))[:SOME]
        columns = {name: rows[name][chosen] for name in rows.files if name != "device"}
    return [pass_of(columns, place) for place in range(SOME)], columns["workspace_bytes"].tolist()


def pass_of(columns: dict[str, Any], place: int) -> ConvolutionPass:
    sizes = {name: int(columns[name][place]) for name in SIZES}
    across = {"kernel_height": sizes["kernel"], "padding_height": sizes["padding"]}
    if columns["kind"][place] == "signal":
        across = {"height": 1, "kernel_height": 1, "padding_height": 0}
    return ConvolutionPass(
        direction=PASSES[columns["direction"][place]],
        precision=str(columns["precision"][place]),
        channels_last=bool(columns["channels_last"][place]),
        **sizes | across,
    )


def test_three_of_four_recorded_workspaces_are_known_within_a_twentieth_or_a_megabyte(
    recorded: tuple[list[ConvolutionPass], list[int]],
) -> None:
    passes, asked = recorded
    near = [
        abs(said - nbytes) <= max(2**20, 0.05 * nbytes)
        for said, nbytes in zip(workspace_bytes(passes), asked, strict=True)
    ]
    assert sum(near) > 0.75 * SOME


def test_passes_asked_together_are_answered_as_each_alone(recorded: tuple[list[ConvolutionPass], list[int]]) -> None:
    some = recorded[0][:40]
    assert workspace_bytes(some) == pytest.approx([workspace_bytes([each])[0] for each in some], rel=1e-3)


def test_no_passes_have_no_workspaces() -> None:
    assert workspace_bytes([]) == []


@given(
    direction=st.sampled_from(PASSES),
    precision=st.sampled_from(PRECISIONS),
    count=st.integers(1, 4096),
    groups=st.integers(1, 64),
    each=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    sides=st.tuples(st.integers(1, 512), st.integers(1, 512)),
    kernel=st.integers(1, 15),
    stride=st.integers(1, 16),
    is_last=st.booleans(),
)
def test_whatever_the_sizes_a_workspace_is_a_number_of_bytes_that_goes_with_its_tensors(
    direction: Any,
    precision: str,
    count: int,
    groups: int,
    each: tuple[int, int],
    sides: tuple[int, int],
    kernel: int,
    stride: int,
    is_last: bool,
) -> None:
    c_in, c_out = each[0] * groups, each[1] * groups
    one = ConvolutionPass(
        direction=direction,
        precision=precision,
        count=count,
        c_in=c_in,
        c_out=c_out,
        height=sides[0],
        width=sides[1],
        kernel_height=kernel,
        kernel=kernel,
        stride=stride,
        padding_height=kernel // 2,
        padding=kernel // 2,
        groups=groups,
        channels_last=is_last,
    )
    pixels = (sides[0] + kernel) * (sides[1] + kernel)
    largest = 4 * (count * (c_in + c_out + 16) * pixels + (c_out + 8) * (each[0] + 8) * kernel**2)
    assert 0 <= workspace_bytes([one])[0] <= 100 * largest
