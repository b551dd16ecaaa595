"""When what a program only tries, to see whether memory runs out, is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchledger.planning.memory_search import MemorySearch

SCRIPT = """while True:
    try:
        net(batch)
        break
    except torch.cuda.OutOfMemoryError:
        batch = smaller(batch)
for batch in batches:
    net(batch)
"""
TRIED, TRAINED = 3, 8


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "searches.py"
    path.write_text(SCRIPT)
    return str(path)


def test_the_last_try_which_fits_is_over_with_the_first_call_outside(script: str) -> None:
    search = MemorySearch()
    for line in (TRIED, TRIED):
        search.model_called([(script, line)])
        assert not search.has_just_ended()
    search.model_called([(script, TRAINED)])
    assert search.has_just_ended() and not search.has_just_ended()


def test_calls_that_are_tried_in_each_turn_are_over_once_at_most(script: str) -> None:
    search = MemorySearch()
    ends = 0
    for line in 8 * (TRIED, TRAINED):
        search.model_called([(script, line)])
        ends += search.has_just_ended()
    assert ends == 1


def test_an_evaluation_outside_the_try_that_trains_ends_nothing(script: str) -> None:
    search = MemorySearch()
    search.model_called([(script, TRIED)])
    search.optimizer_stepped([(script, TRIED)])
    search.model_called([(script, TRAINED)])
    assert not search.has_just_ended()
