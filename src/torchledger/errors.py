"""The errors that torchledger raises on purpose.

The command line prints these and exits with their code; anything else is a bug of ours and keeps its traceback.
Misuse of a Python argument stays ``ValueError``, with the value shown.
"""

from __future__ import annotations


class TorchledgerError(Exception):
    """What happened, to which kernel, shape or file, and the next step, in one message."""

    exit_code = 1


class UsageError(TorchledgerError):
    """A question that cannot be asked this way (exit code 2)."""

    exit_code = 2


class MeasureError(TorchledgerError):
    """A profile, a bench or an imported trace could not be taken or read."""


class StoreError(TorchledgerError):
    """A run file or data set could not be read or written."""


class ValuesError(TorchledgerError):
    """Intermediate values could not be watched or compared."""


class SampleError(TorchledgerError):
    """A sweep could not be planned, run or merged."""


class FitError(TorchledgerError):
    """A model of times could not be fitted."""


class PredictError(TorchledgerError):
    """A time could not be predicted."""


class PlanError(TorchledgerError):
    """A program could not be planned without its device."""


class LoneRankError(PlanError):
    """A program makes a process group of itself alone: it is planned as a world of one rank."""


class ReportError(TorchledgerError):
    """A report could not be drawn."""
