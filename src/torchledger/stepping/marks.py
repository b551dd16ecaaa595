"""What is put into a trace so that recorded steps are found in it again."""

from __future__ import annotations

STEP_MARK = "torchledger-step"
"""Stands, with ``#`` and a number, for each recorded step: ``torchledger-step#0``."""
