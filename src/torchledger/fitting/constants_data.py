"""What constants of a device are fitted to: measured products, convolutions, fused kernels and what kernels draw."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.device.datasheets import device_of_name
from torchledger.errors import FitError
from torchledger.expecting.product_network import LAYOUTS
from torchledger.fitting.data import read_devices, read_operator_samples
from torchledger.fitting.power_costs import PowerRows, read_power
from torchledger.nouns import Device, Sample
from torchledger.store.codec import convert
from torchledger.store.launch_file import SUFFIX, LaunchSet, MeasuredLaunch, join_launches, read_launches
from torchledger.work.element_sizes import ELEMENT_SIZES

Array = NDArray[np.float64]

PARAMETERS = ("n", "c_in", "height", "width", "c_out", "kernel", "stride", "padding", "groups", "channels_last")
_PASSES = ("forward", "image", "weight")


@dataclass(frozen=True)
class Products:
    """Measured matrix products: one entry per product. ``layout`` is the place in ``LAYOUTS``."""

    layout: NDArray[np.int64]
    sides: tuple[Array, Array, Array, Array]
    item_size: Array
    time_us: Array


@dataclass(frozen=True)
class Convolutions:
    """Measured convolutions: parameters of ``conv2d``, direction (as ``convolution_times`` has it) and time of each."""

    parameters: Mapping[str, Array]
    direction: NDArray[np.str_]
    item_size: Array
    time_us: Array


@dataclass(frozen=True)
class Measurements:
    """What constants are fitted to, all of one device."""

    device: Device
    products: Products | None = None
    convolutions: Convolutions | None = None
    launches: tuple[MeasuredLaunch, ...] = ()
    power: PowerRows | None = None

    @property
    def has_times(self) -> bool:
        """Whether anything was timed; what kernels draw has no times to fit to."""
        return self.products is not None or self.convolutions is not None or bool(self.launches)


def read_measurements(
    paths: Iterable[str | os.PathLike[str]], *, device: str | None = None, group: str | None = None
) -> Measurements:
    """Measurements out of operator samples, ``.launches`` files, ledgers and the ``.npz`` files of single products and
    convolutions (``benchmarks/operators/h200_kernels.py``), and the ``.json`` of what kernels draw
    (``benchmarks/machines/power_cuda.py``).

    ``device`` names it where the data do not; what it is they say, or a data sheet. ``group`` keeps samples that were
    drawn for that purpose. Raises ``FitError`` for data of several devices, or of one that is not named.
    """
    given = [Path(path) for path in paths]
    arrays = [path for path in given if path.suffix == ".npz"]
    of_launches = [path for path in given if path.suffix in (SUFFIX, ".ledger")]
    of_power = [path for path in given if path.suffix == ".json"]
    others = [path for path in given if path not in (*arrays, *of_launches, *of_power)]
    power = read_power(of_power[-1]) if of_power else None
    found: LaunchSet | None = join_launches([read_launches(path) for path in of_launches]) if of_launches else None
    samples = read_operator_samples(others, group=group) if others else []
    records = read_devices(others)
    products, convolutions = _of_samples(samples)
    names = {sample.device for sample in samples} | ({found.device} if found is not None else set())
    names |= ({device} if device is not None else set()) | ({power.device} if power is not None else set())
    for path in arrays:
        of_arrays, kernels = _read_arrays(path)
        if of_arrays is not None:
            names.add(of_arrays.name)
            records[of_arrays.name] = of_arrays
        if isinstance(kernels, Products):
            products = kernels
        else:
            convolutions = kernels
    if found is not None and found.record is not None:
        records.setdefault(found.device, found.record)
    if len(names) != 1:
        listed = ", ".join(sorted(names)) or "no device that is named"
        raise FitError(f"the data are of {listed}: constants are of one device. Name it with --device.")
    (name,) = names
    return Measurements(
        records.get(name) or device_of_name(name),
        products,
        convolutions,
        () if found is None else found.launches,
        power,
    )


_STEADY = 1.25
"""Slowest over quickest of a convolution's repeats."""


def _read_arrays(path: Path) -> tuple[Device | None, Products | Convolutions]:
    try:
        with np.load(path, allow_pickle=False) as read:
            device = convert(Device, json.loads(str(read["device"]))) if "device" in read else None
            if "layout" in read:
                return device, _products_of_arrays(read)
            return device, _convolutions_of_arrays(read)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise FitError(f"{path} holds neither products nor convolutions, or is damaged ({error}).") from error


def _products_of_arrays(read: Any) -> Products:
    sides = tuple(read[side].astype(np.float64) for side in ("b", "m", "n", "k"))
    item_size = np.where(read["dtype"] == "float32", 4.0, 2.0)
    return Products(read["layout"].astype(np.int64), sides, item_size, read["time_us"].astype(np.float64))


def _convolutions_of_arrays(read: Any) -> Convolutions:
    steady = read["spread"] < _STEADY
    parameters = {name: read[name][steady].astype(np.float64) for name in PARAMETERS}
    direction = np.array(_PASSES)[read["direction"][steady]]
    return Convolutions(parameters, direction, np.full(len(direction), 2.0), read["time_us"][steady].astype(np.float64))


def _of_samples(samples: Sequence[Sample]) -> tuple[Products | None, Convolutions | None]:
    """Forward products without a bias (whose kernel comes on top), and convolutions in both directions."""
    usable = [sample for sample in samples if sample.status == "ok" and sample.times_us]
    factors = [
        sample
        for sample in usable
        if sample.operator in ("linear", "bmm") and sample.direction == "forward" and not sample.parameters.get("bias")
    ]
    filters = [sample for sample in usable if sample.operator == "conv2d"]
    products = convolutions = None
    if factors:
        layouts = {"linear": LAYOUTS.index("tn"), "bmm": LAYOUTS.index("nn")}
        products = Products(
            np.array([layouts[sample.operator] for sample in factors]),
            tuple(_column(factors, name, 1) for name in ("b", "m", "n", "k")),  # type: ignore[arg-type]
            _sizes(factors),
            _times(factors),
        )
    if filters:
        defaults = {"stride": 1, "padding": 0, "groups": 1, "channels_last": 0}
        parameters = {name: _column(filters, name, defaults.get(name, 1)) for name in PARAMETERS}
        directions = np.array([sample.direction for sample in filters])
        convolutions = Convolutions(parameters, directions, _sizes(filters), _times(filters))
    return products, convolutions


def _column(samples: Sequence[Sample], name: str, default: float) -> Array:
    return np.array([float(sample.parameters.get(name, default)) for sample in samples])


def _sizes(samples: Sequence[Sample]) -> Array:
    return np.array([float(ELEMENT_SIZES[sample.dtype]) for sample in samples])


def _times(samples: Sequence[Sample]) -> Array:
    return np.array([float(np.median(sample.times_us)) for sample in samples])
