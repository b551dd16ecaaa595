from __future__ import annotations

import torch
from schedules import CaughtKernel, examine_kernels
from torch._inductor.virtualized import V

from torchledger.capturing.buffers import fused_buffers
from torchledger.nouns import Buffer

functional = torch.nn.functional


def buffers_of(kernel: CaughtKernel) -> tuple[Buffer, ...]:
    buffers, facts = fused_buffers(V.graph, list(kernel.snodes), kernel.kernel_args)
    assert facts.reason is None
    return buffers


def test_running_statistics_are_read_once_and_written_once():
    def normalize(x, mean, variance):
        return functional.batch_norm(x, mean, variance, training=True)

    (buffers,) = examine_kernels(normalize, torch.randn(8, 16), torch.zeros(16), torch.ones(16), examine=buffers_of)
    for name in ("arg1_1", "arg2_1"):
        parts = [buffer for buffer in buffers if buffer.name == name]
        assert sum(part.bytes_read for part in parts) == 64
        assert sum(part.bytes_written for part in parts) == 64


def test_a_tensor_updated_in_place_is_one_buffer_read_and_written():
    (buffers,) = examine_kernels(lambda x: x.add_(1), torch.randn(100), examine=buffers_of)
    assert sum(buffer.bytes_read for buffer in buffers) == 400
    assert sum(buffer.bytes_written for buffer in buffers) == 400


def test_a_size_that_only_running_decides_leaves_the_traffic_unknown():
    def examine(kernel: CaughtKernel) -> tuple[tuple[Buffer, ...], str | None]:
        buffers, facts = fused_buffers(V.graph, list(kernel.snodes), kernel.kernel_args)
        return buffers, facts.reason

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        ((buffers, reason),) = examine_kernels(lambda x: x.nonzero() * 2, torch.randn(100), examine=examine)
    assert {(buffer.bytes_read, buffer.bytes_written, buffer.bytes_quality) for buffer in buffers} == {
        (None, None, "unavailable")
    }
    assert reason is not None
    assert "u0" in reason


class FakeWorkspace:
    """Scratch memory as Inductor's ``WorkspaceArg`` describes it (only CUDA kernels have any)."""

    outer_name, inner_name, count, dtype, device = "workspace_0", "ws_ptr", 4096, torch.float32, torch.device("cuda:0")


def test_scratch_memory_is_an_argument_that_may_be_read_and_written_whole():
    def with_workspace(kernel: CaughtKernel) -> Buffer:
        kernel.kernel_args.workspace_args.append(FakeWorkspace())
        try:
            return buffers_of(kernel)[-1]
        finally:
            kernel.kernel_args.workspace_args.pop()

    (workspace,) = examine_kernels(torch.sin, torch.randn(8), examine=with_workspace)
    assert (workspace.role, workspace.name, workspace.device) == ("workspace", "workspace_0", "cuda:0")
    assert (workspace.bytes_read, workspace.bytes_written) == (16384, 16384)
    assert workspace.bytes_quality == "upper_bound"
