"""What is said first of a predicted step."""

from __future__ import annotations

import pytest

from torchledger.nouns import StepPrediction
from torchledger.predicting.step import NO_STEP
from torchledger.reporting.document import Facts, Sentence
from torchledger.reporting.steps import step_document


@pytest.mark.parametrize("holds_record", [True, False])
def test_graphs_priced_once_are_not_called_a_step_and_that_is_said_first(holds_record: bool) -> None:
    notes = () if holds_record else (NO_STEP, "its profile saw several calls")
    step = StepPrediction(
        "a.ledger", "eager", 11.0, 9.0, 14.0, 0.9, "H200", 8.0, 1.0, 10.0, holds_record=holds_record, notes=notes
    )
    first, *rest = step_document(step, [], {}, []).sections[0].blocks
    if holds_record:
        assert isinstance(first, Facts) and first.rows[0][0] == "step"
        return
    assert isinstance(first, Sentence) and first.text.startswith("The ledger holds no step: each graph is counted once")
    facts, *notes_told = rest
    assert isinstance(facts, Facts) and facts.rows[0][0] == "graphs, once each"
    assert [each.text for each in notes_told if isinstance(each, Sentence)] == ["Its profile saw several calls."]
