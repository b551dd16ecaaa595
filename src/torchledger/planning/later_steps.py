"""Steps behind the recorded one that do something else: preconditioners and averages every so many steps, evaluation
between steps, a second network's updates.

Steps are told apart by how often they call each operator and graph; batches of other sizes make the same calls. What a
step calls more than the first one behind the recorded one is described as it comes, and no other call is.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from torchledger.followers import Follower
from torchledger.nouns import RarerStep, StepCall

if TYPE_CHECKING:
    from torchledger._torch.eager_calls import EagerCall

_MOST = 64
"""So many steps are looked at."""

_LONGEST_S, _SHARE, _LONGER = 2.0, 0.5, 3.0
"""They are looked at for so many seconds of the processor, or for this share of what the program has taken until then;
and so many times as long where one does something else: it may come again, and tell how often."""

_MOST_KINDS = 16
"""So many kinds of steps are kept."""

Call: TypeAlias = "EagerCall | str"
"""An operator outside of graphs, or a graph's name."""

_Key = tuple[Hashable, tuple[Any, ...], tuple[tuple[str, int], ...]]
"""What is called, the shapes of the tensors that it is given, and the lines that lead to it, innermost first."""

Priceable = Callable[[Sequence[Call]], Sequence[StepCall]]
"""Makes calls of a step of what was called."""


@dataclass
class _Kind:
    """Steps that make the same calls: how often one makes each, what it calls more than the first, and the ``places``
    of all behind the recorded step."""

    counts: Counter[_Key]
    more: Sequence[tuple[_Key, Call]]
    places: list[int] = field(default_factory=list)


class LaterSteps(Follower):
    """Among what follows a program's operators: tells what steps behind the recorded one do otherwise.

    ``is_inside`` says that a graph is at work, whose operators are its own, and ``name_of`` what a graph is called.
    """

    def __init__(self, is_inside: Callable[[], bool], name_of: Callable[[Any], str | None]) -> None:
        self._is_inside, self._name_of = is_inside, name_of
        self._thread: int | None = None
        self._counts: Counter[_Key] = Counter()
        self._calls: list[tuple[_Key, Call]] = []
        self._first: Counter[_Key] | None = None
        self._recorded: Counter[_Key] | None = None
        self._kinds: list[_Kind] = []
        self._began_s, self._longest_s = time.process_time(), _LONGEST_S
        self._seen = 0

    def called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operator has been called."""
        from torchledger._torch.eager_calls import called_operator, does_work
        from torchledger._torch.user_lines import user_lines

        if self._thread != threading.get_ident() or self._is_inside() or not does_work(func):
            return
        given = (*args, *kwargs.values())
        key = func, tuple(each.shape for each in given if hasattr(each, "shape")), user_lines()
        if self._is_more(key):
            called = called_operator(func, tuple(args), dict(kwargs), result)
            sources = tuple(f"{file}:{line}" for file, line in reversed(key[2]))
            self._calls.append((key, replace(called, sources=sources)))

    def graph_begins(self, compiled: Any, inputs: Sequence[Any]) -> None:
        """A compiled graph is about to be called."""
        name = self._name_of(compiled)
        if name is None or self._thread != threading.get_ident():
            return
        key = name, (), ()
        if self._is_more(key):
            self._calls.append((key, name))

    def step_begins(self) -> None:
        """The next step begins, on this thread: the one to record, or one behind it."""
        self._thread = threading.get_ident()
        self._counts, self._calls = Counter(), []

    def recorded(self) -> None:
        """The step that began last was recorded; what was seen before says nothing of those behind it."""
        self._recorded, self._first, self._kinds = self._counts, None, []
        now_s = time.process_time()
        if not self._seen:
            self._longest_s = max(_LONGEST_S, _SHARE * (now_s - self._began_s))
        self._thread, self._began_s, self._seen = None, now_s, 1

    def step_ended(self) -> None:
        """The step that began last, behind the recorded one, has ended."""
        if self._thread is None or self._recorded is None:
            return
        self._thread = None
        if self._first is None:
            self._first = self._counts
        kind = next((each for each in self._kinds if not _unlike(self._counts, each.counts)), None)
        if kind is None and len(self._kinds) < _MOST_KINDS:
            kind = _Kind(self._counts, self._calls)
            self._kinds.append(kind)
        if kind is not None:
            kind.places.append(self._seen)
        self._seen += 1

    @property
    def are_wanted(self) -> bool:
        """Whether to look at the next step."""
        longest_s = self._longest_s * (_LONGER if len(self._kinds) > 1 else 1.0)
        return 0 < self._seen <= _MOST and time.process_time() < self._began_s + longest_s

    def rarer(self, recorded: Sequence[StepCall], as_calls: Priceable) -> Sequence[RarerStep]:
        """What steps do otherwise than the one of these ``recorded`` calls. That one is taken for one of the kind that
        it differs least from: listening takes some operators apart."""
        if self._recorded is None or len(self._kinds) < 2:
            return ()
        own = min(
            self._kinds, key=lambda each: sum(map(abs, _unlike(self._recorded or Counter(), each.counts).values()))
        )
        found = []
        for kind in self._kinds:
            if kind is own:
                continue
            more, less = self._apart(kind, own, as_calls)
            lacks = _orders(recorded, less)
            if more or lacks:
                found.append(RarerStep(tuple(kind.places), self._seen, tuple(more), lacks))
        return found

    def _is_more(self, key: _Key) -> bool:
        """Counts a call; whether it is one more than the first step behind the recorded one makes, if that is over."""
        self._counts[key] += 1
        return self._recorded is not None and (self._first is None or self._counts[key] > self._first[key])

    def _apart(self, kind: _Kind, own: _Kind, as_calls: Priceable) -> tuple[Sequence[StepCall], Sequence[StepCall]]:
        """What steps of a kind call that those of the recorded one's do not, and what these call alone."""
        described = self._kinds[0].more
        more = [*_calls_of(kind.more if kind is not self._kinds[0] else ()), *self._lacked(own, described)]
        less = [*_calls_of(own.more if own is not self._kinds[0] else ()), *self._lacked(kind, described)]
        return _without_alike(as_calls(more), as_calls(less))

    def _lacked(self, kind: _Kind, described: Sequence[tuple[_Key, Call]]) -> Sequence[Call]:
        """What the first step calls, and those of a kind do not."""
        assert self._first is not None
        lacks = self._first - kind.counts
        found: list[Call] = []
        for key, call in described:
            if lacks[key] > 0:
                lacks[key] -= 1
                found.append(call)
        return found


