"""``torchledger doctor``: what a machine's devices were measured to reach."""

from __future__ import annotations

from collections.abc import Sequence

from torchledger.nouns import Ceilings, Device, Host
from torchledger.reporting.columns import format_ratio, format_us
from torchledger.reporting.document import Document, Facts, Section, Sentence
from torchledger.roofline import ridge_point


def ceilings_document(
    measured: Sequence[tuple[Device, Ceilings]],
    *,
    host: Host | None = None,
    kept_in: Sequence[str] = (),
    complaints: Sequence[str] = (),
) -> Document:
    """One section per device, and one of the host's own costs; ``kept_in`` names the files that now hold the figures,
    ``complaints`` what is unusual."""
    sections = [
        Section(f"{device.kind}: {device.name}", (Facts(tuple(_rows(ceilings))),)) for device, ceilings in measured
    ]
    if host is not None:
        sections.append(Section(f"host: {host.name}, with {host.device}", (Facts(tuple(_host_rows(host))),)))
    if complaints:
        sections.append(Section("What to look at", tuple(Sentence(text, "bad") for text in complaints)))
    if kept_in:
        sections.append(Section("Kept in", tuple(Sentence(text) for text in kept_in)))
    return Document(tuple(sections))


_HOST_ROWS = (
    ("a compiled call", "graph_call_us"),
    ("one with its backward", "training_call_us"),
    ("a replayed CUDA graph", "replay_call_us"),
    ("a fused kernel", "fused_launch_us"),
    ("a matrix product", "library_launch_us"),
    ("a convolution", "convolution_launch_us"),
    ("an eager operator", "operator_us"),
    ("a node of autograd", "autograd_node_us"),
    ("a fused optimizer's step", "optimizer_step_us"),
    ("a tensor of it", "fused_optimizer_tensor_us"),
    ("a tensor of a foreach one", "foreach_optimizer_tensor_us"),
)


def _host_rows(host: Host) -> list[tuple[str, str]]:
    """What a host needs for one of each kind."""
    costs = [(label, getattr(host, field)) for label, field in _HOST_ROWS]
    rows = [(label, format_us(cost)) for label, cost in costs if cost is not None]
    return [*rows, ("measured", f"{host.measured_utc or '?'}, {host.method}")]


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
