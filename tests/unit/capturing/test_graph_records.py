"""Entries of a graph beside the calls of its finished wrapper."""

from __future__ import annotations

from factories import make_launch
from torchledger.capturing.graph_records import match_calls
from torchledger.capturing.wrapper_code import WrapperCall
from torchledger.nouns import Gap


def test_a_call_without_an_entry_and_an_entry_without_a_call_are_both_named() -> None:
    launches = [
        make_launch(order=0, kernel_name="cpp_fused_0", call="cpp_fused_0"),
        make_launch(order=1, kernel_name="cpp_fused_1", call="cpp_fused_1"),
        make_launch(order=2, kernel_name="aten.sort", category="extern", call="aten.sort"),
    ]
    calls = [
        WrapperCall("cpp_fused_0", 5, "call"),
        WrapperCall("torch.ops.aten.sort.stable", 6, "call"),
        WrapperCall("cpp_fused_2", 7, "call"),
    ]
    matched, gaps = match_calls(launches, calls)
    assert [launch.wrapper_line for launch in matched] == [5, None, 6]
    assert gaps == [
        Gap("launches", "cpp_fused_1", "this entry has no call in the generated code", 1),
        Gap("launches", "line 7", "the call of cpp_fused_2 has no entry", 1),
    ]
