"""What a breakdown says to look at first."""

from __future__ import annotations

import pytest

from torchledger.measuring.verdict import verdict
from torchledger.nouns import Breakdown, TimeRow


def make_breakdown(kernel: str) -> Breakdown:
    row = TimeRow(kernel, 10, 100.0, 1.0, 10.0, category="pointwise")
    return Breakdown(
        "t",
        "cupti",
        100.0,
        0.0,
        0.0,
        110.0,
        100.0,
        10,
        categories=(TimeRow("pointwise", 10, 100.0, 1.0, 10.0),),
        kernels=(row,),
    )


def test_time_in_eager_elementwise_kernels_asks_for_fusion() -> None:
    assert "unfused" in verdict(make_breakdown("void at::native::vectorized_elementwise_kernel<4>"))[-1]


@pytest.mark.parametrize("kernel", ["triton_poi_fused_add_0", "cpp_fused_add_0"])
def test_kernels_that_were_generated_are_not_called_unfused(kernel: str) -> None:
    assert not any("unfused" in sentence for sentence in verdict(make_breakdown(kernel)))
