"""Devices whose times can be predicted, and what a calibration learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torchledger.reporting.document import Block, Document, Section, Sentence, Table, columns

if TYPE_CHECKING:
    from torchledger.calibrating.calibrate import Calibration
    from torchledger.predicting.devices import KnownDevice


def devices_document(found: Sequence[KnownDevice]) -> Document:
    """One row a device: from what its model is, and how well it does."""
    table = Table(
        columns("known_device", "made_of", "rows", "operators_error_pct", "made_utc"),
        tuple(
            (one.name, one.source.partition(" (")[0], one.rows, one.operators_error_pct, one.made_utc) for one in found
        ),
    )
    note = Sentence(
        "Without rows: the nearest model at the rates of the data sheet, with wider intervals. Better for a card of "
        "your own: torchledger calibrate.",
        "quiet",
    )
    return Document((Section("Devices", (table, note)),))


def devices_as_plain(found: Sequence[KnownDevice]) -> list[dict[str, Any]]:
    """The list as JSON."""
    return [asdict(one) for one in found]


def calibration_document(found: Calibration) -> Document:
    """What was measured and learned, and the error at shapes that were not learned from."""
    model = found.model
    blocks: list[Block] = []
    if found.operator_errors_pct:
        rows = sorted(found.operator_errors_pct.items(), key=lambda one: -one[1])
        blocks.append(Table(columns("operator", "mape"), tuple(rows)))
    said = "no shape was left to judge by"
    if model.operators_error_pct is not None and found.within_intervals is not None:
        said = (
            f"mean error over {len(found.operator_errors_pct)} operators at shapes drawn at random "
            f"{model.operators_error_pct:.1f} %, {found.within_intervals:.0%} of them within their intervals"
        )
    blocks.append(
        Sentence(f"{found.labels:,} labels and {found.launches:,} launches in {found.seconds:.0f} s; {said}.")
    )
    blocks.append(Sentence(f"{model.source}; {found.bytes_written / 1e6:.1f} MB.", "quiet"))
    return Document((Section(f"Calibrated {model.device}", tuple(blocks)),))


def calibration_as_plain(found: Calibration) -> dict[str, Any]:
    """The same as JSON."""
    model = found.model
    return {
        "device": model.device,
        "source": model.source,
        "bytes": found.bytes_written,
        "labels": found.labels,
        "launches": found.launches,
        "seconds": round(found.seconds, 1),
        "operators_error_pct": model.operators_error_pct,
        "within_intervals": found.within_intervals,
        "operators": found.operator_errors_pct,
    }
