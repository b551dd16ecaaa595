"""What vendors write of some devices, for data that do not say what their device is.

Samples and launches that torchledger measures carry their ``Device``. Older files and public data carry a name: where
they are read, the record of that name is looked up here, once. A name that is not here is an unknown device, whatever
it resembles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchledger.nouns import Ceilings, Device

_GB, _MIB = 10**9, 2**20


@dataclass(frozen=True)
class DataSheet:
    """A device by its vendor's figures, under the names that drivers and data sets give it, and where they are from.

    ``device.ceilings`` are the vendor's: dense TFLOP/s and memory bandwidth. ``inductor_rates`` are half-precision
    TFLOP/s, single-precision TFLOP/s and memory GB/s where PyTorch's own table (``torch/_inductor``) has the device.
    """

    names: tuple[str, ...]
    device: Device
    source: str
    inductor_rates: tuple[float, float, float] | None = None


def find_data_sheet(name: str) -> DataSheet | None:
    """The data sheet of a device's whole name, written with or without spaces and its maker; ``None`` if unknown."""
    return _BY_NAME.get(_plain(name))


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
    facts = {field: value for field, value in vars(sheet.device).items() if field not in ("name", "ceilings")}
    return Device(name=name, **facts)


def datasheet_ceilings(device: str) -> tuple[Ceilings, int] | None:
    """Ceilings and L2 bytes by the vendor's figures, for data of a device that is not at hand; ``None`` if unknown."""
    sheet = find_data_sheet(device)
    if sheet is None or sheet.device.ceilings is None:
        return None
    return sheet.device.ceilings, sheet.device.l2_cache_bytes or 0


def _plain(name: str) -> str:
    return name.replace(" ", "").lower().removeprefix("nvidia").removeprefix("amd")


def _gpu(
    name: str,
    compute_capability: tuple[int, int] | None,
    multiprocessors: int,
    *,
    tflops: tuple[float, float],
    memory: tuple[int, float],
    l2_bytes: int,
    clock_mhz: float,
    memory_clock: tuple[float, int],
    watts: float,
) -> Device:
    """``tflops``: dense FP16/BF16 and FP32; ``memory``: bytes and GB/s; ``memory_clock``: MHz and bits of the bus."""
    half, single = tflops
    return Device(
        name=name,
        kind="cuda",
        compute_capability=compute_capability,
        num_multiprocessors=multiprocessors,
        total_memory_bytes=memory[0],
        l2_cache_bytes=l2_bytes,
        clock_rate_mhz=clock_mhz,
        memory_clock_rate_mhz=memory_clock[0],
        memory_bus_width_bits=memory_clock[1],
        power_limit_w=watts,
        ceilings=Ceilings(
            copy_gb_per_s=memory[1],
            tflops_per_s={"float16": half, "bfloat16": half, "float32": single},
            method="datasheet",
        ),
    )


_AMPERE = "NVIDIA A100 Tensor Core GPU data sheet (2021) and architecture white paper"
_HOPPER = "NVIDIA H100 data sheet and architecture white paper (2023)"
_INDUCTOR_A100 = (312.5, 19.5, 2039.0)

