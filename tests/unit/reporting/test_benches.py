"""What a report on kernels that were run alone remarks."""

from __future__ import annotations

import pytest

from factories import make_launch, make_run
from torchledger.nouns import Measurement
from torchledger.replaying.bench_report import Benched, BenchReport
from torchledger.reporting.benches import bench_as_plain


@pytest.mark.parametrize("has_profile", [True, False])
def test_a_profile_is_asked_for_only_where_the_ledger_has_none(has_profile: bool) -> None:
    inside = Measurement("forward_0#0", "profile", "cpu_profiler", (4.0,)) if has_profile else None
    entry = Benched(make_launch(), "not_begun", in_step=inside, reason="the time for all kernels was used up")
    report = BenchReport("a.ledger", make_run(), (entry,), "the kernels that were named", "run", 5.0)
    asked = any("record with `torchledger run --profile`" in text for text in bench_as_plain(report)["remarks"])
    assert asked is not has_profile
