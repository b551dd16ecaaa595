"""What came of a recording of steps so far, and of those before it that it may take the place of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from torchledger.nouns import OptimizerFacts, StepKind
from torchledger.printable import counted
from torchledger.stepping.finder import Signature, StepFinder
from torchledger.stepping.recording import StepRecording


class Outcome:
    """``found`` and what is said beside it, until ``whole`` puts it together.

    ``before`` is a recording of steps of another kind, with that kind, and ``of_calls`` one of calls that nothing
    updates: each stays for a program that ends before the one after it has times. ``kinds_before`` are the steps that
    were seen until something compiled behind a recording. Once all was recorded ``compiled_later`` graphs were
    compiled, the first of them when the thread of the steps had made ``stepped_before`` more steps of optimizers.
    ``has_captured`` says that calls of the program went into a CUDA graph of its own.
    """

    def __init__(self) -> None:
        self.found = StepRecording()
        self.before: tuple[StepRecording, Signature] | None = None
        self.of_calls: StepRecording | None = None
        self.kinds_before: Counter[Signature] = Counter()
        self.optimizers: dict[int, OptimizerFacts] = {}
        self.notes: list[str] = []
        self.compiled_later = self.stepped_before = 0
        self.has_captured = False
        self.why_not: str | None = None
        self.why_no_count: str | None = None
        self.why_not_heard: str | None = None

    def update(self, **changes: Any) -> None:
        """Change fields of what was found."""
        self.found = replace(self.found, **changes)

    def set_aside(self, kind: Signature) -> None:
        """A recording of steps of another kind begins: what was found are steps of ``kind``."""
        self.before = self.found, kind
        self.found, self.optimizers = StepRecording(), {}

    def set_calls_aside(self, calls: StepRecording) -> None:
        """A training is recorded from here on: what was found, as a whole, are calls that nothing updates."""
        if self.found.times is not None:
            self.of_calls = calls
        self.found, self.before, self.optimizers = StepRecording(), None, {}
        self.kinds_before = Counter()
        self.notes.clear()
        self.why_not_heard = self.why_no_count = None

    def compiles_later(self, stepped: int) -> None:
        """A graph is compiled after all was recorded, when so many more steps of optimizers have been made."""
        if not self.compiled_later:
            self.stepped_before = stepped
        self.compiled_later += 1

    def drop_former_times(self) -> None:
        """What was set aside is not needed any more: there are newer times."""
        if self.before is not None:
            self.before = _without_times(self.before[0]), self.before[1]
        if self.of_calls is not None:
            self.of_calls = _without_times(self.of_calls)

    def leave_to_parent(self) -> None:
        """In a child of a fork: files and what was heard are the parent's."""
        self.found, self.before, self.of_calls = replace(self.found, times=None, heard=None), None, None
        self.why_not = "this process was forked from one that was being recorded"

    def not_heard(self, reason: str) -> None:
        """Eager operators of a step are not known, or not all: say why."""
        self.why_not_heard = reason
        self.notes.append(reason)

    def whole(
        self,
        finder: StepFinder,
        kind: Signature,
        *,
        counts_eager: bool,
        n_updates: int,
        needed: int,
        own_later: int,
        elsewhere_later: int,
        **fields: Any,
    ) -> StepRecording:
        """All of it. ``kind`` is what a recorded step calls; ``n_updates`` steps of optimizers have ended since the
        recording began, of which ``needed`` are enough for one, and once all was recorded the thread of the steps has
        made ``own_later`` more, others ``elsewhere_later``. ``fields`` are others of the recording."""
        is_newer = self.found.times is not None or (self.before is not None and self.before[0].times is not None)
        if self.of_calls is not None and not is_newer:
            said = (
                f"{n_updates} steps of optimizers came after what was recorded and are none of it: "
                f"steps of a training are recorded from some {needed} on"
                if n_updates
                else "replays of the program's own CUDA graph came after what was recorded, too few to record one"
            )
            return replace(self.of_calls, notes=(*self.of_calls.notes, said))
        found = self.found
        if self.before is not None and found.times is None:
            found, kind = self.before
        wanted = dict(kind)
        counted = self.kinds_before + finder.counted
        kinds = [StepKind(count, dict(calls)) for calls, count in counted.most_common()]
        return replace(
            found,
            found_by=found.found_by or finder.found_by,
            seen=counted.total(),
            kinds=tuple(sorted(kinds, key=lambda each: each.calls != wanted)),
            optimizers=tuple(self.optimizers.values()),
            begun=finder.begun,
            called=finder.calls_without_step,
            waited_for_optimizer=finder.waits_for_optimizer,
            why_not=self.why_not,
            why_not_heard=self.why_not_heard,
            notes=(
                *self._said_of(found, counts_eager=counts_eager),
                *self._said_of_later(own_later),
                *_said_of_threads(finder.other_threads, elsewhere_later),
            ),
            **fields,
        )

    def _said_of(self, found: StepRecording, *, counts_eager: bool) -> list[str]:
        notes = list(self.notes)
        if self.why_no_count is not None:
            notes.append(f"no eager step was counted: {self.why_no_count}")
        elif counts_eager and found.eager_flops is None:
            notes.append("no eager step was counted: the program ended before one")
        if found.times is not None and self.why_not is not None:
            notes.append(f"after the profiled steps nothing was recorded: {self.why_not}")
        elif found.times is not None and found.memory is None and self.why_not_heard is None:
            notes.append(
                "no step was heard after the profiled ones: its storages and its lines are not known, and what runs "
                "eagerly between the forward's last graph and the backward counts as loss"
            )
        return notes

    def _said_of_later(self, own_later: int) -> tuple[str, ...]:
        followed = own_later - self.stepped_before
        if not self.compiled_later or followed <= 0:
            return ()
        compiled = "1 graph was" if self.compiled_later == 1 else f"{self.compiled_later} graphs were"
        return (
            f"{compiled} compiled after the recorded steps, and {counted(followed, 'step')} of optimizers followed: "
            "if they are of another training, record it by itself",
        )


def _said_of_threads(other_threads: Counter[str], stepped_later: int) -> tuple[str, ...]:
    updates = sum(count for _, count in optimizers_in(tuple(other_threads.items())))
    calls, updates = other_threads.total() - updates, updates + stepped_later
    what = [f"{counted(updates, 'step')} of optimizers"] if updates else []
    if calls:
        what.insert(0, f"{counted(calls, 'call')} of graphs")
    if not what:
        return ()
    return (f"{' and '.join(what)} by other threads belong to no step: steps are those of one thread",)


def optimizers_in(calls: Signature) -> Signature:
    """The steps of optimizers: what an eager step and a compiled one have in common."""
    return tuple((name, count) for name, count in calls if name.endswith(".step"))


def _without_times(recording: StepRecording) -> StepRecording:
    if recording.times is not None:
        recording.times.unlink(missing_ok=True)
    return replace(recording, times=None)
