"""What the program computes between two operators is told with its line, and what torch does there is not."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchledger._torch.own_work import _LEAST_S, OwnWork, _own_line

_WORKS_S = 0.05


def _works() -> None:
    begin = time.thread_time()
    while time.thread_time() < begin + _WORKS_S:
        sum(range(100))


def test_work_between_two_operators_is_told_with_the_line_at_which_it_is() -> None:
    told: list[tuple[float, str]] = []
    watch = OwnWork(lambda seconds, line: told.append((seconds, line)))
    try:
        watch.begins()
        watch.ends()
        _works()
        watch.begins()
        _works()  # torch's
        watch.ends()
    finally:
        watch.stop()
    ((seconds, line),) = told
    assert _LEAST_S < seconds < 1.5 * _WORKS_S
    assert line.rpartition(":")[0] == __file__


def test_code_of_torch_is_none_of_the_programs() -> None:
    found: list[str | None] = []

    class Asks(torch.nn.Module):
        def forward(self) -> None:
            found.append(_own_line(sys._getframe(1)))

    Asks()()
    assert found == [None]
    assert str(_own_line(sys._getframe())).startswith(f"{__file__}:")


def test_a_wait_at_a_line_of_the_programs_does_not_make_torchs_work_its_own() -> None:
    told: list[float] = []
    torchs: dict[str, Any] = {}
    text = (
        "def at_work(seconds):\n    begin = thread_time()\n    while thread_time() < begin + seconds: sum(range(100))"
    )
    exec(compile(text, torch.__file__, "exec"), {"thread_time": time.thread_time}, torchs)
    work = OwnWork(lambda seconds, line: told.append(seconds))
    try:
        work.begins()
        work.ends()
        time.sleep(0.1)
        torchs["at_work"](10 * _LEAST_S)
        work.begins()
    finally:
        work.stop()
    assert told == []


def test_letting_go_of_what_a_name_held_is_no_work_of_the_programs() -> None:
    found: list[str | None] = []

    class Held:
        def __del__(self) -> None:
            found.append(_own_line(sys._getframe(1)))

    held: Held | None = Held()
    held = None
    assert held is None and found == [None]


def test_what_a_loader_has_a_data_set_of_the_program_compute_is_loading() -> None:
    class Asks(torch.utils.data.Dataset[str | None]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, _: int) -> str | None:
            return _own_line(sys._getframe())

    assert str(Asks()[0]).startswith(f"{__file__}:")
    assert list(torch.utils.data.DataLoader(Asks(), batch_size=None)) == [None]


def test_what_a_function_made_is_free_when_it_returns_however_long_it_was_watched() -> None:
    class Made:
        pass

    def works() -> weakref.ref[Made]:
        made = Made()
        _works()
        return weakref.ref(made)

    watch = OwnWork(lambda seconds, line: None)
    try:
        watch.begins()
        watch.ends()
        assert [made for made in (works() for _ in range(5)) if made() is not None] == []
    finally:
        watch.stop()


def test_what_torch_does_around_a_compiled_graph_is_none_of_the_programs() -> None:
    found: list[str | None] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            frame = sys._getframe()
            while frame.f_code.co_name != "doubled":
                frame = frame.f_back  # type: ignore[assignment]
            found.append(_own_line(frame))
            return gm(*args)

        return call

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    torch.compile(doubled, backend=backend)(torch.ones(2))
    assert found == [None]


def test_a_search_for_garbage_is_no_work_of_the_programs() -> None:
    told: list[float] = []
    work = OwnWork(lambda seconds, line: told.append(seconds))
    try:
        held = [[place] for place in range(200_000)]
        work.begins()
        told.clear()
        work.ends()
        for _ in range(10):
            gc.collect()
        work.begins()
    finally:
        work.stop()
    assert len(held) == 200_000 and sum(told) < 0.05


def test_noting_that_tensors_are_gone_is_no_work_of_the_programs() -> None:
    told: list[float] = []
    work = OwnWork(lambda seconds, line: told.append(seconds))
    try:
        work.begins()
        work.ends()
        since_s = time.thread_time()
        _works()
        work.plan_worked(since_s)
        work.begins()
    finally:
        work.stop()
    assert told == []
