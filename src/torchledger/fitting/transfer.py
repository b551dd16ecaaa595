"""A model of one device asked about another: the structure of costs is shared, rates and record are the other's.

Entries learn what lies between a physical baseline and the measured times; the baseline is computed for a machine. A
model with another machine in it is therefore a model of that machine, as far as the rest is alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchledger.device.datasheets import HALF_PRECISION, METHOD, ReachedRates, find_data_sheet
from torchledger.errors import FitError
from torchledger.expecting.machine import Machine, assumptions, published_rates
from torchledger.fitting.time_model import Entry, Origin, TimeModel
from torchledger.nouns import Ceilings, Device

SPREAD_WITHIN_GENERATION, _SPREAD_BETWEEN_GENERATIONS = 0.15, 0.5
"""How far (in logarithms) nine of ten transferred times are off, besides the interval of the device that was measured:
to one of its generation, and of another. ``benchmarks/strangers/devices_accuracy.py`` says how well that holds."""


class _Transferred(Mapping[str, Entry]):
    """Entries with an interval that is honest about the transfer, those of operators with the device that they come
    from; each is read when it is first asked."""

    def __init__(self, entries: Mapping[str, Entry], spread: float, carried_from: Machine) -> None:
        self._entries, self._spread, self._from = entries, spread, carried_from

    def __getitem__(self, key: str) -> Entry:
        entry = self._entries[key]
        origins = entry.origins
        # Launches are timed inside a step, where others have had the cache: their baseline tells as much.
        if not key.startswith("launch:"):
            origins = (*origins, Origin(self._from, len(entry.corrections)))
        return replace(entry, n_rows=0, spread=math.hypot(entry.spread, self._spread), origins=origins)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def transfer_model(model: TimeModel, device: Device, reached: ReachedRates | None = None) -> TimeModel:
    """The model of another device: its machine stands in the baselines, what was learned stays.

    ``reached`` are rates measured by others, if not those of the data sheet that comes with torchledger. Raises
    ``FitError`` for a device of which neither ceilings nor a data sheet are known.
    """
    machine = transfer_machine(model.machine, device, reached)
    is_alike = device.compute_capability == machine.learned_on
    spread = SPREAD_WITHIN_GENERATION if is_alike else _SPREAD_BETWEEN_GENERATIONS
    return replace(
        model,
        device=device.name,
        machine=machine,
        entries=_Transferred(model.entries, spread, model.machine),
        total_memory_bytes=device.total_memory_bytes,
        source=f"transferred from {model.device}",
        operators_error_pct=None,
        notes=(f"transferred from {model.device}", *assumptions(machine)),
    )


def transfer_machine(machine: Machine, device: Device, reached: ReachedRates | None = None) -> Machine:
    """The machine of a device of which no times are known: measured ceilings are rates that it reaches, as those of
    ``reached`` are; a vendor's are reached as far as those of ``machine`` were."""
    theirs = _ceilings(device)
    if theirs is None or theirs.copy_gb_per_s is None:
        raise FitError(
            f"neither ceilings nor a data sheet of {device.name} are known. Measure it with `torchledger calibrate`, "
            "or give its figures in a file."
        )
    if theirs.method != METHOD:
        rates = {dtype: rate * 1e6 for dtype, rate in theirs.tflops_per_s.items() if dtype in machine.flops_per_us}
        copied = theirs.copy_gb_per_s * 1e3
    else:
        own = _vendors(machine.device)
        if own is None or own.copy_gb_per_s is None:
            raise FitError(f"no data sheet of {machine.name} is known, with whose figures to compare {device.name}'s.")
        rates = _scaled(machine.flops_per_us, own.tflops_per_s, theirs.tflops_per_s)
        copied = machine.bytes_per_us * theirs.copy_gb_per_s / own.copy_gb_per_s
        if (published := reached or published_rates(device)) is not None:
            rates |= {dtype: rate * 1e6 for dtype, rate in published.tflops.items()}
            copied = copied if published.copy_gb_per_s is None else published.copy_gb_per_s * 1e3
    return Machine(
        device,
        rates or dict(machine.flops_per_us),
        copied,
        machine.floor_us,
        machine.own_constants,
        learned_on=machine.learned_on or machine.device.compute_capability,
        reached=reached,
        networks=machine.networks,
        own_power=machine.own_power if device.name == machine.device.name else None,
    )


def _ceilings(device: Device) -> Ceilings | None:
    return device.ceilings if device.ceilings is not None else _vendors(device)


def _vendors(device: Device) -> Ceilings | None:
    if device.ceilings is not None and device.ceilings.method == METHOD:
        return device.ceilings
    sheet = find_data_sheet(device.name)
    return None if sheet is None else sheet.device.ceilings


def _scaled(reached: Mapping[str, float], own: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, float]:
    """Rates in proportion to the vendors' figures; of an element type that they do not name, to half precision's.

    Raises ``FitError`` where half precision is missing too.
    """
    rates = {}
    for dtype, rate in reached.items():
        named = next((one for one in (dtype, *HALF_PRECISION) if one in own and one in theirs), None)
        if named is None:
            raise FitError(
                f"no figures of {dtype} to compare are known. Give {' or '.join(HALF_PRECISION)} in both data sheets."
            )
        rates[dtype] = rate * theirs[named] / own[named]
    return rates
