"""From a compiled model to graphs, kernels and launches.

Enters: what TorchInductor does while it compiles (heard through ``torchledger._torch.hooks``). Leaves: ``Graph``,
``Kernel``, ``Launch`` records in a ledger, with the ``Gap`` and ``Difference`` records that the balance needs.
"""

from torchledger.capturing.session import Capture
from torchledger.capturing.watcher import Watcher

__all__ = ["Capture", "Watcher"]
