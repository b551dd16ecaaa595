"""What a breakdown says to look at first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchledger.nouns import Breakdown, TimeRow
from torchledger.traces.idle import HOST_LATE
from torchledger.traces.verdict import beside_a_step, verdict


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


def make_profile(plain_us: float) -> tuple[str, ...]:
    """Three steps of 1,800 us busy each, in 12,600 us under the profiler, most of the rest waiting for launches."""
    breakdown = replace(
        make_breakdown("triton_poi_fused_add_0"),
        steps=3,
        wall_us=12_600.0,
        busy_us=5_400.0,
        idle_causes={HOST_LATE: 6_800.0},
        host_during_idle={"aten::mm": 2_000.0},
    )
    return verdict(breakdown, plain_us=plain_us)


def test_idle_time_that_the_profiler_itself_makes_is_no_advice() -> None:
    assert not any("idle" in sentence or "launching" in sentence for sentence in make_profile(1_850.0))
    assert not any("idle" in sentence or "launching" in sentence for sentence in make_profile(1_700.0))


def test_what_is_idle_without_the_profiler_is_said_of_a_plain_step() -> None:
    idle, advice = make_profile(3_600.0)[1:]
    assert idle.startswith("Without the profiler the device is idle for 50% of a 3.60 ms step")
    assert "waited for launches" in idle
    assert advice.startswith("Look first at launching: 1.70 ms of 3.60 ms is lost to it")


def test_what_all_recorded_steps_tell_is_not_told_again_of_one() -> None:
    said = make_profile(3_600.0)
    assert len(said) == 3 and beside_a_step(said) == said[:1]
