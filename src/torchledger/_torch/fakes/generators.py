"""Generators of random numbers whose state may come from a tensor without values, as another rank sends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.random
from torch._subclasses.fake_tensor import FakeTensor

from torchledger._torch.patching import Patches

_Native: Any = torch.Generator


class _AnyGenerator(type(_Native)):
    """Generators made before this class, and torch's own, are instances of it as well."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Native)


def device_state() -> torch.Tensor:
    """The state of a device's random numbers: a seed and how many were drawn, of which nobody asks more."""
    with torch.utils._python_dispatch._disable_current_modes():
        return torch.zeros(_DEVICE_STATE_BYTES, dtype=torch.uint8)


_DEVICE_STATE_BYTES = 16


def let_states_be_unknown(patches: Patches, note: Callable[[str, str], None]) -> None:
    """Until ``patches`` are undone a state without values leaves a generator as it is, which ``note`` is told."""
    asked = ("the state of a random generator", "as it was")

    class Generator(_Native, metaclass=_AnyGenerator):
        """Random numbers of the host, also where the program wants those of the device that is not there."""

        def __new__(cls, device: Any = "cpu") -> Any:
            made = super().__new__(cls, device)
            place = torch.device(device)
            made._place = torch.device(place.type, place.index or 0) if place.type == "cuda" else place
            made._offset = 0
            return made

        @property
        def device(self) -> torch.device:
            return self._place

        def get_offset(self) -> int:
            return self._offset if self._place.type == "cuda" else super().get_offset()

        def set_offset(self, offset: int) -> Any:
            if self._place.type != "cuda":
                return super().set_offset(offset)
            self._offset = offset
            return self

        def get_state(self) -> Any:
            return device_state() if self._place.type == "cuda" else super().get_state()

        def set_state(self, new_state: Any) -> Any:
            if isinstance(new_state, FakeTensor):
                note(*asked)
                return self
            return self if self._place.type == "cuda" else super().set_state(new_state)

    original = torch.random.set_rng_state

    def set_rng_state(new_state: Any) -> None:
        if isinstance(new_state, FakeTensor):
            note(*asked)
        else:
            original(new_state)

    patches.set(torch, "Generator", Generator)
    for owner in (torch, torch.random):
        patches.set(owner, "set_rng_state", set_rng_state)
