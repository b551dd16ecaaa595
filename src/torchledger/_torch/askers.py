"""Who asks for an operator: the places on the stack, and the node of autograd that is at work.

What a CUDA graph holds is asked for by whoever was there when it was captured, and not by whoever replays it.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import torch

from torchledger._torch.user_lines import begins_plan, is_of_python
from torchledger.frame_variables import local_of

_OF_MODULES = ("_call_impl", "forward")
"""Methods on the stack that are a module's."""

_asking = threading.local()


class StackPlace(NamedTuple):
    """A function on the stack; ``is_python`` says that it is of Python's library, ``module`` whose method it is."""

    file: str
    line: int
    function: str
    is_python: bool
    module: Any = None


def stack_places(frame: FrameType | None) -> Iterator[StackPlace]:
    """The places from a frame outwards, up to where a plan runs its program."""
    while frame is not None and not begins_plan(frame):
        code = frame.f_code
        owner = local_of(frame, "self") if code.co_name in _OF_MODULES else None
        module = owner if isinstance(owner, torch.nn.Module) else None
        yield StackPlace(code.co_filename, frame.f_lineno, code.co_name, is_of_python(frame), module)
        frame = frame.f_back


@dataclass(frozen=True)
class Asker:
    """Who asked: where, for which node of autograd by its name, and what autograd numbered last. Modules are not kept
    alive."""

    kept: tuple[StackPlace, ...]
    node: str | None
    sequence: int

    @classmethod
    def of(cls, frame: FrameType | None) -> Asker:
        """Who asks now, from a frame outwards."""
        places = stack_places(frame)
        kept = tuple(each if each.module is None else each._replace(module=weakref.ref(each.module)) for each in places)
        node = torch._C._current_autograd_node()
        return cls(kept, None if node is None else node.name(), sequence_of(node))

    @property
    def places(self) -> Iterator[StackPlace]:
        """Where, with the modules that live."""
        for each in self.kept:
            yield each if each.module is None else each._replace(module=each.module())


def sequence_of(node: Any) -> int:
    """What autograd gave a node for a number, or the last one that it gave where none is at work."""
    return int(node._sequence_nr() if node is not None else torch.autograd._get_sequence_nr() - 1)


@contextlib.contextmanager
def as_asked_by(asker: Asker) -> Iterator[None]:
    """What the calling thread calls inside was asked for by another."""
    before, _asking.asker = asked_by(), asker
    try:
        yield
    finally:
        _asking.asker = before


def asked_by() -> Asker | None:
    """Who asked for what the calling thread calls, where that is not who is on the stack."""
    return getattr(_asking, "asker", None)
