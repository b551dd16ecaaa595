"""The launches of a ledger: a time for each, measured nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchledger.fitting.launch_features import LaunchFeatures, features_of_launches
from torchledger.fitting.launches import as_matrix
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction
from torchledger.predicting.operators import WIDE, range_of


def predict_launches(model: TimeModel, launches: Sequence[Launch]) -> list[Prediction]:
    """A prediction for every launch that runs something, in the order of the graphs.

    A launch of a family that the model has not learned gets its roofline plus the launch floor, and says so; one whose
    bytes, or whose elements' size, are unknown gets the floor alone. A kernel of another kind of device is never inside
    what was measured.
    """
    described = features_of_launches(launches, model.machine)
    found: dict[int, Prediction] = {}
    by_family: dict[str, list[int]] = {}
    for index, (launch, features) in enumerate(zip(launches, described, strict=True)):
        if launch.category == "nop":
            continue
        if features is None or features.family not in model.entries:
            found[index] = _by_baseline(model, launch, features)
        else:
            by_family.setdefault(features.family, []).append(index)
    for family, indices in by_family.items():
        entry = model.entries[family]
        some = [features for index in indices if (features := described[index]) is not None]
        residual, width, distance = entry.predict(as_matrix(some, entry.feature_names))
        for place, index in enumerate(indices):
            middle = float(np.log(some[place].baseline_us) + residual[place])
            where = range_of(float(distance[place]))
            found[index] = Prediction(
                subject=launches[index].launch_id,
                duration_us=float(np.exp(middle)),
                low_us=float(np.exp(middle - width[place])),
                high_us=float(np.exp(middle + width[place])),
                coverage=COVERAGE,
                range=where,
                device=model.device,
                model=family,
                roofline_us=some[place].roofline_us,
            )
    return [
        _as_foreign(model, launches[index], found[index]) if is_foreign(model, launches[index]) else found[index]
        for index in sorted(found)
    ]


def is_foreign(model: TimeModel, launch: Launch) -> bool:
    """True for a kernel that the model's device cannot run, such as C++ for a CPU when asked for a GPU."""
    return launch.device.partition(":")[0] != model.machine.device.kind and model.machine.device.kind != "unknown"


def _as_foreign(model: TimeModel, launch: Launch, found: Prediction) -> Prediction:
    own = f"a kernel for {launch.device}, which {model.device} does not run: priced by its loops or sizes"
    return replace(found, range="extrapolated", note="; ".join(note for note in (own, found.note) if note))


def _by_baseline(model: TimeModel, launch: Launch, features: LaunchFeatures | None) -> Prediction:
    time_us = model.machine.floor_us if features is None else features.baseline_us
    if features is not None:
        reason = f"the model has not learned {features.family}"
    else:
        reason = "its bytes are unknown" if launch.bytes_moved is None else "the size of its elements is unknown"
    return Prediction(
        subject=launch.launch_id,
        duration_us=time_us,
        low_us=time_us / WIDE,
        high_us=time_us * WIDE,
        coverage=COVERAGE,
        range="extrapolated",
        device=model.device,
        model="roofline",
        roofline_us=None if features is None else features.roofline_us,
        note=f"roofline and launch floor only: {reason}",
    )
