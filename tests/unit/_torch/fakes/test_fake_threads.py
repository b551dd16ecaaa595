"""A mode that several threads are in."""

from __future__ import annotations

import copy
import threading

from torchledger._torch.fakes.tensors import FakeTensors


def test_a_thread_that_is_inside_an_operator_is_so_alone() -> None:
    mode = FakeTensors()
    seen = []
    mode.in_kernel_invocation = True
    thread = threading.Thread(target=lambda: seen.append(mode.in_kernel_invocation))
    thread.start()
    thread.join()
    assert seen == [False] and mode.in_kernel_invocation


def test_a_copy_of_what_belongs_to_a_mode_belongs_to_the_same_mode() -> None:
    mode = FakeTensors()
    assert copy.deepcopy({"mode": mode})["mode"] is mode
