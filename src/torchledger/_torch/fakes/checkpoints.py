"""Checkpoints of a program without values: what is written is kept in mind for as long as the program runs.

``torch.save`` writes nothing, and ``torch.load`` of the same file makes tensors of the same sizes, as unpickling what a
program pickled does. Libraries look for files of safetensors before they read them, so that such a file is there until
the plan ends: it holds zeros, which take no room on the disk. A file that was there before stays as it is. Distributed
checkpoints are neither written nor read.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import struct
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from torchledger._torch.lazy_import import after_import
from torchledger._torch.patching import Patches
from torchledger._torch.tensors import tensors_in

_DISTRIBUTED = "torch.distributed.checkpoint"
_SAVES = ("save", "save_state_dict")
_LOADS = ("load", "load_state_dict")

Note = Callable[[str, str], None]


def keep_checkpoints_away(patches: Patches, note: Note) -> None:
    """Until ``patches`` are undone have checkpoints kept in mind; ``note`` is told what was asked and what came."""
    _keep_in_mind(patches, note)
    patches.set(FakeTensor, "__reduce_ex__", _pickled)
    patches.set(torch.storage, "_load_from_bytes", _unpickled_values(torch.storage._load_from_bytes))
    patches.on_undo(after_import("safetensors.torch", lambda: _write_zeros(patches, note)))
    patches.on_undo(after_import(_DISTRIBUTED, lambda: _leave_out(patches, note)))


# --- torch.save -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Saved:
    """What is kept of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_parameter: bool
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Saved | torch.Tensor:
        """Of a tensor without values; others are copied."""
        if not isinstance(tensor, FakeTensor):
            return tensor.detach().clone()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return cls(
            tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, is_parameter, tensor.requires_grad
        )

    def made(self, place: Any) -> torch.Tensor:
        device = self.device
        if isinstance(place, Mapping):
            device = torch.device(place.get(str(device), device))
        elif isinstance(place, (str, torch.device)):
            device = torch.device(place)
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        return torch.nn.Parameter(made, self.requires_grad) if self.is_parameter else made


def _keep_in_mind(patches: Patches, note: Note) -> None:
    # A buffer is kept with what it would hold: its number must not be another one's.
    kept: dict[str, tuple[Any, Any]] = {}
    load_file, save_file = torch.load, torch.save

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(obj, (torch.UntypedStorage, torch.TypedStorage)):
            save_file(obj, f, *args, **kwargs)  # a tensor of the host that is pickled
            return
        kept[_key(f)] = tree_map_only(torch.Tensor, _Saved.of, obj), f
        note("a file that torch.save would write", "nothing")

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if _key(f) not in kept:
            return load_file(f, map_location, *args, **kwargs)
        note("a file that torch.save would have written", "tensors of the same sizes")
        return tree_map_only(_Saved, lambda saved: saved.made(map_location), kept[_key(f)][0])

    patches.set(torch, "save", save)
    patches.set(torch, "load", load)


def _pickled(tensor: Any, protocol: Any) -> tuple[Any, ...]:
    """What programs pickle themselves, or ask whether it can be, is made anew without values, too."""
    return _made, (_Saved.of(tensor),)


def _made(saved: _Saved) -> torch.Tensor:
    return saved.made(None)


