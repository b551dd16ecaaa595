"""One model out of data of every kind."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from torchledger.device.datasheets import device_of_name
from torchledger.errors import FitError
from torchledger.expecting.constants import Constants
from torchledger.expecting.machine import assumptions
from torchledger.fitting.data import gate_public_labels, read_devices, read_operator_samples
from torchledger.fitting.fit import fit, in_processes, now_utc
from torchledger.fitting.launches import LaunchTable, build_launch_tables, fit_launch_table, machine_of_launches
from torchledger.fitting.sample_launches import launches_of_samples
from torchledger.fitting.tables import LeftOut
from torchledger.fitting.time_model import Entry, TimeModel
from torchledger.store.launch_file import SUFFIX, MeasuredLaunch, join_launches, read_launches

log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]


def fit_data(
    paths: Iterable[str | os.PathLike[str]],
    *,
    device: str | None = None,
    group: str | None = None,
    constants: Constants | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[TimeModel, list[LeftOut]]:
    """Fit operator samples and launches of one device into one model; also says what was left out, and why.

    What the device is, the data say, or a data sheet of its name; ``constants`` replace those of its generation.

    Raises ``FitError`` if there is nothing to learn from, or the data come from several devices.
    """
    given = [Path(path) for path in paths]
    of_launches = [path for path in given if path.suffix in (SUFFIX, ".ledger")]
    others = [path for path in given if path not in of_launches]
    samples = gate_public_labels(read_operator_samples(others, group=group)) if others else []
    found = join_launches([read_launches(path) for path in of_launches]) if of_launches else None
    records = read_devices(others)
    if found is not None and found.record is not None:
        records.setdefault(found.device, found.record)
    if samples:
        names = {sample.device for sample in samples}
        record = records.get(device or (names.pop() if len(names) == 1 else ""))
        model, left_out = fit(samples, device=device, jobs=jobs, progress=progress, record=record, constants=constants)
        if found is not None and found.device != model.device:
            raise FitError(f"samples are of {model.device}, launches of {found.device}; a model is of one device.")
    elif found is not None:
        record = found.record or device_of_name(found.device)
        machine = machine_of_launches(record, found.launches, constants=constants)
        model = TimeModel(
            found.device, machine, {}, now_utc(), found.versions, assumptions(machine), record.total_memory_bytes
        )
        left_out = []
    else:
        raise FitError("the data hold neither samples nor launches.")
    if found is not None:
        own = [sample for sample in samples if sample.device == model.device]
        launches = [*found.launches, *launches_of_samples(own)]
        entries, refused = fit_launches(launches, model, jobs=jobs, progress=progress)
        left_out += refused
        model = replace(model, entries=dict(sorted({**model.entries, **entries}.items())))
    if not model.entries:
        raise FitError("there are too few measurements of any kind to learn from.")
    return model, left_out


def read_launch_files(paths: Iterable[str | os.PathLike[str]]) -> list[MeasuredLaunch]:
    """The launches among data of every kind."""
    return [
        launch
        for path in map(Path, paths)
        if path.suffix in (SUFFIX, ".ledger")
        for launch in read_launches(path).launches
    ]


def fit_launches(
    launches: Sequence[MeasuredLaunch],
    model: TimeModel,
    *,
    jobs: int | None = 1,
    progress: Progress | None = None,
) -> tuple[dict[str, Entry], list[LeftOut]]:
    """Fit every family of launches, on the scales of a model, in ``jobs`` processes (``None``: one per core)."""
    tables, left_out = build_launch_tables(launches, model.machine)
    entries = {}
    largest_first = sorted(tables.values(), key=lambda table: len(table.times_us), reverse=True)
    for done, outcome in enumerate(in_processes(_fit_or_say, largest_first, jobs), start=1):
        label = outcome.key if isinstance(outcome, Entry) else outcome.subject
        if isinstance(outcome, Entry):
            entries[outcome.key] = outcome
        else:
            left_out.append(outcome)
        if progress is not None:
            progress(done, len(tables), label)
    return entries, left_out


def _fit_or_say(table: LaunchTable) -> Entry | LeftOut:
    try:
        return fit_launch_table(table)
    except FitError as error:
        return LeftOut(table.family, str(error))
