"""What is said of frames that were not compiled."""

from __future__ import annotations

from collections import Counter

from torchledger.capturing.graph_breaks import graph_breaks_note


def test_frames_that_dynamo_counts_as_compiled_are_no_graphs_where_inductor_was_given_none() -> None:
    after = Counter({"frames": 13, "compiled frames": 12, "aten.nonzero": 3})
    said = graph_breaks_note(Counter(), after, has_graphs=False)
    assert said is not None and said.startswith("torch.compile gave Inductor no graph of 13 frames; ")
    assert "12" not in said and said.endswith("aten.nonzero (3 times)")


def test_what_stays_eager_is_not_denied_the_entries_that_a_step_has() -> None:
    said = graph_breaks_note(Counter(), Counter({"frames": 3, "compiled frames": 2}))
    assert said == "torch.compile compiled 2 of 3 frames; what it left to run eagerly is only in a recorded step"
