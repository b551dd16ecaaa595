"""Gates: what cannot be true is quarantined, what is doubtful gets a second look."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from torchledger.device.datasheets import datasheet_ceilings
from torchledger.nouns import Ceilings, Sample
from torchledger.operators import find_operator
from torchledger.sampling.gates import Doubt, GateLimits, doubt_samples, label_key, quarantine, settle
from torchledger.sampling.guide_csv import read_guide_csv

LIMITS = GateLimits(Ceilings(copy_gb_per_s=4000.0, tflops_per_s={"bfloat16": 800.0}), l2_bytes=50 * 2**20)


def linear(direction: str, us: float | tuple[float, ...], **shape: int) -> Sample:
    p = {"m": 4096, "k": 4096, "n": 4096, "bias": 0} | shape
    operator = find_operator("linear")
    return Sample(
        point_id=str(sorted(p.items())),
        operator="linear",
        parameters=p,
        direction=direction,
        dtype="bfloat16",
        device="test",
        times_us=us if isinstance(us, tuple) else (us,),
        flops=operator.flops(p, direction),
        bytes_moved=operator.bytes_moved(p, direction, "bf16"),
    )


def test_a_rate_above_the_ceiling_is_impossible():
    doubts = doubt_samples([linear("forward", 20.0)], LIMITS)
    (doubt,) = doubts.values()
    assert doubt.is_impossible
    assert "6,872 TFLOP/s" in doubt.reason


def test_a_rate_below_the_ceiling_passes():
    assert doubt_samples([linear("forward", 200.0), linear("backward", 400.0)], LIMITS) == {}


def test_bytes_that_the_cache_may_hold_are_not_counted():
    add = dataclasses.replace(linear("forward", 5.0), operator="gelu", parameters={"numel": 2**23})
    assert doubt_samples([add], LIMITS) == {}


def test_a_backward_far_quicker_than_its_forward_puts_both_in_doubt():
    pair = [linear("forward", 2000.0), linear("backward", 600.0)]
    doubts = doubt_samples(pair, LIMITS)
    assert set(doubts) == {label_key(sample) for sample in pair}
    assert not any(doubt.is_impossible for doubt in doubts.values())
    assert [sample.status for sample in quarantine(pair, LIMITS)] == ["quarantined"] * 2


def test_a_label_that_larger_shapes_beat_by_far_is_in_doubt():
    shapes = [linear("forward", 200.0 * m / 4096, m=m) for m in range(1024, 20481, 1024)]
    slow = linear("forward", 90_000.0, m=2048)
    shapes[1] = slow
    assert list(doubt_samples(shapes, LIMITS)) == [label_key(slow)]


def test_repeats_that_spread_are_in_doubt():
    (doubt,) = doubt_samples([linear("forward", (200.0, 300.0, 200.0, 300.0, 250.0))], LIMITS).values()
    assert doubt.reason.startswith("spread")


@pytest.mark.parametrize(
    ("second_us", "second_doubt", "status"),
    [
        (400.0, None, "ok"),
        (101.0, Doubt("ratio", "spread, one could say"), "ok"),
        (101.0, Doubt("spread", "repeats differ"), "quarantined"),
        (150.0, Doubt("ratio", "ratio"), "quarantined"),
        (101.0, Doubt("ceilings", "rate"), "quarantined"),
    ],
)
def test_a_second_measurement_settles_a_doubt(second_us, second_doubt, status):
    settled = settle(linear("forward", 100.0), linear("forward", second_us), Doubt("ratio", "ratio"), second_doubt)
    assert settled.status == status
    assert settled.attempt == 2


PUBLIC = Path(os.environ.get("TORCHLEDGER_PUBLIC_DATA", Path(__file__).parents[4] / "shared" / "data"))


def public_samples(place: str, name: str) -> list[Sample]:
    path = PUBLIC / "ett" / place / "operator" / name
    if not path.exists():
        pytest.skip(f"{path} is not there; set TORCHLEDGER_PUBLIC_DATA to the folder of the public measurements")
    return read_guide_csv(path)


def quarantined_share(samples: list[Sample], direction: str) -> float:
    ceilings, l2_bytes = datasheet_ceilings(samples[0].device)
    judged = [s for s in quarantine(samples, GateLimits(ceilings, l2_bytes)) if s.direction == direction]
    return sum(s.status == "quarantined" for s in judged) / len(judged)


def test_the_published_attention_backward_of_gh200_is_flagged():
    samples = public_samples("Vista", "NVIDIAGH200120GB_flash_atten_fp16.csv")
    assert quarantined_share(samples, "backward") > 0.9
    assert quarantined_share(samples, "forward") < 0.1


def test_the_published_attention_of_a100_passes():
    samples = public_samples("Perlmutter", "NVIDIAA100-SXM4-80GB_flash_atten_fp16.csv")
    assert quarantined_share(samples, "backward") < 0.001
    assert quarantined_share(samples, "forward") == 0


def test_published_optimizer_steps_of_more_than_a_second_are_flagged():
    samples = public_samples("Vista", "NVIDIAGH200120GB_firstStage_optimizer_fp16.csv")
    ceilings, l2_bytes = datasheet_ceilings(samples[0].device)
    judged = quarantine(samples, GateLimits(ceilings, l2_bytes))
    assert all(s.status == "quarantined" for s in judged if s.times_us[0] > 1e6)