def _unpickled_values(load: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A tensor of the host that was pickled has its values again."""

    @functools.wraps(load)
    def loaded(b: bytes) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():
            return load(b)

    return loaded


def _key(file: Any) -> str:
    """By its path, or as the object in memory that it is."""
    name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
    return os.path.abspath(os.fspath(name)) if isinstance(name, (str, os.PathLike)) else f"buffer {id(file)}"


# --- safetensors ----------------------------------------------------------------------------------------------------


def _write_zeros(patches: Patches, note: Note) -> None:
    module: Any = sys.modules["safetensors.torch"]
    save, save_file = module.save, module.save_file
    names = {dtype: name for name, dtype in module._TYPES.items()}

    def saved(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
        if not _has_fake(tensors):
            return bytes(save(tensors, metadata))
        note("bytes of safetensors", "zeros")
        head, size = _head(tensors, metadata, names)
        return head + bytes(size)

    def saved_file(
        tensors: Mapping[str, torch.Tensor],
        filename: str | os.PathLike[str],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        if not _has_fake(tensors):
            save_file(tensors, filename, metadata)
            return
        path = Path(filename)
        if path.exists():
            note("a file of safetensors that would be written anew", "the one that is there")
            return
        note("a file of safetensors", "zeros, until the plan ends")
        head, size = _head(tensors, metadata, names)
        patches.on_undo(lambda: _remove(path.absolute()))
        with path.open("wb") as file:
            file.write(head)
            file.truncate(len(head) + size)

    open_file = module.safe_open

    def opened(filename: Any, framework: str, device: Any = "cpu", **others: Any) -> Any:
        if str(device) == "cpu" or framework not in ("pt", "torch", "pytorch"):
            return open_file(filename, framework=framework, device=device, **others)
        return _ReadOnHost(open_file(filename, framework=framework, device="cpu", **others), device)

    patches.set(module, "save", saved)
    patches.set(module, "save_file", saved_file)
    for owner in (module, sys.modules["safetensors"]):
        patches.set(owner, "safe_open", opened)


class _ReadOnHost:
    """A file, or a tensor of it, that is read on the host and put on the device, whose memory C++ would write into."""

    def __init__(self, opened: Any, device: Any) -> None:
        self._opened = opened
        self._device = device

    def __enter__(self) -> _ReadOnHost:
        self._opened.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def __getitem__(self, places: Any) -> Any:
        return self._opened[places].to(self._device)

    def get_tensor(self, name: str) -> Any:
        """A tensor by its name."""
        return self._opened.get_tensor(name).to(self._device)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by their names."""
        names = self._opened.keys()
        return {name: self.get_tensor(name) for name in names}

    def get_slice(self, name: str) -> _ReadOnHost:
        """A tensor that is read in part."""
        return _ReadOnHost(self._opened.get_slice(name), self._device)


def _has_fake(tensors: Mapping[str, torch.Tensor]) -> bool:
    return any(isinstance(each, FakeTensor) for each in tensors.values())


def _head(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None, names: Mapping[torch.dtype, str]
) -> tuple[bytes, int]:
    """What a file of safetensors begins with, and how many bytes of numbers follow it."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    size = 0
    for name, tensor in tensors.items():
        end = size + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [size, end]}
        size = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, size


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # the program has removed it, or moved it
        path.unlink()


# --- torch.distributed.checkpoint -----------------------------------------------------------------------------------


def _bytes_on_device(state: Any) -> int:
    """Bytes that a rank holds of a state's tensors on the device; of distributed ones its own parts."""
    local = (each.to_local() if hasattr(each, "to_local") else each for each in tensors_in(state))
    return sum(each.numel() * each.element_size() for each in local if each.device.type != "cpu")


def _leave_out(patches: Patches, note: Note) -> None:
    """Neither write nor read: planners would compare what all ranks hold, and there is one."""

    def save(state_dict: Any = None, *_: Any, **__: Any) -> None:
        held = _bytes_on_device(state_dict)
        left_out = f": {held:,} bytes of this rank, whose copy to the host is not in the price" if held else ""
        note("a checkpoint that torch.distributed.checkpoint would write", f"nothing{left_out}")

    def async_save(*args: Any, **others: Any) -> Future[None]:
        save(*args, **others)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def load(*_: Any, **__: Any) -> None:
        note("a checkpoint that torch.distributed.checkpoint would read", "tensors as they are")

    for module in (f"{_DISTRIBUTED}.{name}" for name in ("state_dict_saver", "state_dict_loader")):
        for owner in (sys.modules[_DISTRIBUTED], sys.modules.get(module)):
            for names, value in ((_SAVES, save), (("async_save",), async_save), (_LOADS, load)):
                for name in names:
                    if hasattr(owner, name):
                        patches.set(owner, name, value)
