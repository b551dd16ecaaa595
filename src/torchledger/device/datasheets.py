"""What vendors write of some devices, for data that do not say what their device is.

Samples and launches that torchledger measures carry their ``Device``. Older files and public data carry a name: where
they are read, the record of that name is looked up here, once. A name that is not here is an unknown device, whatever
it resembles.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from torchledger.errors import PredictError
from torchledger.nouns import Ceilings, Device
from torchledger.printable import ended
from torchledger.store.codec import FieldError, convert
from torchledger.store.yaml_file import YamlError, read_yaml
from torchledger.work.element_sizes import ELEMENT_SIZES

FILE = Path(__file__).with_name("datasheets.yml")
"""The sheets that come with torchledger."""

METHOD = "datasheet"
"""``Ceilings.method`` of a vendor's figures."""

HALF_PRECISION = ("float16", "bfloat16")
"""Element types of which a sheet names one at least."""


@dataclass(frozen=True)
class ReachedRates:
    """What somebody measured a device to reach, beside its vendor's figures; ``source`` says who and how.

    ``tflops`` by dtype, of large products, and ``copy_gb_per_s`` of large copies stand in for the share of a data sheet
    that a transferred model takes over from its own device. ``attention_tflops`` by direction, of causal attention at
    ``ATTENTION_SHAPE``; the half of the square that the mask leaves counts.
    """

    source: str
    copy_gb_per_s: float | None = None
    tflops: Mapping[str, float] = field(default_factory=dict)
    attention_tflops: Mapping[str, float] = field(default_factory=dict)


ATTENTION_SHAPE: Mapping[str, int] = {"b": 1, "h": 64, "l": 4096, "d": 128, "h_kv": 8, "l_kv": 4096, "causal": 1}
"""Parameters of ``sdpa`` of which ``ReachedRates.attention_tflops`` speak."""


@dataclass(frozen=True)
class DataSheet:
    """A device by its vendor's figures, under the names that drivers and data sets give it, and where they are from.

    ``device.ceilings`` are the vendor's: dense TFLOP/s and memory bandwidth. ``inductor_rates`` are half-precision
    TFLOP/s, single-precision TFLOP/s and memory GB/s where PyTorch's own table (``torch/_inductor``) has the device.
    ``reached`` are rates that were measured, where some are known.
    """

    names: tuple[str, ...]
    device: Device
    source: str
    inductor_rates: tuple[float, float, float] | None = None
    reached: ReachedRates | None = None


def find_data_sheet(name: str) -> DataSheet | None:
    """The data sheet of a device's whole name, written with or without spaces and its maker; ``None`` if unknown."""
    return _by_name().get(plain_name(name))


def device_of_name(name: str) -> Device:
    """The record of a device of which only the name is known: by its data sheet, else the bare name.

    Its ceilings are left out: they are a vendor's, and nothing that was measured.

    >>> device_of_name("NVIDIA H100 PCIe").num_multiprocessors
    114
    >>> device_of_name("H100 of the next year").num_multiprocessors is None
    True
    """
    sheet = find_data_sheet(name)
    if sheet is None:
        return Device(name=name, kind="unknown")
    facts = {key: value for key, value in vars(sheet.device).items() if key not in ("name", "ceilings")}
    return Device(name=name, **facts)


def datasheet_ceilings(device: str) -> tuple[Ceilings, int] | None:
    """Ceilings and L2 bytes by the vendor's figures, for data of a device that is not at hand; ``None`` if unknown."""
    sheet = find_data_sheet(device)
    if sheet is None or sheet.device.ceilings is None:
        return None
    return sheet.device.ceilings, sheet.device.l2_cache_bytes or 0


