"""FLOPs of a compiled backward on which only results depend that nobody asked for."""

from __future__ import annotations

from tests.factories import make_graph, make_launch, make_step_call

from torchledger.stepping.unasked import unasked_flops, with_unasked

SOURCE = """class GraphModule(torch.nn.Module):
    def forward(self, x: "f32[4, 4]", w: "f32[4, 4]", tangents_1: "f32[4, 4]"):
        permute: "f32[4, 4]" = torch.ops.aten.permute.default(w, [1, 0]);  w = None
        mm: "f32[4, 4]" = torch.ops.aten.mm.default(tangents_1, permute);  permute = None
        mul: "f32[4, 4]" = torch.ops.aten.mul.Tensor(x, 2)
        mm_1: "f32[4, 4]" = torch.ops.aten.mm.default(mul, tangents_1);  mul = None
        mm_2: "f32[4, 4]" = torch.ops.aten.mm.default(x, x)
        copy_: "f32[4, 4]" = torch.ops.aten.copy_.default(x, mm_2);  copy_ = None
        return (mm_1, None, mm)
"""
GRAPH = make_graph(name="backward_0", direction="backward", fx_source=SOURCE)
LAUNCHES = [
    make_launch(graph="backward_0", order=order, fx_nodes=(node,), flops=flops, category="extern")
    for order, (node, flops) in enumerate([("mm", 100), ("mm_1", 20), ("mm_2", 3)])
]


def test_only_what_no_wanted_result_depends_on_is_counted() -> None:
    assert unasked_flops(GRAPH, LAUNCHES, (0,)) == 20
    assert unasked_flops(GRAPH, LAUNCHES, (2,)) == 100
    assert unasked_flops(GRAPH, LAUNCHES, ()) == 0


def test_what_is_written_in_place_is_never_in_vain() -> None:
    assert unasked_flops(GRAPH, LAUNCHES, (0, 2)) == 120


def test_a_graph_that_does_not_say_what_it_returns_is_unknown() -> None:
    assert unasked_flops(GRAPH, LAUNCHES, (7,)) is None
    assert unasked_flops(make_graph(fx_source=None), LAUNCHES, (0,)) is None


def test_results_belong_to_the_same_call_of_the_graph() -> None:
    calls = [make_step_call(order=n, kind="graph", name="backward_0", call=n, phase="backward") for n in range(2)]
    found = with_unasked(calls, ["forward_0", 0, "backward_0", 1, "backward_0"], {4: (1, 2)})
    assert [call.unasked for call in found] == [(), (1, 2)]
