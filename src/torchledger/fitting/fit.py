"""The fit: from samples to a model of one device's times."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np

import torchledger
from torchledger.device.datasheets import device_of_name
from torchledger.errors import FitError
from torchledger.expecting.constants import Constants
from torchledger.expecting.machine import Machine, assumptions
from torchledger.expecting.operator_features import reduce_features
from torchledger.fitting.learning import Options, fit_blend
from torchledger.fitting.tables import LeftOut, SampleTable, build_tables, machine_of_tables, pool_tables, shape_groups
from torchledger.fitting.time_model import Entry, TimeModel, with_units
from torchledger.nouns import Device, Sample
from torchledger.operators import load_operators, loaded_operator_files

log = logging.getLogger(__name__)

_USUAL = Options(trees=120)
_MANY_ROWS = 4000
_BESIDE_NETWORKS, _OF_CONVOLUTIONS = replace(_USUAL, inducing=160), Options(trees=20, members=("trees",))
"""Beside a network that has learned a library's choices, trees learn the rest of many rows and a process adds little:
it need not be a slow one. Of convolutions there is next to nothing left to learn: a process gets no weight, and more
trees err no less."""

Progress = Callable[[int, int, str], None]
Given = TypeVar("Given")
Made = TypeVar("Made")


def fit(
    samples: Iterable[Sample],
    *,
    device: str | None = None,
    options: Options | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    record: Device | None = None,
    constants: Constants | None = None,
) -> tuple[TimeModel, list[LeftOut]]:
    """Learn the times of every operator and direction among the samples of one device.

    Returns the model and what was left out, with reasons: samples without a usable time, operators with too few shapes.
    ``device`` picks one device's samples out of several, ``record`` says what it is (else its data sheet does, if its
    name has one) and ``constants`` replace those of its generation; ``progress(done, total, entry)`` is called after
    each entry.
    Raises ``FitError`` if nothing can be learned, or for samples of several devices when none is named.
    """
    samples = list(samples)
    names = sorted({sample.device for sample in samples})
    if device is None and len(names) > 1:
        raise FitError(f"the samples come from {', '.join(names)}; a model is of one device. Choose one with --device.")
    if device is not None:
        samples = [sample for sample in samples if sample.device == device]
    if not samples:
        raise FitError(f"no samples of {device or 'any device'}; there are some of {', '.join(names) or 'none'}.")
    tables, left_out = build_tables(samples)
    if not tables:
        raise FitError(f"none of the {len(samples)} samples has a usable time: {left_out[0].reason}.")
    record = record or device_of_name(samples[0].device)
    machine = machine_of_tables(record, list(tables.values()), constants=constants)
    tables, _ = pool_tables(tables)
    entries: dict[str, Entry] = {}
    for done, outcome in enumerate(_fit_all(list(tables.values()), machine, options, jobs), start=1):
        if isinstance(outcome, Entry):
            entries[outcome.key] = outcome
            label = outcome.key
        else:
            left_out.append(outcome)
            log.warning("%s is left out: %s", outcome.subject, outcome.reason)
            label = outcome.subject
        if progress is not None:
            progress(done, len(tables), label)
    if not entries:
        raise FitError(f"no operator has enough shapes to learn from: {left_out[-1].subject}: {left_out[-1].reason}.")
    versions = dict(samples[0].versions) | {"torchledger": torchledger.__version__}
    model = TimeModel(
        device=samples[0].device,
        machine=machine,
        entries={key: entries[key] for key in sorted(entries)},
        created_utc=now_utc(),
        versions=versions,
        notes=assumptions(machine),
        total_memory_bytes=record.total_memory_bytes,
    )
    return model, left_out


def now_utc() -> str:
    """The moment, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def fit_entry(table: SampleTable, machine: Machine, options: Options | None = None) -> Entry:
    """Learn one table. Raises ``FitError`` if it holds too few shapes."""
    features = table.features(machine)
    if options is None:
        options = _USUAL
        if features.has_learned_baseline and len(table) >= _MANY_ROWS:
            options = _OF_CONVOLUTIONS if table.operator == "conv2d" else _BESIDE_NETWORKS
    features = reduce_features(features, options.physics, options.baseline)
    target = np.log(table.times_us) - features.log_baseline
    units = tuple(str(unit) for unit in np.unique(table.units)) if len(np.unique(table.units)) > 1 else ()
    values = features.values
    if units:
        values = with_units(values, np.searchsorted(units, table.units), len(units))
    groups = shape_groups(features)
    blend = fit_blend(values, target, groups, n_shape=features.n_shape, options=options)
    return Entry(
        key=table.key,
        blend=blend,
        feature_names=(*features.names, *(f"unit {unit}" for unit in units)),
        units=units,
        dtypes=tuple(str(dtype) for dtype in np.unique(table.dtypes)),
        n_rows=len(table),
        n_shapes=int(groups.max()) + 1,
        mape=blend.held_out_mape,
    )


def _fit_all(
    tables: list[SampleTable], machine: Machine, options: Options | None, jobs: int | None
) -> Iterable[Entry | LeftOut]:
    """Entries as they are done, the largest tables begun first."""
    largest_first = sorted(tables, key=len, reverse=True)
    return in_processes(partial(_fit_or_say, machine=machine, options=options), largest_first, jobs)


def _fit_or_say(table: SampleTable, machine: Machine, options: Options | None) -> Entry | LeftOut:
    try:
        return fit_entry(table, machine, options)
    except FitError as error:
        return LeftOut(table.key, str(error))


def in_processes(work: Callable[[Given], Made], items: Sequence[Given], jobs: int | None) -> Iterator[Made]:
    """What ``work`` makes of each item, as it is done, in ``jobs`` processes (``None``: one per core) of one thread."""
    jobs = min(jobs or os.cpu_count() or 1, len(items))
    if jobs <= 1:
        with _threads(1):
            yield from map(work, items)
        return
    begin = partial(_begin_process, loaded_operator_files())
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=begin) as pool:
        for future in as_completed([pool.submit(work, item) for item in items]):
            yield future.result()


def _begin_process(operator_files: Sequence[str]) -> None:
    for path in operator_files:
        load_operators(path)
    # Processes share the cores: threads would only get in each other's way. numpy's library is there already, those of
    # scikit-learn read the variables when they are loaded.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    _threads(1)


def _threads(count: int) -> Any:
    from threadpoolctl import threadpool_limits

    return threadpool_limits(count)
