"""What is said of a step's price beside its numbers."""

from __future__ import annotations

from tests.factories import make_launch, make_step, make_step_call

from torchledger.predicting.devices import find_model
from torchledger.predicting.step_notes import notes_on_tuned_convolutions, step_notes
from torchledger.stepping.totals import total_step
from torchledger.work.flex import MOST_VISITED, SIMPLE, TOLD_BY, VISITED, told_blocks


def test_a_launch_without_a_device_is_not_of_another_kind() -> None:
    model, here, nowhere = find_model("H200"), make_launch(device="cuda:0"), make_launch(device="")
    assert not any("does not run" in note for note in step_notes(model, None, [here, nowhere]))
    on_host = make_launch(device="cpu")
    assert any("1 of 1 launches are kernels for cpu, which" in n for n in step_notes(model, None, [on_host]))
    assert any("does not run" in note for note in step_notes(model, None, [on_host]))


def test_a_kernel_for_the_cpu_among_those_of_the_device_is_the_hosts() -> None:
    (note,) = step_notes(find_model("H200"), None, [make_launch(device="cuda:0"), make_launch(device="cpu")])
    assert "1 of 2 launches are kernels for cpu, which the host runs" in note


def test_masks_of_attention_that_depend_on_data_are_said() -> None:
    known = make_launch(category="template", kwargs={SIMPLE: "0", VISITED: "0.5"})
    unknown = make_launch(category="template", kwargs={SIMPLE: "0"})
    model = find_model("H200")
    narrow = make_launch(category="template", kwargs={SIMPLE: "0", MOST_VISITED: "0.0176"})
    said = "which blocks {} of flex_attention visit depends on data: {} of them are taken to be"
    assert said.format("a kernel", "50%") in step_notes(model, None, [unknown])
    assert said.format("2 kernels", "1.76% to 50%") in step_notes(model, None, [unknown, narrow])
    assert not any("flex_attention" in note for note in step_notes(model, None, [known]))


def test_nothing_is_said_of_masks_whose_blocks_the_calls_tell() -> None:
    launch = make_launch(graph="forward_0", category="template", kwargs={SIMPLE: "0", TOLD_BY: "flex_attention"})
    sizes = tuple(told_blocks("flex_attention", 0.25, 0.125).items())
    told, silent = (make_step_call(kind="graph", name="forward_0", sizes=each) for each in (sizes, ()))
    step = make_step(graph_calls={"forward_0": 1})
    known, unknown = (step_notes(find_model("H200"), total_step(step, [each], {}), [launch]) for each in (told, silent))
    assert not any("flex_attention" in note for note in known)
    assert any("flex_attention" in note for note in unknown)


def test_convolutions_whose_kernels_are_timed_by_their_library_are_said_to_be_priced_without_that() -> None:
    launch, call = make_launch(kernel_name="extern_kernels.convolution"), make_step_call(name="aten::convolution")
    timed = {"cudnn_benchmark": "True"}
    for calls, launches in (([], [launch]), ([call], [])):
        (said,) = notes_on_tuned_convolutions(timed, calls, launches)
        assert "may be quicker" in said
    assert notes_on_tuned_convolutions({"cudnn_benchmark": "False"}, [call], [launch]) == ()
    assert notes_on_tuned_convolutions(timed, [make_step_call()], [make_launch()]) == ()


def test_a_period_of_many_graphs_names_some_of_them_and_how_many_more_there_are() -> None:
    graphs = {f"inference_{place}": 1 for place in range(5)}
    for count, more in ((5, " and 2 more)"), (3, ")")):
        step = make_step(found_by="period", graph_calls=dict(list(graphs.items())[:count]))
        notes = step_notes(find_model("H200"), total_step(step, [], {}), [])
        said = f"what repeats among the calls (inference_0 x1, inference_1 x1, inference_2 x1{more}"
        assert any(said in note for note in notes)
