"""Where steps end, told from signals alone."""

from __future__ import annotations

import pytest

from torchledger.nouns import Direction, StepKind
from torchledger.stepping.finder import FoundStep, StepFinder

DIRECTIONS: dict[str, Direction] = {"F": "forward", "B": "backward"}


def told(finder: StepFinder, program: str) -> list[int]:
    """Feed a program: calls of graphs (``F`` a forward, ``B`` its backward, other letters inference), optimizers by
    digit, ``|`` for ``torchledger.step()``, ``!`` for a profiler's, ``+`` where something compiles. Returns at which
    signals a step had ended.
    """
    ended = []
    for at, letter in enumerate(program.replace(" ", "")):
        step: FoundStep | None = None
        if letter == "+":
            finder.compiled()
        elif letter == "|":
            step = finder.marked("torchledger.step")
        elif letter == "!":
            step = finder.marked("profiler_step")
        elif letter.isdigit():
            step = finder.optimizer_stepped(int(letter), "AdamW")
        else:
            step = finder.called(letter, direction=DIRECTIONS.get(letter, "inference"))
        if step is not None:
            ended.append(at)
    return ended


def called_from(finder: StepFinder, program: str) -> list[int]:
    """Feed calls of graphs, each a letter and the line that makes it. Returns before which of them a step had ended."""
    ended = []
    for at, (graph, line) in enumerate(program.split()):
        if finder.called(graph, site=lambda line=line: line) is not None:
            ended.append(at)
    return ended


def kinds_of(finder: StepFinder) -> list[tuple[int, dict[str, int]]]:
    return [(kind.count, dict(kind.calls)) for kind in finder.kinds]


def test_a_mark_of_the_program_ends_a_step_whatever_else_repeats() -> None:
    finder = StepFinder()
    told(finder, "FB FB FB 1 FB | FFB1FFB1 | FFB1FFB1 |")
    assert finder.found_by == "torchledger.step"
    assert kinds_of(finder) == [(2, {"F": 4, "B": 2, "AdamW.step": 2})]


def test_a_profilers_step_is_taken_before_an_optimizers_and_after_the_programs_own() -> None:
    finder = StepFinder()
    told(finder, "FB1FB1 ! FB1 ! FB1 !")
    assert finder.found_by == "profiler_step"
    told(finder, "FB1 | FB1 ! FB1 |")
    assert finder.found_by == "torchledger.step"
    assert finder.seen == 1


def test_the_end_of_a_turn_is_taken_before_an_optimizers_step_and_after_a_mark_of_the_program() -> None:
    finder = StepFinder()
    told(finder, "FB1FB1")
    assert finder.marked("turn") is None
    told(finder, "AFB1FB1")
    step = finder.marked("turn")
    assert step is not None and dict(step.calls) == {"A": 1, "F": 2, "B": 2, "AdamW.step": 2}
    told(finder, "FB1 |")
    assert finder.found_by == "torchledger.step" and finder.marked("turn") is None


def test_an_optimizer_ends_a_step() -> None:
    finder = StepFinder()
    told(finder, "+F+B1 FB1 FB1 FB1")
    assert finder.found_by == "optimizer"
    assert kinds_of(finder) == [(3, {"F": 1, "B": 1, "AdamW.step": 1})]


def test_accumulated_microsteps_are_one_step() -> None:
    finder = StepFinder()
    told(finder, "+F+BFBFBFB1" + 3 * "FBFBFBFB1")
    assert kinds_of(finder) == [(3, {"F": 4, "B": 4, "AdamW.step": 1})]


def test_calls_that_repeat_before_the_first_optimizer_step_are_waited_for() -> None:
    finder = StepFinder(has_optimizer=lambda: True)
    told(finder, "+F+B" + 15 * "FB")
    assert finder.found_by is None and finder.waits_for_optimizer
    told(finder, "1" + 16 * "FB" + "1")
    assert kinds_of(finder) == [(1, {"F": 16, "B": 16, "AdamW.step": 1})]


def test_a_model_that_is_called_for_each_moment_of_a_sequence_is_waited_for() -> None:
    finder = StepFinder(has_optimizer=lambda: True)
    told(finder, "+F+B" + 500 * "F")
    assert finder.found_by is None
    told(finder, 500 * "B" + "1" + 2 * (500 * "F" + 500 * "B" + "1"))
    assert kinds_of(finder) == [(2, {"F": 500, "B": 500, "AdamW.step": 1})]


