"""Which record goes into which table, and the history of the format.

A table holds the fields that one wants to select by as columns and the whole record as JSON in ``body``.

Format history
--------------
1 (2026-11): first version.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torchledger import nouns

SCHEMA_VERSION = 1
OLDEST_READABLE_VERSION = 1
APPLICATION_ID = 0x544C4752  # "TLGR", so that `file` and we can tell a ledger from another SQLite database


@dataclass(frozen=True)
class Table:
    """A table: its name, the fields (or properties) that are columns, and how many of the first are a unique key."""

    name: str
    columns: tuple[str, ...]
    unique: int = 0


TABLES: dict[type, Table] = {
    nouns.Run: Table("runs", ("run_id", "status"), unique=1),
    nouns.Graph: Table("graphs", ("name", "direction", "compile_id", "cache_key"), unique=1),
    nouns.Kernel: Table("kernels", ("key", "name", "category", "backend"), unique=2),
    nouns.Launch: Table(
        "launches",
        (
            "graph",
            "order",
            "kernel",
            "kernel_name",
            "category",
            "device",
            "flops",
            "vector_flops",
            "bytes_read",
            "bytes_written",
            "is_call",
            "flops_quality",
            "bytes_quality",
            "source",
            "module",
            "reason",
        ),
        unique=2,
    ),
    nouns.Stage: Table("stages", ("graph", "stage"), unique=2),
    nouns.Compilation: Table("compilations", ("compile_id", "function", "source", "reason")),
    nouns.Gap: Table("gaps", ("account", "where")),
    nouns.Difference: Table("differences", ("account", "where")),
    nouns.DryRun: Table("dry_runs", ("device",)),
    nouns.EagerCount: Table("eager_counts", ("ledger_flops",)),
    nouns.Measurement: Table("measurements", ("subject", "kind", "clock")),
    nouns.ValueStats: Table("value_stats", ("subject", "call_index", "buffer", "moment")),
    nouns.ValueTable: Table("value_tables", ("key",), unique=1),
    nouns.ValueCall: Table("value_calls", ("table", "call_index", "sequence")),
    nouns.ValueFinding: Table("value_findings", ("subject", "call_index", "question", "verdict", "sequence")),
    nouns.ValueComparison: Table("value_comparisons", ("subject", "call_index", "is_within", "compiled_error")),
    nouns.WatchedGraph: Table("watched_graphs", ("graph", "launches", "watched", "seen", "calls")),
    nouns.Breakdown: Table("breakdowns", ("source", "clock", "kernel_us", "wall_us", "busy_us")),
    nouns.Profile: Table("profiles", ("clock", "inside_us", "matched_us")),
    nouns.Timeline: Table("timelines", ("clock", "step")),
    nouns.Step: Table("steps", ("name", "found_by", "device_us"), unique=1),
    nouns.StepCall: Table("step_calls", ("step", "order", "kind", "name", "phase"), unique=2),
    nouns.Collective: Table("collectives", ("step", "index", "order", "operation", "group"), unique=3),
    nouns.RankActivity: Table("activities", ("step", "clock"), unique=1),
    nouns.StepMemory: Table("step_memories", ("step", "device", "measured_peak_bytes"), unique=1),
    nouns.LiveStorage: Table("live_storages", ("step", "number", "category", "nbytes"), unique=2),
    nouns.Prediction: Table("predictions", ("subject", "device", "model")),
    nouns.StepPrediction: Table("step_predictions", ("subject", "mode", "device")),
}


def create_statements(present: Collection[str] = ()) -> list[str]:
    """The SQL that makes an empty ledger, or adds the tables that one lacks which has those ``present``."""
    statements = []
    for table in TABLES.values():
        if table.name in present:
            continue
        columns = ", ".join(f'"{column}"' for column in table.columns)
        statements.append(f'CREATE TABLE "{table.name}" ({columns}, body TEXT NOT NULL)')
        if table.unique:
            key = ", ".join(f'"{column}"' for column in table.columns[: table.unique])
            statements.append(f'CREATE UNIQUE INDEX "{table.name}_key" ON "{table.name}" ({key})')
    return statements
