"""What the first lines say of a step."""

from __future__ import annotations

from factories import make_step, make_step_call
from torchledger.reporting.step import verdict_of_step
from torchledger.stepping.totals import total_step


def test_operators_that_the_profiler_makes_longer_than_a_step_are_no_part_of_it() -> None:
    totals = [
        total_step(make_step(busy_us=busy_us), [make_step_call(samples_us=(busy_us,))], {})
        for busy_us in (900.0, 1200.0)
    ]
    within, beyond = (verdict_of_step(each)[0] for each in totals)
    assert "operators run 900 us of it." in within
    assert "of it" not in beyond and "operators run 1.20 ms under the profiler" in beyond
