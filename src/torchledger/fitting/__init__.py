"""From samples and measured launches to a model of times.

Enters: ``Sample`` records, or launches with their measured times. Leaves: a ``TimeModel`` that the predicting room
saves and asks, and reports of its error on splits that cannot leak. What is learned is never the time itself but how
far it lies from what the expecting room says of the work, in logarithms.
"""

from torchledger.fitting.fit import fit
from torchledger.fitting.time_model import Entry, TimeModel

__all__ = ["Entry", "TimeModel", "fit"]
