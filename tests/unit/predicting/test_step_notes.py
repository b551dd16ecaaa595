"""What is said of a step's price beside its numbers."""

from __future__ import annotations

from tests.factories import make_launch

from torchledger.predicting.devices import find_model
from torchledger.predicting.step_notes import step_notes
from torchledger.work.flex import MOST_VISITED, SIMPLE, VISITED


def test_masks_of_attention_that_depend_on_data_are_said() -> None:
    known = make_launch(category="template", kwargs={SIMPLE: "0", VISITED: "0.5"})
    unknown = make_launch(category="template", kwargs={SIMPLE: "0"})
    model = find_model("H200")
    narrow = make_launch(category="template", kwargs={SIMPLE: "0", MOST_VISITED: "0.0176"})
    said = "which blocks {} of flex_attention visit depends on data: {} of them are taken to be"
    assert said.format("a kernel", "50%") in step_notes(model, None, [unknown])
    assert said.format("2 kernels", "1.76% to 50%") in step_notes(model, None, [unknown, narrow])
    assert not any("flex_attention" in note for note in step_notes(model, None, [known]))
