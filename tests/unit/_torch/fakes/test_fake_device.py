"""What a device that is not there answers to torch itself."""

from __future__ import annotations

import torch
from torch import nn

from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


def test_data_parallel_runs_its_module_on_the_one_device_there_is_and_takes_rows_there() -> None:
    with FakeDevice(HOPPER):
        network = nn.DataParallel(nn.Linear(4, 2)).cuda()
        network(torch.zeros(6, 4)).sum().backward()
        assert all(each.grad is not None for each in network.parameters())
        (rows,), _ = network.scatter((torch.zeros(6, 4),), {}, [torch.device("cuda", 0)])
        assert rows[0].device.type == "cuda"
        there = torch.zeros(6, 4, device="cuda")
        parts = nn.parallel.comm.scatter(there, [0, 0], chunk_sizes=[4, 2])
        assert [each.shape[0] for each in parts] == [4, 2]
        assert parts[0].untyped_storage()._cdata == there.untyped_storage()._cdata, "it lies there, and is not copied"
