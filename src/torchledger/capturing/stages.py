"""``torchledger run --stages``: keep what each graph looked like on its way to kernels."""

from __future__ import annotations

from collections.abc import Mapping

from torchledger.capturing.session import Capture


def attach(capture: Capture, settings: Mapping[str, object]) -> None:
    """Let a capture that a script runs under keep stages; there are no settings."""
    capture.keeps_stages = True
