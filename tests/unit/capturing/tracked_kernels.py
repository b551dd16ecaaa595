"""Runs generated C++ kernels with pointers that note each address they read and write: the slow, obvious count.

The kernels are generated without vector instructions; their text is kept, only the pointers in their signatures become
objects. Addresses that the same kernel wrote before do not count as read, also through another argument.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from schedules import CaughtKernel, hint
from torch.utils import cpp_extension

from torchledger._torch import loops as adapter
from torchledger.capturing.loops import LoopFacts, describe_loops

SCALAR = {"cpp.simdlen": 0, "cpp.threads": 1, "cpp.fallback_scatter_reduce_sum": False}
"""Settings under which Inductor writes kernels that can be followed: no vector instructions, no threads."""

_HEADER = """
#include <torch/csrc/inductor/cpp_prefix.h>
#include <unordered_set>
static std::unordered_set<const void*> written_by_kernel;
struct Notes {
    std::unordered_set<const void*> read, written;
    void note_read(const void* address) { if (!written_by_kernel.count(address)) read.insert(address); }
    void note_write(const void* address) { written.insert(address); written_by_kernel.insert(address); }
};
template <typename T> struct Place {
    T* address; Notes* notes;
    void operator=(T value) { notes->note_write(address); *address = value; }
    template <typename V> void operator+=(V value) { *this->operator&() += value; }
    T* operator&() { notes->note_read(address); notes->note_write(address); return address; }
};
template <typename T> struct Tracked {
    T* start; Notes* notes;
    T read(int64_t i) const { notes->note_read(start + i); return start[i]; }
    Place<T> operator[](int64_t i) const { return {start + i, notes}; }
};
template <typename T> struct Tracked<const T> {
    const T* start; Notes* notes;
    T read(int64_t i) const { notes->note_read(start + i); return start[i]; }
    T operator[](int64_t i) const { return read(i); }
};
"""

_SIGNATURE = re.compile(r'extern "C"\s+void\s+\S*KERNEL_NAME\((?P<parameters>[^)]*)\)')
_LOAD = re.compile(r"(auto \w+ = )(\w*_ptr\d+)\[(.*)\];$", re.MULTILINE)
_ALIAS = re.compile(r"auto \w+_ptr\d+ = \w+_ptr\d+;")
_MARGIN = 4096


@dataclass(frozen=True)
class TrackedArgument:
    """Memory behind one pointer: which block it lies in, from which element on, and what the block holds."""

    block: str
    start: int
    elements: int
    dtype: str


class UntrackedKernel(Exception):
    """A kernel that cannot be followed, or that refuses the random content of its index buffers."""


@dataclass(frozen=True)
class Comparison:
    """Bytes read and written through one argument of one kernel: as said by the closed form, and as seen."""

    kernel: str
    buffer: str
    said: tuple[int, int]
    quality: str
    seen: tuple[int, int]

    @property
    def holds(self) -> bool:
        if self.quality == "exact":
            return self.said == self.seen
        return self.quality == "upper_bound" and all(s >= t for s, t in zip(self.said, self.seen, strict=True))


Examined = tuple[CaughtKernel, LoopFacts, list[TrackedArgument]]


def examine(kernel: CaughtKernel) -> Examined:
    """Describe a kernel, and note the memory behind its arguments, while Inductor still knows them."""
    facts = describe_loops(kernel.snodes, kernel.names, hint, shared=kernel.arguments)
    arguments = []
    for group in kernel.arguments:
        block, start = adapter.shared_memory(group[0], hint)
        layout = adapter.tensor_layout(group[0], hint)
        assert layout is not None
        span = layout.offset + sum((n - 1) * s for n, s in zip(layout.size, layout.stride, strict=True)) + 1
        arguments.append(TrackedArgument(block, start, span, layout.dtype))
    return kernel, facts, arguments


def compare(
    examined: Mapping[str, Sequence[Examined]], folder: Path
) -> tuple[dict[str, list[Comparison]], dict[str, list[str]]]:
    """Build and run all kernels; comparisons by label, and by label why kernels could not be followed."""
    sources: list[str] = []
    names: list[tuple[str, str, Examined]] = []
    comparisons: dict[str, list[Comparison]] = {label: [] for label in examined}
    refused: dict[str, list[str]] = {}
    for label, kernels in examined.items():
        for each in kernels:
            name = f"kernel_{len(names)}"
            try:
                sources.append(tracked_source(each[0].source, name))
                names.append((label, name, each))
            except UntrackedKernel as error:
                refused.setdefault(label, []).append(str(error))
    library = build(sources, folder)
    for label, name, (kernel, facts, arguments) in names:
        try:
            counts = run(library, name, arguments)
        except UntrackedKernel as error:
            refused.setdefault(label, []).append(str(error))
            continue
        seen: dict[tuple[str, ...], tuple[int, int]] = {}
        for group, argument, (read, written) in zip(kernel.arguments, arguments, counts, strict=True):
            # A buffer that is read through one argument and written through another is one buffer.
            itemsize = getattr(torch, argument.dtype).itemsize
            before = seen.get(group, (0, 0))
            seen[group] = (before[0] + read * itemsize, before[1] + written * itemsize)
        for group, bytes_seen in seen.items():
            parts = [facts.traffic[buffer] for buffer in group]
            said = (sum(part[0] or 0 for part in parts), sum(part[1] or 0 for part in parts))
            qualities = {part[2] for part in parts}
            worst = next(q for q in ("unavailable", "upper_bound", "exact") if q in qualities)
            comparisons[label].append(Comparison(name, group[0], said, worst, bytes_seen))
    return comparisons, refused


def tracked_source(source: str, name: str) -> str:
    """The kernel's text with tracked pointers, and an entry point for ctypes."""
    signature = _SIGNATURE.search(source)
    if signature is None:
        raise UntrackedKernel("no signature")
    parameters = [" ".join(part.split()) for part in signature["parameters"].split(",")]
    pointers = []
    for parameter in parameters:
        kind, star, argument = parameter.rpartition("*")
        if not star:
            raise UntrackedKernel(f"parameter {parameter}")
        pointers.append((kind.strip(), argument.strip()))
    body = _LOAD.sub(r"\1\2.read(\3);", source[signature.end() :])
    without_aliases = _ALIAS.sub("", body)
    if any(re.search(rf"\b{argument}\b(?!\[|\.read)", without_aliases) for _, argument in pointers):
        raise UntrackedKernel("a pointer is used without an index")
    tracked = ", ".join(f"Tracked<{kind}> {argument}" for kind, argument in pointers)
    passed = ", ".join(f"{{({kind}*)pointers[{i}], &notes[{i}]}}" for i, (kind, _) in enumerate(pointers))
    return (
        f"static void {name}_tracked({tracked}){body}\n"
        f'extern "C" int {name}(void** pointers, int64_t* counts) {{\n'
        f"    std::vector<Notes> notes({len(pointers)});\n    written_by_kernel.clear();\n"
        f"    try {{ {name}_tracked({passed}); }} catch (...) {{ return 1; }}\n"
        f"    for (int i = 0; i < {len(pointers)}; ++i) {{\n"
        "        counts[2 * i] = notes[i].read.size();\n"
        "        counts[2 * i + 1] = notes[i].written.size();\n"
        "    }\n    return 0;\n}\n"
    )