def test_calls_of_modules_that_keep_gradients_are_waited_for_longer_than_those_that_keep_none() -> None:
    for keeps_gradients in (True, False):
        finder = StepFinder(has_optimizer=lambda: True)
        for _ in range(1000):
            finder.called("Cell.forward", 7, keeps_gradients=keeps_gradients)
        assert finder.waits_for_optimizer == keeps_gradients
        assert finder.found_by == (None if keeps_gradients else "period")


def test_a_module_that_kept_gradients_once_is_waited_for_no_longer_where_it_keeps_none() -> None:
    finder = StepFinder(has_optimizer=lambda: True)
    finder.called("Cell.forward", 7, keeps_gradients=True)
    for _ in range(100):
        finder.called("Cell.forward", 7, keeps_gradients=False)
    assert finder.found_by == "period" and not finder.waits_for_optimizer


def test_an_optimizer_that_never_steps_is_given_up() -> None:
    finder = StepFinder(has_optimizer=lambda: True)
    told(finder, 300 * "FB")
    assert finder.found_by == "period" and not finder.waits_for_optimizer


def test_a_compiled_optimizer_is_a_graph_and_is_not_waited_for() -> None:
    finder = StepFinder(has_optimizer=lambda: True)
    told(finder, "+F+B+O" + 5 * "FBO")
    assert finder.found_by == "period"
    assert kinds_of(finder) == [(4, {"F": 1, "B": 1, "O": 1})]


def test_two_optimizers_that_alternate_end_a_step_with_the_second() -> None:
    finder = StepFinder()
    told(finder, "+DB1GB2" + 4 * "DB1GB2")
    assert finder.usual == (("AdamW.step", 2), ("B", 2), ("D", 1), ("G", 1))


def test_a_discriminator_that_steps_five_times_a_round_belongs_to_one_step() -> None:
    finder = StepFinder()
    told(finder, 6 * (5 * "DB1" + "GB2"))
    assert finder.usual == (("AdamW.step", 6), ("B", 6), ("D", 5), ("G", 1))


def test_optimizers_without_any_order_still_end_steps() -> None:
    finder = StepFinder()
    told(finder, "F1F1F2F1F2F2F1F1F1F2F1F2F1F1F2F2F2F1F2F1F1F1F2F1F1F2F1F1")
    assert finder.found_by == "optimizer"
    assert finder.seen > 0


def test_optimizers_of_one_parameter_each_make_one_step_together() -> None:
    finder = StepFinder()
    for _ in range(4):
        finder.called("M")
        for parameter in range(40):
            finder.optimizer_stepped(parameter, "SGD")
    assert kinds_of(finder) == [(3, {"M": 1, "SGD.step": 40})]


def test_a_skipped_optimizer_step_makes_an_unlike_kind() -> None:
    finder = StepFinder()
    told(finder, "+F+B1" + 4 * "FB1" + "FB" + 3 * "FB1")
    assert kinds_of(finder) == [
        (6, {"F": 1, "B": 1, "AdamW.step": 1}),
        (1, {"F": 2, "B": 2, "AdamW.step": 1}),
    ]


def test_steps_of_one_optimizer_with_nothing_compiled_between_them_are_steps() -> None:
    finder = StepFinder()
    told(finder, "FB1FB1FB1" + "1" + "FB1")
    assert dict(kinds_of(finder)[1][1]) == {"AdamW.step": 1}


def test_without_an_optimizer_the_period_of_the_calls_is_the_step() -> None:
    finder = StepFinder()
    ended = told(finder, "+A+B AAB AAB AAB AAB")
    assert finder.found_by == "period"
    assert ended[-1] == 4 + 3 * 3  # before the first call of the last round, not after the round
    assert kinds_of(finder) == [(3, {"A": 2, "B": 1})]


def test_one_graph_with_the_parameters_of_three_layers_has_a_period_of_three_calls() -> None:
    finder = StepFinder()
    for _ in range(5):
        for layer in range(3):
            finder.called("inference_0", layer)
    assert kinds_of(finder) == [(4, {"inference_0": 3})]


def test_parameters_that_never_come_again_do_not_hide_the_period() -> None:
    finder = StepFinder()
    for number in range(1200):
        finder.called("ab"[number % 2], number)
    assert finder.usual == (("a", 1), ("b", 1))


