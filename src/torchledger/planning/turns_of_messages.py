"""Turns between messages of ranks that do not do the same: one plays games, another learns from what it is sent.

A rank that learns makes several steps of its optimizer between two messages, a rank that plays calls its model many
times and makes none: what both take for a step is what they do from one exchange to the next. Told from how many steps
and calls come between messages, turn after turn. All ranks begin their turns with the same message, told by its number
among those between two ranks, so that each message is in the same turn on both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torchledger.planning.turns import Turn
from torchledger.printable import counted

Method = Literal["send", "recv"]

_MOST_STEPS, _MOST_CALLS = 32, 256
"""A turn of more steps of an optimizer, or of more calls where there are none, is an epoch."""

_TURNS = 2
"""So many, one behind the other, are alike before they are believed."""

_TRIED = 5
"""After so many of which no two were alike none are looked for."""

_OTHER: dict[Method, Method] = {"send": "recv", "recv": "send"}


@dataclass(frozen=True)
class Beginning:
    """The first message of a turn with the rank ``peer``: a turn has ``count`` of its kind with that rank, and it is
    the one before which ``number`` came, or as many turns more."""

    peer: int
    method: Method
    count: int
    number: int

    def is_begun_by(self, peer: int, method: Method, number: int) -> bool:
        """Whether a message begins a turn, before which so many of its kind were exchanged with that rank."""
        return (peer, method) == (self.peer, self.method) and number % self.count == self.number


@dataclass(frozen=True)
class TurnOfMessages:
    """Turns of a rank from one exchange of messages to the next, by the first message with each other rank; the first
    of these begins the turn."""

    rank: int
    begins: tuple[Beginning, ...]

    def of_rank(self, rank: int) -> TurnOfMessages | None:
        """The same turns on another rank, which begin with the same message; ``None`` of one that exchanges none with
        this one.

        >>> TurnOfMessages(0, (Beginning(1, "recv", 3, 0),)).of_rank(1)
        TurnOfMessages(rank=1, begins=(Beginning(peer=0, method='send', count=3, number=0),))
        """
        for each in self.begins:
            if each.peer == rank:
                return TurnOfMessages(rank, (Beginning(self.rank, _OTHER[each.method], each.count, each.number),))
        return None


@dataclass
class _Part:
    """What a rank does between the begins of two exchanges: its messages by other rank and kind, the first with each
    rank, steps of optimizers and calls of models."""

    at: str = ""
    messages: Counter[tuple[int, Method]] = field(default_factory=Counter)
    first: dict[int, tuple[Method, int]] = field(default_factory=dict)
    updates: int = 0
    calls: int = 0

    @property
    def has_worked(self) -> bool:
        """Whether anything came behind its messages: a message that follows begins another part."""
        return self.updates > 0 or self.calls > 0

    def has_several(self, beyond: int, *, trains: bool) -> bool:
        """Whether it holds more steps, or calls where the program ``trains`` nothing, than are known to belong
        together."""
        count, most = (self.updates, _MOST_STEPS) if trains else (self.calls, _MOST_CALLS)
        return max(1, beyond) < count <= most

    def is_like(self, other: _Part, *, trains: bool) -> bool:
        """Whether another exchanged and did as much."""
        did, other_did = (self.updates, other.updates) if trains else (self.calls, other.calls)
        return (self.messages, did) == (other.messages, other_did) and self.first.keys() == other.first.keys()


class TurnsOfMessages:
    """Told of a rank's messages, steps of optimizers and calls of models, says where turns between messages begin.

    Where the turn is ``given``, as another rank has found it, they begin with its messages from the first on.
    """

    def __init__(self, rank: int, given: TurnOfMessages | None = None) -> None:
        self.turn = given
        self._rank = rank
        self._numbers: Counter[tuple[int, Method]] = Counter()
        self._under_way = _Part()
        self._before = _Part()
        self._ended: list[_Part] = []
        self._n_ended = 0
        self._trains = False

    def optimizer_stepped(self) -> None:
        """An optimizer has made its step."""
        self._trains = True
        self._under_way.updates += 1

    def model_called(self) -> None:
        """A model or a graph is about to be called."""
        self._under_way.calls += 1

    def message(self, peer: int, method: Method, *, beyond: int | None, at: Callable[[], str]) -> bool:
        """A message is about to be sent to or received from a rank; whether a turn begins with it that holds more than
        ``beyond``, as many steps or calls as are known to belong together; ``None`` where that is not known yet."""
        number = self._numbers[peer, method]
        self._numbers[peer, method] += 1
        if self.turn is None and self._under_way.has_worked and self._under_way.messages:
            self._next_part()
            self._find(peer, method, number, beyond)
        begins = self.turn is not None and self.turn.begins[0].is_begun_by(peer, method, number)
        if begins and self._under_way.messages:
            self._next_part()
        part = self._under_way
        if not part.messages:
            if part.has_worked:
                self._before, part = part, _Part()
                self._under_way = part
            part.at = at()
        part.messages[peer, method] += 1
        part.first.setdefault(peer, (method, number))
        return begins

    def is_likely(self, beyond: int | None) -> bool:
        """Whether the last part that has ended was a turn of several, and the one under way may be."""
        if self.turn is not None or not 0 < self._n_ended < _TRIED or not self._is_several(self._ended[-1], beyond):
            return False
        last, now = self._ended[-1], self._under_way
        return now.updates <= last.updates if self._trains else now.calls <= last.calls

    def is_possible(self, beyond: int | None) -> bool:
        """Whether the first that was seen may be one, which has not ended: what came before it was like one."""
        is_first = self.turn is None and not self._ended and bool(self._under_way.messages)
        return is_first and any(self._is_several(each, beyond) for each in (self._before, self._under_way))

    def note(self) -> str:
        """What the step that is priced is made of."""
        part = self._ended[-1] if self._ended else self._under_way
        did = "1 call of its model, and no step of an optimizer" if part.calls == 1 else ""
        if part.updates:
            did = f"{part.updates:,} {'step' if part.updates == 1 else 'steps'} of its optimizer"
        elif not did:
            did = f"{counted(part.calls, 'call')} of its model, and no step of an optimizer"
        return (
            f"a step of rank {self._rank} is what it does from its messages at {part.at} to the next ones: {did}; end "
            "a step elsewhere with torchledger.step()"
        )

    def _is_several(self, part: _Part, beyond: int | None) -> bool:
        return beyond is not None and part.has_several(beyond, trains=self._trains)

    def _next_part(self) -> None:
        self._ended, self._n_ended = [*self._ended[-1:], self._under_way], self._n_ended + 1
        self._under_way = _Part()

    def _find(self, peer: int, method: Method, number: int, beyond: int | None) -> None:
        """Whether the two parts that ended last are turns of several, alike, the next of which begins now."""
        if len(self._ended) < _TURNS:
            return
        before, last = self._ended
        first = next(iter(last.first.items()))
        is_same = first[0] == peer and first[1][0] == method and number - first[1][1] == last.messages[peer, method]
        if not (is_same and self._is_several(last, beyond) and last.is_like(before, trains=self._trains)):
            return
        begins = (
            Beginning(each, kind, last.messages[each, kind], at % last.messages[each, kind])
            for each, (kind, at) in last.first.items()
        )
        self.turn = TurnOfMessages(self._rank, tuple(begins))


def turn_told(told: dict[str, Any]) -> Turn | TurnOfMessages:
    """What ``dataclasses.asdict`` has made of a turn, as it comes out of JSON."""
    if "begins" not in told:
        return Turn(**told)
    return TurnOfMessages(told["rank"], tuple(Beginning(**each) for each in told["begins"]))
