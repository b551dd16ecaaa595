"""Turns on a device that several processes share."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from torchledger.sampling.turns import Turns


def test_nobody_gets_a_turn_while_another_holds_one_alone(tmp_path: Path) -> None:
    held = Turns(tmp_path / "lock")
    with held.take() as first, Turns(tmp_path / "lock", patience_s=0.02).take() as second:
        assert first and not second
    with Turns(tmp_path / "lock", patience_s=0.02).take() as third:
        assert third


def test_shared_turns_are_held_together_and_end_for_one_that_is_alone(tmp_path: Path) -> None:
    turns, order = Turns(tmp_path / "lock", patience_s=5), []

    def alone() -> None:
        with turns.take():
            order.append("alone")

    with turns.take(shared=True) as one, Turns(tmp_path / "lock").take(shared=True) as two:
        assert one and two
        waiting = threading.Thread(target=alone)
        waiting.start()
        time.sleep(0.05)
        order.append("shared")
    waiting.join()
    assert order == ["shared", "alone"]


def test_who_wants_the_device_alone_is_not_overtaken_by_those_who_share(tmp_path: Path) -> None:
    turns, order = Turns(tmp_path / "lock", patience_s=5), []

    def take(shared: bool) -> None:
        with turns.take(shared=shared):
            order.append(shared)

    with turns.take(shared=True):
        threads = []
        for shared in (False, True):
            threads.append(threading.Thread(target=take, args=(shared,)))
            threads[-1].start()
            time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert order == [False, True]
