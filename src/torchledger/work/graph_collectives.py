"""Collectives that a compiled graph calls itself, as launches of ``_c10d_functional`` operators and a few others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torchledger.nouns import Launch
from torchledger.work.collectives import message_of_call
from torchledger.work.op_shapes import OpCall, Tensor

WAIT = "wait_tensor"

_FUNCTIONAL = "_c10d_functional"
_CALLED = re.compile(r"\b(_?c10d_functional(_autograd)?|(?P<space>symm_mem|_dtensor))\.(?P<name>\w+)")
_GROUP = re.compile(r"'(?P<group>[^']*)'\s*\)?\s*$")


@dataclass(frozen=True)
class GraphCollective:
    """A launch of a ``_c10d_functional`` operator, ``"wait_tensor"`` too, or of one of another ``namespace``; ``name``
    is without the mark of what works in place."""

    launch: Launch
    name: str
    namespace: str = _FUNCTIONAL

    @property
    def operator(self) -> str:
        """Its name as a profiler writes it: ``"_c10d_functional::all_reduce"``."""
        return f"{self.namespace}::{self.name}"

    @property
    def waits_itself(self) -> bool:
        """Whether what follows it in the graph waits for it, without a call that says so."""
        return self.namespace != _FUNCTIONAL

    @property
    def group(self) -> str | None:
        """The name of its process group."""
        if (named := self.launch.kwargs.get("group_name")) is not None:
            return named.strip("'\"")
        match = _GROUP.search(self.launch.call or "")
        return None if match is None else match["group"]

    @property
    def group_size(self) -> int | None:
        """How many ranks its arguments say that it has; an all_reduce does not say."""
        text = self.launch.kwargs.get("group_size", "")
        return int(text) if text.isdigit() else None

    def message_bytes(self, ranks: int | None) -> int | None:
        """The size of its message over ``ranks``, as nccl-tests count it; ``None`` where its buffers do not say it."""
        buffers = self.launch.buffers
        if not all(isinstance(size, int) for buffer in buffers for size in buffer.shape):
            return None
        tensors = tuple(Tensor(tuple(buffer.shape), buffer.dtype) for buffer in buffers)
        message = message_of_call(OpCall(self.operator, tensors), ranks)
        return None if message is None else message.nbytes


def graph_collective(launch: Launch) -> GraphCollective | None:
    """A launch as the collective, or the wait for one, that it is; ``None`` for any other launch."""
    for text in (launch.kernel_name, launch.call or ""):
        if match := _CALLED.search(text):
            return GraphCollective(launch, match["name"].removesuffix("_"), match["space"] or _FUNCTIONAL)
    return None


def graph_collectives(launches: Iterable[Launch]) -> dict[str, GraphCollective]:
    """Those of the launches that are collectives, or wait for one, by their ids."""
    found = ((launch.launch_id, graph_collective(launch)) for launch in launches)
    return {launch_id: collective for launch_id, collective in found if collective is not None}