def _unlike(counts: Counter[_Key], others: Counter[_Key]) -> dict[Hashable, int]:
    """How much more often one step calls something than another, wherever and at whatever sizes, where it does."""
    apart: Counter[Hashable] = Counter()
    for (what, *_), count in counts.items():
        apart[what] += count
    for (what, *_), count in others.items():
        apart[what] -= count
    return {what: count for what, count in apart.items() if count}


def _calls_of(described: Iterable[tuple[_Key, Call]]) -> list[Call]:
    return [call for _, call in described]


def _without_alike(more: Sequence[StepCall], less: Sequence[StepCall]) -> tuple[list[StepCall], list[StepCall]]:
    """Both without the calls that stand in both, at the same sizes or, of the same lines, at others."""
    more, less = _without(more, less, _at_its_sizes), _without(less, more, _at_its_sizes)
    return _without(more, less, _at_its_lines), _without(less, more, _at_its_lines)


def _without(calls: Iterable[StepCall], others: Iterable[StepCall], key: Callable[[StepCall], Any]) -> list[StepCall]:
    left = Counter(map(key, others))
    kept = []
    for call in calls:
        if left[key(call)] > 0:
            left[key(call)] -= 1
        else:
            kept.append(call)
    return kept


def _orders(recorded: Sequence[StepCall], lacked: Sequence[StepCall]) -> tuple[int, ...]:
    """Which of the recorded calls these are, by their names and sizes."""
    left = Counter(map(_at_its_sizes, lacked))
    orders = []
    for call in recorded:
        if left[_at_its_sizes(call)] > 0:
            left[_at_its_sizes(call)] -= 1
            orders.append(call.order)
    return tuple(orders)


def _at_its_sizes(call: StepCall) -> Any:
    return call.kind, call.name, call.arguments


def _at_its_lines(call: StepCall) -> Any:
    return call.kind, call.name, call.sources
