"""Distances between many points, which are a product."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from torchledger._torch.eager_calls import operator_call
from torchledger._torch.flops import added_formulas
from torchledger.nouns import Cost
from torchledger.work.op_costs import op_cost


class Costs(TorchDispatchMode):
    """The costs of what is called under it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Cost] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.found[str(func)] = op_cost(operator_call(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("batch", [(), (3,)])
def test_distances_do_the_work_of_the_product_that_they_are_made_of(batch: tuple[int, ...]) -> None:
    left, right = torch.randn(*batch, 30, 5), torch.randn(*batch, 40, 5)
    with FlopCounterMode(display=False, custom_mapping=added_formulas()) as counter:
        torch.cdist(left, right)
    wide = [torch.randn(*batch, rows, 5 + 2) for rows in (30, 40)]
    with FlopCounterMode(display=False) as product:
        wide[0] @ wide[1].mT
    assert counter.get_total_flops() == product.get_total_flops() > 0
    with Costs() as costs:
        torch.cdist(left, right)
    cost = costs.found["aten._euclidean_dist.default"]
    assert cost.flops == counter.get_total_flops()
    assert cost.bytes_moved == 4 * (left.numel() + right.numel() + left.numel() // 5 * 40)
