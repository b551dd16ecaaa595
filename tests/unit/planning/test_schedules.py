"""Pipeline schedules: complete, in an order that can be played, and torch's own."""

from __future__ import annotations

from collections import Counter

import pytest

from torchledger.errors import PredictError
from torchledger.planning.schedules import schedule_actions


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "Interleaved1F1B"])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (4, 8), (4, 4), (3, 9)])
def test_every_microbatch_goes_once_each_way_through_every_stage(schedule: str, ranks: int, micro_batches: int) -> None:
    stages = 2 if schedule == "Interleaved1F1B" else 1
    actions = schedule_actions(schedule, ranks, micro_batches, stages_per_rank=stages)
    counted = Counter(action for own in actions for action in own)
    assert set(counted.values()) == {1}
    assert len(counted) == 2 * ranks * stages * micro_batches
    for own in actions:
        for action in own:
            if action.kind == "backward":
                places = [
                    k for k, a in enumerate(own) if (a.stage, a.micro_batch) == (action.stage, action.micro_batch)
                ]
                assert own[places[0]].kind == "forward"


def test_interleaved_actions_are_those_of_torch() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, schedules
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ranks, micro_batches = 4, 8
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        stages = [PipelineStage(torch.nn.Linear(2, 2), k, 8, torch.device("cpu")) for k in (0, 4)]
        theirs = schedules.get_schedule_class("Interleaved1F1B")(stages, n_microbatches=micro_batches, loss_fn=None)
        order = theirs.pipeline_order
    finally:
        dist.destroy_process_group()
    ours = schedule_actions("Interleaved1F1B", ranks, micro_batches, stages_per_rank=2)
    for rank, own in enumerate(ours):
        named = [(a.stage_index, a.computation_type.name, a.microbatch_index) for a in order[rank] if a is not None]
        kinds = {"forward": "FORWARD", "backward": "FULL_BACKWARD"}
        assert named == [(a.stage, kinds[a.kind], a.micro_batch) for a in own]


def test_an_unknown_schedule_names_the_nearest() -> None:
    with pytest.raises(PredictError, match="nearest: GPipe"):
        schedule_actions("Gpip", 2, 2)
