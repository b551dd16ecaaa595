"""Stores in which ranks that are not there would leave their keys: what a rank waits for is answered at once.

A program may meet its other ranks by itself, in a store of its own (``TCPStore``) or in the default group's. Here every
store is in this process, and what it lacks is taken to be what the others would have put there: what this rank put
under a key that differs by a number, and as often as there are ranks where they count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as core

from torchledger._torch.patching import Patches, replace_everywhere
from torchledger._torch.user_lines import user_line
from torchledger.errors import UsageError

_NUMBER = re.compile(r"\d+")

_PATIENCE = 20
"""How often a program is told that a key is not there that no key of its own resembles: it may be one that says that
another rank has failed, and it may be one that it asks for until it comes."""

_UNKNOWN = b"1"


class LocalStore(core.HashStore):
    """A store in this process, made as a ``TCPStore`` or a ``FileStore`` is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.host = self.path = kwargs.get("host_name", args[0] if args else "")
        self.port = kwargs.get("port", args[1] if len(args) > 1 else 0)


def answer_for_others(patches: Patches, size: int, stand_in: Callable[[str], None]) -> None:
    """Answer what a rank of ``size`` waits for in a store, until the patches are undone; ``stand_in`` is told what is
    made up."""
    others = _Others(size, stand_in)
    for name in ("set", "get", "add", "wait", "check", "multi_get", "queue_pop", "barrier"):
        if hasattr(dist.Store, name):
            patches.set(dist.Store, name, _method(getattr(dist.Store, name), getattr(others, name)))
    for made in (core.TCPStore, core.FileStore):
        replace_everywhere(patches, made, LocalStore)


def ask_for_world(patches: Patches) -> None:
    """Have a program that is planned alone, and waits for ranks, end with a sentence in place of waiting.

    Raises ``UsageError`` in the program, with its line and the option that fits.
    """

    class Store(core.TCPStore):
        """One for a single process."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            size = kwargs.get("world_size", args[2] if len(args) > 2 else None)
            is_master = kwargs.get("is_master", args[3] if len(args) > 3 else False)
            if not is_master or (size or 1) > 1:
                world = size if size and size > 1 else "N"
                raise UsageError(
                    f"the script waits at {user_line()} for other ranks in a store of its own, and the plan is of one "
                    f"process. Pass --world {world}."
                )
            super().__init__(*args, **kwargs)

    replace_everywhere(patches, core.TCPStore, Store)


def _method(original: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
    def method(store: Any, *args: Any, **kwargs: Any) -> Any:
        return answer(store, original, *args, **kwargs)

    method.__name__ = getattr(original, "__name__", "method")
    return method


class _Others:
    """What the other ranks would have left in stores."""

    def __init__(self, size: int, stand_in: Callable[[str], None]) -> None:
        self._size, self._stand_in = size, stand_in
        self._values: dict[str, bytes] = {}
        self._counted: dict[tuple[int, str], int] = {}
        self._asked: Counter[tuple[str, ...]] = Counter()
        self._has = dist.Store.check

    def set(self, store: Any, original: Callable[..., Any], key: str, value: Any) -> None:
        """Keep it, also for keys of other ranks that resemble it."""
        self._values[_form(key)] = value.encode() if isinstance(value, str) else bytes(value)
        original(store, key, value)

    def add(self, store: Any, original: Callable[..., Any], key: str, amount: int) -> int:
        """This rank's own count; once it only asks, that of all ranks."""
        own = int(original(store, key, amount))
        self._counted[id(store), key] = own
        return own * self._size if not amount else own

    def get(self, store: Any, original: Callable[..., Any], key: str) -> bytes:
        """What is there, or what another rank would have set."""
        if (id(store), key) in self._counted:
            return str(self._counted[id(store), key] * self._size).encode()
        if self._has(store, [key]):
            return bytes(original(store, key))
        found = self._values.get(_form(key))
        said = "what this rank set under a key like it" if found is not None else repr(_UNKNOWN.decode())
        self._stand_in(f"the value of {key!r} in a store: {said}")
        return _UNKNOWN if found is None else found

    def multi_get(self, store: Any, original: Callable[..., Any], keys: Sequence[str]) -> list[bytes]:
        """The same for several keys."""
        return [store.get(key) for key in keys]

    def wait(self, store: Any, original: Callable[..., Any], keys: Sequence[str], timeout: Any = None) -> None:
        """They are there."""

    def barrier(self, store: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """All ranks have come."""

    def check(self, store: Any, original: Callable[..., Any], keys: Sequence[str]) -> bool:
        """Whether they are there, or would be."""
        missing = tuple(key for key in keys if not self._has(store, [key]))
        if all(_form(key) in self._values for key in missing):
            return True
        self._asked[missing] += 1
        return self._asked[missing] > _PATIENCE

    def queue_pop(self, store: Any, original: Callable[..., Any], key: str, block: bool = True) -> bytes:
        """What is in it, or what another rank would have put there."""
        if not block or store.queue_len(key):
            return bytes(original(store, key, block))
        self._stand_in(f"what is in the queue {key!r} of a store: {_UNKNOWN.decode()!r}")
        return _UNKNOWN


def _form(key: str) -> str:
    """A key without the numbers that tell ranks apart."""
    return _NUMBER.sub("#", key)