def plain_name(name: str) -> str:
    """A device's name without its maker, spaces and signs: what two ways to write it have in common.

    >>> plain_name("NVIDIA A100-SXM4-80GB")
    'a100sxm480gb'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia").removeprefix("amd")


@cache
def data_sheets() -> tuple[DataSheet, ...]:
    """The sheets that come with torchledger."""
    return read_data_sheets(FILE)


def read_data_sheets(path: str | os.PathLike[str]) -> tuple[DataSheet, ...]:
    """The sheets of a YAML file: one record, or a list of them, with the keys of ``datasheets.yml``.

    Raises ``PredictError`` naming the file and what is wrong with it.
    """
    try:
        plain = read_yaml(Path(path), is_list=True).content
        records = plain if isinstance(plain, list) else [plain]
        for one in records:
            _refuse_unknown_keys(one)
        return tuple(_sheet(convert(_Record, one)) for one in records)
    except (YamlError, FieldError) as error:
        raise PredictError(
            f"{path} is no data sheet: {ended(str(error))} `torchledger devices --help` shows one."
        ) from error


def _refuse_unknown_keys(plain: Any) -> None:
    """Raise ``FieldError`` for a key that no sheet has: a misspelt one would leave a figure out unsaid."""
    if not isinstance(plain, Mapping):
        return
    for place, record, found in (("", _Record, plain), ("reached.", ReachedRates, plain.get("reached"))):
        known = [each.name for each in fields(record)]
        for key in found if isinstance(found, Mapping) else ():
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)
                raise FieldError(f"unknown key `{place}{key}`, the nearest is `{place}{near[0]}`")


@dataclass(frozen=True)
class _Record:
    """A sheet as it stands in a file."""

    names: tuple[str, ...]
    num_multiprocessors: int
    copy_gb_per_s: float
    tflops: Mapping[str, float]
    source: str = "a file of its own"
    kind: str = "cuda"
    compute_capability: tuple[int, int] | None = None
    total_memory_bytes: int | None = None
    l2_cache_bytes: int | None = None
    clock_rate_mhz: float | None = None
    memory_clock_rate_mhz: float | None = None
    memory_bus_width_bits: int | None = None
    power_limit_w: float | None = None
    inductor_rates: tuple[float, float, float] | None = None
    reached: ReachedRates | None = None

    def __post_init__(self) -> None:
        if not self.names or not all(map(plain_name, self.names)):
            raise ValueError("field `names`: a device has one")
        figures = {
            **{field.name: getattr(self, field.name) for field in fields(self) if field.name not in _NO_FIGURES},
            **{f"tflops.{dtype}": rate for dtype, rate in self.tflops.items()},
            **_figures_of(self.reached),
        }
        for name, figure in figures.items():
            if figure is not None and not 0 < figure <= _LARGEST:
                raise ValueError(f"field `{name}`: must be above zero and finite, got {figure}")
        for name, rates in (("tflops", self.tflops), ("reached.tflops", self.reached.tflops if self.reached else {})):
            for dtype in rates:
                if dtype not in ELEMENT_SIZES and dtype != "tf32":
                    raise ValueError(f"field `{name}`: {dtype} is no name of torch's, such as float16 or float32")
        if not any(half in self.tflops for half in HALF_PRECISION):
            raise ValueError(f"field `tflops`: holds neither {' nor '.join(HALF_PRECISION)}, by which devices compare")


def _figures_of(reached: ReachedRates | None) -> dict[str, float | None]:
    """All rates that were measured, by what they are called in a file."""
    found: dict[str, float | None] = {}
    for name, value in (vars(reached) if reached is not None else {}).items():
        if isinstance(value, Mapping):
            found |= {f"reached.{name}.{key}": rate for key, rate in value.items()}
        elif name != "source":
            found[f"reached.{name}"] = value
    return found


_NO_FIGURES = ("names", "tflops", "source", "kind", "compute_capability", "inductor_rates", "reached")
_LARGEST = 1e15
"""What no figure of a device comes near, in any of their units."""


def _sheet(record: _Record) -> DataSheet:
    facts: dict[str, Any] = {each.name: getattr(record, each.name) for each in fields(record)}
    names, source, rates = facts.pop("names"), facts.pop("source"), facts.pop("inductor_rates")
    reached = facts.pop("reached")
    ceilings = Ceilings(copy_gb_per_s=facts.pop("copy_gb_per_s"), tflops_per_s=dict(facts.pop("tflops")), method=METHOD)
    return DataSheet(names, Device(name=names[0], ceilings=ceilings, **facts), source, rates, reached)


@cache
def _by_name() -> Mapping[str, DataSheet]:
    return {plain_name(name): sheet for sheet in data_sheets() for name in sheet.names}
