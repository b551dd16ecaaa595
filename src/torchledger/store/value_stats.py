"""Statistics of values out of a ledger, whichever way they were written: as records, or as a call's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchledger.errors import StoreError
from torchledger.nouns import ValueCall, ValueStats, ValueTable
from torchledger.nouns.value_stats import expand
from torchledger.store.ledger import LedgerReader


def iterate_value_stats(reader: LedgerReader, **where: Any) -> Iterator[ValueStats]:
    """All statistics of a ledger; ``where`` selects by fields, as in ``reader.iterate(ValueStats, ...)``.

    Raises ``StoreError`` if a call's numbers are damaged.
    """
    yield from reader.iterate(ValueStats, **where)
    tables = {table.key: table for table in reader.iterate(ValueTable)}
    for call in reader.iterate(ValueCall) if tables else ():
        if call.table not in tables:
            raise StoreError(f"{reader.path} has numbers of {call.table}, but not what they are of: it is damaged.")
        try:
            for stats in expand(tables[call.table], call):
                if all(getattr(stats, name) == value for name, value in where.items()):
                    yield stats
        except ValueError as error:
            raise StoreError(f"{reader.path} is damaged: {error}.") from error


def count_value_stats(reader: LedgerReader) -> int:
    """How many statistics a ledger holds."""
    sizes = {table.key: len(table.entries) for table in reader.iterate(ValueTable)}
    return reader.count(ValueStats) + sum(sizes.get(table, 0) for (table,) in reader.columns(ValueCall, "table"))
