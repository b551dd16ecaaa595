"""The state of a device around a measurement: clocks, temperature, power, what throttles it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


class Telemetry:
    """Reads NVML for one device; where it is missing, every reading is empty."""

    def __init__(self, uuid: str | None) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        if uuid is None:
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(name)
            self._nvml = pynvml
        except ImportError:
            log.info("no telemetry: install torchledger[gpu] to record clocks and temperature")
        except Exception as error:
            # NVML errors share no base that exists without the package; without telemetry a sample is still a sample.
            log.info("no telemetry: %s", error)

    def read(self) -> dict[str, float | int | str | None]:
        """SM and memory clock in MHz, temperature in Celsius, power in W and the raw event reasons."""
        if self._nvml is None:
            return {}
        nvml, handle = self._nvml, self._handle
        readings: dict[str, Callable[[], float]] = {
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "event_reasons": lambda: _event_reasons(nvml, handle),
        }
        values: dict[str, float | int | str | None] = {}
        for name, read in readings.items():
            try:
                values[name] = read()
            except Exception:
                # A reading that this device or driver does not offer is unknown.
                values[name] = None
        return values


def _event_reasons(nvml: Any, handle: Any) -> int:
    """NVML renamed throttle reasons to event reasons; drivers know one or both."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except Exception:
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
