"""Tools of a driver that is not there: what logs ask of ``nvidia-smi`` is answered for the device that is planned."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchledger._torch.patching import Patches
from torchledger._torch.user_lines import line_outside
from torchledger.nouns import Device

_SMI = "nvidia-smi"
_QUERY = "--query-gpu="


def answer_for_tools(patches: Patches, device: Device, count: int, note: Callable[[str, str, str], None]) -> None:
    """Where there is no ``nvidia-smi`` a program that begins one (with a list, or a name alone) reads the names of
    ``count`` devices, or what it asked to be told of each; ``note`` is given what was asked, what it was told, and the
    line, unless torch asked by itself."""
    former = subprocess.Popen

    class Popen(former):  # type: ignore[valid-type]
        """A process of the program's."""

        def __init__(self, args: Any, *rest: Any, **kwargs: Any) -> None:
            asked = [args] if isinstance(args, str) else args
            if isinstance(asked, Sequence) and _is_smi(asked) and shutil.which(_SMI) is None:
                said = "\n".join(_of_device(asked, device, number) for number in range(count))
                if (source := line_outside("/subprocess.py", "/triton/testing.py")) is not None:
                    note(f"what {_SMI} says", device.name, source)
                args = [sys.executable, "-S", "-c", f"print({said!r})"]
            super().__init__(args, *rest, **kwargs)

    patches.set(subprocess, "Popen", Popen)


def _is_smi(asked: Sequence[Any]) -> bool:
    return bool(asked) and isinstance(asked[0], (str, Path)) and Path(asked[0]).name == _SMI


def _of_device(asked: Sequence[Any], device: Device, number: int) -> str:
    """A line of one device: the fields of a query, or its number and name."""
    queries = [str(each).removeprefix(_QUERY) for each in asked if str(each).startswith(_QUERY)]
    if not queries:
        return f"GPU {number}: {device.name}"
    with_unit = not any("nounits" in str(each).split("=")[-1].split(",") for each in asked)
    memory = None if device.total_memory_bytes is None else device.total_memory_bytes / 2**20
    known = {"index": str(number), "name": device.name, "gpu_name": device.name}
    known["memory.total"] = _quantity(memory, "MiB", with_unit)
    for field in ("sm", "graphics", "gr"):
        known[f"clocks.max.{field}"] = _quantity(device.clock_rate_mhz, "MHz", with_unit)
    for field in ("memory", "mem"):
        known[f"clocks.max.{field}"] = _quantity(device.memory_clock_rate_mhz, "MHz", with_unit)
    return ", ".join(known.get(field.strip(), "[N/A]") for field in queries[0].split(","))


def _quantity(value: float | None, unit: str, with_unit: bool) -> str:
    if value is None:
        return "[N/A]"
    return f"{int(value)} {unit}" if with_unit else str(int(value))
