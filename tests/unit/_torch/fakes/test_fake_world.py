"""A world in one process: here on real tensors of the host, so that nothing has to stand for a GPU."""

import os
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from torchledger._torch.eager_calls import EagerCall, EagerCalls
from torchledger._torch.fakes.pipelines import leave_mail
from torchledger._torch.fakes.streams import install_streams
from torchledger._torch.fakes.world import FakeWorld
from torchledger._torch.patching import Patches
from torchledger.errors import UsageError
from torchledger.nouns import WorldSpec


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    made, patches = FakeWorld(WorldSpec(rank=9, size=16)), Patches()
    install_streams(patches, made.order, torch.cpu)
    with made:
        yield made
    patches.undo()


def heard(step: object) -> list[EagerCall]:
    listener = EagerCalls(lambda: None)
    assert listener.start() and callable(step)
    step()
    listener.stop()
    assert not listener.faults
    return listener.calls


def collectives(calls: list[EagerCall]) -> list[tuple[str, int]]:
    return [(call.call.name, call.call.tensors[0].numel) for call in calls if call.group is not None]


def test_a_rank_reads_its_place_from_the_environment_and_loses_it_afterwards(world: FakeWorld) -> None:
    assert (os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]) == ("9", "1", "16")
    assert (os.environ["LOCAL_WORLD_SIZE"], os.environ["GROUP_RANK"]) == ("8", "1")
    world.stop()
    assert "RANK" not in os.environ


def test_a_program_that_asks_for_nccl_is_told_that_it_has_it(world: FakeWorld) -> None:
    dist.init_process_group("nccl")
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (9, 16, "nccl")
    dist.destroy_process_group()
    assert not dist.is_initialized()


def test_a_script_of_another_world_is_told_the_option_that_fits(world: FakeWorld) -> None:
    with pytest.raises(UsageError, match=r"a world of 4 ranks, but the plan is for 16\. Pass --world 4"):
        dist.init_process_group("nccl", rank=0, world_size=4)


def test_objects_of_other_ranks_are_this_ranks_and_are_noted(world: FakeWorld) -> None:
    dist.init_process_group("nccl")
    found: list[object] = [None] * 16
    dist.all_gather_object(found, {"tokens": 3})
    assert found == [{"tokens": 3}] * 16
    assert world.stand_ins == ["all_gather_object: what this rank gave stands for what every rank gives"]


@pytest.mark.parametrize("peer", [16, -1])
def test_a_message_to_a_rank_that_there_is_not_is_told_those_that_there_are(world: FakeWorld, peer: int) -> None:
    dist.init_process_group("nccl")
    with pytest.raises(UsageError, match=rf"it sends to rank {peer} of a group of 16 at .*, which has ranks 0 to 15\."):
        dist.group.WORLD.send([torch.zeros(4)], peer, 0)


def test_a_message_from_any_rank_is_taken_to_be_the_first_ones(world: FakeWorld) -> None:
    dist.init_process_group("nccl")
    assert dist.recv(torch.empty(4)) == dist.recv(torch.empty(4)) == 0
    assert any("any rank" in each for each in world.stand_ins)


def test_the_first_rank_hears_the_others_in_turn() -> None:
    with FakeWorld(WorldSpec(rank=0, size=3)):
        dist.init_process_group("nccl")
        assert [dist.recv(torch.empty(4)) for _ in range(4)] == [1, 2, 1, 2]


def test_ranks_that_a_layout_by_hand_leaves_over_are_named(world: FakeWorld) -> None:
    dist.init_process_group("nccl")
    assert world.left_over() is None
    for first in range(0, 15, 5):
        dist.new_group(list(range(first, first + 5)))
    assert (world.left_over() or "").startswith(
        "rank 15 is in none of the groups that the script makes, of 5 ranks at most: does its layout divide a world of "
        "16?"
    )
    dist.new_group([15])
    assert world.left_over() is None


def test_groups_that_divide_the_world_leave_no_rank_over(world: FakeWorld) -> None:
    """A table of words is shared by the first and the last stage alone."""
    dist.init_process_group("nccl")
    dist.new_group([0, 15])
    assert world.left_over() is None


