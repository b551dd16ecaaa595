"""Kernels beside collectives."""

from __future__ import annotations

import pytest
from tests.factories import make_activity, make_collective

from torchledger.jobs.contention import find_contention
from torchledger.jobs.waits import pieces_of

US = 1000


def test_an_entry_has_its_time_alone_beside_its_time_next_to_a_collective() -> None:
    pieces = [(0, (150 if beside else 100) * US, "forward_0#3") for beside in (False, True) * 3]
    activity = make_activity(*pieces, (0, 50 * US, "forward_0#9"))
    collectives = [
        make_collective(issued_ns=(250 * turn + 100) * US, ended_ns=(250 * turn + 250) * US) for turn in range(3)
    ]
    (found,) = find_contention({0: collectives}, {0: pieces_of(activity, 0)}, {0: 0}, steps=1)
    assert (found.entry, found.alone_us, found.beside_us) == ("forward_0#3", 100, 150)
    assert (found.launches_alone, found.launches_beside) == (3, 3)
    assert found.cost_us == pytest.approx(150)


def test_what_clears_semaphores_before_a_product_is_no_launch_of_it() -> None:
    pieces = []
    for beside in (False, True) * 3:
        pieces += [(0, US, "forward_0#3"), (0, (149 if beside else 99) * US, "forward_0#3")]
    collectives = [
        make_collective(issued_ns=(250 * turn + 100) * US, ended_ns=(250 * turn + 250) * US) for turn in range(3)
    ]
    (found,) = find_contention({0: collectives}, {0: pieces_of(make_activity(*pieces), 0)}, {0: 0}, steps=1)
    assert (found.alone_us, found.beside_us) == (99, 149)
    assert (found.launches_alone, found.launches_beside) == (3, 3)


def test_what_ran_only_beside_collectives_is_not_compared() -> None:
    activity = make_activity(*[(0, 100 * US, "forward_0#3")] * 4)
    whole = make_collective(issued_ns=0, ended_ns=400 * US)
    assert find_contention({0: [whole]}, {0: pieces_of(activity, 0)}, {0: 0}, steps=1) == []
