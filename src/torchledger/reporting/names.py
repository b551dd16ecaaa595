"""The name mystery in one table: what the GPU calls a kernel, what the wrapper calls it, its source, its ATen ops."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from torchledger.nouns import Kernel, Launch
from torchledger.reporting.document import Document, Section, Sentence, Table, as_plain, columns
from torchledger.store import LedgerReader
from torchledger.store.latest import step_measurements


@dataclass(frozen=True)
class KernelNames:
    """One kernel under all its names.

    ``symbols`` are what the device ran (known after a profile); ``shared_with`` are other wrapper names whose source is
    the same, so that they run one binary.
    """

    kernel_name: str
    key: str
    category: str
    symbols: tuple[str, ...]
    aten_ops: tuple[str, ...]
    shared_with: tuple[str, ...]
    launches: int


def kernel_names(reader: LedgerReader) -> list[KernelNames]:
    """All kernels of a ledger, in the order in which they are first launched."""
    symbols: dict[str, dict[str, None]] = defaultdict(dict)
    of_launch = step_measurements(reader)
    launches: dict[tuple[str, str], list[Launch]] = defaultdict(list)
    for launch in reader.iterate(Launch):
        if launch.category == "nop":
            continue
        launches[launch.kernel, launch.kernel_name].append(launch)
        if (measured := of_launch.get(launch.launch_id)) is not None:
            symbols[launch.kernel_name].update(dict.fromkeys(measured.symbols))
    names_of_key: dict[str, list[str]] = defaultdict(list)
    for kernel in reader.read(Kernel):
        names_of_key[kernel.key].append(kernel.name)
    return [
        KernelNames(
            kernel_name=name,
            key=key,
            category=group[0].category,
            symbols=tuple(symbols[name]),
            aten_ops=tuple(dict.fromkeys(op for launch in group for op in launch.aten_ops)),
            shared_with=tuple(other for other in names_of_key[key] if other != name),
            launches=len(group),
        )
        for (key, name), group in launches.items()
    ]


def names_as_plain(names: list[KernelNames]) -> dict[str, Any]:
    """What ``show --names --json`` prints."""
    return {"names": [as_plain(each) for each in names]}


def names_document(names: list[KernelNames]) -> Document:
    """The table, and what it takes to fill it."""
    rows = tuple(
        (
            each.kernel_name,
            each.key,
            ", ".join(each.symbols) or None,
            ", ".join(each.aten_ops) or None,
            ", ".join(each.shared_with) or None,
            each.launches,
        )
        for each in names
    )
    table = Table(columns("kernel_name", "key", "symbols", "aten_ops", "shared_with", "launches"), rows)
    hint = () if any(each.symbols for each in names) else (Sentence("Record with --profile to learn the symbols."),)
    return Document((Section("Names of kernels", (table, *hint)),))