def test_groups_of_a_mesh_hold_the_ranks_around_this_one(world: FakeWorld) -> None:
    mesh = init_device_mesh("cpu", (4, 4), mesh_dim_names=("dp", "tp"))
    ranks = {name: world.groups[str(mesh[name].get_group().group_name)].ranks for name in ("dp", "tp")}
    assert ranks == {"dp": (1, 5, 9, 13), "tp": (8, 9, 10, 11)}


def test_a_collective_that_is_waited_for_holds_back_what_follows(world: FakeWorld) -> None:
    dist.init_process_group("nccl")
    tensor = torch.zeros(4)

    def step() -> None:
        work = dist.all_reduce(tensor, async_op=True)
        torch.ones(4).mul_(2)
        work.wait()
        tensor.mul_(2)

    calls = {call.call.name: call.placed for call in heard(step)}
    moved = calls["c10d::allreduce_"]
    assert moved is not None and moved.stream == "communication 0"
    last = calls["aten::mul_"]
    assert last is not None and (last.stream, last.waits_for) == ("compute", (moved.number,))


def test_sends_and_receives_in_a_batch_belong_together(world: FakeWorld) -> None:
    dist.init_process_group("nccl")
    tensor = torch.zeros(4)

    def step() -> None:
        dist.send(tensor, 10)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, 10), dist.P2POp(dist.irecv, tensor, 8)]):
            work.wait()

    placed = [call.placed for call in heard(step) if call.group is not None]
    assert [each and each.batch is None for each in placed] == [True, False, False]
    assert placed[1] and placed[2] and placed[1].batch == placed[2].batch
    assert [each and each.stream for each in placed] == [
        "communication 0 9:10",
        "communication 0 #0",
        "communication 0 #1",
    ]


def test_ddp_has_the_buckets_of_the_second_step_and_waits_when_the_backward_ends(world: FakeWorld) -> None:
    dist.init_process_group("nccl")
    net = nn.Sequential(*(nn.Linear(128, 128, bias=False) for _ in range(4)))
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=2 * 128 * 128 * 4 / 2**20)

    def step() -> None:
        model(torch.ones(2, 128)).sum().backward()

    def step_and_more() -> None:
        step()
        torch.ones(1).exp_()

    assert collectives(heard(step)) == [("c10d::allreduce_", 4 * 128 * 128)]
    step()
    calls = heard(step_and_more)
    assert collectives(calls) == [("c10d::allreduce_", 2 * 128 * 128)] * 2
    last = [call.placed for call in calls if call.group is not None][-1]
    assert last is not None
    waiting = [call.call.name for call in calls if call.placed is not None and last.number in call.placed.waits_for]
    assert len(waiting) == 1


@pytest.mark.parametrize("kind", ["ALLREDUCE", "FP16_COMPRESS"])
def test_hooks_that_torch_has_in_its_own_language_run(world: FakeWorld, kind: str) -> None:
    dist.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, kind))
    calls = heard(lambda: model(torch.randn(4, 8)).sum().backward())
    assert collectives(calls) == [("c10d::allreduce_", 72)]


def test_what_comes_of_a_gathered_list_is_one_buffer(world: FakeWorld) -> None:
    dist.init_process_group("nccl")
    work = dist.all_gather([torch.empty(3) for _ in range(16)], torch.empty(3), async_op=True)
    assert [part.shape for part in work.get_future().wait()] == [(16, 3)]


def test_fsdp_gathers_and_scatters_on_streams_of_their_own(world: FakeWorld) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (16,))
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def step() -> None:
        model(torch.ones(2, 64)).sum().backward()

    step()
    calls = [call for call in heard(step) if call.group is not None]
    streams = [(call.call.name, call.placed and call.placed.stream) for call in calls]
    # The last layer's parameters are still there when its backward begins: its gather was prefetched, or is not needed.
    assert streams.count(("c10d::_reduce_scatter_base_", "reduce_scatter")) == 2
    assert set(streams) == {("c10d::_allgather_base_", "all_gather"), ("c10d::_reduce_scatter_base_", "reduce_scatter")}


def test_a_mesh_that_does_not_divide_the_world_is_told_the_nearest_worlds(world: FakeWorld) -> None:
    from torch.distributed.device_mesh import init_device_mesh  # as a script has it, which imports it in this world

    with pytest.raises(UsageError, match=r"\(dp=2, tp=3\) is of 6 ranks, .* --world 12 or --world 18\."):
        init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))


