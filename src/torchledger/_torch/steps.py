"""What finding and recording a program's steps needs of torch, beside its optimizers."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from torchledger._torch.devices import has_cuda
from torchledger._torch.dynamo import before_its_frames
from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.eager_flops import EagerFlops
from torchledger._torch.optimizers import facts_of_optimizer, holds_optimizer, holds_shards
from torchledger._torch.patching import Patches
from torchledger._torch.profiler import CallTimer, Recording, is_profiling, mark, synchronize
from torchledger._torch.user_lines import user_lines as call_site

__all__ = ["call_site", "facts_of_optimizer", "has_cuda", "holds_optimizer", "is_profiling", "mark", "synchronize"]


def keeps_gradients() -> bool:
    """True while what this thread computes is kept for a backward."""
    return bool(torch.is_grad_enabled())


def is_in_backward() -> bool:
    """True while autograd's engine calls what this thread is at."""
    return bool(torch._C._current_graph_task_id() != -1)


def is_capturing() -> bool:
    """True while this thread's stream only notes what it is given, for a CUDA graph."""
    return has_cuda() and bool(torch.cuda.is_current_stream_capturing())


def recording() -> Recording:
    """A recording of the calling thread under the profiler, with shapes and the CPU's allocations."""
    return Recording(with_shapes=True, with_memory=True)


def listener(inside: Callable[[], str | None]) -> EagerCalls:
    """What hears the eager operators of the calling thread; ``inside`` names the compiled graph it is in, if any."""
    return EagerCalls(inside)


def eager_flops() -> EagerFlops:
    """What counts the FLOPs of the calling thread while nothing is compiled."""
    return EagerFlops()


def clock() -> StepClock:
    """A clock for plain steps."""
    return StepClock()


def call_timer() -> CallTimer:
    """A timer of calls on a GPU, by events."""
    return CallTimer()


def watch_profiler_steps(stepped: Callable[[], None]) -> Patches:
    """Hear each ``torch.profiler.profile.step()`` of the program, before it, until the patches are undone."""
    patches = Patches()

    def step(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        stepped()
        return original(*args, **kwargs)

    patches.around(torch.profiler.profile, "step", step)
    return patches


def watch_compile(begins: Callable[[], None]) -> Patches:
    """Hear each ``torch.compile`` of the program, before it, until the patches are undone; those that libraries call
    while they are imported as ``before_its_frames`` does."""
    patches = Patches()

    def compiled(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before_its_frames(patches, begins)
        return original(*args, **kwargs)

    patches.around(torch, "compile", compiled)
    return patches


def parameter_places(compiled: Any, inputs: Sequence[Any]) -> tuple[int, ...]:
    """Where a compiled graph is given parameters: at most three places, else those of other inputs that stay.

    What a backward is given else was saved by its forward, at another address each time.
    """
    places = [place for place, each in enumerate(inputs) if isinstance(each, torch.nn.Parameter)]
    options = getattr(compiled, "fx_kwargs", None) or {}
    if not places and not options.get("is_backward"):
        places = list(options.get("static_input_idxs") or ())
    return tuple(dict.fromkeys((places[0], places[len(places) // 2], places[-1]))) if places else ()


def updates_parameters(compiled: Any, inputs: Sequence[Any]) -> bool:
    """Whether a compiled graph writes into parameters that it is given, as an optimizer's step does.

    Of sharded parameters it is given what lies on this rank, which only their optimizer knows.
    """
    places = getattr(compiled, "mutated_input_idxs", None) or ()
    written = [inputs[place] for place in places if place < len(inputs)]
    return any(isinstance(each, torch.nn.Parameter) for each in written) or holds_shards(
        [each for each in written if isinstance(each, torch.Tensor)]
    )


def identity_of(inputs: Sequence[Any], places: Sequence[int]) -> Hashable:
    """What tells a call with these parameters from one with others."""
    identity = []
    for place in places:
        tensor = inputs[place] if place < len(inputs) else None
        is_parameter = tensor is None or isinstance(tensor, torch.nn.Parameter) or not isinstance(tensor, torch.Tensor)
        identity.append(id(tensor) if is_parameter else _address(tensor))
    return tuple(identity)


def _address(tensor: Any) -> int:
    try:
        return int(tensor.data_ptr())
    except RuntimeError:  # a tensor without storage of its own
        return id(tensor)


class StepClock:
    """Times from one ``tick()`` to the next: the host's, or where a GPU works, moments on its stream.

    A host that runs ahead of its GPU ends its steps early: only the GPU knows then when they do. The GPU is waited for
    once, in ``durations_us``.
    """

    def __init__(self) -> None:
        self._moments: list[float] = []
        self._events: list[Any] = []

    def tick(self) -> None:
        """A step begins here, and the one before it ends."""
        self._moments.append(time.perf_counter())
        if has_cuda() and not torch.cuda.is_current_stream_capturing():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def durations_us(self) -> tuple[float, ...]:
        """Microseconds between ticks; one fewer than there were ticks."""
        if self._events and len(self._events) == len(self._moments):
            torch.cuda.synchronize()
            return tuple(
                before.elapsed_time(after) * 1e3 for before, after in zip(self._events, self._events[1:], strict=False)
            )
        return self._between_moments_us()

    def issued_us(self) -> tuple[float, ...]:
        """The host's own microseconds between ticks, where the durations are the GPU's; empty elsewhere."""
        return self._between_moments_us() if self._events and len(self._events) == len(self._moments) else ()

    def _between_moments_us(self) -> tuple[float, ...]:
        return tuple((after - before) * 1e6 for before, after in zip(self._moments, self._moments[1:], strict=False))

    @property
    def elapsed_us(self) -> float:
        """Host time since the first tick, in microseconds."""
        return (time.perf_counter() - self._moments[0]) * 1e6 if self._moments else 0.0
