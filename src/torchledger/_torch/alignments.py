"""Losses of alignments (CTC), for which torch takes another way while a mode watches."""

from __future__ import annotations

from typing import Any

import torch

from torchledger._torch.patching import Patches


def read_lengths_first(patches: Patches) -> None:
    """Give ``torch.ctc_loss`` lengths that lie on the host as lists, which is what torch reads them to itself.

    Beside a subclass or under a mode it keeps them tensors, and then refuses them beside scores on a device.
    """
    alignment: Any = torch.ctc_loss

    def ctc_loss(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *args: Any, **options: Any
    ) -> Any:
        return alignment(log_probs, targets, _read(input_lengths), _read(target_lengths), *args, **options)

    patches.set(torch, "ctc_loss", ctc_loss)


def _read(lengths: Any) -> Any:
    return lengths.tolist() if type(lengths) is torch.Tensor and lengths.device.type == "cpu" else lengths
