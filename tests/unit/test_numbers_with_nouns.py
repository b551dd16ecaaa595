"""Numbers in sentences."""

from __future__ import annotations

from torchledger.nouns import DryRun
from torchledger.planning.rare_collectives import rare_note


def test_one_call_is_no_calls() -> None:
    note = rare_note(DryRun("H200", calls=1), None)
    assert note is not None and note.endswith("in the 1 call behind it that ran")
