"""One whole step of a program: what it called, in order, with times; compiled graphs and eager work alike."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchledger.nouns.launch import Quality
from torchledger.nouns.measurement import Clock

StepFoundBy = Literal["torchledger.step", "profiler_step", "turn", "optimizer", "period", "call"]
"""What told where a step ends: ``torchledger.step()``, a profiler's ``ProfilerStep#``, the turn of a loop that holds
several steps of an optimizer and work that they use (in plans), the last optimizer's step of the round, the period of
the sequence of calls, or one call by the user (``profile(step_fn)``)."""

Phase = Literal["input", "forward", "loss", "backward", "clipping", "optimizer", "communication", "other"]
"""What a part of a step is for."""

_STEADY = 0.2
"""Share of the median by which plain steps may differ (half of them) and still be called steady."""

CallKind = Literal["graph", "operator", "collective", "copy", "synchronization"]


@dataclass(frozen=True)
class StepKind:
    """Steps that called the same graphs and optimizers in the same order: how many were seen, and what they called."""

    count: int
    calls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerFacts:
    """An optimizer that stepped: its class, and the parameters that it updates (tensors, elements, by dtype)."""

    name: str
    tensors: int
    elements: int
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorArgument:
    """A tensor as an eager operator was given it; ``dtype`` by its torch name, ``None`` where it was not recorded.

    ``held_bytes`` is what a sparse tensor holds, its values and their places; ``None`` of any other, and where it was
    not recorded.
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    stride: tuple[int, ...] | None = None
    held_bytes: int | None = None

    @property
    def is_sparse(self) -> bool:
        """True for a tensor of which it was recorded that it holds some of its elements alone."""
        return self.held_bytes is not None


