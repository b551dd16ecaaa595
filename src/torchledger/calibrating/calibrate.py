"""From a device to a model of its times: measure within a budget, start from the models that exist, say the error."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchledger.calibrating.choosing import EVALUATION
from torchledger.calibrating.collecting import FUSED, OPERATORS, CollectPlan, collect
from torchledger.device.ceilings import store_ceilings
from torchledger.device.doctor import describe_device
from torchledger.errors import SampleError, StoreError
from torchledger.fitting.correcting import correct_model, error_pct
from torchledger.fitting.fit import fit, now_utc
from torchledger.fitting.time_model import TimeModel
from torchledger.fitting.transfer import transfer_model
from torchledger.nouns import Device, Sample
from torchledger.predicting.devices import find_model, nearest_model
from torchledger.predicting.model_file import save_model
from torchledger.sampling.dataset import read_samples
from torchledger.store.launch_file import MeasuredLaunch, read_launches
from torchledger.store.output import check_output

log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]

_FIT_SHARE = 0.2
_LONGEST_FIT_S = 120.0
_COLLECTIVES_SHARE = 0.1
_COLLECTIVES = """\
dtypes: [bf16]
collectives:
  - {collective: all_reduce, bytes: {from: 1024, to: 268435456, factor: 4}, groups: GROUPS}
  - {collective: all_gather, bytes: {from: 1024, to: 268435456, factor: 4}, groups: GROUPS}
  - {collective: reduce_scatter, bytes: {from: 1024, to: 268435456, factor: 4}, groups: GROUPS}
  - {collective: all_to_all, bytes: {from: 1024, to: 268435456, factor: 4}, groups: GROUPS}
"""


@dataclass(frozen=True)
class Calibration:
    """What came of a calibration: the model and its file's size in bytes, how many labels and launches it learned
    from, its errors by operator (per cent) at shapes that it did not, and the share of those within their intervals."""

    model: TimeModel
    bytes_written: int
    labels: int
    launches: int
    operator_errors_pct: dict[str, float]
    within_intervals: float | None
    seconds: float


def calibrate(
    output: str | os.PathLike[str],
    *,
    device: str = "cuda",
    budget_s: float = 600.0,
    base: str | None = None,
    keep: str | os.PathLike[str] | None = None,
    plan: CollectPlan | None = None,
    force: bool = False,
    jobs: int | None = None,
    progress: Progress = lambda done, total, what: None,
) -> Calibration:
    """Measure ``device`` for about ``budget_s`` seconds, learn a model of it and write it to ``output``.

    ``base`` names the model to start from (else the nearest that comes with torchledger), ``keep`` a folder for what
    is measured. Raises ``StoreError`` if ``output`` exists (without ``force``), ``MeasureError`` for a device that is
    not there, ``PredictError`` for a ``base`` that nothing has, and ``SampleError`` if nothing could be measured.
    """
    output = Path(output)
    check_output(output, force=force)
    describe_device(device)
    if base is not None:
        find_model(base)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchledger-calibrate-") as scratch:
        folder = Path(keep) if keep is not None else Path(scratch)
        measuring = budget_s - min(_FIT_SHARE * budget_s, _LONGEST_FIT_S)
        plan = replace(plan or CollectPlan(), device=device)
        gpus = _count_gpus(device)
        shared = _COLLECTIVES_SHARE * measuring if gpus > 1 else 0.0
        plan = replace(plan, budget_s=measuring - shared)
        record = collect(folder, plan, lambda found: _base(found, base), progress=progress)
        if record.ceilings is not None:
            store_ceilings(record, record.ceilings)
        try:
            samples, launches = read_measured(folder)
        except SampleError as error:
            raise _nothing_measured(record, measuring) from error
        if gpus > 1:
            samples += _collectives(folder, gpus, shared)
        if not samples and not launches:
            raise _nothing_measured(record, measuring)
        model, errors, within = learn(_base(record, base), samples, launches, jobs=jobs, progress=progress)
        written = save_model(model, output, force=force)
    labels = sum(sample.status == "ok" for sample in samples)
    timed = sum(item.duration_us is not None for item in launches)
    return Calibration(model, written, labels, timed, errors, within, time.monotonic() - started)


def _nothing_measured(device: Device, seconds: float) -> SampleError:
    return SampleError(f"nothing was measured on {device.name} in {seconds:.3g} s. Give it a larger --budget.")


def learn(
    base: TimeModel,
    samples: Sequence[Sample],
    launches: Sequence[MeasuredLaunch],
    *,
    rounded: Sequence[MeasuredLaunch] = (),
    jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[TimeModel, dict[str, float], float | None]:
    """A transferred model corrected by a device's own measurements, without those that are for judging; its errors on
    these by operator, in per cent; and the share of them within the intervals. ``rounded`` is of ``correct_model``."""
    judged = [sample for sample in samples if sample.group == EVALUATION]
    learned = [sample for sample in samples if sample.group != EVALUATION]
    if base.machine.counts_waves:
        model, left_out = correct_model(base, learned, launches, rounded=rounded, jobs=jobs, progress=progress)
    else:  # no multiprocessors, no tiles: there is nothing that another device could teach
        model, left_out = fit(learned, record=base.machine.device, jobs=jobs, progress=progress)
    for each in left_out:
        log.info("left out: %s: %s", each.subject, each.reason)
    error, by_operator, within = error_pct(model, judged)
    model = replace(
        model,
        created_utc=now_utc(),
        versions=dict(samples[0].versions) if samples else model.versions,
        source=_source(base, learned),
        operators_error_pct=error,
    )
    return model, by_operator, within


def read_measured(folder: Path) -> tuple[list[Sample], list[MeasuredLaunch]]:
    """The samples and launches of a folder that ``collect`` filled; parts that were cut off are left out and said."""
    launches: list[MeasuredLaunch] = []
    for path in sorted((folder / FUSED).glob("part-*.launches")):
        try:
            launches += read_launches(path).launches
        except StoreError as error:
            log.warning("%s", error)
    return list(read_samples(folder / OPERATORS)), launches


def _base(record: Device, name: str | None) -> TimeModel:
    return transfer_model(find_model(name) if name is not None else nearest_model(record), record)


def _source(base: TimeModel, samples: Sequence[Sample]) -> str:
    if not base.machine.counts_waves:
        return "measured"
    what = "calibrated" if samples else "calibrated by launches alone"
    return f"{what}, starting from {base.source.removeprefix('transferred from ')}"


def _count_gpus(device: str) -> int:
    import torch

    return torch.cuda.device_count() if device == "cuda" else 1


def _collectives(folder: Path, gpus: int, limit_s: float) -> list[Sample]:
    """Times of collectives between this machine's GPUs; none, with a warning, where that fails."""
    sweep, data = folder / "collectives.yml", folder / "collectives.samples"
    groups = sorted({2, gpus})
    sweep.write_text(_COLLECTIVES.replace("GROUPS", str(groups)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)]
    command += ["-m", "torchledger", "sample", str(sweep), "-o", str(data)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=limit_s)
        return list(read_samples(data))
    except (subprocess.SubprocessError, SampleError, StoreError) as error:
        log.warning("collectives were not measured: %s", error)
        return []
