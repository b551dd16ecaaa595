"""Products with few rows and columns over long sums, priced by their sums (``expecting/long_sums.py``)."""

from __future__ import annotations

from dataclasses import replace

from torchledger.expecting.launch_features import LaunchFeatures
from torchledger.expecting.long_sums import costs_of_sums, long_sums_of, sums_us
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction

NOTE = "by the length of its sums"
"""``Prediction.note`` of such a product."""


def by_its_sums(
    model: TimeModel, launch: Launch, features: LaunchFeatures | None, said: Prediction, *, allow_tf32: bool
) -> Prediction:
    """The price of a product by its sums where it is known which kernel walks them, no shorter than they take where
    only that is known; of any other launch what was said."""
    if launch.category != "extern" or model.machine.device.num_multiprocessors is None:
        return said
    sums = long_sums_of(launch, model.machine.num_multiprocessors, allow_tf32=allow_tf32)
    costs = None if sums is None else costs_of_sums(model.machine).get(sums.kind)
    if sums is None or costs is None:
        return said
    near = 0.0 if features is None else features.values.get("warm share", 0.0)
    us = sums_us(sums, costs, model.machine, near_share=near)
    if sums.is_least and us <= said.duration_us:
        return said
    low, high = us / costs.spread, us * costs.spread
    if sums.is_least and said.low_us is not None and said.high_us is not None:
        low, high = max(low, said.low_us), max(high, said.high_us)
    note = "; ".join(filter(None, (said.note, NOTE)))
    return replace(said, duration_us=us, low_us=low, high_us=high, note=note)
