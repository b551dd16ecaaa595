"""What is put into a trace so that recorded steps are found in it again."""

from __future__ import annotations

PACKAGE_MARK = "torchledger-package"
"""The range around each call of a package that was compiled ahead of time."""

IN_PACKAGE = "in a package compiled ahead of time, with its C++ kernels"
"""Why nothing is seen to work in such a call, where its library has no ranges around its kernels."""

STEP_MARK = "torchledger-step"
"""Stands, with ``#`` and a number, for each recorded step: ``torchledger-step#0``."""
