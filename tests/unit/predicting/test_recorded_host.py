"""What plain steps of a recording say of their host, and how much of it is believed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import make_step, make_step_call
from torchledger.nouns import Host, StepCall
from torchledger.predicting.host_steps import _USUAL, HOST_ERROR, USUAL_HOST_ERROR, expected_host
from torchledger.predicting.recorded_host import RecordedOn, SeenHost, drawn_to_seen, seen_host
from torchledger.stepping.totals import total_step

USUAL = Host("usual", "TEST", **_USUAL)
SLOW = Host("slow", "TEST", **{name: 2 * cost for name, cost in _USUAL.items()})
LONG_US = 10e6


def seen(calls: tuple[StepCall, ...] = (), **facts: Any) -> SeenHost | None:
    step = make_step(clock="cupti", **facts)
    return seen_host(total_step(step, calls, {}), [], {}, {}, mode="eager", gaps_us=0.0)


def wait(order: int) -> StepCall:
    return make_step_call(kind="synchronization", name="cudaStreamSynchronize", order=order, kernels=0)


def test_a_host_that_ran_ahead_says_itself_what_it_needs() -> None:
    found = seen(plain_us=(1000.0,) * 8, issued_us=(300.0,) * 8, device_us=990.0)
    assert found is not None and found.needs_us == pytest.approx(300.0)


def test_steps_in_which_a_full_queue_held_the_host_up_are_left_out() -> None:
    found = seen(plain_us=(1000.0,) * 8, issued_us=(*[300.0] * 4, *[1000.0] * 4), device_us=990.0)
    assert found is not None and found.needs_us == pytest.approx(300.0)
    assert found.watched_us == pytest.approx(1200.0)


def test_where_the_device_is_mostly_idle_the_step_is_what_its_host_needs() -> None:
    found = seen(plain_us=(1000.0, 1200.0), issued_us=(1000.0, 1200.0), device_us=400.0)
    assert found is not None and found.needs_us == pytest.approx(1100.0, rel=1e-3)


def test_a_step_with_work_that_others_have_not_says_nothing_of_them() -> None:
    found = seen(plain_us=(1000.0, 1200.0, 90_000.0), issued_us=(1000.0, 1200.0, 90_000.0), device_us=400.0)
    assert found is not None and found.needs_us == pytest.approx(1100.0, rel=1e-3)
    assert found.watched_us == pytest.approx(2200.0)


@pytest.mark.parametrize(
    "facts",
    [
        {"plain_us": (), "device_us": 400.0},
        {"plain_us": (1000.0,), "device_us": None},
        {"plain_us": (1000.0,), "device_us": 950.0},
    ],
)
def test_nothing_is_said_without_times_nor_where_the_device_decides(facts: dict[str, Any]) -> None:
    assert seen(**facts) is None


def test_a_rank_that_waits_for_others_says_nothing_of_its_host() -> None:
    collective = make_step_call(kind="collective", name="c10d::allreduce_", phase="communication")
    assert seen((collective,), plain_us=(1000.0,), device_us=100.0) is None


def test_a_host_that_waits_inside_the_step_needs_what_is_left_of_it() -> None:
    calls = (
        make_step_call(name="aten::mm", order=0, kernels=1, samples_us=(300.0,)),
        wait(1),
    )
    # The host launches one kernel, and waits for it.
    found = seen(calls, plain_us=(1000.0,), device_us=300.0)
    assert found is not None and found.needs_us == pytest.approx(700.0, rel=1e-3)
    assert seen(calls, plain_us=(310.0,), device_us=300.0) is None


def test_without_plain_steps_a_host_needs_what_its_work_says() -> None:
    assert drawn_to_seen(USUAL, 1000.0, None, RecordedOn(USUAL)) == (pytest.approx(1000.0), HOST_ERROR)
    assert drawn_to_seen(None, 1000.0, None, RecordedOn()) == (1000.0, USUAL_HOST_ERROR)


def test_of_another_host_less_is_believed_than_of_the_same() -> None:
    long = SeenHost(1500.0, LONG_US)
    same, error = drawn_to_seen(USUAL, 1000.0, long, RecordedOn(USUAL))
    other, other_error = drawn_to_seen(SLOW, 1000.0, long, RecordedOn(USUAL))
    assert 1000.0 < other / expected_host(SLOW)[0] < same < 1500.0
    assert error < other_error


def test_what_a_host_took_that_nobody_measured_is_nearly_all_that_is_known_of_it() -> None:
    unmeasured, _ = drawn_to_seen(None, 1000.0, SeenHost(1500.0, LONG_US), RecordedOn())
    measured, _ = drawn_to_seen(USUAL, 1000.0, SeenHost(1500.0, LONG_US), RecordedOn(USUAL))
    assert measured < unmeasured < 1500.0
    # Of a host that nobody measured nothing follows for another one.
    assert drawn_to_seen(USUAL, 1000.0, SeenHost(1500.0, LONG_US), RecordedOn())[0] == pytest.approx(1000.0)


@given(st.floats(0.3, 3.0), st.floats(1e3, 1e7), st.floats(1e3, 1e7))
def test_the_longer_a_host_was_watched_the_more_it_is_believed(beyond: float, short_us: float, long_us: float) -> None:
    short_us, long_us = sorted((short_us, long_us))

    def away(watched_us: float) -> float:
        needs_us, _ = drawn_to_seen(USUAL, 1000.0, SeenHost(1000.0 * beyond, watched_us), RecordedOn(USUAL))
        return abs(needs_us - 1000.0 * beyond)

    assert away(long_us) <= away(short_us) + 1e-6
    assert away(short_us) <= abs(1000.0 - 1000.0 * beyond) + 1e-6


def test_a_slow_host_took_what_it_took_for_being_slow() -> None:
    """What a program took beyond its work on a host that is known to be slow says less of a usual one."""
    slowness, _ = expected_host(SLOW)
    quick, _ = drawn_to_seen(USUAL, 1000.0, SeenHost(1200.0, LONG_US), RecordedOn(USUAL))
    of_slow, _ = drawn_to_seen(USUAL, 1000.0, SeenHost(1200.0 * slowness, LONG_US), RecordedOn(SLOW))
    assert 1000.0 < of_slow < quick
