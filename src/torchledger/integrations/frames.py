"""Results as pandas data frames: one row a record, one column a field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torchledger.errors import UsageError
from torchledger.nouns import Launch, RunDiff
from torchledger.reporting.document import as_plain

if TYPE_CHECKING:
    import pandas


class Framed(Protocol):
    """What makes its own data frame, as a loaded ledger does."""

    def to_frame(self) -> pandas.DataFrame:
        """The data frame."""


def frame(result: Framed | RunDiff | Iterable[Any]) -> pandas.DataFrame:
    """A data frame of a ledger's launches, of a comparison's groups, or of any records (samples, predictions).

    Times are in microseconds, as the columns' names say. Raises ``UsageError`` where pandas is not installed.
    """
    made = getattr(result, "to_frame", None)
    return _pandas().DataFrame(_rows(result)) if made is None else made()  # type: ignore[arg-type]


def launch_frame(launches: Sequence[Launch], duration_us: Callable[[Launch], float | None]) -> pandas.DataFrame:
    """A row a launch, with what ``duration_us`` knows of its time."""
    return _pandas().DataFrame([_launch_row(launch, duration_us(launch)) for launch in launches])


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise UsageError("data frames need pandas: pip install torchledger[notebook].") from error
    return pandas


def _rows(result: RunDiff | Iterable[Any]) -> list[dict[str, Any]]:
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


def _launch_row(launch: Launch, duration_us: float | None) -> dict[str, Any]:
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
        "duration_us": duration_us,
    }
