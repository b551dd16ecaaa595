"""What each entry of a step is for: forward, loss, backward, clipping, optimizer, communication, input.

What an entry says of itself decides (autograd's engine called it, an optimizer's step surrounds it, the code that asked
for it); what says nothing takes its phase from the entries before and after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torchledger.nouns import Direction, Phase
from torchledger.stepping.entries import BACKWARD_RANGE, Entry

_OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#")
_OPTIMIZER_OPERATOR = re.compile(r"^aten::(_fused_(adam|sgd|adagrad)|_amp_)")
_COMPILED_AUTOGRAD = "Torch-Compiled Region: !"
"""How the ranges begin in which compiled autograd calls what it made of a backward (``"!0/1/0"``)."""

_LOADER = re.compile(r"DataLoader|^enumerate\(")
_CLIPPING_OPERATOR = re.compile(r"^aten::(_foreach_norm|linalg_vector_norm|(_foreach_)?mul_|clamp|stack|norm)")

_OPTIMIZER_CODE = re.compile(r"^torch/optim/")
_ENGINE_CODE = re.compile(r"^torch/autograd/(__init__|graph)\.py")

_OF_CODE: tuple[tuple[re.Pattern[str], Phase], ...] = (
    (re.compile(r"^torch/(nn/utils/clip_grad\.py|distributed/fsdp/.*:clip_grad_norm_$)"), "clipping"),
    (re.compile(r"^torch/(optim/|amp/grad_scaler\.py)"), "optimizer"),
    (re.compile(r"^torch/(nn/modules/loss\.py|nn/functional\.py:(\w*_loss|cross_entropy|\w*_div)$)"), "loss"),
    (re.compile(r"^torch/utils/data/"), "input"),
    (re.compile(r"^torch/(autograd/graph\.py:_engine_run_backward|distributed/fsdp/.*post_backward)"), "backward"),
)
"""Which of torch's own functions stand for a phase. What a backward calls when all its nodes are over (the last
reduction of FSDP's) is none of a node's, and on a device a thread of the engine's calls it."""

_BETWEEN: Mapping[tuple[Phase | None, Phase | None], Phase] = {
    ("forward", "forward"): "forward",
    ("forward", "loss"): "loss",
    ("forward", "backward"): "loss",
    ("loss", "loss"): "loss",
    ("loss", "backward"): "loss",
    ("backward", "backward"): "backward",
    ("backward", "clipping"): "clipping",
    ("clipping", "clipping"): "clipping",
    ("clipping", "optimizer"): "optimizer",
    ("backward", "optimizer"): "optimizer",
    ("optimizer", "optimizer"): "optimizer",
    ("optimizer", "forward"): "input",
    ("backward", "forward"): "input",
    ("input", "input"): "input",
    ("input", "forward"): "input",
    (None, "input"): "input",
    (None, "forward"): "input",
}
"""The phase of what says nothing of itself, by the phases before and after it; else ``"other"``."""


def phases_of(
    entries: Sequence[Entry],
    *,
    directions: Mapping[str, Direction],
    code: Mapping[int, Sequence[str]] | None = None,
    modules: Mapping[int, str] | None = None,
) -> list[Phase]:
    """The phase of each entry, which are in the order of their starts.

    ``directions`` are those of compiled graphs; ``code`` and ``modules`` hold, where known, torch's own functions on
    the way to an entry (by its place) and the path of its module.
    """
    code, modules = code or {}, modules or {}
    last_backward = max(
        (place for place, entry in enumerate(entries) if _is_backward(entry, directions)), default=len(entries)
    )
    known = [
        _own_phase(entry, directions, code.get(place, ()), place in modules, is_late=place > last_backward)
        for place, entry in enumerate(entries)
    ]
    in_optimizer = {place for place, entry in enumerate(entries) if any(map(_OPTIMIZER.match, entry.around))}
    has_closure = any(_innermost(entries[place].around) == "backward" for place in in_optimizer)
    # In a step that runs a closure, an optimizer's own work and the closure's arithmetic are told apart by their place.
    of_closure = {place for place in in_optimizer if has_closure and known[place] == "optimizer"}
    known = [None if place in of_closure else phase for place, phase in enumerate(known)]
    following: list[Phase | None] = [None] * len(known)
    after: Phase | None = None
    for place in range(len(known) - 1, -1, -1):
        following[place] = after
        after = _telling(known[place]) or after
    phases: list[Phase] = []
    before: Phase | None = None
    for place, phase in enumerate(known):
        if phase is None:
            phase = _BETWEEN.get((before, following[place]), "other")
            if before == "backward" and phase == "optimizer" and _CLIPPING_OPERATOR.match(entries[place].name):
                phase = "clipping"
            if place in of_closure and phase != "loss":
                phase = "optimizer"
        before = _telling(known[place]) or before
        phases.append(phase)
    return phases


def _telling(phase: Phase | None) -> Phase | None:
    """Communication happens in the middle of other phases and tells nothing of what is around it."""
    return None if phase == "communication" else phase


def _is_backward(entry: Entry, directions: Mapping[str, Direction]) -> bool:
    is_graph = entry.kind == "graph" and directions.get(entry.name) == "backward"
    return is_graph or entry.is_backward or _is_of_compiled_autograd(entry)


def _is_of_compiled_autograd(entry: Entry) -> bool:
    return any(name.startswith(_COMPILED_AUTOGRAD) for name in entry.around)


def _innermost(around: Sequence[str], code: Sequence[str] = ()) -> Phase | None:
    """What of an optimizer's step and autograd's engine surrounds an entry more closely: a closure runs a backward
    inside a step, a hook of a parameter steps inside a backward. Code tells it also where steps have no range."""
    for function in reversed(code):
        if _OPTIMIZER_CODE.match(function):
            return "optimizer"
        if _ENGINE_CODE.match(function):
            break
    for name in reversed(around):
        if _OPTIMIZER.match(name):
            return "optimizer"
        if name.startswith(BACKWARD_RANGE):
            return "backward"
    return None


def _own_phase(
    entry: Entry, directions: Mapping[str, Direction], code: Sequence[str], has_module: bool, *, is_late: bool
) -> Phase | None:
    if entry.kind == "collective":
        return "communication"
    if _OPTIMIZER_OPERATOR.match(entry.name):
        return "optimizer"
    is_backward = entry.is_backward or _is_of_compiled_autograd(entry)
    innermost = _innermost(entry.around, code if is_backward else ())
    if directions.get(entry.name) == "backward" or (is_backward and innermost != "optimizer"):
        return "backward"
    if entry.kind == "graph":
        if directions.get(entry.name) != "inference":
            return "forward"
        # A graph that is called after the last backward of a step, and has none itself, updates the parameters.
        return "optimizer" if is_late or innermost == "optimizer" else "forward"
    if any(map(_LOADER.search, entry.around)):
        return "input"
    for function in reversed(code):
        for pattern, phase in _OF_CODE:
            if pattern.match(function):
                return "forward" if phase == "optimizer" and has_module else phase
    return "forward" if has_module else innermost
