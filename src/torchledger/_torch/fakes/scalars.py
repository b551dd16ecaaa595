"""Numbers that ``torch.tensor([loss, other])`` reads out of tensors without values.

Where torch makes a tensor of a sequence it asks each tensor in it for its number, with dispatch to Python switched off:
what is asked so goes past every mode to a kernel of the device, which has nothing to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torchledger._torch.patching import Patches

_NUMBERS = ("__float__", "__int__", "__index__", "__bool__", "__complex__")
_OFF = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)


def let_sequences_be_read(patches: Patches, is_ours: Callable[[Any], bool]) -> None:
    """Have numbers of tensors of ours be asked of the mode also while torch makes a tensor of a sequence of them."""
    for name in _NUMBERS:
        patches.hide(FakeTensor, name, _number(getattr(torch.Tensor, name), is_ours))


def _number(original: Callable[[Any], Any], is_ours: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def number(tensor: Any) -> Any:
        off = [key for key in _OFF if torch._C._dispatch_tls_is_dispatch_key_excluded(key)]
        if not off or not is_ours(tensor):
            return original(tensor)
        with _on_again(off):
            return original(tensor)

    return number


@contextmanager
def _on_again(keys: list[Any]) -> Iterator[None]:
    for key in keys:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        for key in keys:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, True)
