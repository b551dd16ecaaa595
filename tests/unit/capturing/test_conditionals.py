"""Wrappers that take one of two ways."""

from __future__ import annotations

from factories import make_launch
from torchledger.capturing.conditionals import (
    Decision,
    Loop,
    asker_of,
    find_conditionals,
    find_decisions,
    find_loops,
    find_regions,
    stands_in,
)
from torchledger.capturing.wrapper_code import find_calls, in_running_order
from torchledger.nouns import SourceLine

WRAPPER = """cpp_a = async_compile.cpp('')
def inner_0(args):
    extern_kernels.bmm(args)
def true_graph_0(args):
    extern_kernels.mm(args)
    if args[0].item():
        inner_0(args)
def false_graph_0(args):
    extern_kernels.addmm(args)
def call(args):
    extern_kernels.mm(args)
    if buf1.item():
        buf2 = true_graph_0(args)
    else:
        buf2 = false_graph_0(args)
    extern_kernels.mm(args)
"""


def test_the_ways_of_a_conditional_are_the_functions_that_it_alone_calls() -> None:
    outer, inner = find_conditionals(WRAPPER)
    assert outer == (((2, 3), (4, 7)), ((8, 9),))
    assert inner == (((2, 3),), ())
    assert stands_in(make_launch(wrapper_line=5), outer[0]) and not stands_in(make_launch(wrapper_line=11), outer[0])
    assert find_conditionals("def call(args):\n    if args:\n        extern_kernels.mm(args)\n") == ()
    assert find_conditionals("void call() {\ndef x") == ()


def test_the_calls_of_a_subgraph_run_where_it_is_called() -> None:
    calls = in_running_order(WRAPPER, find_calls(WRAPPER))
    assert [call.line for call in calls] == [11, 5, 3, 9, 16]


def test_a_loop_has_a_body_and_a_check_that_is_made_once_more() -> None:
    wrapper = """cpp_a = async_compile.cpp('')
def check_0(args):
    cpp_a(args)
def body_0(args):
    extern_kernels.mm(args)
def call(args):
    with torch.cuda._DeviceGuard(0):
        (result,) = check_0(args)
        should_loop = result
        while should_loop:
            (buf1,) = body_0(args)
            (result,) = check_0(args)
            should_loop = result
        extern_kernels.mm(args)
"""
    assert find_loops(wrapper) == (Loop(check=((2, 3),), body=((4, 5),)),)
    assert find_loops("def call(args):\n    while args:\n        args.pop()\n") == ()


REGIONS = """cpp_a = async_compile.cpp('')
def inner_0(args):
    extern_kernels.bmm(args)
def block_0(args):
    cpp_a(args)
    inner_0(args)
    inner_0(args)
def call(args):
    block_0(args)
    extern_kernels.mm(args)
    block_0(args)
    extern_kernels.addmm(args)
    inner_0(args)
"""


def test_a_region_runs_wherever_lines_call_it() -> None:
    (regions,) = find_regions(REGIONS)
    calls = in_running_order(REGIONS, find_calls(REGIONS))
    lines = [call.line for call in calls]
    found = [lines[place] for place in regions.in_order(range(len(lines)), lines)]
    assert found == [5, 3, 3, 10, 5, 3, 3, 12, 3]
    assert {line: regions.times(regions.function_at(line)) for line in lines} == {5: 2, 3: 5, 10: 1, 12: 1}


def test_what_is_called_once_is_no_region_and_neither_are_ways_and_loops() -> None:
    assert find_regions(WRAPPER) == ()
    looped = "def a(x):\n    f(x)\ndef call(x):\n    a(x)\n    while x:\n        f(x)\n        a(x)"
    assert find_regions(looped) == ()
    assert find_regions("void call() {\ndef x") == ()


def test_lines_at_which_a_value_decides_are_known_with_what_they_decide() -> None:
    outer, inner = find_conditionals(WRAPPER)
    assert find_decisions(WRAPPER) == {12: Decision(outer), 6: Decision(inner)}
    looping = (
        "def check_0(args):\n    f(args)\ndef body_0(args):\n    f(args)\ndef call(args):\n    again = check_0(args)\n"
        "    if not again:\n        x = args.clone()\n"
        "    while again:\n        body_0(args)\n        again = check_0(args)\n"
    )
    (loop,) = find_loops(looping)
    assert find_decisions(looping) == {9: Decision(loop, goes_on=True), 7: Decision(loop)}


def test_what_asks_is_the_entry_behind_a_fork_or_else_the_last_launch_in_it() -> None:
    launches = [
        make_launch(order=0, wrapper_line=3, sources=(SourceLine("model.py", 8),)),
        make_launch(order=1, wrapper_line=9, sources=(SourceLine("model.py", 10),)),
        make_launch(order=2, kernel_name="Conditional", category="nop", sources=(SourceLine("model.py", 11),)),
    ]
    conditional = find_conditionals(WRAPPER)[0]
    assert asker_of(conditional, launches) == "model.py:11"
    assert asker_of(conditional, launches[:2]) == "model.py:10"
    assert asker_of(conditional, ()) is None
