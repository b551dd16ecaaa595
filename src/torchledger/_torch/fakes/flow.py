"""What a part of a program computes by its models, and whether what comes behind it reads that.

Told of operators and graphs by their tensors' memory: what is made of parameters, and of what was made so, is computed.
A permutation that a program draws is not, nor are its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from torchledger._torch.tensors import memory_key, tensors_in

_LEAST = 2
"""Elements of what is more than a count or a mean, as programs keep them of their evaluations too."""


class Flow:
    """Follows what is computed until ``behind`` is called, and whether something computed is read from then on.

    ``known`` are parameters that operators may read under other names, as parts of an all-gather.
    """

    def __init__(self, known: Iterable[Any] = (), on_end: Callable[[Flow], None] = lambda flow: None) -> None:
        self.is_used = False
        self._is_before = True
        self._parameters = _keys(getattr(each, "_local_tensor", each) for each in known)
        self._computed: set[int] = set()
        self._on_end = on_end

    def behind(self) -> None:
        """What models compute from now on is not followed."""
        self._is_before = False

    def end(self) -> None:
        """Nothing is followed any more."""
        self._on_end(self)

    def called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operator has been called."""
        written = list(written_by(func, args, kwargs))
        given = [each for each in tensors_in((args, kwargs)) if not any(each is other for other in written)]
        parameters = _keys(each for each in given if isinstance(each, Parameter))
        self._parameters |= parameters
        self._computed -= parameters
        read, changed = self._read(given), _keys(written)
        made = _keys(tensors_in(result)) - changed
        is_computed = self._is_before and not read.isdisjoint(self._computed | self._parameters)
        # A part that is written in place leaves the others; behind, it is written anew, as what FSDP gathers.
        self._note((made | changed if is_computed or not self._is_before else made) - read, is_computed)

    def graph_begins(self, compiled: Any, inputs: Sequence[Any]) -> set[int]:
        """A compiled graph is about to be called; returns what it reads, without the tensors, which it may free."""
        return self._read(list(tensors_in(list(inputs))))

    def graph_called(self, begun: set[int], outputs: Any) -> None:
        """A compiled graph that reads this has been called: what it makes is computed by a model."""
        self._note(_keys(tensors_in(outputs)) - begun, self._is_before)

    def _read(self, given: Sequence[Any]) -> set[int]:
        """The memory that is read, some of which may be computed."""
        if not self._is_before and not self.is_used:
            self.is_used = not self._computed.isdisjoint(_keys(each for each in given if each.numel() >= _LEAST))
        return _keys(given)

    def _note(self, made: set[int], is_computed: bool) -> None:
        if is_computed:
            self._computed |= made - self._parameters
        else:
            self._computed -= made  # other values where some were before


def written_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes into."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(args[place] if place < len(args) else kwargs.get(argument.name))


def _keys(tensors: Iterable[Any]) -> set[int]:
    """The memory of tensors, of those that have one place."""
    keys = set()
    for each in tensors:
        if each.layout is torch.strided:
            try:
                keys.add(memory_key(each.untyped_storage()))
            except (NotImplementedError, RuntimeError):  # a class of the program's around others
                continue
    return keys
