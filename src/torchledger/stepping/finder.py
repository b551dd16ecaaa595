"""Where the steps of a program end, told from what it does.

The strongest signal wins: ``torchledger.step()``, a profiler's ``step()``, the last optimizer's step of a round, else
the period of the sequence of calls: of graphs, or of modules where nothing is compiled. Signals come in as names;
nothing here knows torch or a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from torchledger.nouns import Direction, StepFoundBy, StepKind
from torchledger.stepping.call_sites import CallSites
from torchledger.stepping.periods import Round, TokenSequence, most_frequent, turns_of

_STRENGTH: dict[StepFoundBy, int] = {
    "call": 4,
    "torchledger.step": 4,
    "profiler_step": 3,
    "turn": 2,
    "optimizer": 1,
    "period": 0,
}

_PATIENCE, _ACCUMULATED, _HALVES, _MOST_WAITED = 64, 256, 2048, 4000
"""How many rounds of calls may pass without a step of an optimizer that holds the parameters, before it is given up:
rounds that keep no gradients, as an evaluation's, rounds of forwards and their backwards, whose gradients are added up,
and forwards or backwards alone (a recurrent model is called once for each moment of a sequence); and after how many
calls in any case."""

_HARDLY_SEEN = 6
"""Rounds after which a period is believed although other known calls come between."""

_IRREGULAR = 24
"""After how many optimizer steps without a period the most frequent optimizer alone ends a step."""

_MOST_TURNS = 4
"""So many steps of an optimizer at most are one step of the program where they take turns and no kind of them is more
frequent than all others: of two updates by what was played before, the first begins with playing."""

_OUT_OF_ORDER = 3
"""So often one optimizer has to have stepped by then: each parameter may have its own, and the first of them steps for
the third time when two whole rounds would have shown their period."""

_UNREPEATED = 1024
"""After how many calls of which almost none came again graphs are told apart by name alone (their parameters move)."""

_ABANDONED = 64
"""After how many calls by other threads in a row the thread whose steps are looked for has gone silent; twice as many
each time that it had not: threads that take turns are given the interpreter for some milliseconds each."""

_TRAINERS_PATIENCE = 16
"""So many times as patient is whoever waits for a thread that has stepped an optimizer: its steps take long."""

_MAX_KINDS = 64
"""How many kinds of steps are told apart; any others are counted as one."""

_FEW_STEPS, _RARELY = 8, 0.3
"""Steps of which hardly one is like another before that says something of those to come, and the share of them that
are of the most frequent kind."""

_MAX_TOKENS = 65536
"""How many tokens are remembered in the order of their first appearance."""

Signature = tuple[tuple[str, int], ...]
"""How often a step called each graph and optimizer, by name."""

OTHER_KINDS: Signature = (("other kinds", 1),)
"""What stands for the kinds beyond those that are told apart."""


@dataclass(frozen=True)
class FoundStep:
    """A step that has ended: how often it called which graphs and optimizers.

    ``is_plain`` is False if something compiled in it, or its beginning was not seen.
    """

    calls: Signature
    is_plain: bool = True


@dataclass(frozen=True)
class _Signal:
    """A call of a graph or a step of an optimizer: its name, and what tells it apart in a sequence. A module's call
    ``is_beside`` what ends steps."""

    name: str
    token: Hashable
    is_optimizer: bool = False
    is_beside: bool = False


@dataclass
class _Open:
    """The step under way."""

    is_plain: bool = True
    calls: Counter[str] = field(default_factory=Counter)
    modules: Counter[str] = field(default_factory=Counter)


class StepFinder:
    """Told what a program does, in order, says when a step has ended, and by which rule it goes.

    Steps belong to one thread, that of the first call that is no backward (those may come from threads of the
    autograd engine); ``other_threads`` counts the calls that others made, and the steps of their optimizers. Unless
    ``keeps_owner`` is set, another thread takes its place once it calls nothing any more, or updates what it calls
    where the first does not: one serves while the other trains. ``hand_over`` gives the steps to another thread,
    whatever the first does. ``has_optimizer`` is asked, rarely, whether
    an optimizer holds the parameters that graphs were called with: then calls that repeat before it steps are not
    taken for steps too soon; ``waits_for_optimizer`` says that such calls repeat, and none has stepped yet. ``turns``
    is how many of an optimizer's steps take turns and are one, ``None`` before that is known; without ``merges_turns``
    each is a step of its own.
    """

    def __init__(self, *, has_optimizer: Callable[[], bool] = lambda: False, merges_turns: bool = True) -> None:
        self._has_optimizer, self._merges_turns = has_optimizer, merges_turns
        self._has_updater: bool | None = None
        self.waits_for_optimizer = False
        self._is_by_name = self._is_by_site = False
        self._sites, self._ranks_by_site = CallSites(), dict[Hashable, int]()
        self._callers: set[Hashable] = set()
        self._ranks: dict[Hashable, int] = {}
        self._sequence = TokenSequence()
        self._log: list[_Signal] = []
        self._directions: dict[str, Direction] = {}
        self._sides: dict[str, Direction] = {}
        self._round: Round | None = None
        self.turns: int | None = None
        self._unmerged: list[tuple[Signature, Signature]] = []
        self._since_found = 0
        self._open = _Open()
        self._kinds: Counter[Signature] = Counter()
        self.found_by: StepFoundBy | None = None
        self.owner: Hashable = None
        self.keeps_owner = self.owner_updates = False
        self._silence = 0
        self._abandoned_after = _ABANDONED
        self.other_threads: Counter[str] = Counter()

    # --- what was found -----------------------------------------------------------------------------------------

    @property
    def seen(self) -> int:
        """How many whole steps have ended since something was compiled for the last time."""
        return sum(self._kinds.values())

    @property
    def begun(self) -> int:
        """``seen``, and one more for a step that is under way."""
        is_under_way = self._open.is_plain and bool(self._open.calls)
        return self.seen + (is_under_way or (self.found_by is None and bool(self._log)))

    @property
    def counted(self) -> Counter[Signature]:
        """How many steps of each kind were seen."""
        return Counter(self._kinds)

    @property
    def kinds(self) -> tuple[StepKind, ...]:
        """The kinds of steps seen, the most frequent first."""
        return tuple(StepKind(count, dict(calls)) for calls, count in self._kinds.most_common())

    @property
    def usual(self) -> Signature | None:
        """What steps of the most frequent kind call; ``None`` before the first step has ended."""
        return max(self._kinds, key=lambda calls: self._kinds[calls], default=None)

    @property
    def comes_again(self) -> bool:
        """False where several steps have ended and hardly two of them were of one kind: steps as long as their data
        ask."""
        seen = self.seen
        return seen < _FEW_STEPS or max(self._kinds.values()) >= _RARELY * seen

    @property
    def is_believed(self) -> bool:
        """False for a period that has hardly been seen and may be a part of a longer one: other calls are known, or the
        backward of its forwards is still to come."""
        if self.found_by != "period" or self._round is None:
            return True
        called = set(self._open.calls).union(name for kind in self._kinds for name, _ in kind)
        directions = {self._directions[name] for name in called if name in self._directions}
        is_whole = (self._is_by_site or self._ranks.keys() <= set(self._round.tokens)) and not (
            "forward" in directions and "backward" not in directions
        )
        return is_whole or self._since_found >= _HARDLY_SEEN * len(self._round.tokens)

    @property
    def is_settled(self) -> bool:
        """False for a period of calls that may be a part of a turn of several places, which is still looked at."""
        return self.found_by != "period" or self._is_by_site or self._sites.is_decided

    @property
    def looks_for_turns(self) -> bool:
        """Whether steps of an optimizer may turn out to take turns."""
        is_asked = self._merges_turns and not self.keeps_owner  # those that are recorded stay as they were found
        return self.found_by == "optimizer" and self.turns is None and is_asked

    @property
    def knows_turns(self) -> bool:
        """False while the steps of an optimizer are of several kinds, and may yet turn out to take turns."""
        return not self.looks_for_turns or len(set(self._unmerged)) < 2

    @property
    def has_round(self) -> bool:
        """False before it is known where steps end, and again once that turns out to be untrue."""
        return self._is_marked or self._round is not None

    @property
    def under_way(self) -> Signature:
        """What the step under way has called so far."""
        return tuple(sorted(self._open.calls.items()))

    @property
    def calls_without_step(self) -> Counter[str]:
        """What was called since something was compiled for the last time, where no step was found in it."""
        return Counter(signal.name for signal in self._log)

    @property
    def optimizers_in_step(self) -> int:
        """How many steps of optimizers a step has; 1 before that is known."""
        return len(self._round.tokens) if self._round is not None and self.found_by == "optimizer" else 1

    # --- signals ------------------------------------------------------------------------------------------------

    def compiled(self) -> None:
        """A graph was compiled, or loaded from a cache: another sequence may repeat from here on."""
        self._start_over(None if self.found_by == "period" else self.found_by)

    def marked(self, found_by: StepFoundBy) -> FoundStep | None:
        """The program says that a step ends here. Returns that step, ``None`` if its beginning was not seen."""
        if not self._yields_to(found_by):
            return None
        if self.found_by != found_by:
            self._start_over(found_by)
            self._open.is_plain = True
            return None
        return self._end()

    def called(
        self,
        graph: str,
        identity: Hashable = None,
        *,
        thread: Hashable = 0,
        direction: Direction = "inference",
        keeps_gradients: bool = False,
        site: Callable[[], Hashable] = lambda: None,
    ) -> FoundStep | None:
        """A graph is about to be called. Returns the step that ended before this call, if one did.

        ``identity`` tells calls with different parameters apart, where one graph serves all layers of a model; ``site``
        is asked, in the first rounds of a period, which lines of the program make the call. A call that is no graph's
        says whether it ``keeps_gradients``.
        """
        if not self._is_owned(thread, direction):
            self.other_threads[graph] += 1
            self._silence += 1
            patience = self._abandoned_after * (_TRAINERS_PATIENCE if self.owner_updates else 1)
            if self._silence < patience or self.keeps_owner or direction == "backward":
                return None
            self._abandoned_after *= 2
            self.hand_over(thread)
        self._silence = 0
        self._directions[graph] = direction
        self._sides[graph] = "forward" if keeps_gradients else direction
        token: Hashable = (graph, None if self._is_by_name else identity)
        if self.found_by in (None, "period") and (self._is_by_site or not self._sites.is_decided):
            token = self._token_by_site(token, None if direction == "backward" else site())
        ended = self._take(_Signal(graph, token))
        if self.is_settled or self._round is None or not self._sites.take_turns(len(self._round.tokens)):
            return ended
        self._start_over(None)
        self._is_by_site = True
        self._ranks |= self._ranks_by_site
        return None

    def _token_by_site(self, token: Hashable, site: Hashable) -> Hashable:
        """What tells a call apart, with its place where places take turns."""
        by_site = token, site
        if len(self._ranks_by_site) < _MAX_TOKENS:
            self._ranks_by_site.setdefault(by_site, len(self._ranks_by_site))
        if self._is_by_site:
            return by_site
        self._sites.add(token, site)
        return token

    def tally(self, graph: str, *, thread: Hashable = 0) -> bool:
        """Count a call of a known graph that can end no step, at little cost; ``False`` where ``called`` must judge."""
        direction = self._directions.get(graph)
        is_decided = self._is_marked or (self.found_by == "optimizer" and self._round is not None)
        is_owned = thread == self.owner or (direction == "backward" and thread not in self._callers)
        if direction is None or not is_decided or not is_owned:
            return False
        self._open.calls[graph] += 1
        return True

    def add_module(self, name: str, *, thread: Hashable) -> None:
        """Count a call of a module where an optimizer ends steps: it tells whether those take turns."""
        if thread != self.owner:
            return
        if self._round is not None:
            self._open.modules[name] += 1
        elif len(self._log) < _MAX_TOKENS:
            self._log.append(_Signal(name, None, is_beside=True))

    def owns_optimizer(self, name: str, *, thread: Hashable) -> bool:
        """Whether the step that an optimizer has made on a thread is a part of these steps: two threads may train."""
        if self.owner is None:
            self.owner = thread
        if thread == self.owner:
            if not self.owner_updates:
                self.owner_updates = True
                if self.found_by == "optimizer":  # what was counted so far are the steps of others
                    self.compiled()
            return True
        if thread in self._callers and not self.owner_updates and not self.keeps_owner:
            self.hand_over(thread)
            self.owner_updates = True
            return True
        if self.owner_updates or thread in self._callers:
            self.other_threads[f"{name}.step"] += 1
            return False
        return True  # a thread that only updates does so for the one that calls

    def note_caller(self, thread: Hashable) -> None:
        """A thread calls for itself, and does not only update or go backward for another."""
        self._callers.add(thread)

    def trains_beside(self, thread: Hashable) -> bool:
        """Whether a thread that has made an optimizer's step calls for itself, where what another one repeats and does
        not update was taken for steps."""
        is_other = self.owner not in (None, thread) and thread in self._callers
        return is_other and self.found_by == "period" and not self.owner_updates

    def hand_over(self, thread: Hashable) -> None:
        """From here on steps are those of ``thread``, or where it is ``None`` of the first that calls, and none was
        seen yet; those of another were calls by others."""
        if thread != self.owner:
            for calls, count in self._kinds.items():
                self.other_threads.update({name: count * times for name, times in calls})
        self.owner, self.keeps_owner, self.owner_updates = thread, False, False
        self._silence = 0
        self.compiled()

    def optimizer_stepped(self, key: Hashable, name: str) -> FoundStep | None:
        """An optimizer (``key`` tells several apart) has made its step. Returns the step that ended with it, if any."""
        if self._yields_to("optimizer") and self.found_by != "optimizer":
            self._start_over("optimizer")
        return self._take(_Signal(f"{name}.step", key, is_optimizer=True))

    def forget_steps(self) -> None:
        """All steps that ended so far were made otherwise than those to come: they count for no kind, and turns or
        periods of calls among them are none of what comes."""
        self._kinds.clear()
        if self.found_by in ("turn", "period"):
            self._start_over(None)

    def forget_marks(self) -> None:
        """What was marked as steps so far were parts of longer ones: the next mark ends one of which a part is past."""
        if self._is_marked:
            self._start_over(self.found_by)

    def forsake_optimizers(self) -> None:
        """Optimizers step no more, where calls go on: these say where steps end."""
        if self.found_by == "optimizer":
            self._start_over(None)

    def passed(self, kind: Signature, count: int) -> None:
        """So many more steps of a kind were seen by whoever counts them for itself."""
        if count:
            self._kinds[kind] += count

    def forget(self, step: FoundStep) -> None:
        """A step that ended was not as the program makes it: it counts for no kind."""
        if step.is_plain and self._kinds[step.calls]:
            self._kinds[step.calls] -= 1
        self._kinds += Counter()  # without those of which none is left

    # --- rules --------------------------------------------------------------------------------------------------

    def _yields_to(self, found_by: StepFoundBy) -> bool:
        return self.found_by is None or _STRENGTH[found_by] >= _STRENGTH[self.found_by]

    def _start_over(self, found_by: StepFoundBy | None) -> None:
        self.found_by = found_by
        self._sequence.clear()
        self._sites, self._is_by_site = CallSites(), False
        self._forget_round()
        self._has_updater, self.waits_for_optimizer = None, False

    def _forget_round(self) -> None:
        self._round, self._log, self._open = None, [], _Open(is_plain=False)
        self.turns, self._unmerged = None, []
        self._kinds.clear()

    def _is_owned(self, thread: Hashable, direction: Direction) -> bool:
        if direction == "backward":
            return thread == self.owner or thread not in self._callers
        if self.owner is None:
            self.owner = thread
        self.note_caller(thread)
        return thread == self.owner

    def _take(self, signal: _Signal) -> FoundStep | None:
        is_new = signal.token not in self._ranks
        if len(self._ranks) < _MAX_TOKENS:
            self._ranks.setdefault(signal.token, len(self._ranks))
        if self._is_marked:
            self._count(signal)
            return None
        is_in_sequence = signal.is_optimizer == (self.found_by == "optimizer")
        if is_in_sequence:
            self._sequence.add(signal.token)
            self._since_found += 1
            if self._round is not None and (is_new or self._is_early_stranger(signal)):
                # The period that was found was a part of a longer one.
                self.found_by = "optimizer" if signal.is_optimizer else None
                self._forget_round()
        if self._round is not None:
            return self._go_on(signal)
        if len(self._log) < _MAX_TOKENS:
            self._log.append(signal)
        return self._look_for_round() if is_in_sequence else None

    @property
    def _is_marked(self) -> bool:
        return self.found_by in ("call", "torchledger.step", "profiler_step", "turn")

    def _look_for_round(self) -> FoundStep | None:
        period = self._sequence.period() or self._sequence.run()
        if period is None and self.found_by == "optimizer" and len(self._sequence.tokens) >= _IRREGULAR:
            period = most_frequent(self._sequence.tokens, at_least=_OUT_OF_ORDER)
        self.waits_for_optimizer = period is not None and self.found_by is None and self._is_part_of_a_step(period)
        if period is None or self.waits_for_optimizer:
            if len(self._sequence.tokens) == _UNREPEATED and len(set(self._sequence.tokens)) > 0.9 * _UNREPEATED:
                self._is_by_name = True
                self._start_over(self.found_by)
            return None
        self.found_by = self.found_by or "period"
        self._round, self._since_found = Round(period, self._ranks), 0
        log, self._log = self._log, []
        # What follows a compilation is the rest of a step, unless it is where a round begins.
        self._open.is_plain = self.found_by == "period" and log[0].token == self._round.tokens[0]
        ended = None
        for signal in log:
            ended = self._go_on(signal)
        return ended

    def _is_early_stranger(self, signal: _Signal) -> bool:
        """True for a known token that is none of a round that has hardly been seen: three backwards behind a
        compilation look like three steps until the next forward comes."""
        assert self._round is not None
        few = self._since_found < _HARDLY_SEEN * len(self._round.tokens)
        return self.found_by == "period" and few and signal.token not in self._round.tokens

    def _is_part_of_a_step(self, period: tuple[Hashable, ...]) -> bool:
        """True if these calls may be a part of what ends with an optimizer's step, which has not been made yet."""
        if self._has_updater is None:
            self._has_updater = self._has_optimizer()
        directions = {self._directions[name] for name in (signal.name for signal in self._log)}
        is_updated = {"backward", "inference"} <= directions  # by an optimizer that is compiled
        waited = min(self._patience_with(len(period)) * len(period), _MOST_WAITED)
        return self._has_updater and not is_updated and len(self._sequence.tokens) < waited

    def _patience_with(self, length: int) -> int:
        """How many rounds of so many calls as were the last may pass."""
        sides = {self._sides[signal.name] for signal in self._log[-length:]}
        if "inference" in sides:
            return _PATIENCE
        return _HALVES if len(sides) == 1 else _ACCUMULATED

    def _go_on(self, signal: _Signal) -> FoundStep | None:
        assert self._round is not None
        if self.found_by == "optimizer":
            self._count(signal)
            if not signal.is_optimizer or not self._round.ends_with(signal.token):
                return None
            modules = self._open.modules
            return self._with_turns(self._end(), modules)
        ended = self._end() if self._round.begins_with(signal.token) and self._open.calls else None
        self._count(signal)
        return ended

    def _with_turns(self, step: FoundStep, modules: Counter[str]) -> FoundStep | None:
        """The step that an optimizer has ended; where its steps take turns, what they make up, if that has ended."""
        if not self.looks_for_turns or not step.is_plain:
            return step
        self._unmerged.append((step.calls, tuple(sorted(modules.items()))))
        kinds = turns_of(self._unmerged, _MOST_TURNS)
        if kinds is None:
            return step
        has_most_frequent = not kinds or max(Counter(kinds).values()) > len(kinds) / 2
        self.turns = 1 if has_most_frequent else len(kinds)
        return step if has_most_frequent else self._merge(kinds)

    def _merge(self, kinds: Sequence[tuple[Signature, Signature]]) -> FoundStep | None:
        """From here on a step is one of each of these kinds. The last of them, if it has ended."""
        assert self._round is not None
        # What is done once for all of them is done before the first.
        first = max(range(len(kinds)), key=lambda place: sum(count for part in kinds[place] for _, count in part))
        begun = -first % len(kinds) * len(self._round.tokens)
        self._round = Round(self._round.tokens * len(kinds), self._ranks, begun=begun)
        calls = tuple(sorted(sum((Counter(dict(calls)) for calls, _ in kinds), Counter[str]()).items()))
        self._kinds = Counter({calls: len(self._unmerged) // len(kinds)})
        self._open = _Open(is_plain=self._round.is_whole)
        return FoundStep(calls) if self._round.is_whole else None

    def _count(self, signal: _Signal) -> None:
        (self._open.modules if signal.is_beside else self._open.calls)[signal.name] += 1

    def _end(self) -> FoundStep:
        step = FoundStep(tuple(sorted(self._open.calls.items())), self._open.is_plain)
        self._open = _Open()
        if step.is_plain:
            known = step.calls in self._kinds or len(self._kinds) < _MAX_KINDS
            self._kinds[step.calls if known else OTHER_KINDS] += 1
        return step