def build(sources: Sequence[str], folder: Path) -> ctypes.CDLL:
    """Compile tracked kernels into one library."""
    path, library = folder / "tracked.cpp", folder / "tracked.so"
    path.write_text(_HEADER + "\n".join(sources))
    torch_lib = str(Path(torch.__file__).parent / "lib")
    command = ["g++", "-std=c++20", "-O0", "-w", "-shared", "-fPIC", str(path), "-o", str(library)]
    command += [f"-I{include}" for include in cpp_extension.include_paths()]
    command += [f"-L{torch_lib}", f"-Wl,-rpath,{torch_lib}", "-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(library))


def run(library: ctypes.CDLL, name: str, arguments: Sequence[TrackedArgument]) -> list[tuple[int, int]]:
    """Distinct elements that the kernel read and wrote through each pointer."""
    random = np.random.default_rng(0)
    blocks: dict[str, np.ndarray] = {}
    pointers = (ctypes.c_void_p * len(arguments))()
    for argument in arguments:
        itemsize = getattr(torch, argument.dtype).itemsize
        needed = argument.start + argument.elements + 2 * _MARGIN
        if argument.block not in blocks or blocks[argument.block].nbytes < needed * itemsize:
            blocks[argument.block] = _content(argument.dtype, needed + 2 * _MARGIN, random)
    for i, argument in enumerate(arguments):
        itemsize = getattr(torch, argument.dtype).itemsize
        pointers[i] = blocks[argument.block].ctypes.data + (_MARGIN + argument.start) * itemsize
    counts = (ctypes.c_int64 * (2 * len(arguments)))()
    if getattr(library, name)(pointers, counts) != 0:
        raise UntrackedKernel("its own checks refuse the indices that it was given")
    return [(counts[2 * i], counts[2 * i + 1]) for i in range(len(arguments))]


def _content(dtype: str, elements: int, random: np.random.Generator) -> np.ndarray:
    if dtype == "int8":
        return np.full(elements, 4, np.int8)  # the middle of a 3 x 3 pooling window, valid at every border
    if dtype in ("int64", "int32", "int16", "uint8"):
        return random.integers(0, 3, elements).astype(dtype)
    if dtype == "bool":
        return random.integers(0, 2, elements).astype(bool)
    if dtype in ("bfloat16", "float16"):
        return torch.rand(elements).to(getattr(torch, dtype)).view(torch.int16).numpy()
    return random.random(elements).astype(dtype)
