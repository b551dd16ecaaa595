"""The memory that a device of a data sheet is said to have is what PyTorch reports of it."""

from __future__ import annotations

import pytest

from torchledger._torch.fakes.device import properties_of
from torchledger.device.datasheets import find_data_sheet
from torchledger.predicting.devices import find_model

MIB = 2**20


@pytest.mark.parametrize(("name", "nvidia_smi_mib"), [("NVIDIA H200", 143_771), ("NVIDIA H100 80GB HBM3", 81_559)])
def test_memory_is_a_little_less_than_what_nvidia_smi_counts(name: str, nvidia_smi_mib: int) -> None:
    sheet = find_data_sheet(name)
    assert sheet is not None and sheet.device.total_memory_bytes is not None
    model = find_model(name)
    told = properties_of(model.machine.device).total_memory
    assert told == model.total_memory_bytes == sheet.device.total_memory_bytes
    assert 0.99 * nvidia_smi_mib * MIB < told < nvidia_smi_mib * MIB