@dataclass(frozen=True)
class StepCall:
    """One entry of a step: a call of a compiled graph, an eager operator, a collective, a copy or a synchronization.

    ``step`` is the name of the ``Step`` that it belongs to, ``name`` a graph's name (``"forward_0"``), an
    operator's (``"aten::add"``) or a runtime call's (``"cudaStreamSynchronize"``). ``call`` counts the calls of
    one graph within the step. ``thread`` is a small number for the host thread, ``start_us`` counts from the
    step's beginning on the host's clock. ``samples_us`` is device time (on a CPU: the operator's own) in each
    recorded step, ``kernels`` the number of device kernels launched, ``launches`` the graph's launches that ran
    in this call. ``sources`` are the user's lines (``"train.py:12"``), innermost last; a backward operator
    carries the lines of its forward. ``flops`` and ``bytes_moved`` are ``None`` where unknown, and ``reason``
    says why. For a collective ``group`` and ``group_size`` name who takes part, and ``message_bytes`` is its
    size as nccl-tests count it, from which bus bandwidth is computed: the larger of what a rank gives and gets
    (the whole tensor of an all_gather or reduce_scatter, one side of an all_reduce or broadcast), where
    ``bytes_moved`` is both together. ``tensors`` and ``elements`` say how much a foreach or fused operator works on.
    ``waits_for`` are the ``order`` of calls on other streams that end before this one begins on its own; it is known of
    a planned step alone, whose one stream in ``streams`` is the program's (``"compute"``), not a device's number.
    ``sizes`` are the symbols of a dynamic graph and their values in this call (``Graph.symbols`` by name).
    ``recomputed_for`` names the autograd node (``"CompiledFunctionBackward"``) for which a forward graph was called
    again in the backward, as a checkpoint around it asks. ``not_taken`` counts a graph's launches that stand in ways of
    a conditional (``torch.cond``) which this call did not take, ``repeated`` those that a loop (``while_loop``) made
    again, each as often as it did; ``times`` holds those that were not made once, by their ``order`` in the graph, and
    how often they were. ``distributed`` counts the distributed tensors that an operator was given, which the host
    unpacks for it; it is known of a planned step alone. ``unasked`` are the places of the results of a backward's graph
    that nobody asked for. ``inside`` holds the FLOPs of launches for whose operator there is no formula, by their
    ``order`` in the graph: those of the operators that ran inside them in this call. ``settings`` are the integers and
    truth values that an eager operator was given, by their names in its schema, dimensions counted from the front
    (``("dim", (1,))``); what equals its default is left out, ``None`` is not recorded. An index has the dimensions that
    it was given, unless they are the first ones (``("indices", (1,))``). Attention that drops weights has
    ``("dropout", (1,))`` beside them. A plan adds ``("pinned", (1,))`` to copies from and to pinned memory of the host,
    and ``("loaded", (1,))`` to what a data loader computes there. ``predicted_us`` is what a plan says that the call
    takes on the device, microseconds, where its price was kept. ``own_us`` is how long the program computed on the host
    beside torch before the call (NumPy, Python), on the machine that planned it, and ``own_source`` the line. Calls
    that one replay of a CUDA graph of the program's own makes share a number, ``replay``; it is known of a planned step
    alone.
    """

    step: str
    order: int
    kind: CallKind
    name: str
    phase: Phase
    thread: int = 0
    call: int | None = None
    start_us: float | None = None
    host_us: float | None = None
    samples_us: tuple[float, ...] = ()
    kernels: int = 0
    launches: int | None = None
    streams: tuple[str, ...] = ()
    device: str | None = None
    category: str | None = None
    arguments: tuple[TensorArgument, ...] = ()
    tensors: int | None = None
    elements: int | None = None
    modules: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    flops: int | None = None
    flops_quality: Quality = "unavailable"
    bytes_moved: int | None = None
    bytes_quality: Quality = "unavailable"
    reason: str | None = None
    group: str | None = None
    group_size: int | None = None
    message_bytes: int | None = None
    waits_for: tuple[int, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    recomputed_for: str | None = None
    not_taken: int = 0
    repeated: int = 0
    distributed: int = 0
    times: tuple[tuple[int, int], ...] = ()
    unasked: tuple[int, ...] = ()
    inside: tuple[tuple[int, int], ...] = ()
    settings: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    predicted_us: float | None = None
    own_us: float | None = None
    own_source: str | None = None
    replay: int | None = None


@dataclass(frozen=True)
class Step:
    """One step, found, timed and recorded: the sums over its calls, and what they are checked against.

    ``plain_us`` are times of steps without the profiler, from the beginning of one to that of the next on the GPU's
    stream (without a GPU: on the host), ``issued_us`` those of the same steps on the host where a GPU works: what the
    host needs for one unless something makes it wait. ``profiled_us`` are those under the profiler, with a GPU their
    mean. ``seen`` counts the steps that the program did while it was watched (compilation aside), ``recorded`` those
    under the profiler; ``kinds`` says which of them were alike, the recorded kind first. ``device_us`` is the device
    time of one step (median over the recorded ones), ``covered_us`` the part that belongs to calls, ``known_us`` the
    part whose calls have FLOPs or bytes; ``busy_us`` the union of their intervals, ``wall_us`` the step's length on the
    same clock, ``idle_us`` the rest by cause: means over the recorded steps, on a CPU those of the step of median
    length. On a CPU an operator's own time is device time. ``graph_calls`` counts calls of each compiled graph.
    ``operators`` counts the eager operators of the threads that a dispatch mode listened to, ``operators_heard`` what
    that mode counted in another step, ``operators_otherwise`` how many more they are in
    nodes of autograd's that call others while a mode listens, ``operators_elsewhere`` those of other threads;
    ``operators_by_step`` are all of each recorded step's, which differ where steps do other eager work each time;
    ``is_heard_at_other_sizes`` says that what the mode heard had other sizes than these calls, ``is_as_heard`` that
    this step's operators are, by name, those that it heard: that other steps do more is no matter then.
    """

    name: str
    found_by: StepFoundBy
    clock: Clock
    plain_us: tuple[float, ...] = ()
    issued_us: tuple[float, ...] = ()
    profiled_us: tuple[float, ...] = ()
    seen: int = 0
    recorded: int = 0
    kinds: tuple[StepKind, ...] = ()
    graph_calls: Mapping[str, int] = field(default_factory=dict)
    device_us: float | None = None
    covered_us: float = 0.0
    known_us: float = 0.0
    uncovered_us: Mapping[str, float] = field(default_factory=dict)
    busy_us: float | None = None
    wall_us: float | None = None
    idle_us: Mapping[str, float] = field(default_factory=dict)
    operators: int | None = None
    operators_heard: int | None = None
    operators_elsewhere: int = 0
    operators_otherwise: Mapping[str, int] = field(default_factory=dict)
    operators_by_step: tuple[int, ...] = ()
    is_heard_at_other_sizes: bool = False
    is_as_heard: bool = False
    optimizers: tuple[OptimizerFacts, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def duration_us(self) -> float | None:
        """Median time of a step without the profiler, in microseconds; ``None`` if none was timed."""
        return statistics.median(self.plain_us) if self.plain_us else None

    @property
    def plain_range_us(self) -> tuple[float, float] | None:
        """Between which times half of the plain steps lie, the middle ones; all of them, if fewer than four."""
        if len(self.plain_us) < 4:
            return (min(self.plain_us), max(self.plain_us)) if self.plain_us else None
        low, _, high = statistics.quantiles(self.plain_us, n=4, method="inclusive")
        return low, high

    @property
    def is_steady(self) -> bool:
        """False if plain steps took so different times that one number says little of them."""
        low, high = self.plain_range_us or (0.0, 0.0)
        return high - low <= _STEADY * (self.duration_us or 0.0)

    @property
    def has_unlike_steps(self) -> bool:
        """True if the recorded steps do not even call equally many eager operators, nor this one those that were heard:
        one is no reference of another."""
        return len(set(self.operators_by_step)) > 1 and not self.is_as_heard

    @property
    def is_measured(self) -> bool:
        """False for a step of a program that ran without its device, which has calls and no times."""
        return bool(self.plain_us or self.profiled_us) or self.device_us is not None

    @property
    def covered_share(self) -> float | None:
        """Share of the device time that belongs to calls of this record; ``None`` without device time."""
        return self.covered_us / self.device_us if self.device_us else None
