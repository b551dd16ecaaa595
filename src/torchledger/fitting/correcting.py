"""What differs between devices, learned from few rows: corrections of the entries of a transferred model.

A transferred model answers with another device's structure at this device's rates. The rest is small and smooth: first
what all operators have in common in it (``common_correction.py``), then what is an entry's own. Tens of rows an entry
say most of that: each gets a regressor of ``log(time / answer)``, or a constant where that does as well on rows held
out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.machine import Machine
from torchledger.fitting.carrying import answer
from torchledger.fitting.common_correction import learn_common, with_common
from torchledger.fitting.fit import in_processes
from torchledger.fitting.launches import (
    LaunchTable,
    align_columns,
    build_launch_tables,
    join_families,
    merge_alike,
)
from torchledger.fitting.learning import COVERAGE, MIN_SHAPES, Options, constant_blend, fit_blend
from torchledger.fitting.sample_launches import launches_of_samples
from torchledger.fitting.tables import LeftOut, SampleTable, build_tables, join_tables, shape_groups, to_general
from torchledger.fitting.time_model import Entry, TimeModel
from torchledger.nouns import Sample
from torchledger.operators import find_operator
from torchledger.store.launch_file import MeasuredLaunch

Array = NDArray[np.float64]
Progress = Callable[[int, int, str], None]

_FEW = Options(trees=60, inducing=256, hyper_rows=240)
"""Corrections are smoother than times, and their rows few."""
_MANY = Options(trees=160, inducing=512, hyper_rows=400)
_MANY_ROWS = 1500
_MOST_ROWS = 5000
"""Rows of one entry that a correction learns from at most: more say nothing new, and take their time."""
_LITTLE_KNOWN = 3.0
"""Rows that the other device's word is worth at most."""
_KNOWN_ROWS = 4.0
"""After so many rows half of a transferred interval's widening is left."""


