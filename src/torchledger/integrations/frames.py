"""Results as pandas data frames: one row a record, one column a field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torchledger.errors import UsageError
from torchledger.nouns import RunDiff

if TYPE_CHECKING:
    import pandas

    from torchledger.answers import Ledger


def frame(result: Ledger | RunDiff | Iterable[Any]) -> pandas.DataFrame:
    """A data frame of a ledger's launches, of a comparison's groups, or of any records (samples, predictions).

    Times are in microseconds, as the columns' names say. Raises ``UsageError`` where pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise UsageError("data frames need pandas: pip install torchledger[notebook].") from error
    return pandas.DataFrame(_rows(result))


def _rows(result: Ledger | RunDiff | Iterable[Any]) -> list[dict[str, Any]]:
    from torchledger.answers import Ledger
    from torchledger.reporting.document import as_plain

    if isinstance(result, Ledger):
        return [_launch_row(result, launch) for launch in result.launches]
    if isinstance(result, RunDiff):
        return [
            {
                "change": group.kind,
                "launches_first": len(group.first.launches),
                "launches_second": len(group.second.launches),
                "kernels_first": ", ".join(group.first.kernels),
                "kernels_second": ", ".join(group.second.kernels),
                "source": group.source,
                "module": group.module,
                "delta_us": None if group.delta_ns is None else group.delta_ns / 1e3,
                "delta_bytes": group.delta_bytes,
                "delta_flops": group.delta_flops,
            }
            for group in result.groups
        ]
    return [as_plain(record) for record in result]


def _launch_row(ledger: Ledger, launch: Any) -> dict[str, Any]:
    return {
        "launch": launch.launch_id,
        "graph": launch.graph,
        "kernel": launch.kernel_name,
        "category": launch.category,
        "aten_ops": ", ".join(launch.aten_ops),
        "source": launch.source,
        "module": launch.module,
        "flops": launch.flops,
        "bytes_moved": launch.bytes_moved,
        "duration_us": ledger.duration_us(launch),
    }
