"""The independent count reads generated code and nothing else."""

from __future__ import annotations

import pytest

from torchledger.capturing.wrapper_code import find_calls, is_launching_line

WRAPPER = '''
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
cpp_fused_relu_0 = async_compile.cpp_pybinding(['float*'], r"""void kernel() { cpp_fused_relu_0(); }""")
triton_red_fused_sum_1 = async_compile.triton('triton_', """def triton_(): pass""", device_str='cuda')
unrelated = torch.empty(3)

def partition_0(args):
    triton_red_fused_sum_1.run(buf0, 64, stream=stream0)
    return (buf1, )

class Runner:
    def __init__(self, partitions):
        extern_kernels.mm(a, b)
    def recursively_apply_fns(self, fns):
        extern_kernels.mm(a, b)
    def call(self, args):
        primals_1, = args
        args.clear()
        assert_size_stride(primals_1, (2, ), (1, ))
        buf0 = empty_strided_cpu((2, ), (1, ), torch.float32)
        cpp_fused_relu_0(primals_1, buf0)
        extern_kernels.addmm(primals_1, reinterpret_tensor(buf0, (2, ), (1, ), 0), buf2, out=buf3)
        buf4 = torch.ops.aten.sort.stable(buf3, stable=False)
        buf5 = buf4[0]
        aten.index_put_(buf5, [None], buf6, True)
        buf7.copy_(buf5, False)
        buf8 = workspace_0[0:64].view(8, 8).sum(dim=0)
        inductor_ops.resize_storage_bytes_(buf8, 0)
        return (buf8, )

def benchmark_compiled_module(times=10):
    cpp_fused_relu_0(primals_1, buf0)
'''


def test_each_call_of_a_kernel_or_library_is_found_once_and_nothing_else() -> None:
    assert [call.name for call in find_calls(WRAPPER)] == [
        "triton_red_fused_sum_1.run",
        "cpp_fused_relu_0",
        "extern_kernels.addmm",
        "torch.ops.aten.sort.stable",
        "aten.index_put_",
        ".copy_",
        ".sum",
    ]


def test_the_line_and_function_of_a_call_are_where_it_stands() -> None:
    lines = WRAPPER.splitlines()
    for call in find_calls(WRAPPER):
        assert call.name.split(".")[-1] in lines[call.line - 1]
    assert find_calls(WRAPPER)[0].function == "partition_0"


def test_text_that_is_no_python_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="cannot be parsed"):
        find_calls("def call(:")


@pytest.mark.parametrize(
    ("line", "launches"),
    [
        ("buf4 = workspace_0[0:1].view(1).sum(dim=0)", True),
        ("workspace_0.zero_()", True),
        ("buf1.copy_(arg0_1, False)", True),
        ("buf1 = buf0; del buf0  # reuse", False),
        ("buf2 = reinterpret_tensor(buf1, (2, ), (1, ), 0)", False),
        ("with torch.cuda._DeviceGuard(0):", False),
        ("", False),
    ],
)
def test_a_raw_line_launches_only_if_it_runs_a_tensor_method_or_library_call(line: str, launches: bool) -> None:
    assert is_launching_line(line) is launches
