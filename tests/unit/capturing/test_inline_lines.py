"""The eager lines of a wrapper that add up partial results say what they read and write."""

from __future__ import annotations

import pytest

from factories import make_buffer, make_launch
from torchledger.capturing.inline_lines import Reduction, read_reduction, reduction_buffers
from torchledger.nouns import Buffer
from torchledger.work.sizes import sizes_at

_WORKSPACE = make_buffer(name="workspace_0", role="workspace", dtype="float32", shape=(2048,), stride=(1,))


def _buffers(line: str, dtype: str | None = None, **symbols: int) -> tuple[Buffer, ...]:
    reduction = read_reduction(line)
    assert reduction is not None
    return reduction_buffers(reduction, _WORKSPACE, dtype, symbols)


def test_a_sum_of_partial_results_reads_the_slice_and_writes_a_row() -> None:
    line = "buf6 = workspace_0[1 * (16) * (64) : (1 + 1) * (16) * (64)].view(16, 64).sum(dim=0).view([64])"
    read, written = _buffers(line)
    assert (read.name, read.role, read.shape, read.offset) == ("workspace_0", "input", (16, 64), 1024)
    assert (read.bytes_read, read.bytes_written) == (16 * 64 * 4, 0)
    assert (written.name, written.role, written.shape) == ("buf6", "output", (64,))
    assert (written.bytes_read, written.bytes_written) == (0, 64 * 4)


def test_a_result_of_another_type_is_written_in_that_type() -> None:
    line = "buf6 = workspace_0[0:64].view(8, 8).sum(dim=0).view([8]).to(torch.bfloat16)"
    assert _buffers(line, "bfloat16")[1].bytes_written == 8 * 2


def test_symbolic_sizes_of_a_line_are_counted_at_any_size() -> None:
    line = "buf6 = workspace_0[0 : ((s0 + 31) // 32) * (8)].view((s0 + 31) // 32, 8).amax(dim=0)"
    launch = make_launch(category="inline", buffers=_buffers(line, s0=100), flops=0, flops_by_op_expr={})
    (called,) = sizes_at([launch], {"s0": 320})
    assert (launch.bytes_read, called.bytes_read) == (4 * 8 * 4, 10 * 8 * 4)
    assert called.bytes_quality == "exact"
    assert called.buffers == _buffers(line, s0=320)


@pytest.mark.parametrize(
    "line",
    [
        "buf0.copy_(buf1)",
        "buf0 = workspace_0[0:64].view(8, 8).sum(dim=1)",
        "buf0 = workspace_0.view(8, 8).sum(dim=0)",
        "buf0 = workspace_0[0:64].sum(dim=0)",
        "del buf0",
        "buf0 = (",
    ],
)
def test_other_lines_are_no_such_reduction(line: str) -> None:
    assert read_reduction(line) is None


def test_a_size_that_is_not_known_leaves_the_traffic_unknown() -> None:
    assert _buffers("buf0 = workspace_0[0:64].view(s9, 8).sum(dim=0)") == ()
    assert reduction_buffers(Reduction("b", "w", "0", ("8",)), make_buffer(dtype="float7"), None, {}) == ()
