"""What a launch finds in the L2 cache, by what ran before it: how much traffic passed since each buffer was touched."""

from __future__ import annotations

import math
from collections import defaultdict

from torchledger.nouns import Buffer, Launch
from torchledger.work.element_sizes import element_size
from torchledger.work.graph_names import direction_of
from torchledger.work.step_traffic import StepTraffic

_BACK_TO_FORWARD, _FORWARD_TO_BACK = 1.5, 3.0
"""Traffic since a graph's input was touched in the graph that went the other way, over what this one has moved so far:
a backward moves about twice as much as its forward."""

_TRAFFIC_OF_HELD = 0.5
"""Traffic that drives as much out of the cache as a step that holds a byte: what a step holds stays if the cache is as
large, and traffic was counted up to half of that (``KernelConstants.l2_of_kept``)."""


class CacheState:
    """What the L2 holds: how much traffic passed since each buffer was touched, and how much is yet to be written.

    Where steps follow each other, a buffer that its graph has not touched was touched by the step before, and what a
    backward asks for first was touched by its forward last. Otherwise a graph is taken to find the L2 full of dirty
    lines, as a sweep before a sample leaves it.
    """

    def __init__(
        self, kept_bytes: float, graph: str = "", step: StepTraffic | None = None, *, by_name: bool = False
    ) -> None:
        """``kept_bytes``: traffic after which a buffer is taken to have left; ``step``: where steps follow others;
        ``by_name``: memory that goes by another name is not known again."""
        self._by_name = by_name
        self._kept_bytes = kept_bytes
        self._step = step
        self._is_backward = direction_of(graph) == "backward"
        self._traffic = 0.0
        self.dirty_share = 1.0
        self._touched: dict[str, float] = {}
        self._sizes: dict[str, int] = {}
        self._touched_of_size: defaultdict[int, dict[str, float]] = defaultdict(dict)
        """The same by size, the buffer that was touched last behind all others."""

    def warm_bytes(self, launch: Launch) -> float:
        """Bytes that a launch reads of buffers that the L2 still holds."""
        names = {buffer.name for buffer in launch.buffers}
        warm = 0.0
        for buffer in launch.buffers:
            if buffer.bytes_read:
                room = self._kept_bytes - self._traffic_since(buffer, names)
                warm += min(float(buffer.bytes_read), max(room, 0.0))
        return warm

    def _traffic_since(self, buffer: Buffer, names: set[str]) -> float:
        last = self._touched.get(buffer.name)
        if last is None and buffer.role == "inout" and not self._by_name:
            last = self._touched_before_reuse(buffer, names)
        if last is not None:
            return min(self._traffic - last, self._most_driven_out)
        if self._step is None:
            return math.inf
        if buffer.name.startswith("buf") and buffer.role == "input":
            # Made of parts that were written under their own names.
            return 0.0
        return min(self._step.bytes_moved, self._most_driven_out, self._traffic_since_mirrored(self._step))

    @property
    def _most_driven_out(self) -> float:
        """The most traffic that a step can be between two uses of a buffer."""
        held = None if self._step is None else self._step.held_bytes
        return math.inf if held is None else _TRAFFIC_OF_HELD * held

    def _traffic_since_mirrored(self, step: StepTraffic) -> float:
        """Since the other direction touched what this one asks for, which it did in the opposite order: a backward's
        input the forward, a weight of the forward the backward, and then the optimizer."""
        if self._is_backward:
            return _BACK_TO_FORWARD * self._traffic
        if step.optimizer_bytes is None:
            return math.inf
        return step.optimizer_bytes + _FORWARD_TO_BACK * self._traffic

    def _touched_before_reuse(self, buffer: Buffer, names: set[str]) -> float | None:
        """When the buffer was touched whose memory this one takes over: the last one of its size."""
        size = _size(buffer)
        touched = self._touched_of_size[size] if size else {}
        return next((touched[name] for name in reversed(touched) if name not in names), None)

    def touch(self, launch: Launch) -> None:
        """The launch has run."""
        read, stored = launch.bytes_read, launch.bytes_written
        written = float(stored or 0)
        moved = 0.0 if read is None or stored is None else read + written
        self._traffic += moved
        if moved:
            left = math.exp(-moved / self._kept_bytes)
            self.dirty_share = self.dirty_share * left + written / moved * (1 - left)
        for buffer in launch.buffers:
            self._touched_of_size[self._sizes.get(buffer.name, 0)].pop(buffer.name, None)
            self._sizes[buffer.name] = size = _size(buffer)
            self._touched[buffer.name] = self._touched_of_size[size][buffer.name] = self._traffic


def _size(buffer: Buffer) -> int:
    """Bytes of a buffer. What stands for a rounded product (``rounded_products.py``) writes as much as the product, of
    elements half as large."""
    return max(math.prod(buffer.shape) * (element_size(buffer.dtype) or 0), buffer.bytes_written or 0)
