"""What Inductor decides for a device that is not there."""

from __future__ import annotations

import torch
from torch._inductor.fx_passes import post_grad

from torchledger._torch.fake_device import FakeDevice
from torchledger.nouns import Device

MADE_UP = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


def test_products_and_collectives_stay_apart_and_that_is_counted() -> None:
    former = post_grad.micro_pipeline_tp_pass
    with FakeDevice(MADE_UP) as fake:
        post_grad.micro_pipeline_tp_pass(torch.fx.Graph())
    assert [count for what, count in fake.decisions.items() if what.startswith("products and collectives")] == [1]
    assert post_grad.micro_pipeline_tp_pass is former
