"""``torchledger doctor``: what a machine's devices were measured to reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchledger.nouns import Ceilings, Device, Host
from torchledger.predicting.host_steps import slowness_of
from torchledger.reporting.columns import format_ratio, format_share, format_us
from torchledger.reporting.document import Document, Facts, Section, Sentence
from torchledger.roofline import Bound, ridge_point


def ceilings_document(
    devices: Sequence[Device],
    *,
    host: Host | None = None,
    kept_in: Sequence[str] = (),
    complaints: Sequence[str] = (),
) -> Document:
    """One section per device that has its ceilings, and one of the host's own costs.

    ``kept_in`` names the files that now hold the figures, ``complaints`` what is unusual.
    """
    sections = [
        Section(f"{device.kind}: {device.name}", (Facts(tuple(_rows(device.ceilings))),))
        for device in devices
        if device.ceilings is not None
    ]
    if host is not None:
        sections.append(Section(f"host: {host.name}, with {host.device}", (Facts(tuple(_host_rows(host))),)))
    if complaints:
        sections.append(Section("What to look at", tuple(Sentence(text, "bad") for text in complaints)))
    if kept_in:
        sections.append(Section("Kept in", tuple(Sentence(text) for text in kept_in)))
    return Document(tuple(sections))


_SLACK = 0.05
"""Medians of one kernel differ by this share between runs; only what is further above a ceiling is told."""


def above_ceilings(rows: Iterable[tuple[str, float | None, Bound | None]]) -> list[str]:
    """What ran faster than the measured ceilings allow, a sentence for each reason that it can have.

    ``rows`` are names with their share of the roofline and the ceiling that binds them. A cache can serve bytes faster
    than memory; it cannot add FLOPs, so that a share above one of those says that the ceiling is too low or the count
    of FLOPs more than the library does.

    >>> above_ceilings([("forward_0#1", 2.91, "compute"), ("forward_0#2", 0.6, "memory")])[0][:65]
    '1 above the measured FLOP/s (forward_0#1 291.0 %): the ceiling wa'
    """
    found: dict[str, list[tuple[str, float]]] = {"compute": [], "memory": []}
    for name, fraction, limit in rows:
        if fraction is not None and fraction > 1 + _SLACK:
            found["compute" if limit == "compute" else "memory"].append((name, fraction))
    return [
        f"{len(above):,} above the measured {what} ("
        + ", ".join(f"{name} {format_share(fraction)}" for name, fraction in above[:3])
        + f"): {reason}"
        for above, (what, reason) in zip(found.values(), _ABOVE, strict=True)
        if above
    ]


_ABOVE = (
    (
        "FLOP/s",
        "the ceiling was measured on a busier device or on slower shapes, or the library multiplies less often than is "
        "counted (Winograd convolutions); no cache does this. `torchledger doctor` measures again",
    ),
    ("bandwidth", "inputs come from a cache, not from memory"),
)


_HOST_ROWS = (
    ("a compiled call", "graph_call_us"),
    ("one with its backward", "training_call_us"),
    ("one more of such", "further_training_us"),
    ("a replayed CUDA graph", "replay_call_us"),
    ("a fused kernel", "fused_launch_us"),
    ("a matrix product", "library_launch_us"),
    ("a convolution", "convolution_launch_us"),
    ("an eager operator", "operator_us"),
    ("a node of autograd", "autograd_node_us"),
    ("a fused optimizer's step", "optimizer_step_us"),
    ("a tensor of it", "fused_optimizer_tensor_us"),
    ("a tensor of a foreach one", "foreach_optimizer_tensor_us"),
    ("a piece of plain Python", "plain_us"),
)


def _host_rows(host: Host) -> list[tuple[str, str]]:
    """What a host needs for one of each kind."""
    costs = [(label, getattr(host, field)) for label, field in _HOST_ROWS]
    spreads = dict(_spreads(host))
    rows = [(label, format_us(cost) + spreads.get(label, "")) for label, cost in costs if cost is not None]
    if host.in_step is not None:
        rows.append(("a training step", f"{host.in_step:.2f} times what these add up to"))
    if (slowness := slowness_of(host)) is not None:
        rows.append(("in all", f"{slowness:.2f} times what a usual host needs"))
    return [*rows, ("measured", f"{host.measured_utc or '?'}, {host.method}")]


def _spreads(host: Host) -> Iterator[tuple[str, str]]:
    """How far nine of ten rounds of measuring lay from a cost, where that was kept."""
    for label, field in _HOST_ROWS:
        if (spread := host.spreads.get(field)) is not None:
            yield label, f" +- {format_us(spread)}"


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
