"""What is said of a step's price beside its numbers."""

from __future__ import annotations

from tests.factories import make_launch

from torchledger.predicting.devices import find_model
from torchledger.predicting.step_notes import step_notes
from torchledger.work.flex import MOST_VISITED, SIMPLE, VISITED


def test_a_launch_without_a_device_is_not_of_another_kind() -> None:
    model, here, nowhere = find_model("H200"), make_launch(device="cuda:0"), make_launch(device="")
    assert not any("does not run" in note for note in step_notes(model, None, [here, nowhere]))
    assert any(
        "1 of 2 launches are kernels for cpu" in n for n in step_notes(model, None, [here, make_launch(device="cpu")])
    )


def test_masks_of_attention_that_depend_on_data_are_said() -> None:
    known = make_launch(category="template", kwargs={SIMPLE: "0", VISITED: "0.5"})
    unknown = make_launch(category="template", kwargs={SIMPLE: "0"})
    model = find_model("H200")
    narrow = make_launch(category="template", kwargs={SIMPLE: "0", MOST_VISITED: "0.0176"})
    said = "which blocks {} of flex_attention visit depends on data: {} of them are taken to be"
    assert said.format("a kernel", "50%") in step_notes(model, None, [unknown])
    assert said.format("2 kernels", "1.76% to 50%") in step_notes(model, None, [unknown, narrow])
    assert not any("flex_attention" in note for note in step_notes(model, None, [known]))
