"""Samples, sorted into one table of numbers per operator and direction."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.constants import Constants
from torchledger.expecting.machine import Machine, estimate_machine
from torchledger.expecting.operator_features import FeatureTable, operator_features
from torchledger.nouns import Device, Sample
from torchledger.operators import find_operator
from torchledger.work.element_sizes import ELEMENT_SIZES

log = logging.getLogger(__name__)

_RICHER = 1

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SampleTable:
    """Measured times of one operator in one direction; arrays hold one entry per sample.

    ``units`` says which unit of the device measured a row (two cards of one name differ by some per cent), ``""`` where
    that is not known.
    """

    operator: str
    direction: str
    parameters: Mapping[str, NDArray[np.int64]]
    dtypes: NDArray[np.str_]
    times_us: Array
    units: NDArray[np.str_]

    @property
    def key(self) -> str:
        """``"linear/forward"``."""
        return f"{self.operator}/{self.direction}"

    def __len__(self) -> int:
        return len(self.times_us)

    def select(self, rows: NDArray[Any]) -> SampleTable:
        """The table of some rows, by mask or by number."""
        return replace(
            self,
            parameters={name: column[rows] for name, column in self.parameters.items()},
            dtypes=self.dtypes[rows],
            times_us=self.times_us[rows],
            units=self.units[rows],
        )

    def features(self, machine: Machine) -> FeatureTable:
        """What the regressors see of each row."""
        return operator_features(find_operator(self.operator), self.parameters, self.direction, self.dtypes, machine)


@dataclass(frozen=True)
class LeftOut:
    """A sample that is not learned from, and why."""

    subject: str
    reason: str


def build_tables(samples: Iterable[Sample]) -> tuple[dict[str, SampleTable], list[LeftOut]]:
    """Sort samples into tables by ``operator/direction``; the second list names those that cannot be used.

    A sample's time is the median of its active iterations; its unit is its telemetry's ``unit``.
    """
    sorted_samples: dict[str, list[tuple[Sample, float]]] = {}
    left_out = []
    for sample in samples:
        subject = describe(sample)
        if sample.status != "ok":
            left_out.append(LeftOut(subject, sample.reason or sample.status))
            continue
        time_us = float(np.median(sample.times_us)) if sample.times_us else float("nan")
        if not np.isfinite(time_us) or time_us <= 0:
            left_out.append(LeftOut(subject, f"its time is {time_us} us"))
            continue
        sorted_samples.setdefault(f"{sample.operator}/{sample.direction}", []).append((sample, time_us))
    tables = {}
    for key, rows in sorted_samples.items():
        operator = find_operator(rows[0][0].operator)
        resolved = [operator.resolve(sample.parameters) for sample, _ in rows]
        tables[key] = SampleTable(
            operator=operator.key,
            direction=rows[0][0].direction,
            parameters={
                name: np.array([int(parameters[name]) for parameters in resolved])
                for name in (*operator.parameters, *operator.defaults)
            },
            dtypes=np.array([sample.dtype for sample, _ in rows]),
            times_us=np.array([time_us for _, time_us in rows]),
            units=np.array([str(sample.telemetry.get("unit") or "") for sample, _ in rows]),
        )
    return tables, left_out


def to_general(table: SampleTable) -> SampleTable | None:
    """The same rows as the general operator that they amount to; ``None`` where they do not run just its kernels."""
    operator = find_operator(table.operator)
    form = operator.general_form(operator.resolve(table.parameters))
    if form is None or table.direction == "step":
        return None
    general = find_operator(form[0])
    resolved = general.resolve({name: _as_column(value, len(table)) for name, value in form[1].items()})
    kernels = operator.work(operator.resolve(table.parameters), table.direction, 2)
    if table.direction not in general.directions or len(general.work(resolved, table.direction, 2)) != len(kernels):
        return None
    parameters = {name: _as_column(resolved[name], len(table)) for name in (*general.parameters, *general.defaults)}
    return replace(table, operator=general.key, parameters=parameters)


def pool_tables(tables: Mapping[str, SampleTable]) -> tuple[dict[str, SampleTable], dict[str, str]]:
    """Join tables that measure the same kernels under two names, where the general one is the richer.

    The second value maps the key of each table that went into another to that other's key.
    """
    pooled, moved = dict(tables), {}
    for key, table in tables.items():
        general = to_general(table)
        if general is None or general.key not in tables or len(tables[general.key]) < _RICHER * len(table):
            continue
        pooled[general.key] = join_tables(pooled[general.key], general)
        del pooled[key]
        moved[key] = general.key
    return pooled, moved


def join_tables(one: SampleTable, other: SampleTable) -> SampleTable:
    """The rows of two tables of one operator and direction."""
    return replace(
        one,
        parameters={name: np.concatenate([one.parameters[name], other.parameters[name]]) for name in one.parameters},
        dtypes=np.concatenate([one.dtypes, other.dtypes]),
        times_us=np.concatenate([one.times_us, other.times_us]),
        units=np.concatenate([one.units, other.units]),
    )


def _as_column(value: Any, count: int) -> NDArray[np.int64]:
    return np.broadcast_to(np.asarray(value, dtype=np.int64), (count,)).copy()


def describe(sample: Sample) -> str:
    """A sample in one line: ``"linear forward bfloat16 m=64 k=32 n=8"``."""
    shape = " ".join(f"{name}={value}" for name, value in sample.parameters.items())
    return f"{sample.operator} {sample.direction} {sample.dtype} {shape}"


def machine_of_tables(device: Device, tables: Sequence[SampleTable], *, constants: Constants | None = None) -> Machine:
    """The scales of the device that measured these tables."""
    flops, moved = [], []
    for table in tables:
        item_size = np.array([ELEMENT_SIZES[str(dtype)] for dtype in table.dtypes])
        operator = find_operator(table.operator)
        works = operator.work(operator.resolve(table.parameters), table.direction, item_size)  # type: ignore[arg-type]
        flops.append(sum((np.asarray(work.flops) for work in works), start=np.zeros(len(table))))
        moved.append(sum((np.asarray(work.bytes_moved) for work in works), start=np.zeros(len(table))))
    return estimate_machine(
        device,
        dtype=np.concatenate([table.dtypes for table in tables]),
        flops=np.concatenate(flops).astype(np.float64),
        bytes_moved=np.concatenate(moved).astype(np.float64),
        times_us=np.concatenate([table.times_us for table in tables]),
        constants=constants,
    )


def shape_groups(features: FeatureTable) -> NDArray[np.int64]:
    """A number for each distinct shape vector, in the order of first appearance."""
    _, first, code = np.unique(np.round(features.shape, 6), axis=0, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return np.asarray(rank[code.ravel()])
