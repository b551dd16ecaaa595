"""How long a step takes whose host waits for the device inside it, as a gradient scaler does before its optimizer.

A host that never waits is ahead of the device, and a step takes about the longer of what both need. Where it waits it
is behind again: the device is idle until the first kernel after the wait is launched, and wherever the host is slower
than it in what follows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchledger.nouns import Launch, StepCall
from torchledger.predicting.host_steps import STEP_COSTS, launching_us
from torchledger.predicting.overheads import Mode, launch_kind
from torchledger.predicting.questions import is_over_lists
from torchledger.predicting.replays import ReplayCosts
from torchledger.printable import counted
from torchledger.work.host_waits import DRIVER_WAITS

_MOST_LINES = 4


@dataclass(frozen=True)
class Piece:
    """Work of the host, what it launches at its end, and whether the host then waits until the device is done."""

    host_us: float
    device_us: float = 0.0
    waits: bool = False


def waits_for_device(call: StepCall) -> bool:
    """True for a wait for the device inside a step."""
    return call.kind == "synchronization" and call.name in DRIVER_WAITS


def waits_notes(calls: Sequence[StepCall], waits_us: float) -> tuple[str, ...]:
    """That a step is ``waits_us`` longer than what device and host need, since one waits for the other, and where the
    program has it wait."""
    if waits_us < 1.0:
        return ()
    waits = list(filter(waits_for_device, calls))
    times = "once" if len(waits) == 1 else f"{len(waits):,} times"
    return (
        f"the host waits for the device {times} inside the step{_lines(waits)}, which takes {waits_us:,.0f} us "
        "longer for it",
    )


def _lines(waits: Sequence[StepCall]) -> str:
    """The lines that wait, the most frequent first; empty where none is known."""
    lines = Counter(os.path.basename(wait.sources[-1]) for wait in waits if wait.sources)
    named = [f"{line}{f' x {count:,}' if count > 1 else ''}" for line, count in lines.most_common(_MOST_LINES)]
    further = f" and {counted(len(lines) - len(named), 'more line')}" if len(lines) > len(named) else ""
    return f" ({', '.join(named)}{further})" if named else ""


@dataclass(frozen=True)
class Way:
    """The way that decides how long a step takes: the host's part of it and the device's, in microseconds."""

    host_us: float = 0.0
    device_us: float = 0.0

    @property
    def total_us(self) -> float:
        """The step's length."""
        return self.host_us + self.device_us

    @property
    def shares(self) -> Mapping[str, float]:
        """Of the whole way, by what it is made of as a plan says it, the larger first."""
        parts = {"compute": self.device_us, "host": self.host_us}
        ordered = sorted(parts.items(), key=lambda item: -item[1])
        return {kind: us / self.total_us for kind, us in ordered if us > 0}


def waiting_step_us(pieces: Sequence[Piece]) -> float:
    """What a step takes that repeats, in microseconds: from each wait to the next, the later of host and device.

    >>> waiting_step_us([Piece(10.0, 50.0), Piece(10.0, 50.0, waits=True)])
    110.0
    """
    return waiting_way(pieces).total_us


def waiting_way(pieces: Sequence[Piece]) -> Way:
    """What decides a step that waits: in each part of it the host's launches up to the kernel from which on the device
    is never idle, and the kernels from there. Where nothing waits, the longer of what both need.

    >>> waiting_way([Piece(10.0, 50.0), Piece(10.0, 50.0, waits=True)])
    Way(host_us=10.0, device_us=100.0)
    """
    last = max((place for place, piece in enumerate(pieces) if piece.waits), default=None)
    if last is None:
        host, device = (sum(each) for each in zip(*((piece.host_us, piece.device_us) for piece in pieces), strict=True))
        return Way(host_us=host) if host > device else Way(device_us=device)
    host_us = device_us = 0.0
    segment = list[Piece]()
    for piece in (*pieces[last + 1 :], *pieces[: last + 1]):
        segment.append(piece)
        if piece.waits:
            way = _segment_way(segment)
            host_us, device_us, segment = host_us + way.host_us, device_us + way.device_us, []
    return Way(host_us, device_us)


def _segment_way(pieces: Sequence[Piece]) -> Way:
    launched = np.cumsum([piece.host_us for piece in pieces])
    device = np.array([piece.device_us for piece in pieces])
    # A kernel begins once it is launched, and all behind it follow: the latest of these chains is the end.
    behind = np.cumsum(device[::-1])[::-1]
    ends = np.where(device > 0, launched + behind, 0.0)
    first = int(np.argmax(ends))
    if launched[-1] >= ends[first]:
        return Way(host_us=float(launched[-1]))
    return Way(float(launched[first]), float(behind[first]))


