"""Marks on a GPU's stream that say when it came to them, and how many cycles its multiprocessors had counted.

A mark is a kernel of two small blocks for each multiprocessor; between two marks the time is that of the device's own
clock, and cycles over time are the clock of those multiprocessors that both marks met.
"""

from __future__ import annotations

import statistics
from collections import defaultdict

import torch
import triton
import triton.language as tl


@triton.jit
def read_clocks(out):  # type: ignore[no-untyped-def]  # Triton reads annotations
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    now_ns = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    place = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    row = out + tl.program_id(0) * 3
    tl.store(row, cycles)
    tl.store(row + 1, now_ns)
    tl.store(row + 2, place.to(tl.int64))


class DeviceMarks:
    """Up to ``most`` marks on the current stream."""

    def __init__(self, most: int) -> None:
        self.blocks = 2 * torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self.read = torch.zeros(most, self.blocks, 3, dtype=torch.int64, device="cuda")
        self.names: list[str] = []
        read_clocks[(self.blocks,)](self.read[0], num_warps=1)  # compiled before it is needed

    def mark(self, name: str) -> None:
        """The work launched since the mark before is this phase's."""
        if len(self.names) < len(self.read):
            read_clocks[(self.blocks,)](self.read[len(self.names)], num_warps=1)
            self.names.append(name)

    def phases(self) -> dict[str, tuple[float, float]]:
        """By name the median milliseconds of a phase, and the median clock in megahertz meanwhile."""
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        rows = self.read[: len(self.names)].tolist()
        for number in range(1, len(rows)):
            before = {place: (cycles, ns) for cycles, ns, place in rows[number - 1]}
            spans = [
                (ns - before[place][1], cycles - before[place][0])
                for cycles, ns, place in rows[number]
                if place in before and ns > before[place][1]
            ]
            if spans:
                ended, began = (max(ns for _, ns, _ in rows[each]) for each in (number, number - 1))
                mhz = statistics.median(1e3 * cycles / ns for ns, cycles in spans)
                found[self.names[number]].append(((ended - began) / 1e6, mhz))
        return {
            name: (statistics.median(ms for ms, _ in spans), statistics.median(mhz for _, mhz in spans))
            for name, spans in found.items()
        }
