"""Who asks: the line of the program that is on the stack, and which part of torch."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import torchledger

_TORCH = str(Path(torch.__file__).parent) + "/"
_OURS = str(Path(torchledger.__file__).parent) + "/"

_CHECKS = {"torch/distributions/": None, "torch/optim/": "__init__"}
"""Where torch asks whether what it was given is valid: in these files, in functions of this name (``None``: in all)."""


def is_called_from(file: str) -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(file):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def is_checked() -> bool:
    """Whether torch asks for a truth that says that its arguments are valid."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_TORCH):
            for folder, function in _CHECKS.items():
                if f"/{folder}" in code.co_filename:
                    return function in (None, code.co_name)
        elif not code.co_filename.startswith((_OURS, "<")):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def user_line() -> str:
    """The innermost line of the stack that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _OURS, "<")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "unknown"
