"""Packages that ask whether a tensor is fake, and then write a graph for export rather than run as on a device.

transformers leaves out masks that hide nothing, but not where it is traced, of which a fake tensor is a sign to it: an
attention that is causal by itself is given a mask, and keys are repeated for it. In a plan, tensors are a device's.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from torchledger._torch.lazy_import import after_import
from torchledger._torch.patching import Patches

_ASKS = {"transformers.utils.import_utils": "is_fake_tensor"}
"""By module, the function that says so of a tensor."""


def take_tensors_for_real(patches: Patches) -> None:
    """Until the patches are undone these packages, imported already or later, take no tensor for a fake one."""
    for module in _ASKS:
        patches.on_undo(after_import(module, partial(_answer, patches, module)))


def _answer(patches: Patches, module: str) -> None:
    asked: Any = sys.modules[module]
    if hasattr(asked, _ASKS[module]):
        patches.set(asked, _ASKS[module], lambda tensor: False)
