"""Wrappers as Inductor writes them for a GPU, run with kernels that stand in for Triton's."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from factories import make_buffer, make_launch
from torchledger.capturing.wrapper_code import find_calls
from torchledger.nouns import Launch
from torchledger.watching.call_frames import Frame
from torchledger.watching.call_records import CallRecord
from torchledger.watching.graph_watch import GraphWatch
from torchledger.watching.reductions import Reducer
from torchledger.watching.rewrite import rewrite_wrapper
from torchledger.watching.roles import Roles

WRAPPER = '''
import torch
from torch._inductor.select_algorithm import extern_kernels
aten = torch.ops.aten
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cpu
reinterpret_tensor = torch.ops.inductor._reinterpret_tensor

triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', """source""", device_str='cuda')
multi_kernel_0 = async_compile.multi_kernel('multi_kernel_0', [triton_poi_fused_relu_0])
add_kernel_0 = async_compile.triton('add_kernel', """source""", device_str='cuda')

async_compile.wait(globals())
del async_compile

def partition_0(args):
    arg0_1, arg1_1 = args
    args.clear()
    stream0 = 7
    buf0 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
    triton_poi_fused_relu_0.run(arg0_1, buf0, 16, stream=stream0)
    buf1 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
    extern_kernels.mm(buf0, reinterpret_tensor(arg1_1, (4, 4), (1, 4), 0), out=buf1)
    buf2 = buf0; del buf0  # reuse
    multi_kernel_0.run(buf1, buf2, 16, stream=stream0)
    return (buf1, buf2, )

class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def recursively_apply_fns(self, fns):
        self.partitions = [fn(c) for fn, c in zip(fns, self.partitions)]

    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        assert_size_stride(arg0_1, (4, 4), (4, 1))
        partition0_args = [arg0_1, arg1_1]
        del arg0_1, arg1_1
        (buf1, buf2) = self.partitions[0](partition0_args)
        del partition0_args
        buf3 = torch.ops.aten.sort.stable(buf1, stable=False, dim=-1, descending=False)
        buf4 = buf3[0]
        buf5 = buf3[1]
        del buf3
        workspace_0 = empty_strided_cuda((32, ), (1, ), torch.float32)
        add_kernel_0.run(buf4, buf2, workspace_0, stream=7)
        buf6 = workspace_0[0:16].view(4, 4).sum(dim=0)
        buf2.copy_(buf4)
        return (buf4, buf5, buf6, )

runner = Runner(partitions=[partition_0])
call = runner.call
recursively_apply_fns = runner.recursively_apply_fns

def get_args():
    return []

def benchmark_compiled_module(args, times=10, repeat=10):
    return call(list(args))
'''


class FakeTriton:
    """A kernel with Triton's way of being launched."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.runs = 0

    def run(self, *arguments: Any, stream: int) -> None:
        assert stream == 7
        self.runs += 1
        self.function(*arguments)


class Recording:
    """A sink that keeps everything."""

    is_active = True
    is_full = True
    takes_tensors = True
    most_elements = 0

    def __init__(self) -> None:
        self.records: list[CallRecord] = []
        self.faults: list[Exception] = []

    def takes_call(self, watch: Any, index: int) -> bool:
        return True

    def takes_launch(self, launch: Launch | None) -> bool:
        return True

    def make_reducer(self) -> Reducer:
        return Reducer()

    def on_call_start(self, watch: Any, index: int, inputs: Any) -> None: ...

    def on_launch(self, state: Any, event: Any, read: Any) -> None: ...

    def on_launched(self, state: Any, event: Any, written: Any) -> None: ...

    def on_call(self, state: Any, record: CallRecord) -> None:
        self.records.append(record)

    def on_fault(self, where: str, error: Exception) -> None:
        logging.getLogger(__name__).exception("%s", where, exc_info=error)
        self.faults.append(error)


def load(source: str) -> ModuleType:
    """The wrapper as a module, its kernels replaced by ones that run here."""

    class AsyncCompile:
        def triton(self, name: str, source: str, device_str: str) -> FakeTriton:
            return FakeTriton(lambda x, y, *rest: y.copy_(torch.relu(x)) if isinstance(y, torch.Tensor) else None)

        def multi_kernel(self, name: str, kernels: list[Any]) -> FakeTriton:
            return FakeTriton(lambda x, y, n: y.copy_(x * 2))

        def wait(self, scope: dict[str, Any]) -> None:
            scope["add_kernel_0"] = FakeTriton(lambda x, y, w: w.copy_(torch.arange(32.0)))

    module = ModuleType("wrapper")
    vars(module).update(async_compile=AsyncCompile(), assert_size_stride=lambda *rest: None)
    exec(compile(source, "wrapper.py", "exec"), vars(module))
    return module


