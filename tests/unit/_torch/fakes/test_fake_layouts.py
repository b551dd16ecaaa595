"""What losses and activations make lies on a device that is not there as it does on one that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes.device import FakeDevice
from torchledger._torch.tensors import tensors_in
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LOSSES: dict[str, Loss] = {
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss,
    "l1_loss": F.l1_loss,
    "binary_cross_entropy": F.binary_cross_entropy,
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
    "soft_margin_loss": F.soft_margin_loss,
    "kl_div": lambda rows, others: F.kl_div(rows, others, reduction="batchmean"),
    "poisson_nll_loss": F.poisson_nll_loss,
    "each of binary_cross_entropy": lambda rows, others: (
        F.binary_cross_entropy(rows, others, reduction="none") * others
    ).sum(),
    "each of mse_loss": lambda rows, others: (F.mse_loss(rows, others, reduction="none") * others).sum(),
    "cross_entropy": F.cross_entropy,
    "glu": lambda rows, others: (F.glu(rows, 1) * others[:, :3]).sum(),
    **{
        name: lambda rows, others, name=name: (getattr(F, name)(rows) * others).sum()  # type: ignore[misc]
        for name in ("elu", "hardswish", "hardsigmoid", "hardtanh", "softplus", "gelu", "silu", "leaky_relu")
    },
}

LAYOUTS: dict[str, Callable[[str], torch.Tensor]] = {
    "in order": lambda device: torch.rand(4, 6, 5, 3, device=device),
    "channels last": lambda device: torch.rand(4, 6, 5, 3, device=device).to(memory_format=torch.channels_last),
    "another order": lambda device: torch.rand(5, 6, 4, 3, device=device).permute(2, 1, 0, 3),
    "with gaps": lambda device: torch.rand(4, 12, 5, 3, device=device)[:, ::2],
}


class _Made(TorchDispatchMode):
    """Keeps the strides of what operators make."""

    def __init__(self) -> None:
        super().__init__()
        self.strides: list[tuple[str, list[tuple[int, ...]]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            self.strides.append((func.name(), [each.stride() for each in tensors_in(made)]))
        return made


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


def _strides(loss: Loss, rows: torch.Tensor, others: torch.Tensor) -> list[tuple[str, list[tuple[int, ...]]]]:
    with _Made() as made:
        loss(rows.requires_grad_(), others).backward()
    return made.strides


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_lie_as_aten_allocates_them(fake: FakeDevice, name: str) -> None:
    for rows in LAYOUTS.values():
        for others in LAYOUTS.values():
            there, here = (_strides(LOSSES[name], rows(device), others(device)) for device in ("cuda", "cpu"))
            assert there == here


def test_a_loss_of_values_in_another_order_has_its_gradient_put_in_order_behind_it(fake: FakeDevice) -> None:
    table = torch.rand(8, 6, device="cuda", requires_grad=True)
    places, pictures = torch.zeros(60, dtype=torch.long, device="cuda"), torch.rand(4, 6, 5, 3, device="cuda")
    rows = F.embedding(places, table).view(4, 5, 3, 6).permute(0, 3, 1, 2)
    loss = F.mse_loss(rows, pictures)
    heard = EagerCalls(lambda: None)
    assert heard.start()
    loss.backward()
    assert heard.stop() and not heard.faults
    names = [call.call.name for call in heard.calls]
    assert names[1:5] == ["aten::mse_loss_backward", "aten::permute", "aten::clone", "aten::_unsafe_view"]


def test_an_activation_whose_gradient_lies_otherwise_is_one_call(fake: FakeDevice) -> None:
    rows = LAYOUTS["channels last"]("cuda").requires_grad_()
    loss = (F.elu(rows) * torch.rand(4, 6, 5, 3, device="cuda")).sum()
    heard = EagerCalls(lambda: None)
    assert heard.start()
    loss.backward()
    assert heard.stop() and not heard.faults
    assert [call.call.name for call in heard.calls if call.node == "EluBackward0"] == ["aten::elu_backward"]


@pytest.mark.parametrize("name", ["mse_loss", "glu", "smooth_l1_loss", "cross_entropy"])
def test_gradients_of_distributed_values_are_distributed(name: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    from torchledger._torch.fakes.world import FakeWorld
    from torchledger.nouns import WorldSpec

    with FakeDevice(HOPPER), FakeWorld(WorldSpec(rank=0, size=2)):
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (2,))
        rows, others = (
            DTensor.from_local(torch.randn(4, 6, device="cuda"), mesh, [Replicate()]).requires_grad_() for _ in range(2)
        )
        loss = LOSSES[name](rows, others).sum()
        loss.backward()
        assert isinstance(rows.grad, DTensor) and loss.item() == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_resized_images_of_few_channels_keep_their_format(fake: FakeDevice, mode: str) -> None:
    images = torch.zeros(2, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last)
    for given in (images, images[:, :, 2:14, 2:14]):
        made = F.interpolate(given, size=(8, 8), mode=mode)
        assert made.is_contiguous(memory_format=torch.channels_last) and made.device == images.device
    assert F.interpolate(images.contiguous(), size=(8, 8), mode=mode).is_contiguous()
