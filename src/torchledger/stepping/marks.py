"""What is put into a trace so that recorded steps are found in it again."""

from __future__ import annotations

PACKAGE_MARK = "torchledger-package"
"""The range around each call of a package that was compiled ahead of time."""

STEP_MARK = "torchledger-step"
"""Stands, with ``#`` and a number, for each recorded step: ``torchledger-step#0``."""
