"""A library's call as a launch, for calls that no graph has."""

from __future__ import annotations

from torchledger.nouns import TensorArgument
from torchledger.work.library_launches import library_launch


def test_each_tensor_is_moved_once_and_is_dense_unless_its_strides_are_told() -> None:
    left, right = TensorArgument((8, 4), "bfloat16"), TensorArgument((4, 2), "bfloat16", (1, 4))
    launch = library_launch("mm", [left, right], [TensorArgument((8, 2), "float32")], flops=128, device="cuda:0")
    assert launch is not None and (launch.kernel_name, launch.aten_ops) == ("extern_kernels.mm", ("aten.mm",))
    assert [buffer.stride for buffer in launch.buffers] == [(4, 1), (1, 4), (2, 1)]
    assert (launch.bytes_read, launch.bytes_written, launch.flops) == (2 * (32 + 8), 4 * 16, 128)


def test_without_the_size_of_an_element_there_is_none() -> None:
    unknown = TensorArgument((8, 4))
    assert library_launch("mm", [unknown, unknown], [unknown], flops=1, device="cuda:0") is None