@pytest.fixture
def watched() -> tuple[GraphWatch, Recording, ModuleType]:
    module, sink = load(WRAPPER), Recording()
    watch = GraphWatch(sink, module, WRAPPER, rewrite_wrapper(WRAPPER, "wrapper.py"))
    roles = {
        "triton_poi_fused_relu_0.run": {"arg0_1": "input", "buf0": "output"},
        "multi_kernel_0.run": {"buf1": "input", "buf2": "output"},
    }
    launches = [
        make_launch(
            graph="forward_0",
            order=order,
            kernel_name=call.name,
            call=call.name,
            wrapper_line=call.line,
            buffers=tuple(make_buffer(name=name, role=role) for name, role in roles.get(call.name, {}).items()),
        )
        for order, call in enumerate(find_calls(WRAPPER))
    ]
    watch.identify("forward_0", launches)
    return watch, sink, module


def test_every_launch_of_every_kind_is_seen_with_its_ledger_entry(
    watched: tuple[GraphWatch, Recording, ModuleType],
) -> None:
    watch, sink, module = watched
    arguments = [torch.randn(4, 4), torch.randn(4, 4)]
    expected = module.call(list(arguments))
    found = watch(list(arguments))
    assert sink.faults == []
    assert all(map(torch.equal, expected, found))
    (record,) = sink.records
    assert [event.site.name for event in record.events] == [
        "triton_poi_fused_relu_0.run",
        "extern_kernels.mm",
        "multi_kernel_0.run",
        "torch.ops.aten.sort.stable",
        "add_kernel_0.run",
        ".sum",
        ".copy_",
    ]
    assert all(event.launch is not None and event.launch.kernel_name == event.site.name for event in record.events)
    assert watch.seen == set(range(7))
    assert module.triton_poi_fused_relu_0.runs == 2  # the same kernel object ran, once for each call


def test_reads_and_writes_bear_the_wrappers_names(watched: tuple[GraphWatch, Recording, ModuleType]) -> None:
    watch, sink, _ = watched
    watch([torch.randn(4, 4), torch.randn(4, 4)])
    (record,) = sink.records
    seen = {
        event.site.name: ([item.name for item in event.before], [item.name for item in event.after])
        for event in record.events
    }
    assert seen["triton_poi_fused_relu_0.run"] == (["arg0_1"], ["buf0"])
    assert seen["extern_kernels.mm"] == (["buf0", "arg1_1"], ["buf1"])
    assert seen["multi_kernel_0.run"] == (["buf1"], ["buf2"])
    assert seen["torch.ops.aten.sort.stable"] == (["buf1"], ["buf4", "buf5"])
    assert seen[".sum"] == (["workspace_0"], ["buf6"])
    assert seen[".copy_"] == (["buf4"], ["buf2"])
    # Nobody told what the user's kernel does, so what it got is looked at before, if written, and after.
    assert seen["add_kernel_0.run"] == (["buf4", "buf2"], ["buf4", "buf2"])
    assert record.graph.input_names == ("arg0_1", "arg1_1")
    assert all(event.unwritten == [] for event in record.events)


def test_line_numbers_stay_those_of_the_file(watched: tuple[GraphWatch, Recording, ModuleType]) -> None:
    watch, _, _ = watched
    bad = [torch.randn(4, 4), torch.randn(4, 4).double()]
    with pytest.raises(RuntimeError) as raised:
        watch(bad)
    lines = WRAPPER.splitlines()
    frames = [entry for entry in raised.traceback if str(entry.path).endswith("wrapper.py")]
    assert any("extern_kernels.mm" in lines[entry.lineno] for entry in frames)


def test_a_fault_in_watching_stays_out_of_the_program(
    watched: tuple[GraphWatch, Recording, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, sink, module = watched
    arguments = [torch.randn(4, 4), torch.randn(4, 4)]
    monkeypatch.setattr(Reducer, "add", lambda self, tensor: 1 / 0)
    assert all(map(torch.equal, module.call(list(arguments)), watch(list(arguments))))
    assert len(sink.faults) == 1


def test_a_launch_of_which_nothing_was_kept_is_a_fault(
    watched: tuple[GraphWatch, Recording, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, sink, module = watched
    arguments = [torch.randn(4, 4), torch.randn(4, 4)]
    monkeypatch.setattr(Frame, "before", lambda *arguments: None)
    assert all(map(torch.equal, module.call(list(arguments)), watch(list(arguments))))
    assert len(sink.faults) == len(watch.sites)


def test_what_a_call_does_with_a_tensor_is_unknown_only_where_that_is_the_answer(
    watched: tuple[GraphWatch, Recording, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, sink, module = watched
    arguments = [torch.randn(4, 4), torch.randn(4, 4)]
    no_answer: Any = Roles((None,) * 9, {}, None)  # type: ignore[arg-type]
    monkeypatch.setattr(Roles, "of", lambda *arguments: no_answer)
    assert all(map(torch.equal, module.call(list(arguments)), watch(list(arguments))))
    assert sink.faults


def test_a_wrapper_without_launches_is_left_alone() -> None:
    assert rewrite_wrapper("def call(args):\n    return args\n", "w.py") is None
    with pytest.raises(ValueError, match="cannot be parsed"):
        rewrite_wrapper("def call(args:\n", str(Path("w.py")))
