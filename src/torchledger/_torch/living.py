"""The objects of a class that live in this process, in a program whose other threads go on."""

from __future__ import annotations

import gc
from itertools import chain, compress
from typing import Any


def living(kind: type) -> list[Any]:
    """All objects of a class, or of one derived from it, that the garbage collector knows (a pass over all it knows).

    Whoever holds a tuple while another thread still fills it makes that thread fail (``SystemError: bad argument to
    internal function``), and a list of all objects holds such. So it is made, looked through and emptied inside one
    call of C, between two instructions of Python, where no other thread can run: by functions of C alone.
    """
    kinds = frozenset(map(id, _and_derived(kind)))
    objects: list[Any] = []
    make = map(objects.extend, map(gc.get_objects, (None,)))
    look = compress(objects, map(kinds.__contains__, map(id, map(type, objects))))
    empty = map(list.clear, (objects,))
    return list(chain(make, look, empty))[1:-1]


def _and_derived(kind: type) -> set[type]:
    found = {kind}
    waiting = [kind]
    while waiting:
        derived = set(type.__subclasses__(waiting.pop())) - found
        found |= derived
        waiting += derived
    return found
