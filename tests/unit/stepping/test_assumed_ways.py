"""What is taken to run of graphs that ask values which are not there."""

from __future__ import annotations

from factories import make_buffer, make_launch
from torchledger.capturing.conditionals import Conditional, Loop
from torchledger.nouns import Launch, SourceLine
from torchledger.stepping.assumed_ways import assumed_times, dearer_ways, notes_on_ways
from torchledger.stepping.entries import Entry
from torchledger.stepping.record import Ledgered, StepCall, with_graph

OUTER: Conditional = (((1, 10), (20, 30)), ((40, 50),))
INNER: Conditional = (((20, 24),), ((25, 30),))
LOOP = Loop(check=((60, 65),), body=((66, 70),))
FORKS = (OUTER, INNER, LOOP)


def launch(order: int, line: int, flops: int, moved: int = 0) -> Launch:
    buffer = make_buffer(bytes_read=0, bytes_written=moved)
    return make_launch(
        order=order, wrapper_line=line, flops=flops, buffers=(buffer,), sources=(SourceLine("model.py", line),)
    )


LAUNCHES = [launch(0, 2, 3), launch(1, 21, 4), launch(2, 26, 5), launch(3, 41, 9), launch(4, 61, 0), launch(5, 67, 6)]


def test_the_dearer_way_is_taken_and_what_an_inner_one_leaves_out_is_not_counted() -> None:
    assert dearer_ways(LAUNCHES, FORKS) == {INNER: 1, OUTER: 1}  # 3 + 5 are less than 9
    assert assumed_times(LAUNCHES, FORKS) == {f"forward_0#{place}": 0 for place in (0, 1, 2)} | {"forward_0#4": 2}


def test_a_way_that_moves_much_is_dearer_than_one_that_computes_little() -> None:
    assert dearer_ways([launch(0, 2, 900), launch(1, 41, 0, moved=10)], (OUTER,)) == {OUTER: 1}


def test_a_call_of_which_no_kernel_was_seen_is_as_it_is_assumed() -> None:
    ledgered = Ledgered(
        {"forward_0": "forward"},
        {"forward_0": LAUNCHES},
        forks={"forward_0": FORKS},
        assumed={"forward_0": assumed_times(LAUNCHES, FORKS)},
    )
    call = StepCall(step="step_0", order=0, kind="graph", name="forward_0", phase="forward")
    call = with_graph(call, Entry("graph", "forward_0", 0, 0, 0, 0), ledgered, 0)
    assert (call.flops, call.not_taken, call.repeated) == (15, 3, 1)


def test_what_is_assumed_is_said_with_the_lines() -> None:
    ways, loop = notes_on_ways({"forward_0": LAUNCHES}, {"forward_0": (OUTER, LOOP)})
    assert ways == (
        "which way torch.cond takes at model.py:41 is decided by values, and there are none: the dearer one is priced "
        "(3 launches, 1.2e-08 GFLOP), the other is not (1 launch, 9e-09 GFLOP)"
    )
    assert loop.startswith(
        "how often while_loop goes round at model.py:67 is decided by values, and there are none: one turn"
    )
