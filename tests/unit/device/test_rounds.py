"""Rounds of timing, on a clock that stands still but for the work."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchledger.device.host import host_of
from torchledger.device.rounds import Work, settle, time_rounds, usual
from torchledger.nouns import Host
from torchledger.store.codec import decode, encode

US = {
    "one launch": 100.0,
    "many launches": 100.0 + 23 * 5,
    "one product": 110.0,
    "many products": 110.0 + 16 * 8,
    "one convolution": 120.0,
    "many convolutions": 120.0 + 8 * 12,
    "training": 300.0,
    "operators": 200 * 4.0,
    "few fused tensors": 60.0,
    "many fused tensors": 60.0 + 64 * 0.5,
    "backward": 100 * 6.0,
    "step": 1500.0,
    "one trained": 310.0,
    "many trained": 310.0 + 5 * 170,
    "few foreach tensors": 90.0,
    "many foreach tensors": 90.0 + 64 * 2.0,
    "plain": 200.0,
}
STEP = (20, 72, 48)


class Clock:
    """Nanoseconds, which only work makes go on; a round is slower by its factor."""

    def __init__(self, factors: list[float]) -> None:
        self.now, self.round, self._factors = 0, 0, factors

    def __call__(self) -> int:
        return self.now

    def works(self, us: dict[str, float], factors: dict[str, list[float]] | None = None) -> dict[str, Work]:
        def work(name: str) -> Work:
            def run(_: object) -> None:
                own = (factors or {}).get(name, [1.0] * len(self._factors))[self.round]
                self.now += int(us[name] * 1e3 * self._factors[self.round] * own)

            return Work(run)

        return {name: work(name) for name in us}

    def next_round(self) -> None:
        self.round += 1


def _host(factors: list[float], own: dict[str, list[float]] | None = None) -> Host:
    clock = Clock(factors)
    times = time_rounds(clock.works(US, own), rounds=len(factors), bursts=3, pause=clock.next_round, clock_ns=clock)
    return host_of(Host("Epyc 9", "NVIDIA H200", method="a clock"), times, step_launches=STEP)


def test_each_cost_is_what_one_more_of_its_kind_takes() -> None:
    host = _host([1.0] * 12)
    assert host.fused_launch_us == pytest.approx(5.0)
    assert host.graph_call_us == pytest.approx(95.0)
    assert host.training_call_us == pytest.approx(300 - 15)
    assert host.further_training_us == pytest.approx(170 - 10)
    assert host.library_launch_us == pytest.approx(8.0)
    assert host.operator_us == pytest.approx(4.0)
    assert host.plain_us == pytest.approx(200.0)
    assert host.in_step == pytest.approx(1500 / (285 + 20 * 5 + 72 * 8 + 48 * 0.5 + 60 - 8 * 0.5), rel=1e-3)
    assert set(host.spreads.values()) == {0.0}
    assert host.method == "mean of 12 rounds, a clock"


@pytest.mark.parametrize("slow", [2.0, 2.7])
@pytest.mark.parametrize("share", [1, 3, 6])
def test_a_host_that_is_slow_for_a_part_of_the_time_costs_what_it_takes_in_the_mean(slow: float, share: int) -> None:
    host = _host([slow] * share + [1.0] * (12 - share))
    mean = (share * slow + 12 - share) / 12
    assert host.training_call_us == pytest.approx(285 * mean, rel=1e-3)
    assert host.fused_launch_us == pytest.approx(5 * mean, rel=1e-3)
    assert host.plain_us == pytest.approx(200 * mean, rel=1e-3)


@pytest.mark.parametrize("slow", [10.0, 300.0])
def test_a_round_in_which_something_else_ran_counts_for_three(slow: float) -> None:
    quiet = random.Random(1)
    factors = [quiet.uniform(0.98, 1.02) for _ in range(11)]
    host = _host([*factors, slow])
    assert host.training_call_us == pytest.approx(285 * (11 + 3) / 12, rel=0.02)


def test_one_kind_that_is_slow_in_half_of_the_rounds_is_in_its_spread() -> None:
    own = {"training": [1.0, 2.2] * 6}
    host = _host([1.0] * 12, own)
    assert host.training_call_us is not None
    assert 285 <= host.training_call_us <= 645
    assert host.spreads["training_call_us"] == pytest.approx((645 - 285) / 2)
    assert host.spreads["fused_launch_us"] == 0.0


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30))
def test_what_is_usual_lies_between_the_least_and_three_times_the_median(values: list[float]) -> None:
    found = usual(values)
    assert min(values) <= found * (1 + 1e-9)
    assert found <= min(max(values), 3 * statistics.median(values)) * (1 + 1e-9)


def test_a_round_begins_with_another_kind_than_the_one_before() -> None:
    order: list[str] = []
    works = {name: Work(lambda _, name=name: order.append(name)) for name in "abc"}
    time_rounds(works, rounds=3, bursts=1, clock_ns=lambda: 0)
    firsts = list(dict.fromkeys(order[:12])), list(dict.fromkeys(order[12:24])), list(dict.fromkeys(order[24:]))
    assert firsts == (["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"])


def test_what_work_is_done_on_is_made_before_its_time_begins() -> None:
    clock = Clock([1.0])

    def prepare() -> int:
        clock.now += 7_000_000
        return 3

    works = {"a": Work(lambda given: setattr(clock, "now", clock.now + given * 1000), prepare)}
    assert time_rounds(works, rounds=1, bursts=2, clock_ns=clock) == {"a": (3.0,)}


def test_a_spread_is_what_nine_of_ten_rounds_span() -> None:
    assert settle([float(each) for each in range(101)]).spread == pytest.approx(45.0)


def test_hosts_of_before_have_no_spreads_and_are_read() -> None:
    old = decode(Host, b'{"name": "a", "device": "b", "training_call_us": 675.0, "method": "median of 15 bursts"}')
    assert (old.training_call_us, old.spreads) == (675.0, {})
    new = _host([1.0] * 4)
    assert decode(Host, encode(new)) == new


def test_no_spread_is_below_zero() -> None:
    with pytest.raises(ValueError, match="spread of operator_us"):
        Host("Epyc 9", "NVIDIA H200", spreads={"operator_us": -1.0})
