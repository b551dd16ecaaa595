"""What a program reads of a driver's tools where there is no driver."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from torchledger._torch.fakes.tools import answer_for_tools
from torchledger._torch.patching import Patches
from torchledger.nouns import Device

H200 = Device(name="NVIDIA H200", kind="cuda", total_memory_bytes=141 * 2**30)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    monkeypatch.setattr("shutil.which", lambda name: None)
    return []


def test_nvidia_smi_names_the_planned_devices_and_that_is_noted(told: list[tuple[str, str, str]]) -> None:
    former, patches = subprocess.Popen, Patches()
    answer_for_tools(patches, H200, 2, lambda *noted: told.append(noted))
    try:
        said = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=True).stdout
        query = ["/usr/bin/nvidia-smi", "--query-gpu=name,memory.total,power.draw", "--format=csv,noheader"]
        fields = subprocess.check_output(query, text=True).splitlines()
        with pytest.raises(FileNotFoundError):
            subprocess.run(["no-such-smi"], check=True)
    finally:
        patches.undo()
    assert said.splitlines() == ["GPU 0: NVIDIA H200", "GPU 1: NVIDIA H200"]
    assert fields == ["NVIDIA H200, 144384 MiB, [N/A]"] * 2
    assert [each[:2] for each in told] == [("what nvidia-smi says", "NVIDIA H200")] * 2
    assert all(each[2].startswith(f"{__file__}:") for each in told)
    assert subprocess.Popen is former


def test_a_tool_that_is_there_answers_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/" + name)
    patches = Patches()
    answer_for_tools(patches, H200, 1, lambda *noted: pytest.fail("it was not asked"))
    try:
        with pytest.raises(FileNotFoundError):
            subprocess.run(["/no/such/place/nvidia-smi"], check=True)
    finally:
        patches.undo()


def test_clocks_are_those_of_the_planned_device(told: list[tuple[str, str, str]]) -> None:
    """Inductor asks for the clock, once for each kernel as long as nobody tells it."""
    device, patches = replace(H200, clock_rate_mhz=1980.0, memory_clock_rate_mhz=3201.0), Patches()
    query = ["nvidia-smi", "-i", "0", "--query-gpu=clocks.max.sm,clocks.max.mem,memory.total"]
    answer_for_tools(patches, device, 1, lambda *noted: told.append(noted))
    try:
        bare = subprocess.check_output([*query, "--format=csv,noheader,nounits"], text=True)
        with_units = subprocess.check_output([*query, "--format=csv,noheader"], text=True)
    finally:
        patches.undo()
    assert bare.split(", ") == ["1980", "3201", "144384\n"]
    assert with_units == "1980 MHz, 3201 MHz, 144384 MiB\n"
