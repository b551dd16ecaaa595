"""Dynamo: what it compiles now, what it left to run eagerly, and how often it may compile again."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from traceback import walk_stack
from types import CodeType, FrameType
from typing import Any

from torchledger._torch.living import living
from torchledger._torch.patching import Patches, pass_through
from torchledger.frame_variables import local_of

FRAMES = "frames"
COMPILED = "compiled frames"


def eager_counts() -> Counter[str]:
    """How often each reason broke a graph so far, and under ``FRAMES`` and ``COMPILED`` how many
    frames Dynamo was given and compiled. Empty as long as nobody has imported Dynamo.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", {})
    found: Counter[str] = Counter()
    for kind in ("graph_break", "unimplemented"):
        for reason, count in dict(counters.get(kind, {})).items():
            found[_in_one_line(str(reason))] += count
    frames = counters.get("frames", {})
    found[FRAMES] = frames.get("total", 0)
    found[COMPILED] = frames.get("ok", 0)
    return found


def runs_exported() -> bool:
    """True once this process holds a program of ``torch.export``, or the module that it makes."""
    classes = [
        getattr(sys.modules.get(module), name, None)
        for module, name in (
            ("torch.export.exported_program", "ExportedProgram"),
            ("torch.export._unlift", "_StatefulGraphModule"),
        )
    ]
    return any(living(each) for each in classes if isinstance(each, type))


def runs_packages() -> bool:
    """True once this process has loaded a package of AOTInductor."""
    made = getattr(sys.modules.get("torch._inductor.package.package"), "AOTICompiledModel", None)
    return made is not None and bool(living(made))


def compile_id() -> str | None:
    """Which compilation this thread is in, as in torch's own logs: ``"0/1"``; ``None`` outside of any."""
    from torch._guards import CompileContext

    found = CompileContext.current_compile_id()
    return str(found) if found is not None else None


MAKES_COMPILED = "torch._dynamo.eval_frame"
"""The module that makes functions which compile what they call, whatever the backend."""


def before_compiling(action: Callable[[], None], *, made: Callable[[], None] = lambda: None) -> Patches:
    """Do ``action`` before a function is made that compiles what it calls, until the patches are undone; of those that
    libraries make while they are imported, and which may never be called, once Dynamo is given something to compile.

    With ``fullgraph=True`` Dynamo traces such a function before it imports the compiler. ``made`` is called behind each
    that was made, by when Dynamo has told itself what it never looks into.
    """
    patches = Patches()

    def make(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before_its_frames(patches, action)
        result = original(*args, **kwargs)
        made()
        return result

    patches.around(sys.modules[MAKES_COMPILED].OptimizeContext, "__init__", make)
    return patches


def before_its_frames(patches: Patches, action: Callable[[], None]) -> None:
    """Do ``action`` now; where it is a library that is being imported which asks for a compiled function, before Dynamo
    compiles for the first time, until the patches are undone."""
    if not _imports_library(sys._getframe(1)):
        action()
        return
    from torch._dynamo.convert_frame import CatchErrorsWrapper

    def given(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        action()
        return original(*args, **kwargs)

    patches.around(CatchErrorsWrapper, "__call__", given)


def _imports_library(frame: FrameType | None) -> bool:
    """Whether the code that runs is that of an installed library which is being imported."""
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None or frame.f_back is None or not frame.f_back.f_code.co_filename.startswith("<frozen importlib"):
        return False
    return any(folder in frame.f_code.co_filename for folder in _INSTALLED)


_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


@dataclass(frozen=True)
class GivenUp:
    """A piece of code that Dynamo compiles no more: the name of its limit, and how often that lets code compile."""

    function: str
    path: str
    line: int
    limit: str
    times: int


def hear_given_up(given_up: Callable[[GivenUp], None]) -> Patches:
    """Hear of each piece of code that was compiled as often as Dynamo does, until the patches are undone: it is not
    looked at again, and runs eagerly where nothing that was compiled of it fits."""
    from torch._dynamo import config, convert_frame

    def exceeds(original: Callable[..., tuple[bool, str]], *args: Any, **kwargs: Any) -> tuple[bool, str]:
        is_exceeded, limit = original(*args, **kwargs)
        if is_exceeded:
            frames = (frame for frame, _ in walk_stack(sys._getframe(1)))
            asking = next(each for each in frames if each.f_code.co_filename == convert_frame.__file__)
            code = local_of(asking, "code")
            given_up(GivenUp(code.co_name, code.co_filename, code.co_firstlineno, limit, getattr(config, limit)))
        return is_exceeded, limit

    patches = Patches()
    patches.around(convert_frame, "exceeds_recompile_limit", exceeds)
    return patches


def keep_out_of(patches: Patches, folder: str) -> None:
    """Never begin to compile in a frame of code in ``folder``, which stands where torch's own C++ does: a graph that
    breaks there calls it, as it calls that. What is traced into it is compiled as before."""
    from torch._dynamo import trace_rules

    def check(original: Callable[..., bool], asked: Any, *args: Any, **kwargs: Any) -> bool:
        is_ours = isinstance(asked, CodeType) and asked.co_filename.startswith(folder)
        return is_ours or original(asked, *args, **kwargs)

    pass_through(patches, trace_rules, "check", check)


def forget_what_was_compiled(patches: Patches) -> None:
    """Have Dynamo begin as in a new process, now and when the patches are undone: it keeps what it compiled, and gave
    up, with the code of a function, whatever device, kernels and tensors that was for."""
    import torch._dynamo

    torch._dynamo.reset()
    patches.on_undo(torch._dynamo.reset)


def make_states_under(patches: Patches, mode: AbstractContextManager[Any]) -> None:
    """What an optimizer first keeps of its parameters is made under ``mode`` where its step is compiled, too.

    Dynamo has it made while it compiles, when it has put all modes away.
    """
    from torch._dynamo.variables.optimizer import OptimizerVariable

    def call_method(original: Callable[..., Any], variable: Any, tx: Any, name: str, *args: Any, **named: Any) -> Any:
        optimizer = variable.value
        if name != "_init_group" or not hasattr(optimizer, name):
            return original(variable, tx, name, *args, **named)
        make = optimizer._init_group

        def under_mode(*group: Any, **more: Any) -> Any:
            with mode:
                return make(*group, **more)

        optimizer.__dict__[name] = under_mode
        try:
            return original(variable, tx, name, *args, **named)
        finally:
            del optimizer.__dict__[name]

    def move_step_if_cpu(original: Callable[..., Any], variable: Any) -> Any:
        with mode:  # what Adagrad counts its steps by is made with it, on the host
            return original(variable)

    pass_through(patches, OptimizerVariable, "call_method", call_method)
    pass_through(patches, OptimizerVariable, "move_step_if_cpu", move_step_if_cpu)


def makes_compiled() -> bool:
    """True once this process holds a function that compiles what it calls."""
    made = getattr(sys.modules.get(MAKES_COMPILED), "OptimizeContext", None)
    return made is not None and any(type(each) is made for each in living(made))


def allow_recompilations(count: int) -> None:
    """Let one piece of code be compiled so many times in this process before Dynamo gives up on it."""
    from torch._dynamo import config

    config.recompile_limit = count
    config.accumulated_recompile_limit = count


def _in_one_line(reason: str) -> str:
    """The first line and its explanation; hints and links are left out."""
    lines = reason.strip().splitlines() or ["no reason given"]
    explanation = next((line.split(":", 1)[1] for line in lines[1:] if line.strip().startswith("Explanation:")), "")
    return f"{lines[0].rstrip('.')}: {explanation.strip().rstrip('.')}" if explanation.strip() else lines[0]
