"""What recording a program's steps asks of torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any, Protocol

from torchledger.nouns import OptimizerFacts


class Tools(Protocol):
    """What the recorder needs of torch: the module ``_torch.steps``, or a test's own."""

    def is_profiling(self) -> bool:
        """True while some profiler records."""

    def has_cuda(self) -> bool:
        """True once the program has used CUDA."""

    def call_site(self) -> Hashable:
        """Which lines of the program make the call that this thread is at."""

    def keeps_gradients(self) -> bool:
        """True while what this thread computes is kept for a backward."""

    def is_in_backward(self) -> bool:
        """True while autograd's engine calls what this thread is at."""

    def is_capturing(self) -> bool:
        """True while this thread's stream only notes what it is given, for a CUDA graph of the program's own."""

    def synchronize(self) -> None:
        """Wait for the GPU, if there is one in use."""

    def mark(self, name: str) -> Any:
        """A context manager around a named range of a recording."""

    def recording(self) -> Any:
        """A recording of the calling thread under the profiler, not begun yet."""

    def listener(self, inside: Callable[[], str | None]) -> Any:
        """What hears the eager operators of the calling thread, not begun yet."""

    def eager_flops(self) -> Any:
        """What counts the FLOPs of the calling thread while nothing is compiled, not begun yet."""

    def clock(self) -> Any:
        """What times plain steps."""

    def call_timer(self) -> Any:
        """What times calls on a GPU whose profiler is taken."""

    def facts_of_optimizer(self, optimizer: Any) -> OptimizerFacts:
        """What an optimizer updates."""

    def holds_optimizer(self, parameters: Collection[int] | None) -> bool:
        """True if an optimizer updates one of these parameters, given by ``id``; ``None``: any."""
