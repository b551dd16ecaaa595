"""Times that nobody measured.

Enters: a model of a device's times, and questions: operators at shapes, or the launches of a ledger. Leaves:
``Prediction`` records with intervals, a step's time as their sum. Needs numpy alone; reading a model file executes
nothing from it.
"""

from torchledger.predicting.devices import find_model
from torchledger.predicting.model_file import load_model, save_model
from torchledger.predicting.operators import PredictionTable, predict, predict_table

__all__ = ["PredictionTable", "find_model", "load_model", "predict", "predict_table", "save_model"]
