"""``torchledger doctor``: measure the devices at hand, keep their ceilings, say what is unusual."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchledger._torch import version_warning
from torchledger.device import describe as machine
from torchledger.device.ceilings import find_place, measure_ceilings, put_ceilings_into, store_ceilings
from torchledger.device.host import measure_host, put_host_into, store_host
from torchledger.errors import MeasureError
from torchledger.nouns import Device, Host
from torchledger.store import open_ledger


@dataclass(frozen=True)
class Examination:
    """Devices with their ceilings, the files that now hold them, what is unusual about this machine, and what its host
    needs to launch work (``None`` if that was not asked for)."""

    devices: tuple[Device, ...]
    kept_in: tuple[str, ...]
    complaints: tuple[str, ...]
    host: Host | None = None


def examine(
    devices: Sequence[str] = (),
    *,
    file: str | os.PathLike[str] | None = None,
    budget_s: float = 20.0,
    scale: float = 1.0,
    with_host: bool | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Examination:
    """Measure ``devices`` (default: the CPU and each CUDA device), store the ceilings and write them into ``file``.

    ``with_host`` says whether the host's own costs are measured too, with the last of the devices (``None``: where that
    is a GPU; on a CPU, compiling what it takes lasts longer than all else).
    ``progress`` is told measurements done, their number, and what is measured next.

    Raises ``MeasureError`` for a device that is not there, ``StoreError`` for a file that is no ledger.
    """
    import torch

    if file is not None:
        open_ledger(file).close()
    names = list(devices) or ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    measured = []
    for name in names:
        ceilings = measure_ceilings(name, budget_s=budget_s, scale=scale, progress=progress)
        measured.append((describe_device(name), ceilings))
    kept = [str(store_ceilings(device, ceilings)) for device, ceilings in measured]
    if file is not None:
        put_ceilings_into(file, {str(index): pair for index, pair in enumerate(measured)})
        kept.append(str(file))
    host = None
    if with_host or (with_host is None and names[-1].startswith("cuda")):
        host = measure_host(names[-1])
        kept.append(str(store_host(host)))
        if file is not None:
            put_host_into(file, host)
    examined = tuple(replace(device, ceilings=ceilings) for device, ceilings in measured)
    return Examination(examined, tuple(dict.fromkeys(kept)), tuple(_complaints(examined)), host)


def describe_device(name: str) -> Device:
    """The record of a torch device (``"cuda:1"``, ``"cpu"``). Raises ``MeasureError`` if it is not there."""
    import torch

    place = find_place(name)
    if place.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
    for device in machine.describe_devices():
        if device.kind == place.type and (place.type == "cpu" or device.index == (place.index or 0)):
            return device
    raise MeasureError(f"there is no {name} here, or torch cannot describe it. Pass an index, as in cuda:0, or cpu.")


def _complaints(devices: Sequence[Device]) -> list[str]:
    import torch

    found = []
    if warning := version_warning(str(torch.__version__)):
        found.append(warning)
    for device in devices:
        if device.kind != "cpu":
            continue
        load = os.getloadavg()[0]
        # Our own measuring keeps the cores busy; what is beyond them is somebody else's.
        if device.num_cores and load > 1.5 * device.num_cores:
            found.append(
                f"the load is {load:.1f} on {device.num_cores} cores: other programs share this CPU, so its ceilings "
                "may be too low. Measure again when it is idle."
            )
    return found
