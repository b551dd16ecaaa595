"""The machine is described without torch being imported or CUDA being started."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest

from torchledger.device import describe as device
from torchledger.store.codec import decode, encode


def test_describing_the_machine_imports_no_torch() -> None:
    code = (
        "import sys; from torchledger.device import describe as device; "
        "device.describe_devices(); device.describe_environment();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_cpu_has_a_name_cores_and_memory() -> None:
    cpu = device.describe_cpu()
    assert cpu.kind == "cpu"
    assert cpu.name
    assert cpu.num_cores is not None and cpu.num_cores >= 1
    assert cpu.total_memory_bytes is None or cpu.total_memory_bytes > 1e8


def test_descriptions_are_stored_and_read_back_as_equals() -> None:
    for record in (*device.describe_devices(), device.describe_environment()):
        assert decode(type(record), encode(record)) == record


class _FakeCuda:
    """A ``torch.cuda`` with one H200; counts how often it was asked."""

    def __init__(self, *, initialized: bool) -> None:
        self.initialized = initialized
        self.asked = 0

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        self.asked += 1
        return 1

    def get_device_properties(self, index: int) -> Any:
        self.asked += 1
        return types.SimpleNamespace(
            name="NVIDIA H200",
            major=9,
            minor=0,
            total_memory=150_000_000_000,
            multi_processor_count=132,
            clock_rate=1_980_000,
            memory_clock_rate=0,
            uuid="0123",
        )


def _fake_torch(monkeypatch: pytest.MonkeyPatch, cuda: _FakeCuda) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    monkeypatch.setattr(device, "_cuda_attributes", lambda index: {"max_threads_per_block": 1024})


def test_cuda_is_not_touched_before_the_program_initialised_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = _FakeCuda(initialized=False)
    _fake_torch(monkeypatch, cuda)
    assert [each.kind for each in device.describe_devices()] == ["cpu"]
    assert cuda.asked == 0


def test_a_cuda_device_takes_from_the_driver_what_torch_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_torch(monkeypatch, _FakeCuda(initialized=True))
    _, gpu = device.describe_devices()
    assert gpu.compute_capability == (9, 0)
    assert gpu.clock_rate_mhz == 1980.0
    assert gpu.max_threads_per_block == 1024


def test_a_rate_that_the_driver_reports_as_zero_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_torch(monkeypatch, _FakeCuda(initialized=True))
    assert device.describe_devices()[1].memory_clock_rate_mhz is None


class _FakeNvml:
    """NVML as ctypes sees it: knows one card, limited to 620 W."""

    def __init__(self, *, works: bool = True) -> None:
        self.works = works
        self.open = 0

    def nvmlInit_v2(self) -> int:
        self.open += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        return 0 if self.works and uuid == b"GPU-0123" else 6

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, milliwatts: Any) -> int:
        milliwatts._obj.value = 620_000
        return 0


@pytest.mark.parametrize(("works", "limit_w"), [(True, 620.0), (False, None)])
def test_the_power_limit_is_nvmls_and_nvml_is_closed_again(
    monkeypatch: pytest.MonkeyPatch, works: bool, limit_w: float | None
) -> None:
    nvml = _FakeNvml(works=works)
    _fake_torch(monkeypatch, _FakeCuda(initialized=True))
    monkeypatch.setattr(device.ctypes, "CDLL", lambda name: nvml)
    assert device.describe_devices()[1].power_limit_w == limit_w
    assert nvml.open == 0


def test_settings_hold_what_changes_compilation_and_no_other_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    monkeypatch.setenv("MY_API_TOKEN", "secret")
    settings = device.describe_environment().settings
    assert settings["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"
    assert "MY_API_TOKEN" not in settings


def test_a_compiler_that_is_not_there_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert device.describe_environment().compiler is None


@pytest.mark.parametrize(
    ("text", "size"), [("1024K", 1048576), ("32M\n", 33554432), ("7", 7), ("", None), (None, None)]
)
def test_cache_sizes_are_read_in_units_of_1024(text: str | None, size: int | None) -> None:
    assert device._parse_size(text) == size