def pieces_of_step(
    calls: Sequence[StepCall],
    launches: Sequence[Launch],
    times: Mapping[str, int],
    device_us: Mapping[str | int, float],
    *,
    mode: Mode,
    host_us: float,
    whole_device_us: float,
    work_us: Mapping[int, float] | None = None,
) -> list[Piece]:
    """A recorded step in the order in which its host goes through it; ``host_us`` and ``whole_device_us`` are its sums,
    ``work_us`` is what the host computes itself beside that, by the ``order`` of calls; with it counts what the program
    computes between them.

    ``device_us`` holds what each launch takes by ``launch_id``, each eager call by ``order``; ``times`` how often a
    step makes each launch. The host's time is shared as ``STEP_COSTS`` say, a graph's own once for each of its calls.
    """
    by_graph: dict[str, list[Launch]] = {}
    for launch in launches:
        by_graph.setdefault(launch.graph, []).append(launch)
    called = Counter(call.name for call in calls if call.kind == "graph")
    shares = _Shares(calls, mode)
    found: list[Piece] = []
    works: dict[int, float] = {}
    last = -1
    for call in sorted(calls, key=lambda each: each.order):
        if call.own_us and work_us is not None:
            works[len(found)] = call.own_us
            found.append(Piece(0.0))
        if waits_for_device(call):
            # Behind what it waits for the device has more to do, and is not idle when the host goes on.
            found.append(Piece(0.0, waits=not call.waits_for or max(call.waits_for) >= last))
            continue
        last = call.order if call.kind == "graph" or device_us.get(call.order) else last
        if call.kind == "graph":
            found.append(Piece(shares.of_graph(call)))
            for launch in by_graph.get(call.name, ()):
                made = times[launch.launch_id] / called[call.name]
                kind = launch_kind(launch)
                is_free = mode == "graphs" or call.replay is not None
                cost = 0.0 if is_free or kind is None else STEP_COSTS[_KINDS[kind]]
                found.append(Piece(made * cost, made * device_us.get(launch.launch_id, 0.0)))
        else:
            works[len(found)] = (work_us or {}).get(call.order, 0.0)
            found.append(Piece(shares.of_call(call), device_us.get(call.order, 0.0)))
    by_host, by_device = sum(piece.host_us for piece in found), sum(piece.device_us for piece in found)
    return [
        Piece(
            (piece.host_us * host_us / by_host if by_host else 0.0) + works.get(place, 0.0),
            piece.device_us * whole_device_us / by_device if by_device else 0.0,
            piece.waits,
        )
        for place, piece in enumerate(found)
    ]


_KINDS = {"fused": "fused", "library": "library", "convolution": "convolutions"}


class _Shares:
    """What calls cost the host beside the launches of graphs, in the order in which they are asked for."""

    def __init__(self, calls: Sequence[StepCall], mode: Mode) -> None:
        calls = [call for call in calls if call.replay is None]
        self._graphs = [call for call in calls if call.kind == "graph"]
        self._mode = mode
        self._quiet = sum(call.phase == "backward" and not call.kernels for call in calls if call.kind == "operator")
        self._met: set[str] = set()
        self._replays = ReplayCosts()
        self._lists = sum(call.phase == "optimizer" and is_over_lists(call) for call in calls)

    def of_graph(self, call: StepCall) -> float:
        """A graph's call, before its first launch."""
        if (replay_us := self._replays.us(call)) is not None:
            return replay_us
        parameters = self._quiet * STEP_COSTS["graphs parameters" if self._mode == "graphs" else "parameters"]
        # Guards and inputs lie before the graphs, half of what a parameter costs; the rest at its gradient.
        shared = (STEP_COSTS["trains"] + parameters / 2) / max(1, len(self._graphs))
        if self._mode == "graphs":
            return STEP_COSTS["graphs replays"] + STEP_COSTS["graphs step"] / max(1, len(self._graphs)) + shared
        return STEP_COSTS["step"] / max(1, len(self._graphs)) + shared

    def of_call(self, call: StepCall) -> float:
        """An eager call, up to its launch."""
        if (replay_us := self._replays.us(call)) is not None:
            return replay_us
        if call.kind != "operator":
            return 0.0
        if "_amp_" in call.name:
            return STEP_COSTS["scalers"] / 2
        if call.phase == "optimizer" and is_over_lists(call):
            each = STEP_COSTS["fused_tensors" if "_fused_" in call.name else "foreach_tensors"]
            return (STEP_COSTS["optimizers"] + each * (call.tensors or 0)) / max(1, self._lists)
        if call.phase == "backward" and not call.kernels:
            return STEP_COSTS["parameters"] / 2
        is_new = call.name not in self._met
        self._met.add(call.name)
        return launching_us(call, is_new=is_new) if call.kernels else 0.0
