"""What the host of one rank needs for each entry of its step: the costs inside steps, and those of ranks.

What a step's own work costs is that of every step (``predicting/host_steps.py``). What comes with ranks was learned of
jobs of two GPUs whose hosts were timed phase by phase (``benchmarks/models/fit_rank_hosts.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchledger.fitting.call_costs import is_scaler
from torchledger.nouns import Launch, StepCall
from torchledger.predicting.host_steps import STEP_COSTS, inputs_of_trained, launching_us
from torchledger.predicting.overheads import Mode, further_kernels, is_backward_call, launch_kind
from torchledger.predicting.questions import is_over_lists
from torchledger.predicting.replays import ReplayCosts
from torchledger.work.collectives import collective_kind

RANK_COSTS: Mapping[str, float] = {
    "collective": 150.0,
    "fsdp forward": 1_330.0,
    "fsdp backward": 875.0,
    "graph collective": 270.0,
    "functional collective": 190.0,
    "message": 1_190.0,
    "distributed tensor": 3.2,
    "distributed call": 155.0,
}
"""Microseconds of a host of slowness 1: for a collective that the program or a reducer asks for, one of FSDP with the
hooks around it in the forward and in the backward, one inside a compiled graph, one that an operator on distributed
tensors asks for, a message to another stage of a pipeline with the schedule around it, a distributed tensor in an
operator's list, and any other operator that is given one. A message costs any host the same: it is the library that
makes both sides meet, and not Python, that takes the time (pipelines of eleven sizes)."""

MEETING = 1.11
"""How many times as long a step takes the hosts of ranks that wait for each other. Each host is slow for moments of its
own, and what all need ends with the slowest: five jobs whose hosts decide took this much longer on two ranks than on
one, with their collectives there both times (1.08 to 1.17)."""

_LIST_CALLS = 8
"""Operators over lists in a step of AdamW by lists: what a tensor of it costs the host is shared by them."""

_WAKING_US = STEP_COSTS["trains"] - 2 * STEP_COSTS["further_graphs"]
"""What a backward costs beside the calls of its graphs: autograd's thread is woken, and gradients are given."""

_FORWARD_SHARE = 0.5
"""Of what a parameter costs: its guard and its place among a graph's inputs; the rest is its gradient."""


def slowness_of_ranks(slowness: float, ranks: int) -> float:
    """How slow a host is that launches one of so many ranks, by how slow it is alone."""
    return slowness * (MEETING if ranks > 1 else 1.0)


@dataclass
class RankHost:
    """A host of a ``slowness`` (1: usual) that launches one step, call by call in its order."""

    slowness: float
    mode: Mode
    _met: set[str] = field(default_factory=set)
    _is_backward: bool = False
    _replays: ReplayCosts = field(default_factory=ReplayCosts)

    def step_us(self) -> float:
        """Once in a step."""
        return self.slowness * STEP_COSTS["graphs step" if self.mode == "graphs" else "step"]

    def _replay_us(self, call: StepCall) -> float | None:
        """What a call costs as a part of a replay of the program's own CUDA graph; ``None`` of others."""
        us = self._replays.us(call)
        return None if us is None else self.slowness * us

    def graph_us(self, call: StepCall, launches: Sequence[Launch], *, wakes_autograd: bool, collectives: int) -> float:
        """A call of a graph that asks for so many collectives, without its ``launches``; ``wakes_autograd``: the first
        of a backward."""
        self._is_backward = is_backward_call(call)
        if (replay_us := self._replay_us(call)) is not None:
            return replay_us
        if self.mode == "graphs":
            return self.slowness * STEP_COSTS["graphs replays"]
        # Half of what a collective in a graph costs is for distributed tensors on the way into it.
        us = STEP_COSTS["further_graphs"] + wakes_autograd * _WAKING_US
        us += collectives * RANK_COSTS["graph collective"] / 2
        return self.slowness * (us + _FORWARD_SHARE * STEP_COSTS["parameters"] * inputs_of_trained(launches))

    def launch_us(self, launch: Launch) -> float:
        """A launch of a graph that is no collective."""
        kind = launch_kind(launch)
        if self.mode == "graphs" or kind is None or self._replays.is_inside:
            return 0.0
        more = further_kernels(launch) if kind == "library" else 0
        name = "convolutions" if kind == "convolution" else kind
        return self.slowness * (STEP_COSTS[name] + more * STEP_COSTS["further_kernels"])

    def graph_collective_us(self) -> float:
        """A collective inside a graph, when it comes to it."""
        is_replayed = self.mode == "graphs" or self._replays.is_inside
        return 0.0 if is_replayed else self.slowness * RANK_COSTS["graph collective"] / 2

    def collective_us(self, call: StepCall, *, by_fsdp: bool, by_hand: bool = False) -> float:
        """A collective that no graph asks for; a message ``by_hand`` lacks the schedule of a pipeline around it, and
        is taken for any other collective."""
        if (replay_us := self._replay_us(call)) is not None:
            return replay_us
        if collective_kind(call.name) == "p2p" and not by_hand:
            return RANK_COSTS["message"]
        if by_fsdp:
            name = "fsdp backward" if self._is_backward else "fsdp forward"
        else:
            name = "functional collective" if call.name.startswith("_c10d_functional::") else "collective"
        return self.slowness * RANK_COSTS[name]

    def operator_us(self, call: StepCall, *, launches: bool) -> float:
        """An eager operator; ``launches``: something on the device."""
        self._is_backward = call.phase == "backward" or (self._is_backward and call.phase == "communication")
        if (replay_us := self._replay_us(call)) is not None:
            return replay_us
        if is_scaler(call.name):
            return self.slowness * STEP_COSTS["scalers"]
        if is_over_lists(call):
            return self.slowness * _list_us(call, launches=launches)
        us = 0.0
        if launches:
            us = launching_us(call, is_new=call.name not in self._met)
            us += RANK_COSTS["distributed call"] * (call.distributed > 0)
            self._met.add(call.name)
        elif call.phase == "backward" and self.mode == "graphs":
            us = STEP_COSTS["graphs parameters"]
        elif call.phase == "backward":
            us = (1 - _FORWARD_SHARE) * STEP_COSTS["parameters"]
        return self.slowness * us


def _list_us(call: StepCall, *, launches: bool) -> float:
    """An operator over lists: an optimizer's has its share of what an update needs for each tensor."""
    tensors = call.tensors or 0
    us = RANK_COSTS["distributed tensor"] * call.distributed
    if call.phase != "optimizer":
        return us + STEP_COSTS["launching_calls"] + STEP_COSTS["listed_tensors"] * tensors
    if "_fused_" in call.name:
        return us + STEP_COSTS["optimizers"] + STEP_COSTS["fused_tensors"] * tensors
    us += STEP_COSTS["listed_tensors"] * tensors * launches
    return us + (STEP_COSTS["optimizers"] + STEP_COSTS["foreach_tensors"] * tensors) / _LIST_CALLS
