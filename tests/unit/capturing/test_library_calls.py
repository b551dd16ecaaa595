"""What a library call and a C++ kernel say of themselves: name, arguments, file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from captured import Captured, capture_call
from torchledger.nouns import Launch


def _model(x: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    added = torch.zeros(256).scatter_add(0, rows, x)
    image = torch.nn.functional.conv2d(added.reshape(1, 4, 8, 8), weight, padding=1)
    return image.relu().sum() + torch.sort(added)[0].sum()


@pytest.fixture(scope="module")
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    inputs = (torch.randn(300, requires_grad=True), torch.randint(256, (300,)), torch.randn(6, 4, 3, 3))
    compiled = torch.compile(_model)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # on one thread scattered sums are fused
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    return capture_call(
        tmp_path_factory.mktemp("calls") / "a.ledger", lambda: compiled(*inputs).backward(), builds=True
    )


def _call(captured: Captured, part: str) -> Launch:
    return next(launch for launch in captured.calls if part in launch.kernel_name)


def test_a_scattered_sum_names_its_own_operator_and_not_those_of_what_it_reads(captured: Captured) -> None:
    assert _call(captured, "scatter_reduce").aten_ops == ("aten.scatter_add",)


def test_arguments_bear_the_names_of_the_operators_schema(captured: Captured) -> None:
    convolution = _call(captured, "aten.convolution_backward").kwargs
    assert convolution["padding"] == "(1, 1)" and convolution["transposed"] == "False"
    assert convolution["output_mask"] == "[True, False, False]"
    assert _call(captured, "scatter_reduce").kwargs["dim"] == "0"
    assert _call(captured, "sort").kwargs == {"stable": "False", "dim": "0", "descending": "False"}
    assert not [name for launch in captured.calls for name in launch.kwargs if name.startswith("arg")]


def test_a_cpp_kernel_knows_the_file_that_it_was_compiled_from(captured: Captured) -> None:
    kernels = [kernel for kernel in captured.kernels if kernel.backend == "cpp"]
    assert kernels
    for kernel in kernels:
        assert kernel.path is not None and "kernel(" in Path(kernel.path).read_text()


def test_a_graph_knows_the_file_of_its_wrapper(captured: Captured) -> None:
    for graph in captured.graphs:
        assert graph.wrapper_path is not None and "def call(" in Path(graph.wrapper_path).read_text()
