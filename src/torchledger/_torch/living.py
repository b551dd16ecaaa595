"""The objects of some classes that live in this process, in a program whose other threads go on."""

from __future__ import annotations

import gc
from itertools import chain, compress
from typing import Any


def living(kind: type) -> list[Any]:
    """All objects of a class, or of one derived from it, that the garbage collector knows: a pass over all of them."""
    return living_of(kind)[0]


def living_of(*kinds: type) -> tuple[list[Any], ...]:
    """The same for each of several classes, in one pass for all of them.

    Whoever holds a tuple while another thread still fills it makes that thread fail (``SystemError: bad argument to
    internal function``), and a list of all objects holds such. So it is made, looked through and emptied inside one
    call of C, between two instructions of Python, where no other thread can run: by functions of C alone.
    """
    derived = [frozenset(map(id, _and_derived(kind))) for kind in kinds]
    wanted = frozenset().union(*derived)
    objects: list[Any] = []
    make = map(objects.extend, map(gc.get_objects, (None,)))
    look = compress(objects, map(wanted.__contains__, map(id, map(type, objects))))
    empty = map(list.clear, (objects,))
    found = list(chain(make, look, empty))[1:-1]
    return tuple([each for each in found if id(type(each)) in ids] for ids in derived)


def _and_derived(kind: type) -> set[type]:
    found = {kind}
    waiting = [kind]
    while waiting:
        derived = set(type.__subclasses__(waiting.pop())) - found
        found |= derived
        waiting += derived
    return found
