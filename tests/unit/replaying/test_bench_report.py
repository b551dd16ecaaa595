"""A launch alone beside the same launch inside the step."""

from __future__ import annotations

from typing import Any

import pytest

from torchledger.nouns import Launch, Measurement
from torchledger.replaying.bench_report import Benched


@pytest.mark.parametrize(
    ("warm", "cold", "placed", "others", "expected"),
    [
        (9.8, 12.0, 9.9, {}, None),
        (7.0, 12.0, 10.1, {}, "cache: in its place"),
        (7.0, 12.0, 9.0, {}, "mostly cache"),
        (7.0, 12.0, None, {}, "cache: the time inside the step lies between"),
        (7.0, 7.5, 7.5, {"keeps_lines": True}, "kept lines"),
        (7.0, 7.5, 7.5, {"clock_fell": True}, "clocks"),
        (12.5, 12.6, 12.6, {}, "not the cache"),
    ],
)
def test_a_difference_to_the_step_is_explained(
    warm: float, cold: float, placed: float | None, others: dict[str, Any], expected: str | None
) -> None:
    def measured(time_us: float) -> Measurement:
        return Measurement("forward_0#0", "bench", "cupti", (time_us,))

    entry = Benched(
        Launch("forward_0", 0, "key", "kernel", "pointwise", "cuda:0"), "ok", warm=measured(warm), cold=measured(cold),
        placed=measured(placed) if placed else None, in_step=measured(10.0), **others,
    )  # fmt: skip
    assert entry.over_step == pytest.approx((placed or warm) / 10)
    assert (entry.explanation or "").startswith(expected or "") and (entry.explanation is None) == (expected is None)
