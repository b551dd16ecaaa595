"""What a program saves and loads again on a device that is not there."""

from __future__ import annotations

import io
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, save, save_file
from torch import nn

from torchledger._torch.fakes.device import FakeDevice
from torchledger._torch.fakes.tensors import REAL_BYTES
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


def test_what_is_saved_is_loaded_with_its_sizes_and_nothing_is_written(tmp_path: Path, fake: FakeDevice) -> None:
    model = nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(4, 1024, device="cuda")).sum().backward()
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "seen": torch.arange(3)}
    torch.save(saved, tmp_path / "last.pt")
    assert not list(tmp_path.iterdir())

    loaded = torch.load(tmp_path / "last.pt", map_location="cpu")
    assert loaded["epoch"] == 3 and loaded["seen"].tolist() == [0, 1, 2]
    assert loaded["model"]["weight"].device.type == "cpu"
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(torch.load(tmp_path / "last.pt")["optimizer"])
    assert torch.load(tmp_path / "last.pt", {"cuda:0": "cpu"})["model"]["bias"].device.type == "cpu"
    assert {"nothing", "tensors of the same sizes"} <= {each.value for each in fake.tensors.stand_ins}


def test_a_buffer_holds_what_was_saved_in_it(fake: FakeDevice) -> None:
    buffers = [io.BytesIO(), io.BytesIO()]
    for size, buffer in enumerate(buffers):
        torch.save(nn.Parameter(torch.rand(size + 1, device="cuda")), buffer)
        buffer.seek(0)
    loaded = [torch.load(buffer) for buffer in buffers]
    assert [each.shape for each in loaded] == [(1,), (2,)] and all(isinstance(each, nn.Parameter) for each in loaded)


def test_a_file_that_was_there_is_read_as_ever(tmp_path: Path) -> None:
    torch.save({"epoch": 7}, tmp_path / "before.pt")
    with FakeDevice(HOPPER):
        assert torch.load(tmp_path / "before.pt") == {"epoch": 7}


def test_files_of_safetensors_hold_zeros_until_the_device_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with FakeDevice(HOPPER) as fake:
        model = nn.Linear(1024, 1024).cuda()
        safetensors.torch.save_file(model.state_dict(), path, metadata={"format": "pt"})
        with safe_open(path, "pt") as file:
            assert set(file.keys()) == {"weight", "bias"} and file.metadata() == {"format": "pt"}
        model.load_state_dict(safetensors.torch.load_file(path))
        assert "zeros, until the plan ends" in {each.value for each in fake.tensors.stand_ins}
    assert not path.exists()


def test_a_file_of_safetensors_that_was_there_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.arange(4)}, path)
    with FakeDevice(HOPPER):
        safetensors.torch.save_file({"weight": torch.rand(4, device="cuda")}, path)
    assert load_file(path)["weight"].tolist() == [0, 1, 2, 3]


def test_tensors_with_values_are_saved_as_ever(tmp_path: Path, fake: FakeDevice) -> None:
    safetensors.torch.save_file({"seen": torch.arange(3)}, tmp_path / "seen.safetensors")
    assert load_file(tmp_path / "seen.safetensors")["seen"].tolist() == [0, 1, 2]
    assert load(safetensors.torch.save({"seen": torch.arange(3)}))["seen"].tolist() == [0, 1, 2]


def test_bytes_of_tensors_without_values_are_zeros(fake: FakeDevice) -> None:
    made = load(safetensors.torch.save({"rows": torch.rand(4, 2, device="cuda")}))
    assert made["rows"].tolist() == [[0.0, 0.0]] * 4


def test_a_file_is_read_on_the_host_for_the_device(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({"weight": torch.ones(6, 4)}))
    with FakeDevice(HOPPER):
        assert safetensors.torch.load_file(path, device="cuda")["weight"].device.type == "cuda"
        with safetensors.torch.safe_open(path, "pt", device="cuda:0") as file:
            assert file.get_tensor("weight").shape == (6, 4) and set(file.get_tensors()) == {"weight"}
            part = file.get_slice("weight")
            assert part.get_shape() == [6, 4] and part[:2].device.type == "cuda" and part[:2].shape == (2, 4)


def test_tensors_without_values_share_addresses_with_none_but_their_views(fake: FakeDevice) -> None:
    rows = [torch.rand(REAL_BYTES, device="cuda") for _ in range(8)]
    places = sorted((each.data_ptr(), each.data_ptr() + each.numel() * 4) for each in rows)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))
    assert rows[0][3:].data_ptr() == rows[0].data_ptr() + 12 and rows[0].data_ptr() % 512 == 0


def test_a_module_that_is_pickled_is_one_of_the_same_sizes_again(fake: FakeDevice) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).cuda()
    again = pickle.loads(pickle.dumps(model))
    assert {name: (each.shape, each.device) for name, each in again.state_dict().items()} == {
        name: (each.shape, each.device) for name, each in model.state_dict().items()
    }
    assert all(isinstance(each, nn.Parameter) and each.requires_grad for each in again.parameters())
    turned = pickle.loads(pickle.dumps(torch.rand(4, 6, device="cuda").t()))
    assert turned.stride() == (1, 6) and not turned.requires_grad


def test_a_tensor_of_the_host_that_is_pickled_has_its_values_again(fake: FakeDevice) -> None:
    assert pickle.loads(pickle.dumps(torch.arange(5)))[2:].tolist() == [2, 3, 4]


def test_what_a_buffer_in_memory_held_is_not_taken_for_another_s(fake: FakeDevice) -> None:
    for size in range(1, 20):
        buffer = io.BytesIO()
        torch.save(torch.zeros(size, device="cuda"), buffer)
        assert torch.load(buffer).shape == (size,)