def correct_model(
    model: TimeModel,
    samples: Sequence[Sample],
    launches: Sequence[MeasuredLaunch] = (),
    *,
    rounded: Sequence[MeasuredLaunch] = (),
    others: Sequence[TimeModel] = (),
    options: Options | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[TimeModel, list[LeftOut]]:
    """A transferred model with corrections learned from this device's own measurements; and what they left out.

    Entries without measurements stay as they were transferred but for what operators have in common, with the widened
    interval of that. ``rounded`` are launches of programs whose products of float32 were allowed to be rounded for the
    tensor cores. ``others`` are models transferred to the same machine by another way: each entry starts from the one
    whose answers need the least.
    """
    tables, left_out = operator_tables(model, samples)
    work: list[tuple[Entry, SampleTable | LaunchTable]] = [(model.entries[key], table) for key, table in tables.items()]
    everything = [*launches, *launches_of_samples(as_general(sample) for sample in samples)]
    if everything or rounded:
        of_launches, refused = build_launch_tables(everything, model.machine)
        of_rounded, refused_too = build_launch_tables(rounded, model.machine, allow_tf32=True)
        left_out += [*refused, *refused_too]
        of_launches = join_families(of_launches, of_rounded)
        work += [(model.entries[key], table) for key, table in of_launches.items() if key in model.entries]
    found = [
        min((_rows(start, table, model.machine) for start in (entry, *_same(others, entry.key))), key=_unevenness)
        for entry, table in work
    ]
    entries, found = _share(dict(model.entries), found)
    found.sort(key=lambda rows: -len(rows.target))
    learn = partial(_correct, prior_rows=_prior_rows(found), options=options)
    corrected = in_processes(learn, found, jobs)
    for done, entry in enumerate(corrected, start=1):
        entries[entry.key] = entry
        if progress is not None:
            progress(done, len(work), entry.key)
    return replace(model, entries=dict(sorted(entries.items()))), left_out


def correct_again(model: TimeModel, samples: Sequence[Sample], keys: Collection[str]) -> TimeModel:
    """A corrected model whose regressors of some entries were learned anew: their last correction, which was this
    device's own, is learned again from its samples. Entries without samples, or without corrections, stay as they are.
    """
    tables, _ = operator_tables(model, samples)
    found = [
        _rows(replace(entry, corrections=entry.corrections[:-1]), table, model.machine)
        for key, table in tables.items()
        if (entry := model.entries[key]).corrections
    ]
    prior_rows = _prior_rows(found)
    again = [_correct(rows, prior_rows, None) for rows in found if rows.entry.key in keys]
    # How far an answer was off that nobody measured went into the entry when it was first corrected.
    kept = {entry.key: replace(entry, spread=model.entries[entry.key].spread) for entry in again}
    return replace(model, entries={**model.entries, **kept})


def _share(entries: dict[str, Entry], found: list[_Rows]) -> tuple[dict[str, Entry], list[_Rows]]:
    """All operators with what is common to those that were measured, if anything is, and the rows after that."""
    common = learn_common(
        [rows.entry for rows in found],
        [rows.values for rows in found],
        [rows.target for rows in found],
        options=_FEW,
    )
    if common is None:
        return entries, found
    entries = {key: with_common(entry, common) for key, entry in entries.items()}
    return entries, [_after(rows, with_common(rows.entry, common)) for rows in found]


def _after(rows: _Rows, entry: Entry) -> _Rows:
    """The rows as the entry stands that one more correction was added to."""
    if entry is rows.entry:
        return rows
    features, before = rows.values[:, :-1], rows.values[:, -1]
    middle, _ = entry.corrected(features, before, np.zeros_like(before), len(rows.entry.corrections))
    values = np.concatenate([features, middle[:, None]], axis=1)
    return replace(rows, entry=entry, values=values, target=rows.target - (middle - before))


def as_general(sample: Sample) -> Sample:
    """The sample under the name of the general operator that it amounts to, as launches know them; else itself."""
    operator = find_operator(sample.operator)
    form = operator.general_form(operator.resolve(sample.parameters))
    if form is None or sample.direction != "forward":
        return sample
    return replace(sample, operator=form[0], parameters={name: int(value) for name, value in form[1].items()})


def _same(models: Sequence[TimeModel], key: str) -> list[Entry]:
    return [model.entries[key] for model in models if key in model.entries]


def operator_tables(model: TimeModel, samples: Sequence[Sample]) -> tuple[dict[str, SampleTable], list[LeftOut]]:
    """Samples by the model's entries that answer for them."""
    tables, left_out = build_tables(samples)
    found: dict[str, SampleTable] = {}
    for key, table in tables.items():
        own: SampleTable | None = table
        if key not in model.entries:
            own = to_general(table)
        if own is None or own.key not in model.entries:
            left_out.append(LeftOut(key, f"the model of {model.device} has no entry for it"))
            continue
        found[own.key] = join_tables(found[own.key], own) if own.key in found else own
    return found, left_out


@dataclass(frozen=True)
class _Rows:
    """What an entry is corrected by: its features and answers, and by how much these are off, in logarithms."""

    entry: Entry
    values: Array
    target: Array
    groups: NDArray[np.int64]
    n_shape: int
    dtypes: tuple[str, ...]
    log_answer: Array | None
    """Where sums of times count, as they do over the launches of a step."""


def _rows(entry: Entry, table: SampleTable | LaunchTable, machine: Machine) -> _Rows:
    dtypes = set(entry.dtypes)
    if isinstance(table, SampleTable):
        chosen = np.sort(np.random.default_rng(0).permutation(len(table))[:_MOST_ROWS])
        table = table.select(chosen)
        features, middle, _, _ = answer(entry, machine, table.features)
        values, groups, n_shape = features.values, shape_groups(features), features.n_shape
        log_baseline, times_us = features.log_baseline, table.times_us
        dtypes |= {str(dtype) for dtype in np.unique(table.dtypes)}
    else:
        merged = merge_alike(table)
        values = align_columns(merged.values, merged.names, entry.feature_names)
        _, groups = np.unique(merged.programs, return_inverse=True)
        log_baseline = merged.log_baseline_of(entry.feature_names)
        n_shape, times_us = merged.n_range, merged.times_us
        middle, _, _ = entry.predict(values)
    is_library_call = isinstance(table, LaunchTable) and "fused" not in table.family
    return _Rows(
        entry=entry,
        values=np.concatenate([values, middle[:, None]], axis=1),
        target=np.log(times_us) - log_baseline - middle,
        groups=np.asarray(groups).ravel(),
        n_shape=n_shape,
        dtypes=tuple(sorted(dtypes)),
        log_answer=log_baseline + middle if is_library_call else None,
    )


def _unevenness(rows: _Rows) -> float:
    """How far answers are off from one row to the next, and how far from the truth: the first is hard to correct."""
    middle = float(np.median(rows.target))
    return float(np.mean(np.abs(rows.target - middle))) + abs(middle) / (1 + len(rows.target))


def _prior_rows(found: Sequence[_Rows]) -> float:
    """How many rows the word of the other device is worth (empirical Bayes): the variance within an entry over that of
    the entries' middles, so that where devices differ much few rows of one's own are believed."""
    middles = np.array([np.median(rows.target) for rows in found])
    within = [np.median(np.abs(rows.target - np.median(rows.target))) for rows in found if len(rows.target) > 3]
    if not within:
        return _LITTLE_KNOWN
    return float(np.clip((1.48 * np.median(within)) ** 2 / max(np.mean(middles**2), 1e-6), 0.02, _LITTLE_KNOWN))


def _correct(rows: _Rows, prior_rows: float, options: Options | None) -> Entry:
    target = rows.target
    shrunken = float(np.median(target)) * len(target) / (len(target) + prior_rows)
    blend = constant_blend(rows.values, target, shrunken, n_shape=rows.n_shape, coverage=COVERAGE)
    n_shapes = len(np.unique(rows.groups))
    if n_shapes >= MIN_SHAPES:
        columns = _columns(rows)
        learned = fit_blend(
            rows.values[:, columns],
            target,
            rows.groups,
            n_shape=rows.n_shape,
            options=options or (_MANY if len(target) >= _MANY_ROWS else _FEW),
            log_baseline=rows.log_answer,
        )
        if learned.held_out_mape < blend.held_out_mape:
            blend = replace(learned, columns=columns[learned.columns])
    return replace(
        rows.entry,
        corrections=(*rows.entry.corrections, blend),
        # Of few rows one does not know how far the next will be off.
        spread=rows.entry.spread / (1 + len(target) / _KNOWN_ROWS) if blend.weight_inside == 0 else 0.0,
        dtypes=rows.dtypes,
        n_rows=len(target),
        n_shapes=n_shapes,
        mape=blend.held_out_mape,
    )


def _columns(rows: _Rows) -> NDArray[np.int64]:
    """The columns that a correction goes by: of few rows of an operator the question, what it was expected to take and
    the answer. How shapes divide and align is in the answer as far as devices have that in common, and many columns
    drown what few rows tell."""
    every = np.arange(rows.values.shape[1])
    if rows.entry.key.startswith("launch:") or len(rows.target) >= _MANY_ROWS:
        return every
    return np.array([*every[: rows.n_shape], rows.entry.feature_names.index("log expected"), every[-1]])


_ROUNDING = 1e-9
"""By how much a logarithm may be off that is computed in another order."""


def error_pct(model: TimeModel, samples: Sequence[Sample]) -> tuple[float | None, dict[str, float], float | None]:
    """Mean error in per cent over the operators' means, these by operator, and the share of times within their
    intervals: of samples that were not learned from. ``None`` where there are none."""
    tables, _ = build_tables(samples)
    by_operator: dict[str, list[Array]] = {}
    held: list[NDArray[np.bool_]] = []
    for key, table in tables.items():
        own = table if key in model.entries else to_general(table)
        if own is None or own.key not in model.entries:
            continue
        features, middle, width, _ = answer(model.entries[own.key], model.machine, own.features)
        error = middle + features.log_baseline - np.log(own.times_us)
        by_operator.setdefault(table.operator, []).append(100 * np.abs(np.expm1(error)))
        held.append(np.abs(error) <= width + _ROUNDING)
    means: Mapping[str, float] = {name: float(np.mean(np.concatenate(all_))) for name, all_ in by_operator.items()}
    if not means:
        return None, {}, None
    return float(np.mean(list(means.values()))), dict(means), float(np.mean(np.concatenate(held)))
