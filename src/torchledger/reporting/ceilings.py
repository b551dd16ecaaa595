"""``torchledger doctor``: what a machine's devices were measured to reach."""

from __future__ import annotations

from collections.abc import Sequence

from torchledger.nouns import Ceilings, Device
from torchledger.reporting.columns import format_ratio, format_us
from torchledger.reporting.document import Document, Facts, Section, Sentence
from torchledger.roofline import ridge_point


def ceilings_document(
    measured: Sequence[tuple[Device, Ceilings]], *, kept_in: Sequence[str] = (), complaints: Sequence[str] = ()
) -> Document:
    """One section per device; ``kept_in`` names the files that now hold the figures, ``complaints`` what is unusual."""
    sections = [
        Section(f"{device.kind}: {device.name}", (Facts(tuple(_rows(ceilings))),)) for device, ceilings in measured
    ]
    if complaints:
        sections.append(Section("What to look at", tuple(Sentence(text, "bad") for text in complaints)))
    if kept_in:
        sections.append(Section("Kept in", tuple(Sentence(text) for text in kept_in)))
    return Document(tuple(sections))


def _rows(ceilings: Ceilings) -> list[tuple[str, str]]:
    def text(value: float | None, unit: str) -> str:
        return "?" if value is None else f"{format_ratio(value)} {unit}"

    def duration(value: float | None) -> str:
        return "none on this device" if value is None else format_us(value)

    rows = [("copy bandwidth", text(ceilings.copy_gb_per_s, "GB/s, read plus written"))]
    for dtype, rate in ceilings.tflops_per_s.items():
        ridge = (
            f", ridge at {format_ratio(ridge_point(rate, ceilings.copy_gb_per_s))} FLOP/B"
            if (ceilings.copy_gb_per_s)
            else ""
        )
        rows.append((f"{dtype} products", f"{text(rate, 'TFLOP/s')}{ridge}"))
    rows += [
        ("launch overhead", duration(ceilings.launch_overhead_us)),
        ("in a CUDA graph", duration(ceilings.graph_launch_overhead_us)),
        ("timer resolution", "?" if ceilings.timer_resolution_us is None else format_us(ceilings.timer_resolution_us)),
        ("measured", f"{ceilings.measured_utc or '?'}, {ceilings.method}"),
    ]
    return rows
