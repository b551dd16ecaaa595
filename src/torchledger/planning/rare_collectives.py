"""Collectives of a program's other steps, which the step that was recorded lacks.

Local SGD and DiLoCo average parameters every so many steps: a step between two averages exchanges nothing, or little
(a metric, gradients within a node), and its price says nothing of what the rare ones do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchledger.nouns import DryRun, Fabric, RareCollective
from torchledger.planning.fabric import placement_of, price_collective
from torchledger.printable import counted
from torchledger.program_text import shortened
from torchledger.stepping.communication import operation_of
from torchledger.work.collectives import collective_kind, message_of_call

_MOST_NAMED = 3

_MATTERS = 0.1
"""Rarer steps are told of that exchange this share of the recorded step's bytes, or more."""

_FAR_LARGER = 2
"""A message this many times as large as all of its line and group in the recorded step is one that the step lacks."""

Asked = tuple[str, str, str | None, int | None, int | None]
"""Operation, line, name and size of the group, and bytes of the message."""


@dataclass
class RareCollectives:
    """Told of a program's collectives between ranks and of its optimizers' steps, counts those that the recorded step
    lacks: operations at lines where it has none, or where it has those of other groups or far smaller ones alone.

    What comes before the first step (parameters are sent once, shapes are compared) belongs to none. Of a program whose
    optimizers make none, those count that it asks for behind the recorded step, in ``calls`` like that step.
    """

    optimizer_steps: int = 0
    calls: int = 0
    _counts: dict[Asked, int] = field(default_factory=dict)
    _steps: dict[Asked, set[int]] = field(default_factory=dict)
    _heard: set[Asked] | None = None
    _in_step: set[Asked] = field(default_factory=set)
    _recorded: int = 0

    def optimizer_stepped(self) -> None:
        """An optimizer has made its step."""
        self.optimizer_steps += 1

    def hearing_begins(self) -> None:
        """A step begins that may be the one that is recorded."""
        self._heard = set()

    def hearing_ended(self) -> None:
        """That step has ended, and is recorded."""
        if self._heard is not None:
            self._in_step, self._heard = self._heard, None
            self._recorded = self.optimizer_steps or self.calls

    def called_again(self) -> None:
        """What was recorded has come once more."""
        self.calls += 1

    def asked(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """An operator on a process group is about to be called."""
        from torchledger._torch.eager_calls import collective_call
        from torchledger._torch.user_lines import user_line

        if (heard := collective_call(func, args, kwargs)) is None:
            return
        call, group, size = heard
        turn = self.optimizer_steps or self.calls
        if (size is not None and size < _RANKS_THAT_EXCHANGE) or (not turn and self._heard is None):
            return
        message = message_of_call(call, size)
        operation, line = operation_of(call.name) or call.name, user_line()
        key = (operation, line, group, size, None if message is None else message.nbytes)
        if self._heard is not None:
            self._heard.add(key)
        if turn:
            self._counts[key] = self._counts.get(key, 0) + 1
            self._steps.setdefault(key, set()).add(turn)

    @property
    def found(self) -> tuple[RareCollective, ...]:
        """What was asked for so far that the recorded step lacks, in its order."""
        heard: dict[tuple[str, str], dict[str | None, int]] = {}
        for operation, line, group, _, nbytes in self._in_step:
            largest = heard.setdefault((operation, line), {})
            largest[group] = max(largest.get(group, 0), nbytes or 0)
        return tuple(
            RareCollective(*key, count, len(self._steps[key]))
            for key, count in self._counts.items()
            if self._is_rare(key, heard.get(key[:2]))
        )

    def _is_rare(self, key: Asked, heard: Mapping[str | None, int] | None) -> bool:
        """Whether the recorded step lacks it. One function may ask for all of a program's: at a line that the step has
        it is another group's, or far larger, and comes behind that step, not only while a program warms up."""
        if heard is None:
            return True
        _, _, group, _, nbytes = key
        is_other = group not in heard or (nbytes or 0) > _FAR_LARGER * heard[group]
        return is_other and max(self._steps[key]) > self._recorded


_RANKS_THAT_EXCHANGE = 2


def do_matter(rare: Sequence[RareCollective], exchanged: int) -> bool:
    """Whether one rarer step exchanges much beside a step that exchanges so many bytes."""
    return any(each.message_bytes is None for each in rare) or (bool(rare) and _bytes_of(rare) >= _MATTERS * exchanged)


def rare_note(dry_run: DryRun, fabric: Fabric | None, exchanged: int | None = None) -> str | None:
    """What other steps of a program exchanged that the recorded one lacks, as far as they came; ``None`` where that is
    nothing that matters. ``exchanged`` are the bytes of the recorded step's messages, ``None`` where it has none."""
    said = "no collective between ranks in this step; rarer steps are not in the price"
    if exchanged is not None:
        said = "rarer steps exchange more than this one, which is not in the price"
    if dry_run.optimizer_steps:
        ran = f"{counted(dry_run.optimizer_steps, 'step')} of optimizers that ran"
    else:
        ran = f"{counted(dry_run.calls, 'call')} behind it that ran"
    if not dry_run.rare:
        return f"{said}, and none that has one came in the {ran}" if exchanged is None else None
    if not do_matter(dry_run.rare, exchanged or 0):
        return None
    named = list(_named(dry_run.rare))
    further = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    steps = max(each.steps for each in dry_run.rare)
    return f"{said}: {', '.join(named[:_MOST_NAMED])}{further} in {steps:,} of the {ran}{_cost(dry_run, fabric)}"


def _bytes_of(rare: Sequence[RareCollective]) -> float:
    """Bytes of the messages of one step that has all of them."""
    return sum(each.count / each.steps * (each.message_bytes or 0) for each in rare)


def _named(rare: Sequence[RareCollective]) -> Iterator[str]:
    """Those of one operation, line and group together."""
    alike: dict[tuple[str, str, int | None], list[RareCollective]] = {}
    for each in rare:
        alike.setdefault((each.operation, each.source, each.group_size), []).append(each)
    for (operation, source, size), members in alike.items():
        count = sum(each.count for each in members)
        known = [each.count * each.message_bytes for each in members if each.message_bytes is not None]
        facts = [f"{sum(known) / 1e6:,.3g} MB"] if len(known) == len(members) else []
        facts.append(shortened(source))
        over = f" over {size} ranks" if size else ""
        yield f"{operation} {counted(count, 'time')}{over} ({', '.join(facts)})"


def _cost(dry_run: DryRun, fabric: Fabric | None) -> str:
    """What such a step takes longer, if nothing runs beside its collectives."""
    if fabric is None:
        return ""
    ranks = {group.name: group.ranks for group in dry_run.groups}
    us = 0.0
    for each in dry_run.rare:
        members = ranks.get(each.group or "", ()) or tuple(range(each.group_size or 0))
        if each.message_bytes is None or len(members) < 2:
            return ""
        if collective_kind(each.operation) == "p2p":
            members = members[:2]  # the group's size says nothing of a message between two of its ranks
        placement = placement_of(members, fabric.ranks_per_node)
        price = price_collective(fabric, each.operation, each.message_bytes, placement)
        us += each.count / each.steps * price.duration_us
    return f", where that takes about {us / 1e3:,.3g} ms"
