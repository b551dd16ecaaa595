"""Composites whose parts differ with and without values."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch.nn.functional import one_hot

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.mark.parametrize("context", [torch.enable_grad, torch.inference_mode])
def test_one_hot_is_made_in_a_plan_as_on_a_device(context: Callable[[], AbstractContextManager[None]]) -> None:
    with FakeDevice(HOPPER), context():
        chosen = torch.randint(7, (4, 3), device="cuda")
        heard = EagerCalls(lambda: None)
        assert heard.start()
        try:
            made = one_hot(chosen, 7)
        finally:
            assert heard.stop()
        assert made.shape == (4, 3, 7) and made.dtype is torch.int64
        assert one_hot(chosen[:0], 7).shape == (0, 3, 7)
        with pytest.raises(RuntimeError, match="number of classes"):
            one_hot(chosen, 0)
    names = [each.call.name for each in heard.calls]
    assert "aten::scatter_" in names and not {"aten::arange", "aten::eq", "aten::_to_copy"} & set(names)
    assert one_hot(torch.tensor([1, 0])).tolist() == [[0, 1], [1, 0]], "as ever after a plan"


def test_a_tensor_is_split_at_places_that_came_from_the_device() -> None:
    with FakeDevice(HOPPER):
        rows = torch.rand(64, 32, device="cuda", requires_grad=True)
        known = torch.tensor([3, 7]).cuda()
        parts = torch.tensor_split(rows, known.cpu())
        assert [len(each) for each in parts] == [3, 4, 57] and all(each.requires_grad for each in parts)
        unknown = torch.randint(64, (2,), device="cuda").sort().values
        assert sum(len(each) for each in torch.tensor_split(rows, unknown.cpu())) == 64
        with pytest.raises(RuntimeError, match="on the CPU"):
            torch.tensor_split(rows, known)


def test_what_compiles_traces_one_hot_as_ever() -> None:
    names = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    with FakeDevice(HOPPER):
        chosen = torch.randint(7, (4, 3), device="cuda")
        traced = torch._dynamo.backends.common.aot_autograd(fw_compiler=keep)
        torch.compile(lambda given: one_hot(given, 7) * 2, backend=traced)(chosen)
    assert "aten.eq.Tensor" in names


@pytest.mark.parametrize("activation", [torch.nn.functional.silu, torch.nn.functional.mish])
def test_gradients_that_are_one_kernel_on_a_device_are_one_call(activation: Callable[..., torch.Tensor]) -> None:
    with FakeDevice(HOPPER):
        rows = torch.zeros(4, 3, device="cuda", requires_grad=True)
        made = activation(rows)
        heard = EagerCalls(lambda: None)
        assert heard.start()
        try:
            made.backward(torch.ones_like(made))
        finally:
            assert heard.stop()
        assert rows.grad is not None and rows.grad.shape == rows.shape
        traced = torch.compile(lambda given: activation(given * 2), backend="aot_eager")(rows)
        traced.sum().backward()
    names = [each.call.name for each in heard.calls]
    assert f"aten::{activation.__name__}_backward" in names and "aten::mul" not in names


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="torch has no such kernel")
def test_a_root_mean_square_norm_is_one_call_and_so_is_its_gradient() -> None:
    with FakeDevice(HOPPER):
        layer, rows = torch.nn.RMSNorm(8).cuda(), torch.zeros(4, 8, device="cuda", requires_grad=True)
        heard = EagerCalls(lambda: None)
        assert heard.start()
        try:
            layer(rows).sum().backward()
        finally:
            assert heard.stop()
    names = {each.call.name for each in heard.calls}
    assert {"aten::_fused_rms_norm", "aten::_fused_rms_norm_backward"} <= names and "aten::mul" not in names
