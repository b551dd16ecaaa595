"""Launches cut out of their wrapper."""

from __future__ import annotations

from factories import make_buffer, make_graph, make_kernel, make_launch
from torchledger.replaying.call_site import Allocation, find_call_site

WRAPPER = """
import torch
from torch._C import empty_strided_cpu
partial_sums = async_compile.cpp_pybinding([], '')
last_sum = async_compile.cpp_pybinding([], '')

def call(args):
    primals_1, = args
    buf0 = empty_strided_cpu((4, ), (1, ), torch.float32)
    partial_sums(primals_1, buf0)
    buf1 = empty_strided_cpu((), (), torch.float32)
    last_sum(buf0, buf1)
    return (buf1, )

def benchmark_compiled_module(times=10, repeat=10):
    primals_1 = rand_strided((32, 64), (64, 1), device='cpu', dtype=torch.float32)
    return call([primals_1])
"""


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(WRAPPER.splitlines(), 1) if line.strip() == text)


def test_what_an_earlier_launch_writes_over_is_kept_for_the_reference() -> None:
    first = make_launch(
        order=0,
        category="extern",
        kernel_name="partial_sums",
        wrapper_line=line_of("partial_sums(primals_1, buf0)"),
        buffers=(
            make_buffer(name="primals_1", role="inout", fx_node="primals_1"),
            make_buffer(name="buf0", shape=(4,)),
        ),
    )
    second = make_launch(
        order=1,
        kernel_name="last_sum",
        wrapper_line=line_of("last_sum(buf0, buf1)"),
        buffers=(
            make_buffer(name="buf0", role="input", shape=(4,)),
            make_buffer(name="buf1", shape=(), stride=(), fx_node="sum_1"),
        ),
    )
    graph = make_graph(wrapper_source=WRAPPER)
    site = find_call_site(graph, second, [first, second], with_producers=True)
    lines = [step.code if isinstance(step, Allocation) else step for step in site.setup]
    assert lines.index("primals_1_before = primals_1.clone()") < lines.index("partial_sums(primals_1, buf0)")
    assert dict(site.inputs)["primals_1_before"] == "primals_1"
    assert "primals_1" not in dict(site.inputs)


def test_a_buffer_that_is_added_to_starts_from_zeros_whatever_its_dtype() -> None:
    wrapper = WRAPPER.replace("((4, ), (1, ), torch.float32)", "((4, ), (1, ), torch.int32)")
    launch = make_launch(
        kernel_name="partial_sums",
        wrapper_line=line_of("partial_sums(primals_1, buf0)"),
        buffers=(
            make_buffer(name="primals_1", role="input", argument="in_ptr0"),
            make_buffer(name="buf0", shape=(4,), dtype="int32", argument="out_ptr0"),
        ),
    )
    kernel = make_kernel(source="atomic_add(&out_ptr0[static_cast<int64_t>(tmp0)], static_cast<int32_t>(1));")
    site = find_call_site(make_graph(wrapper_source=wrapper), launch, [launch], [kernel])
    zero = {step.name: step.is_zero for step in site.setup if isinstance(step, Allocation)}
    assert zero == {"primals_1": False, "buf0": True}