def test_a_stage_without_layers_is_told_that_there_are_too_many_stages(world: FakeWorld) -> None:
    from torch.distributed.pipelining import PipelineStage

    dist.init_process_group("nccl")
    with pytest.raises(UsageError, match="stage 9 of 16 of the pipeline has no parameters"):
        PipelineStage(nn.ModuleList(), 9, 16, torch.device("cpu"))


@pytest.mark.parametrize("by_name", [False, True])
def test_heads_that_do_not_divide_over_the_ranks_are_noted_with_the_nearest_that_do(
    world: FakeWorld, by_name: bool
) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head_dim = 4
            self.query = nn.Linear(48, 48)

    mesh, plan = init_device_mesh("cpu", (16,)), {"query": ColwiseParallel()}
    if by_name:
        parallelize_module(Attention(), device_mesh=mesh, parallelize_plan=plan)
    else:
        parallelize_module(Attention(), mesh, plan)
    assert world.hints == [
        "the module.query has 12 heads, which do not divide over 16 ranks: the nearest that works is 12"
    ]


def test_features_that_a_plan_shards_unevenly_are_noted_where_no_heads_are_known(world: FakeWorld) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.out, self.gate = nn.Linear(32, 40), nn.Linear(40, 32), nn.Linear(32, 32)

    plan = {"query": ColwiseParallel(), "o*": RowwiseParallel(), "gate": ColwiseParallel()}
    parallelize_module(Attention(), init_device_mesh("cpu", (16,)), plan)
    assert world.hints == [
        f"{name} has 40 features, which do not divide over 16 ranks: the nearest that works is 20"
        for name in ("query", "out")
    ]


def test_torch_has_its_own_functions_back_afterwards() -> None:
    former = (dist.init_process_group, dist.all_gather_object, dist.Reducer._rebuild_buckets, dist.is_nccl_available)
    with FakeWorld(WorldSpec(0, 2)):
        assert dist.init_process_group is not former[0]
    assert (
        dist.init_process_group,
        dist.all_gather_object,
        dist.Reducer._rebuild_buckets,
        dist.is_nccl_available,
    ) == former
    assert "torchledger" not in dist.Backend.backend_list


def test_a_world_that_is_bound_to_a_device_is_split_and_ranks_are_those_of_the_parent(world: FakeWorld) -> None:
    dist.init_process_group("nccl", device_id=torch.device("cuda", 1))
    assert dist.group.WORLD.bound_device_id == torch.device("cuda", 1)
    node = dist.split_group(split_ranks=[list(range(8)), list(range(8, 16))], group_desc="node")
    assert dist.get_process_group_ranks(node) == list(range(8, 16))
    share, pair = torch.zeros(4), dist.split_group(node, split_ranks=[[0, 2], [1, 3]])
    assert dist.get_process_group_ranks(pair) == [9, 11]
    assert dist.split_group(node, split_ranks=[[4, 5]]) is None
    assert [call.group_size for call in heard(lambda: dist.all_reduce(share, group=pair))] == [2]


def test_a_world_without_a_device_is_not_split_as_on_the_device(world: FakeWorld) -> None:
    dist.init_process_group("nccl")
    with pytest.raises(RuntimeError, match="No device associated with the default pg"):
        dist.split_group(split_ranks=[[0, 9]])


def test_the_groups_of_a_mesh_are_the_same_in_a_world_that_is_bound_to_a_device(world: FakeWorld) -> None:
    dist.init_process_group("nccl", device_id=torch.device("cuda", 1))
    mesh = init_device_mesh("cpu", (4, 4), mesh_dim_names=("dp", "tp"))
    assert dist.get_process_group_ranks(mesh["tp"].get_group()) == [8, 9, 10, 11]
    assert dist.get_process_group_ranks(mesh["dp"].get_group()) == [1, 5, 9, 13]


def test_a_stage_that_goes_over_to_evaluation_has_wanted_gradients_back(world: FakeWorld) -> None:
    trained = torch.empty(4, 8, requires_grad=True)
    leave_mail(world, 0, [trained])
    leave_mail(world, 0, [trained.detach()])
    assert [each["requires_grad"] for each in world.mail[0]] == [True]
    leave_mail(world, 0, [torch.empty(2, 8)])
    assert [each["requires_grad"] for each in world.mail[0]] == [False]
