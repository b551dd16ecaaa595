"""What of a block eager code leaves out where a checkpoint computes it again."""

from __future__ import annotations

import pytest
from tests.factories import make_graph, make_launch

from torchledger.stepping.recomputed import flops_after_last_saved

PRODUCT = 'last: "f32[4]" = torch.ops.aten.addmm.default(bias, x, w);  x = None'
LAUNCHES = [make_launch(fx_nodes=("last",), flops=100)]


@pytest.mark.parametrize(
    ("after", "left_out"),
    [
        ("", 100),
        ('y: "f32[4]" = torch.ops.aten.add.Tensor(last, x);  last = x = None', 100),
        ("y = torch.ops.aten.relu.default(last)", 0),
        ("y = torch.ops.aten.mul.Tensor(last, 0.5)", 0),
    ],
)
def test_a_product_is_left_out_where_nothing_behind_it_is_saved(after: str, left_out: int) -> None:
    source = f"class GraphModule(torch.nn.Module):\n    def forward(self, x):\n        {PRODUCT}\n        {after}\n"
    assert flops_after_last_saved(make_graph(fx_source=source), LAUNCHES) == left_out


def test_of_a_graph_without_its_code_it_is_not_known() -> None:
    assert flops_after_last_saved(make_graph(), LAUNCHES) is None
