"""Collectives of a program's other steps, where the step that was recorded has none.

Local SGD and DiLoCo average parameters every so many steps: a step between two averages exchanges nothing, and its
price says nothing of what the rare ones do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchledger.nouns import DryRun, Fabric, RareCollective
from torchledger.planning.fabric import placement_of, price_collective
from torchledger.work.collectives import collective_kind, message_of_call

_MOST_NAMED = 3

Asked = tuple[str, str, str | None, int | None, int | None]
"""Operation, line, name and size of the group, and bytes of the message."""


@dataclass
class RareCollectives:
    """Told of a program's collectives and of its optimizers' steps, counts what was asked for behind the first step.

    What comes before it (parameters are sent once, shapes are compared) belongs to no step.
    """

    optimizer_steps: int = 0
    _counts: dict[Asked, int] = field(default_factory=dict)
    _steps: dict[Asked, set[int]] = field(default_factory=dict)

    def optimizer_stepped(self) -> None:
        """An optimizer has made its step."""
        self.optimizer_steps += 1

    def asked(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """An operator on a process group is about to be called."""
        from torchledger._torch.eager_calls import collective_call
        from torchledger._torch.user_lines import user_line

        if not self.optimizer_steps or (heard := collective_call(func, args, kwargs)) is None:
            return
        call, group, size = heard
        message = message_of_call(call, size)
        operation = collective_kind(call.name) or call.name
        key = (operation, user_line(), group, size, None if message is None else message.nbytes)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._steps.setdefault(key, set()).add(self.optimizer_steps)

    @property
    def found(self) -> tuple[RareCollective, ...]:
        """What was asked for so far, in its order."""
        return tuple(RareCollective(*key, count, len(self._steps[key])) for key, count in self._counts.items())


def rare_note(dry_run: DryRun, fabric: Fabric | None) -> str:
    """That a step has no collective, and what other steps of its program exchanged, as far as they came."""
    said = "no collective in this step; rarer steps are not in the price"
    ran = f"{dry_run.optimizer_steps:,} steps of optimizers that ran"
    if not dry_run.rare:
        return f"{said}, and none that has one came in the {ran}"
    named = list(_named(dry_run.rare))
    further = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    steps = max(each.steps for each in dry_run.rare)
    return f"{said}: {', '.join(named[:_MOST_NAMED])}{further} in {steps:,} of the {ran}{_cost(dry_run, fabric)}"


def _named(rare: Sequence[RareCollective]) -> Iterator[str]:
    """Those of one operation, line and group together."""
    alike: dict[tuple[str, str, int | None], list[RareCollective]] = {}
    for each in rare:
        alike.setdefault((each.operation, each.source, each.group_size), []).append(each)
    for (operation, source, size), members in alike.items():
        count = sum(each.count for each in members)
        known = [each.count * each.message_bytes for each in members if each.message_bytes is not None]
        file, _, line = source.rpartition(":")
        facts = [f"{sum(known) / 1e6:,.3g} MB"] if len(known) == len(members) else []
        facts.append(f"{Path(file).name}:{line}" if file else source)
        over = f" over {size} ranks" if size else ""
        yield f"{operation} {count:,} times{over} ({', '.join(facts)})"


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
        placement = placement_of(members, fabric.ranks_per_node)
        price = price_collective(fabric, each.operation, each.message_bytes, placement)
        us += each.count / each.steps * price.duration_us
    return f", where it takes about {us / 1e3:,.3g} ms"
