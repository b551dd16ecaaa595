"""Steps whose host waits for the device: from each wait to the next, the later of both."""

from __future__ import annotations

import pytest

from torchledger.nouns import StepCall
from torchledger.predicting.waits import (
    Piece,
    Way,
    pieces_of_step,
    waiting_step_us,
    waiting_way,
    waits_for_device,
    waits_notes,
)


def _call(name: str, order: int, kind: str = "operator", phase: str = "loss", **more: object) -> StepCall:
    facts = {"step": "step", "order": order, "kind": kind, "name": name, "phase": phase, "kernels": 1}
    return StepCall(**{**facts, **more})  # type: ignore[arg-type]


WAIT = Piece(0.0, waits=True)


def test_a_host_that_waits_leaves_the_device_idle_until_it_launches_again() -> None:
    # The device needs 100 us, the host 30; the first kernel cannot begin before its launch.
    pieces = [Piece(10.0, 40.0), Piece(20.0, 60.0), WAIT]
    assert waiting_step_us(pieces) == pytest.approx(10.0 + 100.0)


def test_a_slow_host_decides_what_lies_between_two_waits() -> None:
    assert waiting_step_us([Piece(100.0, 5.0), Piece(50.0, 5.0), WAIT]) == pytest.approx(155.0)
    # Behind the last launch nothing but the host's own work is left.
    assert waiting_step_us([Piece(100.0, 5.0), Piece(50.0), WAIT]) == pytest.approx(150.0)


def test_each_phase_is_as_long_as_its_slower_one() -> None:
    # Quick kernels first, slow ones behind: the host is behind in one phase and ahead in the other.
    pieces = [*[Piece(10.0, 1.0)] * 10, *[Piece(1.0, 10.0)] * 10, WAIT]
    assert waiting_step_us(pieces) == pytest.approx(100.0 + 1.0 + 100.0)


def test_a_step_repeats_so_that_it_does_not_matter_where_it_begins() -> None:
    pieces = [Piece(3.0, 70.0), Piece(9.0, 2.0), WAIT, Piece(11.0, 5.0), Piece(2.0, 1.0)]
    assert waiting_step_us(pieces) == pytest.approx(waiting_step_us([*pieces[3:], *pieces[:3]]))
    two = [*pieces, WAIT, *pieces]
    assert waiting_step_us(two) > waiting_step_us(pieces)


def test_waits_for_a_stream_count_and_the_one_that_times_a_loop_does_not() -> None:
    assert waits_for_device(_call("cudaStreamSynchronize", 0, "synchronization"))
    assert not waits_for_device(_call("cudaDeviceSynchronize", 0, "synchronization"))
    assert not waits_for_device(_call("aten::mul", 0))


def test_a_wait_for_work_behind_which_the_device_has_more_to_do_leaves_it_busy() -> None:
    def pieces(*waits_for: int) -> list[Piece]:
        calls = [
            _call("aten::mm", 0),
            _call("aten::mm", 1),
            _call("cudaEventSynchronize", 2, "synchronization", kernels=0, waits_for=waits_for),
        ]
        return pieces_of_step(calls, (), {}, {0: 90.0, 1: 90.0}, mode="eager", host_us=20.0, whole_device_us=180.0)

    assert waiting_step_us(pieces(0)) == pytest.approx(180.0)
    assert waiting_step_us(pieces(1)) == waiting_step_us(pieces()) > 180.0


def test_the_pieces_of_a_step_add_up_to_what_host_and_device_need() -> None:
    calls = [
        _call("aten::mul", 0),
        _call("aten::mul", 1),
        _call("aten::detach", 2, phase="backward", kernels=0),
        _call("aten::_amp_update_scale_", 3, phase="optimizer"),
        _call("cudaStreamSynchronize", 4, "synchronization", kernels=0),
        _call("aten::_foreach_add_", 5, phase="optimizer", tensors=4),
    ]
    times_us: dict[str | int, float] = {0: 5.0, 1: 5.0, 3: 2.0, 5: 8.0}
    pieces = pieces_of_step(calls, (), {}, times_us, mode="eager", host_us=600.0, whole_device_us=40.0)
    assert sum(piece.host_us for piece in pieces) == pytest.approx(600.0)
    assert sum(piece.device_us for piece in pieces) == pytest.approx(40.0)
    assert [piece.waits for piece in pieces] == [False] * 4 + [True, False]
    # The first call of an operator costs the host more than the next.
    assert pieces[0].host_us > pieces[1].host_us
    assert waiting_step_us(pieces) >= 600.0


def test_the_way_through_a_step_that_waits_is_the_hosts_up_to_a_kernel_and_the_devices_from_there() -> None:
    pieces = [Piece(10.0, 40.0), Piece(20.0, 60.0), WAIT, Piece(50.0, 5.0), Piece(50.0), WAIT]
    assert waiting_way(pieces) == Way(host_us=10.0 + 100.0, device_us=100.0)
    assert waiting_way(pieces).shares == pytest.approx({"host": 110 / 210, "compute": 100 / 210})


def test_a_note_names_the_lines_that_wait_the_most_frequent_first() -> None:
    def wait(*sources: str) -> StepCall:
        return _call("cudaStreamSynchronize", 0, "synchronization", sources=sources)

    calls = [wait("/home/me/train.py:9"), wait("/home/me/train.py:3", "/home/me/moe.py:8"), wait("/home/me/moe.py:8")]
    (said,) = waits_notes(calls, 1234.0)
    assert said == (
        "the host waits for the device 3 times inside the step (moe.py:8 x 2, train.py:9), which takes 1,234 us "
        "longer for it"
    )
    assert waits_notes([wait()], 5.0)[0].startswith("the host waits for the device once inside the step, which")
    assert waits_notes(calls, 0.5) == ()