def test_a_graph_met_later_shows_that_the_period_was_a_part() -> None:
    finder = StepFinder()
    told(finder, 5 * "AAB")
    assert finder.usual == (("A", 2), ("B", 1))


def test_calls_that_repeat_behind_a_compilation_are_a_part_of_a_longer_period() -> None:
    finder = StepFinder()
    told(finder, "+FFF+BBB" + 6 * "FFFBBB")
    assert finder.found_by == "period"
    assert finder.usual == (("B", 3), ("F", 3))
    assert {tuple(kind.calls) for kind in finder.kinds} == {("B", "F")}


def test_generation_has_its_decoding_for_a_step_and_prefills_as_another_kind() -> None:
    finder = StepFinder()
    told(finder, "+P+D" + 4 * (19 * "D" + "P") + 40 * "D")
    assert finder.found_by == "period"
    assert finder.usual == (("D", 1),)
    assert {tuple(kind.calls) for kind in finder.kinds} == {("D",), ("P",)}


def test_what_was_seen_before_a_compilation_is_no_step_of_now() -> None:
    finder = StepFinder()
    told(finder, 5 * "FB1" + "+")
    assert finder.seen == 0
    told(finder, "FB1FB1")
    assert finder.seen == 1  # the first is the rest of the step that compiled


def test_a_program_that_ends_before_a_second_step_says_what_it_called() -> None:
    finder = StepFinder()
    told(finder, "ABC")
    assert finder.found_by is None
    assert finder.kinds == ()
    assert finder.calls_without_step == {"A": 1, "B": 1, "C": 1}


def test_a_program_without_a_period_has_no_steps() -> None:
    finder = StepFinder()
    told(finder, "ABCACBBACABC")
    assert finder.found_by is None


def test_the_calls_of_a_second_thread_are_counted_and_no_steps() -> None:
    finder = StepFinder()
    for _ in range(6):
        finder.called("inference_0", thread=1)
        finder.called("inference_0", thread=2)
    assert finder.owner == 1
    assert finder.seen == 5
    assert finder.other_threads == {"inference_0": 6}


@pytest.mark.parametrize("autograd_thread", [1, 7])
def test_backwards_belong_to_the_step_from_whichever_thread_they_come(autograd_thread: int) -> None:
    finder = StepFinder()
    for _ in range(3):
        finder.called("forward_0", thread=1, direction="forward")
        finder.called("backward_0", thread=autograd_thread, direction="backward")
    assert finder.usual == (("backward_0", 1), ("forward_0", 1))


def test_kinds_without_end_are_counted_together() -> None:
    finder = StepFinder()
    for number in range(300):
        finder.called(f"graph_{number}")
        finder.marked("torchledger.step")
    assert len(finder.kinds) == 65
    assert finder.seen == 299


def test_threads_that_take_turns_of_many_calls_each_leave_one_of_them_its_steps() -> None:
    finder = StepFinder()
    finder.called("inference_0", thread=0)  # what compiles the graph, and then waits for the others
    for turn in range(24):
        for _ in range(90):
            finder.called("inference_0", thread=1 + turn % 2)
    assert finder.owner in (1, 2)
    assert finder.seen > 600


def test_the_steps_of_another_thread_are_looked_for_once_the_first_has_gone_silent() -> None:
    finder = StepFinder()
    finder.called("inference_0", thread=1)
    for _ in range(70):
        finder.called("inference_0", thread=2)
    assert finder.owner == 2
    assert finder.seen > 1


def trains(finder: StepFinder, thread: int, optimizer: int) -> None:
    """One step of a thread that trains."""
    finder.called(f"forward_{thread}", thread=thread, direction="forward")
    finder.called(f"backward_{thread}", thread=thread, direction="backward")
    if finder.owns_optimizer("AdamW", thread=thread):
        finder.optimizer_stepped(optimizer, "AdamW")


def test_of_two_threads_that_train_the_steps_of_one_are_found() -> None:
    finder = StepFinder()
    for step in range(12):
        trains(finder, 1, optimizer=1)
        if step % 3 != 2:  # they keep no time
            trains(finder, 2, optimizer=2)
    assert (finder.owner, finder.found_by) == (1, "optimizer")
    assert finder.usual == (("AdamW.step", 1), ("backward_1", 1), ("forward_1", 1))
    assert finder.other_threads == {"forward_2": 8, "backward_2": 8, "AdamW.step": 8}


