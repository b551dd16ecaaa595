"""One model out of data of every kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from torchledger.errors import FitError
from torchledger.fitting.data import gate_public_labels, read_operator_samples
from torchledger.fitting.fit import fit
from torchledger.fitting.tables import LeftOut
from torchledger.fitting.time_model import TimeModel


def fit_everything(
    paths: Iterable[str | os.PathLike[str]],
    *,
    device: str | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[TimeModel, list[LeftOut]]:
    """Fit operator samples and launches of one device into one model; also says what was left out, and why.

    Raises ``FitError`` if there is nothing to learn from.
    """
    samples = gate_public_labels(read_operator_samples([Path(path) for path in paths]))
    if not samples:
        raise FitError("the data hold no samples.")
    return fit(samples, device=device, jobs=jobs, progress=progress)
