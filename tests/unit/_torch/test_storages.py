"""What the watch sees of eager programs: storages, whoever holds them, and what they belong to."""

from __future__ import annotations

import torch
import torch.utils.checkpoint

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes.tensors import FakeTensors
from torchledger._torch.storages import HeardMemory, StorageLife, StorageWatch


def watched(step: object) -> HeardMemory:
    listener = EagerCalls(lambda: None)
    assert listener.start()
    try:
        step()  # type: ignore[operator]
    finally:
        listener.stop()
    assert listener.memory is not None
    assert listener.memory.faults == ()
    return listener.memory


def born(memory: HeardMemory) -> list[StorageLife]:
    return [life for life in memory.lives if life.born is not None]


def test_a_view_keeps_its_storage_and_the_last_holder_ends_it() -> None:
    def step() -> None:
        whole = torch.ones(1000)
        part = whole[:10]
        del whole
        part.add_(1)
        del part
        torch.ones(7)

    (first, _) = born(watched(step))
    assert first.nbytes == 4000
    assert first.freed is not None and first.freed_in is not None and first.born_in is not None
    assert first.freed_in > first.born_in


def test_what_autograd_alone_holds_lives_until_the_backward_gives_it_up() -> None:
    weight = torch.ones(64, requires_grad=True)

    def step() -> None:
        loss = (weight * 2).exp().sum()
        loss.backward()

    memory = watched(step)
    kept = next(life for life in born(memory) if life.nbytes == 256 and life.freed_in and life.freed_in > 3)
    assert kept.freed is not None


def test_a_checkpoint_keeps_the_state_of_random_numbers_until_its_backward() -> None:
    weight = torch.ones(64, requires_grad=True)
    original = torch.get_rng_state

    def step() -> None:
        torch.utils.checkpoint.checkpoint(torch.exp, weight, use_reentrant=False).sum().backward()

    size = original().numel()
    states = [life for life in born(watched(step)) if life.nbytes == size]
    assert states and None not in [state.freed for state in states]
    assert torch.get_rng_state is original


def test_parameters_gradients_and_optimizer_state_are_known_by_their_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    memory = watched(lambda: model(torch.ones(2, 3)).sum().backward())
    names = {(life.owner, life.name) for life in memory.lives if life.owner is not None}
    assert {
        ("parameter", "0.weight"),
        ("buffer", "1.running_mean"),
        ("gradient", "0.weight"),
        ("optimizer_state", "0.weight.exp_avg"),
    } <= names
    gradients = [life for life in memory.lives if life.owner == "gradient" and life.nbytes == 60]  # not another test's
    assert gradients and all(life.born is not None for life in gradients)


def test_views_of_which_autograd_tells_no_more_cost_no_other_storage_its_life() -> None:
    weight = torch.ones(64, requires_grad=True)
    written = weight.clone()
    with torch.no_grad():
        view = written.view(8, 8)
    written.mul_(2)
    weight.grad = torch.zeros(64)

    memory = watched(lambda: weight.detach().add(1))

    assert view.requires_grad  # and asked whether it is a leaf, it raises
    gradient = weight.grad.untyped_storage().nbytes()
    assert len(born(memory)) == 1 and gradient in {life.nbytes for life in memory.lives if life.born is None}


def test_the_state_that_a_compiled_optimizers_graph_holds_as_a_buffer_is_the_optimizers() -> None:
    model = torch.nn.Linear(3, 7)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    graph = torch.nn.Module()
    graph.register_buffer("state", optimizer.state[model.weight]["exp_avg"])
    memory = watched(lambda: model(torch.ones(2, 3)))
    assert [life.name for life in memory.lives if life.owner == "optimizer_state" and life.shape == (7, 3)] == [
        "weight.exp_avg",
        "weight.exp_avg_sq",
    ]
    del graph


def test_a_storage_that_is_emptied_and_filled_again_lives_twice() -> None:
    tensor = torch.ones(12_347)  # of a size that no other test holds

    def step() -> None:
        tensor.untyped_storage().resize_(0)
        torch.ones(1)
        tensor.untyped_storage().resize_(49_388)

    memory = watched(step)
    lives = [life for life in memory.lives if life.nbytes == 49_388]
    assert [(life.born is None, life.freed is None) for life in lives] == [(True, False), (False, True)]
    assert "resize_" not in vars(torch.UntypedStorage)


def test_a_tensor_of_several_ranks_counts_with_what_this_one_holds_of_it() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        local = torch.ones(11, 1009)
        whole = DTensor.from_local(local, init_device_mesh("cpu", (4,)), [Shard(0)], run_check=False)
        memory = watched(lambda: torch.ones(3))
    finally:
        torch.distributed.destroy_process_group()
    assert whole.shape == (44, 1009)
    sizes = [life.nbytes for life in memory.lives]
    assert 4 * 11 * 1009 in sizes
    assert 4 * 44 * 1009 not in sizes


def test_the_buckets_of_a_reducer_are_as_large_as_the_gradients_unless_these_lie_in_them() -> None:
    from torch.nn.parallel import DistributedDataParallel

    def bucket_bytes(*, is_view: bool) -> list[int]:
        model = torch.nn.Linear(53, 59)
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=is_view)
        memory = watched(lambda: torch.ones(3))
        del wrapped
        return [life.nbytes for life in memory.lives if life.owner == "bucket"]

    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        assert bucket_bytes(is_view=False) == [4 * (53 * 59 + 59)]
        assert bucket_bytes(is_view=True) == []
    finally:
        torch.distributed.destroy_process_group()


def test_a_bucket_that_an_operator_writes_to_is_counted_once() -> None:
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        wrapped = DistributedDataParallel(torch.nn.Linear(53, 59))
        for _ in range(3):
            wrapped(torch.ones(2, 53)).sum().backward()
        memory = watched(lambda: wrapped(torch.ones(2, 53)).sum().backward())
    finally:
        torch.distributed.destroy_process_group()
    (bucket,) = [life for life in memory.lives if life.nbytes == 4 * (53 * 59 + 59)]
    assert bucket.owner == "bucket" and bucket.uses and bucket.born is None


def test_buckets_that_are_seen_as_fake_tensors_are_not_counted_beside_them() -> None:
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        wrapped = DistributedDataParallel(torch.nn.Linear(53, 59))
        watch = StorageWatch(FakeTensors())
        watch.start()
        memory = watch.stop()
        del wrapped
    finally:
        torch.distributed.destroy_process_group()
    assert not [life for life in memory.lives if life.owner == "bucket"]


def test_what_a_trace_left_behind_has_a_size_and_no_memory() -> None:
    """Functional tensors stay until their cycles are collected, on a device that is there as on one that is not."""
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with FunctionalTensorMode():
        left = FunctionalTensor.to_functional(torch.ones(31, 37))
    memory = watched(lambda: torch.ones(2))
    assert isinstance(left, FunctionalTensor) and left.untyped_storage().nbytes() == 4 * 31 * 37
    assert not [life for life in memory.lives if life.shape == (31, 37)]


def test_numbers_that_operators_take_as_tensors_are_counted() -> None:
    tensor = torch.ones(4)
    assert watched(lambda: tensor / 2).number_bytes == 8
    assert watched(lambda: tensor + tensor).number_bytes == 0


def test_memory_of_somebody_else_is_not_the_allocator_s() -> None:
    import numpy

    array = torch.from_numpy(numpy.zeros(11, dtype=numpy.float32))
    (life,) = [life for life in watched(lambda: array + 1).lives if life.nbytes == 44 and life.born is None]
    assert not life.of_allocator
