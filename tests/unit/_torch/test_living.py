"""What lives in a process, while its other threads go on."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn

from torchledger._torch.living import living, living_of
from torchledger._torch.optimizers import OptimizerWatch, parameters_of_other_threads
from torchledger._torch.storages import StorageWatch


def test_the_objects_of_a_class_and_of_those_derived_from_it_are_found() -> None:
    class Base:
        pass

    class Derived(Base):
        pass

    class Pretends:
        @property
        def __class__(self) -> type:
            return Base

    kept = [Base(), Derived(), Pretends()]
    assert living(Base) == kept[:2]


def test_those_of_several_classes_are_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base:
        pass

    class Derived(Base):
        pass

    class Other:
        pass

    kept = [Base(), Other(), Derived()]
    passes: list[None] = []
    known = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda generation: passes.append(None) or known(generation))
    assert living_of(Derived, Base, Other) == (kept[2:], [kept[0], kept[2]], [kept[1]])
    assert len(passes) == 1


def test_a_step_looks_once_through_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[None] = []
    known = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda generation: passes.append(None) or known(generation))
    watch = StorageWatch()
    watch.start()
    watch.stop()
    assert len(passes) == 1


def test_a_thread_that_fills_a_tuple_meanwhile_is_not_disturbed() -> None:
    faults: list[Exception] = []
    is_over = threading.Event()
    others = [[number] for number in range(100_000)]

    def fill() -> None:
        while not is_over.is_set():
            try:
                tuple(number for number in range(30))
            except SystemError as error:
                faults.append(error)

    threads = [threading.Thread(target=fill) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(6):  # of passes in Python four in five disturb a thread
        living(nn.Module)
    is_over.set()
    for thread in threads:
        thread.join()
    assert others
    assert not faults


def test_gradients_that_another_thread_may_be_writing_are_known_by_its_optimizer() -> None:
    heard: list[object] = []
    steps = OptimizerWatch(heard.append, lambda error: None)
    ours, theirs = nn.Linear(2, 2), nn.Linear(2, 2)

    def update(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters())
        optimizer.step()
        kept.append(optimizer)

    kept: list[torch.optim.Optimizer] = []
    thread = threading.Thread(target=update, args=(theirs,))
    thread.start()
    thread.join()
    update(ours)
    steps.undo()
    others = parameters_of_other_threads()
    assert {id(parameter) for parameter in theirs.parameters()} <= others
    assert not {id(parameter) for parameter in ours.parameters()} & others
