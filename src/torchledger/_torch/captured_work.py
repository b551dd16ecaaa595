"""What a CUDA graph of a program's own holds, on a device that is not there: noted once, called again at replays."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from torchledger._torch.askers import Asker, as_asked_by

Call = Callable[..., Any]


@dataclass(frozen=True)
class _Place:
    """Where a tensor is found that an earlier call has made."""

    number: int


@dataclass(frozen=True)
class _Given:
    """A call, and its arguments: ``leaves`` without the tensors that others made, of all of which there are
    ``tensors``."""

    call: Call
    leaves: tuple[Any, ...]
    spec: TreeSpec
    tensors: tuple[weakref.ref[Any], ...]
    asker: Asker


@dataclass(frozen=True)
class _Noted:
    """A call: its arguments without the tensors that others made, where it puts what it makes, who asked for it, and
    what nobody needs behind it."""

    call: Call
    given: tuple[Any, ...]
    spec: TreeSpec
    made: tuple[int | None, ...]
    asker: Asker
    spent: tuple[int, ...] = ()


class CapturedWork:
    """Told of operators and graphs while they are captured; ``run`` calls them again, each with what the others make
    then, so that memory comes and goes as it did. Operators that a compiled graph calls (``is_inside``) are its own."""

    def __init__(self, is_inside: Callable[[], bool]) -> None:
        self._is_inside = is_inside
        self._calls: list[_Noted] = []
        self._places: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._n_places = 0
        self._needed: frozenset[int] = frozenset()

    def called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operator has been called."""
        if not self._is_inside():
            self._note(self._given(func, (tuple(args), dict(kwargs))), result)

    def graph_begins(self, compiled: Any, inputs: Sequence[Any]) -> _Given:
        """A compiled graph is about to be called; returns what it is given, without the tensors that others made."""
        return self._given(lambda *given: compiled(list(given)), (tuple(inputs), {}))

    def graph_called(self, begun: _Given, outputs: Any) -> None:
        """A compiled graph has been called."""
        self._note(begun, outputs)

    def stepped(self, tell: Callable[[], None]) -> None:
        """An optimizer has made its step, of which ``tell`` tells again."""
        self._note(self._given(tell, ((), {})), None)

    def close(self) -> None:
        """Nothing more is captured."""
        last = {place.number: at for at, each in enumerate(self._calls) for place in _places_in(each.given)}
        spent: dict[int, list[int]] = {}
        for number, at in last.items():
            spent.setdefault(at, []).append(number)
        self._calls = [replace(each, spent=tuple(spent.get(at, ()))) for at, each in enumerate(self._calls)]
        self._needed = frozenset(last)
        self._places.clear()

    def run(self) -> None:
        """Call all of it again, below autograd and autocast, which have done their part; in inference, as what was
        captured there may be written into nowhere else."""
        values: dict[int, Any] = {}
        with torch.inference_mode(), torch.autocast("cuda", enabled=False), torch._C._AutoDispatchBelowAutograd():
            for each in self._calls:
                leaves = [values[leaf.number] if isinstance(leaf, _Place) else leaf for leaf in each.given]
                args, kwargs = tree_unflatten(leaves, each.spec)
                with as_asked_by(each.asker):
                    made = tree_flatten(each.call(*args, **kwargs))[0]
                del leaves, args, kwargs
                for number, value in zip(each.made, made, strict=False):
                    if number in self._needed:
                        values[number] = value
                made.clear()
                for number in each.spent:
                    values.pop(number, None)

    def _given(self, call: Call, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> _Given:
        leaves, spec = tree_flatten(arguments)
        tensors = tuple(weakref.ref(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))
        given = tuple(self._place_of(leaf) or leaf for leaf in leaves)
        return _Given(call, given, spec, tensors, Asker.of(sys._getframe(1)))

    def _note(self, given: _Given, result: Any) -> None:
        known = [reference() for reference in given.tensors]
        made = tuple(
            None if any(each is other for other in known) else self._new_place(each) for each in tree_flatten(result)[0]
        )
        self._calls.append(_Noted(given.call, given.leaves, given.spec, made, given.asker))

    def _place_of(self, leaf: Any) -> _Place | None:
        if not isinstance(leaf, torch.Tensor):
            return None
        reference, number = self._places.get(id(leaf), (None, 0))
        return _Place(number) if reference is not None and reference() is leaf else None

    def _new_place(self, made: Any) -> int | None:
        if not isinstance(made, torch.Tensor):
            return None
        self._n_places += 1
        self._places[id(made)] = weakref.ref(made), self._n_places
        return self._n_places


def _places_in(given: Sequence[Any]) -> list[_Place]:
    return [leaf for leaf in given if isinstance(leaf, _Place)]
