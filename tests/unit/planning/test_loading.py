"""What loading a step's batches takes."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes import loaders
from torchledger._torch.fakes.loaders import Loading
from torchledger._torch.fakes.tensors import FakeTensors
from torchledger._torch.patching import Patches
from torchledger.planning.loading import StepLoading


def test_loading_that_takes_a_while_is_told_and_whose_time_it_is() -> None:
    loaded = (1.0, 1.0)
    loading = StepLoading(lambda: loaded)
    assert loading.note() is None
    for own, elsewhere, said in ((0.02, 0.0, "thread that launches, at most 20.0 ms"), (0.0, 0.3, "processes load")):
        loading.hearing_begins()
        loaded = (loaded[0] + own, loaded[1] + elsewhere)
        loading.hearing_ended()
        assert said in str(loading.note())
    loading.hearing_begins()
    loading.hearing_ended()
    assert loading.note() is None


def test_what_a_plan_takes_for_a_loaders_operators_is_no_loading() -> None:
    tensors, patches = FakeTensors(), Patches()
    loading = Loading(tensors.handling)
    loading.install(patches)
    heard = EagerCalls(lambda: None)

    class Ones(torch.utils.data.Dataset[torch.Tensor]):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.ones(8) + index

    fetcher = _MapDatasetFetcher(Ones(), True, torch.stack, False)
    try:
        with tensors:
            assert heard.start()
            begin = time.thread_time()
            batch = fetcher.fetch(range(200))
            took_s = time.thread_time() - begin
            assert heard.stop()
    finally:
        patches.undo()
    assert batch[:, 0].tolist() == list(range(1, 201))
    assert 0 <= loading.seconds()[0] < 0.5 * took_s


def test_what_a_loader_waits_for_is_loading() -> None:
    patches = Patches()
    loading = Loading(FakeTensors().handling)
    loading.install(patches)

    class Stored(torch.utils.data.Dataset[int]):
        def __getitem__(self, index: int) -> int:
            time.sleep(0.01)
            return index

    try:
        _MapDatasetFetcher(Stored(), True, list, False).fetch(range(5))
    finally:
        patches.undo()
    assert loading.seconds()[0] >= 0.05


def test_waiting_for_a_processor_that_others_have_is_no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = Patches()
    loading = Loading(FakeTensors().handling)
    loading.install(patches)
    held_up = iter((3.0, 103.0))
    monkeypatch.setattr(loaders, "_held_up_s", lambda: next(held_up))

    class Delayed(torch.utils.data.Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return index

    try:
        _MapDatasetFetcher(Delayed(), False, int, False).fetch(0)
    finally:
        patches.undo()
    assert loading.seconds() == (0.0, 0.0)
