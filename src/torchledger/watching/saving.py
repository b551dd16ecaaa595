"""Tensors to files: one safetensors file a launch and call, within a budget."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch

from torchledger.signals import let_through

log = logging.getLogger(__name__)

_UNSAFE = re.compile(r"[^\w.-]+")
_UNSAFE_PATH = re.compile(r"[^\w./-]+")


class TensorFolder:
    """A folder that takes saved tensors until its budget is spent or the disk is full; the rest is counted."""

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self.folder = folder
        self.n_files = 0
        self.n_bytes = 0
        self.n_left_out = 0
        self.reason: str | None = None
        self._budget = budget_bytes

    def save(self, place: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> str | None:
        """Write one file ``folder/place.safetensors``; returns its path, or ``None`` if it was left out.

        A file appears whole or not at all, and one that exists is never replaced.
        """
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        if self.reason is None and self.n_bytes + size > self._budget:
            self.reason = f"the budget of {self._budget / 1e9:g} GB is spent"
        if self.reason is not None:
            self.n_left_out += 1
            return None
        from safetensors.torch import save_file

        path = self.folder / f"{_UNSAFE_PATH.sub('_', place)}.safetensors"
        number = 2
        while path.exists():
            path = path.with_name(f"{_UNSAFE.sub('_', place.rsplit('/', 1)[-1])}.{number}.safetensors")
            number += 1
        unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            plain = {name: _savable(tensor) for name, tensor in tensors.items()}
            save_file(plain, unfinished, metadata=dict(metadata))
            unfinished.replace(path)
        except Exception as error:  # a full disk must not stop the user's program; safetensors has errors of its own
            let_through(error)
            self.reason = f"{type(error).__name__}: {error}"
            self.n_left_out += 1
            return None
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
        self.n_files += 1
        self.n_bytes += size
        return str(path)


def _savable(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg().contiguous()


def load_tensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a saved file by ``<moment>.<buffer>``; nothing in the file is executed."""
    from safetensors.torch import load_file

    return dict(load_file(os.fspath(path)))