def test_steps_are_those_of_the_thread_that_trains_while_another_serves() -> None:
    finder = StepFinder()
    for _ in range(9):
        finder.called("inference_0", thread=1)
        trains(finder, 2, optimizer=2)
    assert (finder.owner, finder.found_by) == (2, "optimizer")
    assert finder.usual == (("AdamW.step", 1), ("backward_2", 1), ("forward_2", 1))


def test_a_thread_that_steps_an_optimizer_before_the_first_caller_does_leaves_no_step_behind() -> None:
    finder = StepFinder()
    finder.called("forward_1", thread=1, direction="forward")
    for _ in range(5):  # of a model that is not compiled, while thread 1 compiles its backward
        if finder.owns_optimizer("SGD", thread=2):
            finder.optimizer_stepped(2, "SGD")
    for _ in range(6):
        trains(finder, 1, optimizer=1)
        assert not finder.owns_optimizer("SGD", thread=2)
    assert finder.kinds == (StepKind(5, {"AdamW.step": 1, "backward_1": 1, "forward_1": 1}),)


def test_an_optimizer_that_a_thread_of_its_own_steps_ends_the_steps_of_the_one_that_calls() -> None:
    finder = StepFinder()
    for _ in range(6):
        finder.called("forward_0", thread=1, direction="forward")
        finder.called("backward_0", thread=7, direction="backward")
        assert finder.owns_optimizer("AdamW", thread=8)
        finder.optimizer_stepped(0, "AdamW")
    assert (finder.owner, finder.seen) == (1, 5)


def test_steps_that_are_handed_over_are_those_of_the_other_thread_and_earlier_ones_its_neighbours() -> None:
    finder = StepFinder()
    for _ in range(5):
        finder.called("inference_0", thread=1)
    finder.keeps_owner = True
    finder.hand_over(2)
    for _ in range(5):
        trains(finder, thread=2, optimizer=7)
    assert finder.found_by == "optimizer" and finder.owner == 2
    assert finder.usual == (("AdamW.step", 1), ("backward_2", 1), ("forward_2", 1))
    assert finder.other_threads["inference_0"] == 4


def test_a_thread_that_trains_keeps_its_steps_while_another_serves_quickly() -> None:
    finder = StepFinder()
    for _ in range(6):
        trains(finder, thread=2, optimizer=7)
        for _ in range(200):
            finder.called("inference_0", thread=1)
    assert finder.owner == 2 and finder.found_by == "optimizer"
    assert finder.usual == (("AdamW.step", 1), ("backward_2", 1), ("forward_2", 1))


def test_a_graph_that_lines_call_in_turns_is_called_as_often_in_a_step() -> None:
    finder = StepFinder()
    called_from(finder, "A1 A2 " * 3)
    assert not finder.is_settled
    called_from(finder, "A1 A2 " * 9)
    assert finder.is_settled
    assert {kind.calls["A"] for kind in finder.kinds} == {2}
    finder = StepFinder()
    called_from(finder, "A1 B1 A2 B2 A3 B3 " * 10)
    assert {tuple(kind.calls.items()) for kind in finder.kinds} == {(("A", 3), ("B", 3))}


def test_a_step_begins_with_the_line_that_called_first_also_where_it_compiled_later() -> None:
    finder = StepFinder()
    called_from(finder, "A1")
    finder.compiled()
    ended = called_from(finder, "A2 " + "A1 A2 " * 20)
    assert {number % 2 for number in ended if number > 12} == {1}


@pytest.mark.parametrize("lines", ["1222", "1" * 8 + "2" * 8, "1", "1211212212112"])
def test_lines_that_take_no_turns_make_no_longer_steps(lines: str) -> None:
    finder = StepFinder()
    called_from(finder, " ".join(f"A{line}" for line in lines * 12))
    assert finder.is_settled
    assert {kind.calls["A"] for kind in finder.kinds} == {1}


def test_lines_of_a_loop_over_layers_are_one_step_however_they_are_called() -> None:
    finder = StepFinder()
    for _ in range(5):
        for layer in range(12):
            finder.called("A", layer, site=lambda: "loop")
    assert finder.is_settled and {kind.calls["A"] for kind in finder.kinds} == {12}


def test_places_are_asked_for_no_longer_than_they_may_take_turns() -> None:
    asked = []
    finder = StepFinder()
    for _ in range(50):
        finder.called("A", site=lambda: asked.append(1))
    assert len(asked) <= 3
