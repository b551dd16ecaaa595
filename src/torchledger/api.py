"""The front door for Python: a capture that can also be asked the questions of later rooms."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchledger.capturing.eager import EagerCount, count_eager
from torchledger.capturing.session import Capture
from torchledger.capturing.watcher import Watcher
from torchledger.nouns import Breakdown
from torchledger.planning.plan import DEFAULT_DEVICE, Plan, plan_program
from torchledger.profiling.profile import (
    DEFAULT_REPEATS,
    DEFAULT_WARMUP,
    KernelVisibility,
    profile,
)
from torchledger.profiling.profile import step as end_of_step


class CapturedRun(Capture):
    """A running capture; what ``torchledger.capture`` gives."""

    has_profiled = False
    """True once it was asked for a profile."""

    def profile(
        self, step_fn: Callable[[], Any], *, warmup: int = DEFAULT_WARMUP, repeats: int = DEFAULT_REPEATS
    ) -> Breakdown:
        """Time ``repeats`` calls of ``step_fn`` and give every kernel's time to its entry; see ``profiling.profile``.

        Raises ``MeasureError`` if the step ran nothing compiled, or only what C++ wrappers (``cpp_wrapper=True``) call,
        which takes ``capture(path, profile=True)`` before compiling.
        """
        self.has_profiled = True
        return profile(self, step_fn, warmup=warmup, repeats=repeats)

    def count_eager(self, step_fn: Callable[[], Any]) -> EagerCount:
        """Run ``step_fn`` once with compilation off under ``FlopCounterMode`` and put the count into the balance."""
        return count_eager(self, step_fn)


def plan(
    make_model: Callable[[], Any],
    step: Callable[[Any], Any],
    *,
    device: str = DEFAULT_DEVICE,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    host: str | None = None,
) -> Plan:
    """The price of ``step(model)`` on a device that is not there, of a model that ``make_model()`` makes.

    Both are called on fake tensors, ``step`` until one whole step is recorded: nothing is computed, and nothing of the
    model's size is allocated. ``output`` keeps the ledger; ``host`` is one that ``torchledger doctor`` measured, by
    name or as a file (``None``: usual costs). Raises ``PlanError`` where the program cannot run so.

    >>> plan = torchledger.plan(lambda: torch.compile(Net().cuda()), train_step, device="H200")  # doctest: +SKIP
    >>> plan.step.duration_us  # doctest: +SKIP
    9412.7
    """

    def program() -> None:
        model = make_model()
        while True:  # ends with the step that is recorded
            step(model)
            end_of_step()

    kept = None if output is None else Path(output)
    return plan_program(program, device=device, output=kept, force=force, host=host)


def capture(
    path: str | os.PathLike[str], *, force: bool = False, profile: bool = False, stages: bool = False
) -> CapturedRun:
    """Record every kernel launch of what is compiled inside the ``with`` block into a ledger at ``path``.

    ``profile=True`` compiles C++ wrappers (``cpp_wrapper=True``) so that a profiler can see what they call, for
    ``run.profile``, which alone times anything; all else it sees anyway. ``stages=True`` also keeps each graph's stages
    as text, from what Dynamo traced to Inductor's fused IR, for ``torchledger show --stage``. Raises ``StoreError`` if
    the file exists (without ``force``) or cannot be written.

    >>> with torchledger.capture("gpt.ledger") as run:  # doctest: +SKIP
    ...     torch.compile(model)(x).sum().backward()
    """
    run = CapturedRun(path, force=force)
    run.keeps_stages = stages
    if profile:
        run.watch(KernelVisibility())
        run.watch(_UnaskedProfile(run))
    return run


class _UnaskedProfile(Watcher):
    """Notes at the end that a capture that was to be profiled never was: ``profile=True`` alone times nothing."""

    def __init__(self, run: CapturedRun) -> None:
        self._run = run

    def on_close(self) -> bool:
        if not self._run.has_profiled:
            self._run.note("capture(profile=True) times nothing by itself: run.profile(step) does, and was not called")
        return True
