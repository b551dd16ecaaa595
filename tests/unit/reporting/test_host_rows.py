"""What ``doctor`` prints of a host."""

from __future__ import annotations

from torchledger.nouns import Host
from torchledger.predicting.host_steps import _USUAL
from torchledger.reporting.ceilings import ceilings_document
from torchledger.reporting.terminal import render


def test_a_host_is_said_to_be_as_slow_as_all_its_costs_say() -> None:
    slow = Host("slow", "TEST", **{name: 1.5 * cost for name, cost in _USUAL.items()})
    text = render(ceilings_document((), host=slow))
    assert "in all" in text and "1.50 times what a usual host needs" in text
    assert "in all" not in render(ceilings_document((), host=Host("unmeasured", "TEST")))
