"""Reading what a fit can learn from, whatever form it has."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torchledger.errors import FitError
from torchledger.nouns import Device, Sample


def read_operator_samples(paths: Iterable[str | os.PathLike[str]], *, group: str | None = None) -> list[Sample]:
    """The samples of data sets (a Parquet file or a data folder) and of the guide's CSV files or folders of them.

    ``group`` keeps only the samples that were drawn for that purpose (``"train"``, ``"held_out"``).

    Raises ``FitError`` for a path that is none of these, ``SampleError`` for one that is damaged.
    """
    from torchledger.sampling.dataset import PARQUET_FILE, read_samples
    from torchledger.sampling.guide_csv import read_guide_csv, read_guide_folder
    from torchledger.sampling.journal import JOURNAL_FOLDER

    samples: list[Sample] = []
    for given in paths:
        path = Path(given)
        if not path.exists():
            raise FitError(f"{path} does not exist. Give samples (.parquet or a folder) or the guide's CSV files.")
        if path.suffix == ".csv":
            samples += read_guide_csv(path)
        elif path.is_dir() and not (path / PARQUET_FILE).exists() and not (path / JOURNAL_FOLDER).exists():
            found = read_guide_folder(path)
            if not found:
                raise FitError(f"{path} holds neither a data set nor CSV files named as the guide's are.")
            samples += found
        else:
            samples += read_samples(path)
    return of_group(samples, group)


def read_devices(paths: Iterable[str | os.PathLike[str]]) -> dict[str, Device]:
    """What the devices of data sets are, by name, as far as the data say."""
    from torchledger.sampling.sets import devices_of_set

    return {name: device for path in paths for name, device in devices_of_set(path).items()}


def of_group(samples: list[Sample], group: str | None) -> list[Sample]:
    """The samples that were drawn for a purpose, or all. Raises ``FitError`` if there are none."""
    if group is None:
        return samples
    chosen = [sample for sample in samples if sample.group == group]
    if not chosen:
        groups = sorted({str(sample.group) for sample in samples})
        raise FitError(f"no samples of group {group!r}; the data have {', '.join(groups) or 'none'}.")
    return chosen


def gate_public_labels(samples: list[Sample]) -> list[Sample]:
    """The samples with impossible or doubtful labels quarantined, for devices whose data sheet is known.

    Samples that torchledger measured have passed the gates while they were taken; those of a CSV have not.
    """
    from torchledger.device.datasheets import datasheet_ceilings
    from torchledger.sampling.gates import GateLimits, quarantine

    gated: list[Sample] = []
    for device in dict.fromkeys(sample.device for sample in samples):
        own = [sample for sample in samples if sample.device == device]
        foreign = [sample for sample in own if sample.clock == "trace"]
        gated += [sample for sample in own if sample.clock != "trace"]
        known = datasheet_ceilings(device)
        gated += quarantine(foreign, GateLimits(*known) if known else None)
    return _distrust_the_rest(gated)


def _distrust_the_rest(samples: list[Sample]) -> list[Sample]:
    """Where most labels of an operator and direction are impossible, the others come from the same faulty measuring."""
    counts: dict[tuple[str, str, str], list[int]] = {}
    for sample in samples:
        count = counts.setdefault((sample.device, sample.operator, sample.direction), [0, 0])
        count[sample.status == "quarantined"] += 1
    return [
        replace(sample, status="quarantined", reason=f"{bad} of {good + bad} labels of its kind are in doubt")
        if sample.status == "ok" and bad > good
        else sample
        for sample in samples
        for good, bad in [counts[sample.device, sample.operator, sample.direction]]
    ]
