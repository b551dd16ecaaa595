"""The sizes that a call of a dynamic graph is made with, read from its inputs."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

_PLACE = re.compile(r"inputs\[(?P<input>\d+)\](?:\.(?P<what>size|stride)\((?P<axis>\d+)\))?")


def symbol_values(inputs: Sequence[Any], symbol_inputs: Mapping[str, str]) -> dict[str, int]:
    """The value of each size symbol in a call with ``inputs``, by ``Graph.symbol_inputs``.

    A symbol that is not found there is left out. Reads sizes alone: nothing waits for a device.
    """
    found = {}
    for symbol, text in symbol_inputs.items():
        place = _place(text)
        if place is None or place[0] >= len(inputs):
            continue
        value = inputs[place[0]]
        if place[1] is not None:
            extents = getattr(value, place[1], tuple)()
            value = extents[place[2]] if place[2] < len(extents) else None
        if type(value) is int:
            found[symbol] = value
    return found


@functools.cache
def _place(text: str) -> tuple[int, str | None, int] | None:
    match = _PLACE.fullmatch(text)
    return None if match is None else (int(match["input"]), match["what"], int(match["axis"] or 0))
