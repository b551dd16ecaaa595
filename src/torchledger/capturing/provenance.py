"""Where a kernel came from: source lines, modules and ATen ops of the FX nodes it was lowered from."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

from torchledger.nouns import SourceLine

_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)$')
_ROOT = re.compile(r"^L\[['\"]\w+['\"]\]\.?|^L__\w+?___?\.?|^self\.?")
_ITEM = re.compile(r"(?:^|\.)_modules\[['\"]?([^'\"\]]+)['\"]?\]|\[['\"]?([^'\"\]]+)['\"]?\]")
_OF_TORCHS_MODULES = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]")
_CARET_LINE = re.compile(r"^[\s~^]*$")


@functools.lru_cache(maxsize=4096)
def innermost_frame(stack_trace: str) -> SourceLine | None:
    """The last frame of a stack trace as Dynamo writes it: the user's line that made the op.

    ``torch.export`` keeps the frames of torch's own modules, which count only where there is no other.

    >>> innermost_frame('File "m.py", line 3, in forward\\n    return x + 1').line
    3
    """
    lines = stack_trace.strip().splitlines()
    frames = [(index, match) for index, line in enumerate(lines) if (match := _FRAME.match(line))]
    users = [frame for frame in frames if not _OF_TORCHS_MODULES.search(frame[1]["file"])]
    for index, match in (users or frames)[-1:]:
        following = lines[index + 1].strip() if index + 1 < len(lines) else ""
        code = None if _CARET_LINE.match(following) or following.startswith("File ") else following
        return SourceLine(match["file"], int(match["line"]), match["function"].strip(), code)
    return None


def sources(fx_nodes: Iterable[Any]) -> tuple[SourceLine, ...]:
    """The distinct user lines of FX nodes, in their order; for backward nodes these are the forward lines."""
    found: dict[SourceLine, None] = {}
    for node in fx_nodes:
        trace = node.meta.get("stack_trace")
        if trace and (line := innermost_frame(trace)) is not None:
            found[line] = None
    return tuple(found)


def modules(fx_nodes: Iterable[Any]) -> tuple[str, ...]:
    """The distinct innermost module paths of FX nodes, in their order; ``""`` (the root) is left out."""
    found: dict[str, None] = {}
    for node in fx_nodes:
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
        if not stack:
            continue
        path = list(stack.values())[-1][0]
        if name := module_path(str(path)):
            found[name] = None
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def module_path(path: str) -> str:
    """Dynamo's name of a module as a user writes it.

    >>> module_path("L['self'].transformer.h.0.mlp"), module_path("L['self']._modules['0']")
    ('transformer.h.0.mlp', '0')
    """
    path = _ROOT.sub("", path, count=1)
    path = _ITEM.sub(lambda match: f".{match[1] or match[2]}", path)
    return path.strip(".")


SAVES_RANDOM_STATE = "run_and_save_rng_state"
_RESTORES_STATE_OF_GRAPH = "graphsafe_run_with_rng_state"
RESTORES_RANDOM_STATE = ("run_with_rng_state", _RESTORES_STATE_OF_GRAPH)
"""What checkpointing has an operator called by when it runs again; in the second the state is a graph's own."""


def called_operator(fx_node: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a call node runs, and on what: the operator inside a call that also saves or restores the random state, as
    checkpointing has it."""
    name = getattr(fx_node.target, "__name__", "")
    if name in (SAVES_RANDOM_STATE, _RESTORES_STATE_OF_GRAPH):
        return fx_node.args[0], tuple(fx_node.args[1:])
    if name in RESTORES_RANDOM_STATE:
        return fx_node.args[1], tuple(fx_node.args[2:])
    return fx_node.target, fx_node.args


def aten_op(fx_node: Any) -> str | None:
    """``aten.add`` for an FX call node; ``None`` for placeholders, outputs and Python helpers."""
    if fx_node.op != "call_function":
        return None
    target, _ = called_operator(fx_node)
    packet = getattr(target, "overloadpacket", None)
    if packet is not None:
        return str(packet)
    original = fx_node.meta.get("original_aten")
    if original is not None:
        return str(getattr(original, "overloadpacket", original))
    name = getattr(target, "__name__", None)
    return None if name == "getitem" else name
