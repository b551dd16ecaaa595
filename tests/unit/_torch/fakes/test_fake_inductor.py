"""What Inductor decides for a device that is not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch._inductor.fx_passes import joint_graph, pad_mm, post_grad
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import get_device_tflops, get_gpu_dram_gbps
from torch.fx.experimental.proxy_tensor import make_fx

from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import CUDA_GRAPH, Device
from torchledger.work.unaligned import UnalignedProduct

MADE_UP = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.mark.parametrize("pays", [False, True])
def test_a_product_is_padded_where_that_pays_and_asked_about_as_it_is(
    pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inductor pads where Triton is, which these tests do without.
    monkeypatch.setattr(pad_mm, "has_triton", lambda: True)
    asked: list[UnalignedProduct] = []

    def decide(product: UnalignedProduct) -> bool:
        asked.append(product)
        return pays

    with FakeDevice(MADE_UP, pays=decide) as fake, torch.no_grad():
        factors = [torch.empty(rows, 1024, device="cuda", dtype=torch.bfloat16) for rows in (4096, 5001)]
        graph = joint_graph.joint_graph_passes(make_fx(lambda x, weight: torch.mm(x, weight.mT))(*factors))
    (product,) = set(asked)
    assert (product.operator, product.rows, product.inner, product.columns) == ("mm", 4096, 1024, 5001)
    assert (product.strides, product.added, product.dtype) == (((1024, 1), (1, 1024)), (0, 0, 7), "bfloat16")
    assert ("constant_pad_nd" in graph.code) == pays
    word = "padded" if pays else "not padded"
    assert fake.decisions == {f"a product that is not aligned: {word}": 1}


def test_nothing_that_was_compiled_outlives_the_device_or_comes_into_it() -> None:
    """Dynamo keeps with a function's code what it compiled of it, which calls no kernels there."""
    compiled: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        compiled.append("inside" if inputs[0].is_cuda else "outside")
        return graph.forward

    doubled = torch.compile(lambda x: x + x, backend=backend)
    doubled(torch.ones(3))
    for _ in range(2):
        with FakeDevice(MADE_UP):
            doubled(torch.ones(3, device="cuda"))
            doubled(torch.ones(3, device="cuda"))
    assert doubled(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert compiled == ["outside", "inside", "inside", "outside"]


@pytest.mark.slow  # as all that needs Triton
def test_the_compiler_knows_how_fast_each_planned_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what it was told of a device, and asks again for each kernel what it was not told."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    told = []
    for clock_mhz in (1000.0, 2000.0):
        device = replace(MADE_UP, clock_rate_mhz=clock_mhz, memory_clock_rate_mhz=2000.0, memory_bus_width_bits=4096)
        with FakeDevice(device):
            told.append((get_device_tflops(torch.bfloat16), get_gpu_dram_gbps()))
    assert told == [(pytest.approx(78 * 4 * 512 * clock * 1e-6), pytest.approx(2048)) for clock in (1.0, 2.0)]


def test_products_and_collectives_stay_apart_and_that_is_counted() -> None:
    former = post_grad.micro_pipeline_tp_pass
    with FakeDevice(MADE_UP) as fake:
        post_grad.micro_pipeline_tp_pass(torch.fx.Graph())
    assert [count for what, count in fake.decisions.items() if what.startswith("products and collectives")] == [1]
    assert post_grad.micro_pipeline_tp_pass is former


def test_a_product_that_a_program_fuses_with_a_collective_is_compiled_as_both() -> None:
    import torch.distributed._symmetric_memory
    from torch._inductor import decomposition

    fused = torch.ops.symm_mem.fused_matmul_reduce_scatter.default
    with FakeDevice(MADE_UP):
        assert fused in decomposition.select_decomp_table()
    assert fused not in decomposition.select_decomp_table()


class Constants:
    """The part of a graph that keeps constants."""

    def __init__(self, **constants: torch.Tensor) -> None:
        self.constants = constants

    def allocate_non_dup_const_name(self, name: str, data: torch.Tensor) -> str:
        assert name not in self.constants
        self.constants[name] = data
        return name


def test_a_constant_of_the_host_that_a_graph_needs_on_the_device_is_copied_there_once() -> None:
    former = GraphLowering.constant_name
    with FakeDevice(MADE_UP) as fake:
        graph = Constants(labels=torch.arange(64))
        names = [GraphLowering.constant_name(graph, "labels", torch.device("cuda", 0)) for _ in range(2)]
        here = GraphLowering.constant_name(graph, "labels", torch.device("cpu"))
        moved = graph.constants[names[0]]
        assert fake.tensors.is_our_fake(moved) and moved.device.type == "cuda" and moved.shape == (64,)
    assert names == ["labels_cuda0"] * 2 and here == "labels" and len(graph.constants) == 2
    assert GraphLowering.constant_name is former


def test_what_the_backend_of_cuda_graphs_compiles_is_said_to_be_replayed() -> None:
    with FakeDevice(MADE_UP) as fake:
        doubled = torch.compile(lambda x: x + x, backend="cudagraphs")
        made = doubled(torch.ones(3, device="cuda"))
    assert made.shape == (3,)
    assert fake.decisions == {CUDA_GRAPH: 1}