DATA_SHEETS: tuple[DataSheet, ...] = (
    DataSheet(
        ("V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
        _gpu("V100-SXM2-32GB", (7, 0), 80, tflops=(125.0, 15.7), memory=(32 * _GB, 900.0), l2_bytes=6 * _MIB,
             clock_mhz=1530, memory_clock=(877, 4096), watts=300),
        "NVIDIA V100 data sheet (2020) and Volta white paper",
    ),
    DataSheet(
        ("V100-SXM2-16GB", "Tesla V100-SXM2-16GB"),
        _gpu("V100-SXM2-16GB", (7, 0), 80, tflops=(125.0, 15.7), memory=(16 * _GB, 900.0), l2_bytes=6 * _MIB,
             clock_mhz=1530, memory_clock=(877, 4096), watts=300),
        "NVIDIA V100 data sheet (2020) and Volta white paper",
    ),
    DataSheet(
        ("A100-SXM4-80GB",),
        _gpu("A100-SXM4-80GB", (8, 0), 108, tflops=(312.0, 19.5), memory=(80 * _GB, 2039.0), l2_bytes=40 * _MIB,
             clock_mhz=1410, memory_clock=(1593, 5120), watts=400),
        _AMPERE,
        _INDUCTOR_A100,
    ),
    DataSheet(
        ("A100-SXM4-40GB",),
        _gpu("A100-SXM4-40GB", (8, 0), 108, tflops=(312.0, 19.5), memory=(40 * _GB, 1555.0), l2_bytes=40 * _MIB,
             clock_mhz=1410, memory_clock=(1215, 5120), watts=400),
        _AMPERE,
        _INDUCTOR_A100,
    ),
    DataSheet(
        ("A10",),
        _gpu("A10", (8, 6), 72, tflops=(125.0, 31.2), memory=(24 * _GB, 600.0), l2_bytes=6 * _MIB,
             clock_mhz=1695, memory_clock=(6251, 384), watts=150),
        "NVIDIA A10 data sheet (2021)",
    ),
    DataSheet(
        ("L40S",),
        _gpu("L40S", (8, 9), 142, tflops=(362.05, 91.6), memory=(48 * _GB, 864.0), l2_bytes=96 * _MIB,
             clock_mhz=2520, memory_clock=(9001, 384), watts=350),
        "NVIDIA L40S data sheet (2023); L2 as in the Ada white paper",
    ),
    DataSheet(
        ("GeForce RTX 4090", "RTX 4090"),
        _gpu("GeForce RTX 4090", (8, 9), 128, tflops=(165.2, 82.6), memory=(24 * _GB, 1008.0), l2_bytes=72 * _MIB,
             clock_mhz=2520, memory_clock=(10501, 384), watts=450),
        "NVIDIA Ada GPU architecture white paper (2022); products sum in single precision",
    ),
    DataSheet(
        ("H100 80GB HBM3", "H100-SXM5-80GB"),
        _gpu("H100 80GB HBM3", (9, 0), 132, tflops=(989.4, 66.9), memory=(80 * _GB, 3350.0), l2_bytes=50 * _MIB,
             clock_mhz=1980, memory_clock=(2619, 5120), watts=700),
        _HOPPER,
    ),
    DataSheet(
        ("H100 PCIe",),
        _gpu("H100 PCIe", (9, 0), 114, tflops=(756.0, 51.2), memory=(80 * _GB, 2000.0), l2_bytes=50 * _MIB,
             clock_mhz=1755, memory_clock=(1593, 5120), watts=350),
        _HOPPER,
    ),
    DataSheet(
        ("H200",),
        _gpu("H200", (9, 0), 132, tflops=(989.4, 66.9), memory=(141 * _GB, 4800.0), l2_bytes=60 * _MIB,
             clock_mhz=1980, memory_clock=(3201, 6144), watts=700),
        "NVIDIA H200 data sheet (2024); L2 as CUDA reports it",
    ),
    DataSheet(
        ("GH200 120GB",),
        _gpu("GH200 120GB", (9, 0), 132, tflops=(989.4, 66.9), memory=(96 * _GB, 4000.0), l2_bytes=50 * _MIB,
             clock_mhz=1980, memory_clock=(2619, 6144), watts=900),
        "NVIDIA GH200 data sheet (2024); the 120 GB of its name are the processor's",
    ),
    DataSheet(
        ("B200",),
        _gpu("B200", (10, 0), 148, tflops=(2250.0, 75.0), memory=(180 * _GB, 7700.0), l2_bytes=126 * _MIB,
             clock_mhz=1965, memory_clock=(3996, 8192), watts=1000),
        "NVIDIA HGX B200 data sheet (2025)",
    ),
    DataSheet(
        ("Instinct MI300X", "MI300X"),
        _gpu("Instinct MI300X", None, 304, tflops=(1307.4, 163.4), memory=(192 * _GB, 5300.0), l2_bytes=256 * _MIB,
             clock_mhz=2100, memory_clock=(2600, 8192), watts=750),
        "AMD Instinct MI300X data sheet (2023); compute units, and its Infinity Cache as the L2",
    ),
)  # fmt: skip

_BY_NAME: Mapping[str, DataSheet] = {_plain(name): sheet for sheet in DATA_SHEETS for name in sheet.names}
