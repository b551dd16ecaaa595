"""What a plan says of each call of a step, kept in the ledger of that step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Prediction, StepCall
from torchledger.predicting.launches import rounding_of
from torchledger.predicting.step_calls import price_calls
from torchledger.store import LedgerWriter, open_ledger


def keep_prices(ledger: Path, times_us: Mapping[int, float]) -> None:
    """Write what calls take, by their ``order``, into a ledger. Raises ``StoreError`` where that cannot be."""
    with open_ledger(ledger) as reader:
        calls = reader.read(StepCall)
    with LedgerWriter(ledger, append=True) as writer:
        writer.add(*(replace(call, predicted_us=times_us.get(call.order)) for call in calls), replace=True)


def times_of_calls(
    model: TimeModel, ledger: Path, launches: Sequence[Prediction], *, ran_on_cpu: bool = False
) -> Mapping[int, float]:
    """What each call of a ledger's step takes on the device, microseconds, by ``order``: eager ones by the model, those
    of compiled graphs as long as their ``launches``."""
    with open_ledger(ledger) as reader:
        calls = reader.read(StepCall)
        rounding = rounding_of(reader.run().environment.settings)
    of_graph: dict[str, float] = defaultdict(float)
    for found in launches:
        of_graph[found.subject.partition("#")[0]] += found.duration_us
    priced = price_calls(model, calls, ran_on_cpu=ran_on_cpu, **rounding)
    times = {call.order: found.duration_us for call, found in priced}
    return times | {call.order: of_graph[call.name] for call in calls if call.kind == "graph"}
