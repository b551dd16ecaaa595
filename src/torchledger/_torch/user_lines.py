"""Who asks: the line of the program that is on the stack, and which part of torch.

A line of Python's own library (a context manager that is left, a decorated function) is none of the program's.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from traceback import walk_stack
from types import FrameType

import torch

import torchledger
from torchledger.frame_variables import local_of
from torchledger.program_text import PACKAGES

_TORCH = str(Path(torch.__file__).parent) + "/"
_OURS = str(Path(torchledger.__file__).parent) + "/"
_PLANS, _RUN_PROGRAM = f"{_OURS}planning/dry_run.py", "_run_to_its_step"

_CHECKS: Mapping[str, tuple[str, ...] | None] = {
    "torch/distributions/": None,
    "torch/testing/": None,
    "torch/optim/": ("__init__",),
    "torch/__init__.py": ("_assert", "_check_tensor_all_with"),
}
"""Where torch asks whether what it was given is valid: in these files, in functions so named (``None``: in all)."""


_PYTHONS = tuple({f"{sysconfig.get_paths()[name]}/" for name in ("stdlib", "platstdlib")})


def begins_plan(frame: FrameType) -> bool:
    """Whether a frame is where a plan begins to run a program: what called that is no part of it."""
    return frame.f_code.co_name == _RUN_PROGRAM and frame.f_code.co_filename == _PLANS


def is_of_python(frame: FrameType) -> bool:
    """Whether a frame is of Python's library (or ``typing_extensions``), and that is not the program that is run."""
    return _is_of_python(frame.f_code.co_filename) and frame.f_globals.get("__name__") != "__main__"


@functools.cache
def _is_of_python(file: str) -> bool:
    return (file.startswith(_PYTHONS) and PACKAGES not in file) or file.endswith("/typing_extensions.py")


def is_called_from(file: str) -> bool:
    """Whether a function of a file, given by the end of its path, is on the stack."""
    return any(frame.f_code.co_filename.endswith(file) for frame, _ in walk_stack(sys._getframe(1)))


def is_checked() -> bool:
    """Whether torch asks for a truth that says that its arguments are valid."""
    for frame, _ in walk_stack(sys._getframe(1)):
        code = frame.f_code
        if code.co_filename.startswith(_TORCH):
            for place, functions in _CHECKS.items():
                if f"/{place}" in code.co_filename and (functions is None or code.co_name in functions):
                    return True
        elif not code.co_filename.startswith((_OURS, "<")):
            return False
    return False


def user_lines() -> tuple[tuple[str, int], ...]:
    """All lines of the stack that are neither torch's nor ours, innermost first."""
    return tuple((frame.f_code.co_filename, line) for frame, line in user_frames() if not is_of_python(frame))


def user_line(generated: Collection[str] = ()) -> str:
    """The innermost line of the stack that is neither torch's nor ours, nor in one of the ``generated`` files."""
    frames = ((frame, line) for frame, line in user_frames(generated) if not is_of_python(frame))
    return next((f"{frame.f_code.co_filename}:{line}" for frame, line in frames), "unknown")


def line_outside(*files: str) -> str | None:
    """The innermost line of the stack that is neither ours nor of ``files``, given by the ends of their paths; ``None``
    where it is torch's."""
    frame, line = _outside(files)
    file = None if frame is None else frame.f_code.co_filename
    return None if file is None or file.startswith(_TORCH) else f"{file}:{line}"


def _outside(files: tuple[str, ...]) -> tuple[FrameType | None, int]:
    """The innermost frame of the stack that is neither ours nor of ``files``, and its line."""
    for frame, line in walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, "<")) and not file.endswith(files):
            return frame, line
    return None, 0


def is_data_of_program() -> bool:
    """Whether a line of the program itself asks, which is neither an installed package nor in a module's method.

    What is asked for there is data; modules make weights.
    """
    frame, _ = _outside(_WRAPPERS)
    if frame is None or frame.f_code.co_filename.startswith(_TORCH) or PACKAGES in frame.f_code.co_filename:
        return False
    return not isinstance(local_of(frame, "self"), torch.nn.Module)


_WRAPPERS = ("torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/_ops.py")
"""What stands between an operator and a mode that hears it, or is told of it by another that does."""


def user_stack(generated: Collection[str] = ()) -> tuple[FrameType | None, tuple[str, ...]]:
    """The innermost frame that is neither torch's, ours nor Python's, nor of the ``generated`` files, and the lines of
    all such, outermost first."""
    frames = [(frame, line) for frame, line in user_frames(generated) if not is_of_python(frame)]
    lines = tuple(f"{frame.f_code.co_filename}:{line}" for frame, line in reversed(frames))
    return (frames[0][0] if frames else None), lines


def asking_frame(generated: Collection[str] = ()) -> FrameType | None:
    """The innermost frame that is neither torch's nor ours, nor of the ``generated`` files; it may be one of Python's
    library, which checks things for a program (``unittest``)."""
    return next((frame for frame, _ in user_frames(generated)), None)


def user_frames(generated: Collection[str] = (), *, behind: FrameType | None = None) -> Iterator[tuple[FrameType, int]]:
    """The frames of the stack, from ``behind`` on, that are neither torch's nor ours, nor of the ``generated`` files,
    innermost first."""
    for frame, line in walk_stack(behind or sys._getframe(1)):
        file = frame.f_code.co_filename
        if begins_plan(frame):
            return
        if not file.startswith((_TORCH, _OURS, "<")) and file not in generated:
            yield frame, line


def frames_behind_hook() -> Iterator[tuple[FrameType, int]]:
    """The frames that are neither torch's nor ours, with their lines, innermost first, behind a hook of ours that the
    calling thread is in."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return user_frames(behind=frame)


def file_of_thread(ident: int) -> str | None:
    """The file of the function that a thread is in; ``None`` where it is in none of Python's."""
    frame = sys._current_frames().get(ident)
    return None if frame is None else frame.f_code.co_filename


def generated_line(generated: Collection[str]) -> tuple[str, int] | None:
    """The line of the ``generated`` files that asks; ``None`` where the program itself does."""
    for frame, line in walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if file in generated:
            return file, line
        if not file.startswith((_TORCH, _OURS, "<")):
            return None
    return None
