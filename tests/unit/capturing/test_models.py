"""The main job: on models of every kind the ledger misses nothing and its FLOPs are the eager model's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import model_zoo
from captured import Captured, capture_call, eager_flops

_BUILT = ("mlp", *model_zoo.BEYOND)
"""Whose kernels are compiled and run. What is asked here of an entry is known before the C++ compiler is called."""

_ONE_LAYER = ("llama_gqa", "bert", "vit")
"""What two layers that are alike ask of a ledger, gpt2 asks."""

_MODELS = [*model_zoo.REQUIRED, *(pytest.param(name, marks=pytest.mark.slow) for name in model_zoo.BEYOND)]


@pytest.fixture(scope="module", params=_MODELS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Captured, int]:
    """One forward and backward of a model under capture, and the FLOPs of the same in eager mode."""
    case = model_zoo.make(request.param, layers=1 if request.param in _ONE_LAYER else None)
    eager = eager_flops(lambda: case.loss(case.module, *case.inputs).backward())
    path: Path = tmp_path_factory.mktemp(request.param) / "a.ledger"
    captured = capture_call(
        path,
        lambda: case.loss(torch.compile(case.module), *case.inputs).backward(),
        builds=request.param in _BUILT,
    )
    return captured, eager


def test_every_call_in_the_generated_code_has_one_entry(trained: tuple[Captured, int]) -> None:
    captured, _ = trained
    assert captured.gaps == []
    assert len(captured.calls) == captured.wrapper_calls > 0
    lines = [(launch.graph, launch.wrapper_line, launch.order) for launch in captured.calls]
    assert all(line is not None for _, line, _ in lines)
    assert lines == sorted(lines, key=lambda item: (item[0] != lines[0][0], item[2])) or len(captured.graphs) > 1


def test_flops_are_those_of_the_eager_model_to_the_last_digit(trained: tuple[Captured, int]) -> None:
    captured, eager = trained
    assert captured.reference_flops == eager
    assert captured.flops == eager + captured.named_differences


def test_every_fused_kernel_has_a_user_line_or_says_why_not(trained: tuple[Captured, int]) -> None:
    captured, _ = trained
    assert captured.fused
    for launch in captured.fused:
        assert launch.sources or launch.modules or launch.reason, launch.kernel_name
    with_line = [launch for launch in captured.fused if launch.sources or launch.modules]
    assert len(with_line) >= 0.9 * len(captured.fused)


def test_every_launch_has_a_kernel_and_every_fused_kernel_its_source(trained: tuple[Captured, int]) -> None:
    captured, _ = trained
    kernels = {(kernel.key, kernel.name): kernel for kernel in captured.kernels}
    for launch in captured.calls:
        kernel = kernels[launch.kernel, launch.kernel_name]
        assert kernel.category == launch.category
        if launch in captured.fused:
            assert kernel.source


def test_every_buffer_of_a_launch_has_bytes_or_says_that_they_are_unknown(trained: tuple[Captured, int]) -> None:
    captured, _ = trained
    for launch in captured.calls:
        assert launch.buffers, launch.kernel_name
        for buffer in launch.buffers:
            is_unknown = buffer.bytes_read is None or buffer.bytes_written is None
            assert is_unknown == (buffer.bytes_quality == "unavailable"), (launch.kernel_name, buffer)
        assert launch.bytes_moved is not None, (launch.kernel_name, launch.reason, launch.buffers)


def test_traffic_never_exceeds_what_the_buffers_hold(trained: tuple[Captured, int]) -> None:
    captured, _ = trained
    for launch in captured.fused:
        for buffer in launch.buffers:
            size = torch.empty((), dtype=getattr(torch, buffer.dtype)).element_size()
            for extent in buffer.shape:
                size *= extent
            assert (buffer.bytes_read or 0) <= size, (launch.kernel_name, buffer)
            assert (buffer.bytes_written or 0) <= size, (launch.kernel_name, buffer)
