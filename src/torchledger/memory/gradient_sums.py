"""Sums of gradients that autograd makes in place, unless a dispatch mode listens.

While a mode is on, autograd takes no gradient for its own: where a value was used twice it writes the sum of its
gradients to a new tensor, which nothing does in a step that nobody listens to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchledger._torch.storages import StorageLife


def summed_in_place(lives: Sequence[StorageLife], sums: Collection[int]) -> list[StorageLife]:
    """The storages as they are where the entries at the places ``sums`` write to what they read.

    The result of each becomes one storage with the operand that ended first after it.
    """
    found: list[StorageLife | None] = list(lives)
    made: dict[int, list[int]] = defaultdict(list)
    for number, life in enumerate(lives):
        if life.born_in is not None and life.born_in in sums:
            made[life.born_in].append(number)
    for place in sorted(made):
        result_number = made[place][0]
        result = found[result_number]
        if len(made[place]) != 1 or result is None or result.born is None:
            continue
        ended = [
            (life.freed, number)
            for number, life in enumerate(found)
            if life is not None
            and number != result_number
            and life.freed is not None
            and life.freed > result.born
            and place in life.uses
            and (life.nbytes, life.device) == (result.nbytes, result.device)
        ]
        if not ended:
            continue
        number = min(ended)[1]
        operand = found[number]
        assert operand is not None
        found[number] = replace(
            operand,
            freed=result.freed,
            freed_in=result.freed_in,
            freed_line=result.freed_line,
            owner=result.owner,
            name=result.name,
            uses=(*operand.uses, *(use for use in result.uses if use > place)),
        )
        found[result_number] = None
    return [life for life in found if life is not None]
