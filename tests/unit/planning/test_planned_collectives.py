"""Collectives of one rank of a world that is not there, beside those that four gloo processes recorded.

The recording is of ``benchmarks/jobs/job_programs.py`` at its smallest size, rank 0; ``benchmarks/plans/plan_ranks.py``
compares all ranks, compiled, without a GPU. Here nothing is compiled: the collectives are the same.
"""

import argparse
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes.streams import install_streams
from torchledger._torch.fakes.world import FakeWorld
from torchledger._torch.patching import Patches
from torchledger.nouns import WorldSpec
from torchledger.stepping.communication import operation_of
from torchledger.work.collectives import message_of_call

ROOT = Path(__file__).parents[3]
RECORDED = json.loads((ROOT / "tests/data/plan/collectives_of_gloo_torch2.13.json").read_text())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    made, patches = FakeWorld(WorldSpec(rank=0, size=4, mail=str(tmp_path))), Patches()
    install_streams(patches, made.order, torch.cpu)
    with made, torch.compiler.set_stance("force_eager"):
        yield made
    patches.undo()


@pytest.fixture(scope="module")
def programs() -> ModuleType:
    return importlib.import_module("benchmarks.jobs.job_programs")


@pytest.mark.parametrize("strategy", RECORDED)
def test_a_rank_calls_the_collectives_that_gloo_ran_in_their_order(
    strategy: str, world: FakeWorld, programs: ModuleType
) -> None:
    place = programs.Place(argparse.Namespace(strategy=strategy, size="tiny", device="cpu", late=None))
    step = programs.STRATEGIES[strategy](place)
    step()
    step()
    listener = EagerCalls(lambda: None)
    assert listener.start()
    step()
    listener.stop()
    called = []
    for call in listener.calls:
        operation = operation_of(call.call.name) if call.group is not None else None
        message = message_of_call(call.call, call.group_size)
        if operation is not None and message is not None:
            called.append([operation, message.nbytes, call.group_size])
    assert called == RECORDED[strategy]
