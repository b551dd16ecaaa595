"""The vendor's figures of some devices, for the sanity gates of data whose device is not at hand."""

from __future__ import annotations

from collections.abc import Mapping

from torchledger.nouns import Ceilings

DATASHEETS: Mapping[str, tuple[float, float, float, int]] = {
    # Dense FP16/BF16 TFLOP/s, FP32 TFLOP/s, memory GB/s, L2 bytes, from NVIDIA's datasheets and architecture papers.
    "A100-SXM4-80GB": (312.0, 19.5, 2039.0, 40 * 2**20),
    "A100-SXM4-40GB": (312.0, 19.5, 1555.0, 40 * 2**20),
    "H100 80GB HBM3": (989.4, 66.9, 3350.0, 50 * 2**20),
    "H200": (989.4, 66.9, 4800.0, 50 * 2**20),
    "GH200 120GB": (989.4, 66.9, 4000.0, 50 * 2**20),
}


def datasheet_ceilings(device: str) -> tuple[Ceilings, int] | None:
    """Ceilings and L2 bytes by the vendor's figures, for data of a device that is not at hand; ``None`` if unknown.

    The name may be written without spaces and with its maker, as the guide's files do.
    """
    plain = device.replace(" ", "").removeprefix("NVIDIA").lower()
    for name, (half, single, bandwidth, l2_bytes) in DATASHEETS.items():
        if plain == name.replace(" ", "").lower():
            rates = {"float16": half, "bfloat16": half, "float32": single}
            return Ceilings(copy_gb_per_s=bandwidth, tflops_per_s=rates, method="datasheet"), l2_bytes
    return None
