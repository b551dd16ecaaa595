"""A job's step on another device: that of each of its ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from torchledger.errors import PredictError
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction, StepPrediction
from torchledger.predicting.overheads import Mode
from torchledger.predicting.step import predict_ledger
from torchledger.store.job import ledgers_of_job


@dataclass(frozen=True)
class RankPrediction:
    """One rank's step, the predictions of its launches, their measured times in microseconds, and the launches."""

    rank: int
    step: StepPrediction
    predictions: list[Prediction]
    measured: dict[str, float]
    launches: list[Launch]


def predict_job(
    model: TimeModel,
    path: str | os.PathLike[str],
    *,
    mode: Mode | None = None,
    optimizer: str | None = None,
    host: str | None = None,
) -> list[RankPrediction]:
    """``predict_ledger`` of each rank of a job that holds launches or a step, in order of the ranks.

    The job's step takes at least as long as its slowest rank's: what ranks wait for each other is not in it. Raises
    ``StoreError`` for what is no job, ``PredictError`` as ``predict_ledger`` of the first rank where no rank holds any.
    """
    found: list[RankPrediction] = []
    reason: PredictError | None = None
    for rank, ledger in ledgers_of_job(path).items():
        try:
            found.append(
                RankPrediction(rank, *predict_ledger(model, ledger, mode=mode, optimizer=optimizer, host=host))
            )
        except PredictError as error:
            reason = reason or error
    if not found and reason is not None:
        raise reason
    return found


def slowest(ranks: Sequence[RankPrediction]) -> RankPrediction:
    """The rank whose predicted step is the longest."""
    return max(ranks, key=lambda each: each.step.duration_us)
