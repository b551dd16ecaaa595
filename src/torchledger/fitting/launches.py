"""Learning the times of kernel launches: one regressor per family, for any model's kernels."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import FitError
from torchledger.expecting.attention_schedules import SCHEDULED
from torchledger.expecting.constants import Constants
from torchledger.expecting.launch_features import LaunchFeatures, baseline_column, features_of_launches
from torchledger.expecting.machine import Machine, estimate_machine
from torchledger.expecting.rounded_products import as_bfloat16, of_rounded_product
from torchledger.expecting.streaming import UNSEEN, knows_streaming
from torchledger.expecting.tile_columns import EXPECTED
from torchledger.expecting.volume_columns import OF_VOLUMES
from torchledger.fitting.baselines import forest_on_shapes, inductor_of_launch
from torchledger.fitting.evaluate import Errors, Evaluation, errors_of
from torchledger.fitting.learning import Options, fit_blend
from torchledger.fitting.tables import LeftOut
from torchledger.fitting.time_model import Entry
from torchledger.nouns import Device
from torchledger.store.launch_file import MeasuredLaunch

log = logging.getLogger(__name__)

Array = NDArray[np.float64]

_HYPER_ROWS = 320
_HYPER_DRAWS_OF_FUSED = 4
_INDUCING_OF_FUSED = 2048
"""Fused kernels differ in more ways than the calls of one library."""
_ROWS_OF_NETWORKS = 3000
"""Fewer rows teach networks little; convolutions stand on networks already, and more beside them say nothing, but for
those of volumes, of which these know nothing."""
_WITHOUT_SHIFT = ("launch:fused", "launch:convolution")

_RANGE_COLUMNS = (
    "log read",
    "log written",
    "log flops",
    "log iterations",
    "log reduced",
    "log batch",
    "log m",
    "log n",
    "log k",
    "log heads",
    "log length",
    "log d",
    "log channels",
    "log out channels",
    "log pixels",
)
"""Columns that bound what was measured."""


@dataclass(frozen=True)
class LaunchTable:
    """Measured launches of one family: features by column, and times."""

    family: str
    names: tuple[str, ...]
    values: Array
    log_baseline: Array
    roofline_us: Array
    inductor_us: Array
    times_us: Array
    programs: NDArray[np.str_]

    def log_baseline_of(self, feature_names: Sequence[str]) -> Array:
        """[rows] ``log_baseline``, or the column that a regressor with these features learned beside."""
        column = baseline_column(self.family, feature_names)
        if column is None or column not in self.names:
            return self.log_baseline
        scheduled = self.values[:, self.names.index(column)]
        return np.where(scheduled != 0, scheduled, self.log_baseline)

    @property
    def n_range(self) -> int:
        """How many of the first columns bound the range."""
        return sum(name in _RANGE_COLUMNS for name in self.names)


def machine_of_launches(
    device: Device, launches: Sequence[MeasuredLaunch], *, constants: Constants | None = None
) -> Machine:
    """The scales of the device that measured these launches. Raises ``FitError`` if none was measured."""
    known = [
        (item, item.duration_us)
        for item in launches
        if item.duration_us and item.launch.bytes_moved is not None and item.launch.category != "nop"
    ]
    if not known:
        raise FitError("no launch was measured. Record a ledger with `torchledger run --profile`, or `bench` one.")
    dtypes = [_dtype(item) for item, _ in known]
    return estimate_machine(
        device,
        dtype=np.array(dtypes),
        flops=np.array([float(item.launch.flops or 0) for item, _ in known]),
        bytes_moved=np.array([float(item.launch.bytes_moved or 0) for item, _ in known]),
        times_us=np.array([float(time or 0) for _, time in known]),
        constants=constants,
    )


def build_launch_tables(
    launches: Sequence[MeasuredLaunch], machine: Machine, *, convolution_tf32: bool = True, allow_tf32: bool = False
) -> tuple[dict[str, LaunchTable], list[LeftOut]]:
    """Sort measured launches by family; the second list names those that cannot be described.

    ``convolution_tf32`` and ``allow_tf32``: whether convolutions and products of float32 were allowed to be rounded
    (``predict_launches``).
    Launches stand in the order in which they ran, unmeasured ones among them: they tell what the cache holds.
    """
    own = [item.launch for item in launches]
    asked = [as_bfloat16(launch) for launch in own] if allow_tf32 else own
    described = features_of_launches(
        asked,
        machine,
        convolution_tf32=convolution_tf32,
        traffic=[item.traffic for item in launches],
    )
    rows: dict[str, list[tuple[LaunchFeatures, float, str, float]]] = {}
    left_out = []
    for item, stands_for_it, features in zip(launches, asked, described, strict=True):
        if features is not None and stands_for_it is not item.launch:
            features = of_rounded_product(features, item.launch)
        time_us = item.duration_us
        if time_us is None or item.launch.category == "nop":
            continue
        if features is None or not np.isfinite(time_us) or time_us <= 0:
            reason = "its bytes are unknown" if features is None else f"its time is {time_us} us"
            left_out.append(LeftOut(f"{item.program} {item.launch.launch_id} {item.launch.kernel_name}", reason))
            continue
        estimated = inductor_of_launch(item.launch, machine.device)
        row = (features, time_us, item.program, np.nan if estimated is None else estimated)
        rows.setdefault(features.family, []).append(row)
    tables = {}
    for family, found in sorted(rows.items()):
        names = column_names([features for features, _, _, _ in found])
        tables[family] = LaunchTable(
            family=family,
            names=names,
            values=as_matrix([features for features, _, _, _ in found], names),
            log_baseline=np.log([features.baseline_us for features, _, _, _ in found]),
            roofline_us=np.array([features.roofline_us for features, _, _, _ in found]),
            inductor_us=np.array([estimated for _, _, _, estimated in found]),
            times_us=np.array([time_us for _, time_us, _, _ in found]),
            programs=np.array([program for _, _, program, _ in found]),
        )
    return tables, left_out


def column_names(features: Sequence[LaunchFeatures]) -> tuple[str, ...]:
    """All columns that occur, those that bound the range first."""
    names = dict.fromkeys(name for item in features for name in item.values)
    return tuple(sorted(names, key=lambda name: (name not in _RANGE_COLUMNS, list(names).index(name))))


def as_matrix(features: Sequence[LaunchFeatures], names: Sequence[str]) -> Array:
    """One row per launch; a column that a launch lacks is 0."""
    return np.array([list(map(item.values_for(names).get, names, repeat(0.0))) for item in features], dtype=np.float64)


def fit_launch_table(table: LaunchTable, options: Options | None = None) -> Entry:
    """Learn one family. Programs are held out whole; raises ``FitError`` for too few of them."""
    table = _without_former(table)
    merged = merge_alike(table)
    _, groups = np.unique(merged.programs, return_inverse=True)
    log_baseline = merged.log_baseline_of(merged.names)
    options = options or usual_options(table.family, len(merged.times_us))
    values = merged.values.copy()
    if knows_streaming(merged.names):
        values[:, np.isin(merged.names, UNSEEN)] = 0.0
    blend = fit_blend(
        values,
        np.log(merged.times_us) - log_baseline,
        groups.ravel(),
        n_shape=merged.n_range,
        options=options,
        # A few odd kernels of random programs, or the huge convolutions of a sweep, would shift the sums of all models.
        log_baseline=None if table.family.startswith(_WITHOUT_SHIFT) else log_baseline,
    )
    return Entry(
        key=table.family,
        blend=blend,
        feature_names=table.names,
        n_rows=len(table.times_us),
        n_shapes=int(groups.max()) + 1,
        mape=blend.held_out_mape,
    )


def usual_options(family: str, n_rows: int) -> Options:
    """How a family of so many rows is learned."""
    options = Options(hyper_rows=_HYPER_ROWS)
    if family.startswith("launch:fused"):
        options = replace(options, inducing=_INDUCING_OF_FUSED, hyper_draws=_HYPER_DRAWS_OF_FUSED)
    stands_on_networks = family.startswith("launch:convolution") and not family.endswith(OF_VOLUMES)
    if n_rows >= _ROWS_OF_NETWORKS and not stands_on_networks:
        options = replace(options, members=(*options.members, "networks"))
    return options


def _without_former(table: LaunchTable) -> LaunchTable:
    """Without the columns of a schedule that counts waves alone, where blocks were handed out one by one."""
    if SCHEDULED not in table.names:
        return table
    names = tuple(name for name in table.names if name != EXPECTED and not name.startswith(("schedule ", "attention ")))
    return replace(table, names=names, values=align_columns(table.values, table.names, names))


def join_launch_tables(one: LaunchTable, other: LaunchTable) -> LaunchTable:
    """The rows of two tables of one family; a column that one of them lacks is 0 there."""
    names = tuple(sorted(dict.fromkeys((*one.names, *other.names)), key=lambda name: name not in _RANGE_COLUMNS))
    return LaunchTable(
        family=one.family,
        names=names,
        values=np.concatenate([align_columns(each.values, each.names, names) for each in (one, other)]),
        log_baseline=np.concatenate([one.log_baseline, other.log_baseline]),
        roofline_us=np.concatenate([one.roofline_us, other.roofline_us]),
        inductor_us=np.concatenate([one.inductor_us, other.inductor_us]),
        times_us=np.concatenate([one.times_us, other.times_us]),
        programs=np.concatenate([one.programs, other.programs]),
    )


def join_families(*tables: Mapping[str, LaunchTable]) -> dict[str, LaunchTable]:
    """One table for each family that any of these has, with the rows of all."""
    found: dict[str, LaunchTable] = {}
    for family, table in (pair for some in tables for pair in some.items()):
        found[family] = join_launch_tables(found[family], table) if family in found else table
    return found


def merge_alike(table: LaunchTable) -> LaunchTable:
    """One row for the launches of a program that look alike, as those of equal layers do, with their median time."""
    _, program = np.unique(table.programs, return_inverse=True)
    rows = np.concatenate([np.round(table.values, 2), program.reshape(-1, 1)], axis=1)
    _, first, code = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(code.ravel(), kind="stable")
    starts = np.searchsorted(code.ravel()[order], np.arange(len(first)))
    pieces = np.split(order, starts[1:])
    return replace(
        table,
        values=table.values[first],
        log_baseline=table.log_baseline[first],
        roofline_us=table.roofline_us[first],
        inductor_us=table.inductor_us[first],
        times_us=np.array([np.median(table.times_us[piece]) for piece in pieces]),
        programs=table.programs[first],
    )


@dataclass(frozen=True)
class ProgramError:
    """How one held-out model's launches of a kind come out: errors per launch, and of their sum (per cent).

    ``measured_us`` is their measured sum. The forest is there where it was asked for.
    """

    program: str
    kind: str
    errors: Errors
    sum_error_pct: float
    roofline: Errors
    roofline_sum_error_pct: float
    inductor: Errors
    inductor_sum_error_pct: float
    measured_us: float
    forest: Errors | None = None
    forest_sum_error_pct: float | None = None


def evaluate_on_programs(
    entries: dict[str, Entry],
    tables: dict[str, LaunchTable],
    *,
    train: dict[str, LaunchTable] | None = None,
) -> tuple[list[Evaluation], list[ProgramError]]:
    """Ask fitted entries about launches of programs that they never saw.

    The first list has one evaluation per family, the second one row per program and kind (fused, library). The bare
    roofline is scaled by the factor that fits the asked rows themselves best, which is kind to it. With ``train``, a
    random forest that learned microseconds from its bare sizes is asked too.
    """
    evaluations = []
    rows: dict[tuple[str, str], list[tuple[Array, Array, Array, Array, Array]]] = {}
    for family, table in tables.items():
        # A family that was not learned is answered by the baseline, a factor of two either way.
        log_us, width = table.log_baseline, np.full(len(table.times_us), np.log(2.0))
        if family in entries:
            names = entries[family].feature_names
            residual, width, _ = entries[family].predict(align_columns(table.values, table.names, names))
            log_us = table.log_baseline_of(names) + residual
        predicted = np.exp(log_us)
        factor = float(np.median(table.times_us / np.maximum(table.roofline_us, 1e-3)))
        bare = np.maximum(table.roofline_us, 1e-3) * factor
        forest = np.full(len(predicted), np.nan)
        if train is not None:
            forest = _forest(train[family], table) if family in train else bare
        evaluations.append(
            Evaluation(
                family,
                "by model",
                errors_of(predicted, table.times_us, low_us=np.exp(log_us - width), high_us=np.exp(log_us + width)),
                {"roofline": errors_of(bare, table.times_us)},
            )
        )
        kind = "fused" if family.startswith("launch:fused") else "library"
        for program in np.unique(table.programs):
            own = table.programs == program
            rows.setdefault((str(program), kind), []).append(
                (predicted[own], table.times_us[own], bare[own], table.inductor_us[own], forest[own])
            )
    found = []
    for (program, kind), parts in sorted(rows.items()):
        predicted, measured, bare, inductor, forest = (np.concatenate(column) for column in zip(*parts, strict=True))
        found.append(
            ProgramError(
                program=program,
                kind=kind,
                errors=errors_of(predicted, measured),
                sum_error_pct=float(100 * (predicted.sum() / measured.sum() - 1)),
                roofline=errors_of(bare, measured),
                roofline_sum_error_pct=float(100 * (bare.sum() / measured.sum() - 1)),
                inductor=errors_of(inductor, measured),
                inductor_sum_error_pct=float(100 * (inductor.sum() / measured.sum() - 1)),
                measured_us=float(measured.sum()),
                forest=None if train is None else errors_of(forest, measured),
                forest_sum_error_pct=None if train is None else float(100 * (forest.sum() / measured.sum() - 1)),
            )
        )
    return evaluations, found


def _forest(train: LaunchTable, asked: LaunchTable) -> Array:
    merged = merge_alike(train)
    names = merged.names[: merged.n_range]
    shapes = align_columns(asked.values, asked.names, names)
    return forest_on_shapes(merged.values[:, : merged.n_range], merged.times_us, shapes)


def align_columns(values: Array, names: Sequence[str], wanted: Sequence[str]) -> Array:
    """The wanted columns; one that is not there is 0."""
    place = {name: index for index, name in enumerate(names)}
    columns = [values[:, place[name]] if name in place else np.zeros(len(values)) for name in wanted]
    return np.stack(columns, axis=1)


def _dtype(item: MeasuredLaunch) -> str:
    names = [buffer.dtype for buffer in item.launch.buffers if buffer.dtype in ("bfloat16", "float16", "float32")]
    return max(set(names), key=names.count) if names else "float32"
