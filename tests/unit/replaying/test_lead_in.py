"""What runs before a launch, cut out of generated wrappers: of a small one by hand and of one recorded on an H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchledger.nouns import Buffer, Graph, Kernel, Launch
from torchledger.replaying.call_site import CallSites
from torchledger.replaying.lead_in import find_lead_in, lead_in_text
from torchledger.store import open_ledger

LEDGER = Path(__file__).parents[2] / "data" / "h200" / "gpt_block_torch2.11_cu130.ledger.sqlite"
WRAPPER = """
import torch
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
assert_size_stride = torch._C._dynamo.guards.assert_size_stride
twice = async_compile.triton('twice', 'source')
class Runner:
    def call(self, args):
        x, y = args
        assert_size_stride(x, (8,), (1,))
        with torch.cuda._DeviceGuard(0):
            buf0 = empty_strided_cuda((8, ), (1, ), torch.float32)
            stream0 = get_raw_stream(0)
            twice.run(x, buf0, 8, stream=stream0)
            del x
            buf1 = torch.ops.aten.sort.default(buf0)
            assert_size_stride(buf1[0], (8,), (1,))
            del buf0
            buf2 = buf1[0]
            del buf1
            buf3 = buf2; del buf2  # reuse
            workspace_0 = empty_strided_cuda((4, ), (1, ), torch.uint8)
            workspace_0.zero_()
            stream0 = get_raw_stream(0)
            twice.run(y, buf3, 8, workspace_0, stream=stream0)
            del workspace_0, y
            stream0 = get_raw_stream(0)
            twice.run(buf3, 8, stream=stream0)
        return (buf3, )
"""


def _buffer(name: str, role: str = "input") -> Buffer:
    return Buffer(name, role, "float32", (8,), (1,), "cuda:0", bytes_read=32, bytes_written=0)  # type: ignore[arg-type]


def _launch(order: int, needle: str, *names: str, nth: int = 0) -> Launch:
    lines = [number for number, line in enumerate(WRAPPER.splitlines(), 1) if needle in line]
    return Launch(
        "forward_0", order, "key", "twice", "pointwise", "cuda:0", tuple(map(_buffer, names)), wrapper_line=lines[nth]
    )


@pytest.fixture
def sites() -> CallSites:
    launches = [
        _launch(0, "twice.run(x", "x", "buf0"),
        _launch(1, "aten.sort", "buf0", "buf1"),
        _launch(2, "twice.run(y", "y", "buf3"),
        _launch(3, "twice.run(buf3", "buf3"),
    ]
    return CallSites(Graph("forward_0", "forward", wrapper_source=WRAPPER, devices=("cuda:0",)), launches)


def test_a_lead_in_is_the_wrapper_s_own_text_without_its_checks(sites: CallSites) -> None:
    lead = find_lead_in(sites, sites.launches[3], window_bytes=10**9)
    assert lead.launches == ("forward_0#0", "forward_0#1", "forward_0#2")
    assert lead.bytes_moved == 3 * 64
    text = "\n".join(lead.statements)
    assert "assert_size_stride" not in text
    assert lead.statements[0] == "stream0 = get_raw_stream(0)" or lead.statements[0].startswith("twice.run(x")
    assert "workspace_0.zero_()" in lead.statements
    assert lead.call == "twice.run(buf3, 8, stream=stream0)"
    assert set(lead.arguments) == {"x", "buf0", "y"}
    compile(lead_in_text(lead), "lead-in", "exec")


def test_a_lead_in_ends_once_enough_was_moved(sites: CallSites) -> None:
    assert find_lead_in(sites, sites.launches[1], window_bytes=1).launches == ("forward_0#0",)
    assert find_lead_in(sites, sites.launches[3], window_bytes=10**9, most=2).launches == ("forward_0#1", "forward_0#2")


def test_a_result_that_is_unpacked_in_the_piece_takes_its_call_along(sites: CallSites) -> None:
    assert find_lead_in(sites, sites.launches[3], window_bytes=1).launches == ("forward_0#1", "forward_0#2")


def test_the_first_launch_has_nothing_before_it(sites: CallSites) -> None:
    lead = find_lead_in(sites, sites.launches[0], window_bytes=10**9)
    assert lead.launches == () and lead.statements == () and lead.bytes_moved == 0


def test_what_is_only_freed_in_the_piece_is_left_alone(sites: CallSites) -> None:
    lead = find_lead_in(sites, sites.launches[2], window_bytes=1)
    assert lead.launches == ("forward_0#1",)
    assert "del buf0" in lead.statements and "del x" not in lead.statements


def test_the_same_work_under_other_names_has_one_signature(sites: CallSites) -> None:
    lead = find_lead_in(sites, sites.launches[3], window_bytes=10**9)
    renamed = WRAPPER.replace("buf0", "buf70").replace("buf3", "buf93")
    graph = Graph("forward_0", "forward", wrapper_source=renamed, devices=("cuda:0",))
    names = {"buf0": "buf70", "buf3": "buf93"}
    launches = [
        Launch(
            each.graph, each.order, each.kernel, each.kernel_name, each.category, each.device,
            tuple(_buffer(names.get(buffer.name, buffer.name)) for buffer in each.buffers),
            wrapper_line=each.wrapper_line,
        )
        for each in sites.launches
    ]  # fmt: skip
    again = find_lead_in(CallSites(graph, launches), launches[3], window_bytes=10**9)
    assert again.signature == lead.signature
    assert find_lead_in(sites, sites.launches[3], window_bytes=1).signature != lead.signature


def test_every_launch_recorded_on_an_h200_has_a_lead_in() -> None:
    with open_ledger(LEDGER) as reader:
        graphs = {graph.name: graph for graph in reader.read(Graph)}
        launches = [launch for launch in reader.read(Launch) if launch.is_call]
        kernels = reader.read(Kernel)
    counts = []
    for name, graph in graphs.items():
        sites = CallSites(graph, [launch for launch in launches if launch.graph == name], kernels)
        for launch in sites.launches:
            lead = find_lead_in(sites, launch, window_bytes=2 * 62914560)
            compile(lead_in_text(lead), launch.launch_id, "exec")
            counts.append(len(lead.launches))
    assert len(counts) == 26
    assert 0 in counts and max(counts) >= 5
