"""What is said of steps that are not alike."""

from __future__ import annotations

from torchledger.nouns import Launch, SourceLine, StepKind
from torchledger.profiling.unlike_steps import lines_of_graphs, what_differs
from torchledger.stepping.finder import OTHER_KINDS


def test_only_what_some_steps_call_more_often_than_others_is_named() -> None:
    kinds = [StepKind(2, {"forward_0": 6, "AdamW.step": 1}), StepKind(1, {"forward_0": 6, "AdamW.step": 2})]
    assert what_differs(kinds) == "AdamW.step 1 or 2 times"


def test_what_a_step_does_not_call_at_all_counts_as_never() -> None:
    kinds = [StepKind(1, {"inference_0": 1}), StepKind(1, {"inference_1": 5})]
    assert what_differs(kinds) == "inference_0 0 or 1 times, inference_1 0 to 5 times"


def test_a_few_are_named_and_the_rest_counted() -> None:
    kinds = [StepKind(1, {f"inference_{number}": 1}) for number in range(9)]
    said = what_differs(kinds)
    assert said is not None and said.count("0 or 1 times") == 3 and said.endswith(" and 6 more")


def test_kinds_that_nobody_told_apart_and_a_single_one_differ_in_nothing_known() -> None:
    assert what_differs([StepKind(6, {"SGD.step": 1}), StepKind(9, dict(OTHER_KINDS))]) is None


def test_a_graph_is_of_the_first_line_that_it_knows() -> None:
    without = Launch("forward_0", 0, "a", "a", "extern", "cuda:0")
    launch = Launch("forward_0", 1, "b", "b", "extern", "cuda:0", sources=(SourceLine("/home/me/train.py", 12),))
    lines = lines_of_graphs({"forward_0": [without, launch], "forward_1": [without]})
    assert lines == {"forward_0": "train.py:12"}
    kinds = [StepKind(1, {"forward_0": 1}), StepKind(1, {"forward_0": 4})]
    assert what_differs(kinds, lines) == "forward_0 (of train.py:12) 1 to 4 times"
