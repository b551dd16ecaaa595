"""One rank of a world that runs without its device. No kernels are generated here."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from torchledger.books import read_memory
from torchledger.errors import PlanError
from torchledger.nouns import Collective, Device, Step, StepCall, WorldSpec
from torchledger.planning.dry_run import DryRunOutcome, run_without_device
from torchledger.store import open_ledger

GPU = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


def test_a_reducer_that_looks_for_unused_parameters_tells_the_others_which_were_used(tmp_path: Path) -> None:
    def program() -> None:
        dist.init_process_group("nccl")
        layers = DistributedDataParallel(nn.Linear(8, 8).cuda(), find_unused_parameters=True)
        optimizer = torch.optim.SGD(layers.parameters(), 0.1)
        for _ in range(8):
            layers(torch.zeros(4, 8, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        found = [(each.operation, each.message_bytes) for each in ledger.read(Collective)]
    used, gradients = 2 * 4, (8 * 8 + 8) * 4
    assert sorted(found) == [("all_reduce", used), ("all_reduce", gradients)]


@pytest.mark.usefixtures("no_optimizer_stays")
def test_what_a_wrapped_model_keeps_is_activations_and_a_reducers_buckets_are_of_collectives(tmp_path: Path) -> None:
    def program() -> None:
        dist.init_process_group("nccl")
        layers = DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda())
        optimizer = torch.optim.SGD(layers.parameters(), 0.1)
        for _ in range(8):
            layers(torch.zeros(2048, 512, device="cuda")).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        (step,) = ledger.read(Step)
        memory = read_memory(ledger, step.name)
    assert memory is not None
    rows, weights = 4 * 2048 * 512, 4 * (2 * 512 * 512 + 2 * 512)
    assert memory.by_category["activations"] >= 2 * rows
    assert memory.by_category["collectives"] == pytest.approx(weights, rel=0.01)


@pytest.mark.usefixtures("no_optimizer_stays")
def test_a_rank_is_steady_whose_later_steps_ask_for_what_the_recorded_one_does(tmp_path: Path) -> None:
    """Local SGD averages parameters every so many steps, and is not."""

    def outcome(every: int, *, looks_for_rarer: bool = True) -> DryRunOutcome:
        def program() -> None:
            dist.init_process_group("nccl")
            layer = nn.Linear(8, 8).cuda()
            optimizer = torch.optim.SGD(layer.parameters(), 0.1)
            for step in range(8):
                layer(torch.zeros(4, 8, device="cuda")).sum().backward()
                optimizer.step()
                if step % every == every - 1:
                    dist.all_reduce(layer.weight.data)

        path = tmp_path / "plan.ledger"
        return run_without_device(
            program, path, GPU, world=WorldSpec(0, 2), force=True, looks_for_rarer=looks_for_rarer
        )

    always, rarely = outcome(1), outcome(4)
    assert (always.is_steady, rarely.is_steady) == (True, False)
    told = outcome(1, looks_for_rarer=False)
    assert told.dry_run.optimizer_steps < always.dry_run.optimizer_steps and not told.is_steady


def test_an_operator_of_others_that_arrives_whole_is_taken_apart(tmp_path: Path) -> None:
    """As those do that distributed tensors call, which have left autograd behind."""
    seen: list[torch.device] = []

    def program() -> None:
        with torch._C._AutoDispatchBelowAutograd():
            seen.append(torch.zeros(4, dtype=torch.uint8).to("cuda").device)
        layer = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for _ in range(8):
            layer(torch.zeros(4, 8, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run_without_device(program, tmp_path / "plan.ledger", GPU)
    assert [device.type for device in seen] == ["cuda"]


def test_what_was_computed_before_is_given_to_a_compiled_model_of_ddp(tmp_path: Path) -> None:
    """DDP's forward runs under the program's mode, which copies what has a history."""

    def program() -> None:
        dist.init_process_group("nccl")
        before, inner = nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()
        layers = DistributedDataParallel(torch.compile(inner, backend="eager"))
        _train(lambda: layers(before(torch.zeros(4, 8, device="cuda"))).sum(), layers.parameters())

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        assert [each.operation for each in ledger.read(Collective)] == ["all_reduce"]


def test_a_gradient_that_a_compiled_function_reduces_in_place_is_in_the_step(tmp_path: Path) -> None:
    """As Megatron's layers do; the trace leaves a view behind of which autograd refuses to tell."""

    class Reduced(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            gradient = gradients[0].contiguous()
            dist.all_reduce(gradient)
            return gradient

    def program() -> None:
        dist.init_process_group("nccl")
        first, second = nn.Linear(8, 8).cuda(), nn.Linear(8, 8).cuda()
        compiled = torch.compile(lambda x: second(Reduced.apply(first(x)).relu()), backend="aot_eager")
        parameters = [*first.parameters(), *second.parameters()]
        _train(lambda: compiled(torch.zeros(4, 8, device="cuda")).sum(), parameters)

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        found = [(each.operation, each.message_bytes) for each in ledger.read(Collective)]
    assert found == [("all_reduce", 4 * 8 * 4)]


def test_products_that_are_one_operator_with_a_collective_are_priced_apart(tmp_path: Path) -> None:
    def program() -> None:
        import torch.distributed._symmetric_memory

        dist.init_process_group("nccl")
        group = dist.group.WORLD.group_name
        first, second = nn.Linear(8, 16).cuda(), nn.Linear(16, 8).cuda()

        def step() -> torch.Tensor:
            share = torch.zeros(4, 8, device="cuda")
            _, (hidden,) = torch.ops.symm_mem.fused_all_gather_matmul(share, [first.weight.detach().t()], 0, group)
            weight = second.weight.detach().t()
            torch.ops.symm_mem.fused_matmul_reduce_scatter(hidden, weight, "avg", 0, group)
            return first(share).sum()

        _train(step, first.parameters())

    said = run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2)).dry_run.stand_ins
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        found = [(each.operation, each.message_bytes, each.group_size) for each in ledger.read(Collective)]
        products = [each.flops for each in ledger.read(StepCall) if each.name == "aten::mm"]
    assert found == [("all_gather", 8 * 8 * 4, 2), ("reduce_scatter", 8 * 8 * 4, 2)]
    assert products[:2] == [2 * 8 * 8 * 16] * 2
    assert {each.value for each in said if "would overlap" in each.asked} == {"one after the other"}


def test_a_distributed_tensor_that_changes_its_shards_exchanges_them(tmp_path: Path) -> None:
    def program() -> None:
        from torch.distributed.tensor import DTensor, Shard, init_device_mesh

        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (2,))
        layer = nn.Linear(8, 8).cuda()

        def step() -> torch.Tensor:
            DTensor.from_local(torch.zeros(4, 8, device="cuda"), mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
            return layer(torch.zeros(4, 8, device="cuda")).sum()

        _train(step, layer.parameters())

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        (found,) = ledger.read(Collective)
    assert (found.operation, found.message_bytes, found.ranks) == ("all_to_all", 4 * 8 * 4, (0, 1))
    assert found.stream == f"communication {found.group}" and found.call is not None
    assert found.waited_by == found.call + 1


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_collectives_that_are_put_together_are_one_however_large_they_are(operation: str, tmp_path: Path) -> None:
    def program() -> None:
        dist.init_process_group("nccl")
        layer = nn.Linear(8, 8).cuda()
        shares = [torch.zeros(1 << 26, device="cuda") for _ in range(2)]
        wholes = [torch.zeros(1 << 27, device="cuda") for _ in range(2)]

        def step() -> torch.Tensor:
            with dist._coalescing_manager(device=torch.device("cuda")):
                for share, whole in zip(shares, wholes, strict=True):
                    if operation == "all_reduce":
                        dist.all_reduce(whole)
                    elif operation == "all_gather":
                        dist.all_gather_into_tensor(whole, share)
                    else:
                        dist.reduce_scatter_tensor(share, whole)
            return layer(torch.zeros(4, 8, device="cuda")).sum()

        _train(step, layer.parameters())

    said = run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2)).dry_run.stand_ins
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        (found,) = ledger.read(Collective)
    assert (found.operation, found.message_bytes) == (operation, 2 * 4 << 27)
    assert said == ()


def _train(step: Callable[[], torch.Tensor], parameters: Iterable[torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(parameters, 0.1)
    for _ in range(8):
        step().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_checkpoint_of_all_ranks_is_not_written_and_it_is_said(tmp_path: Path) -> None:
    def program() -> None:
        from torch.distributed import checkpoint

        dist.init_process_group("nccl")
        layer = nn.Linear(8, 8).cuda()
        checkpoint.save(layer.state_dict(), checkpoint_id=str(tmp_path / "saved"))
        checkpoint.async_save(layer.state_dict(), checkpoint_id=str(tmp_path / "saved")).result()
        checkpoint.load(layer.state_dict(), checkpoint_id=str(tmp_path / "saved"))
        _train(lambda: layer(torch.zeros(4, 8, device="cuda")).sum(), layer.parameters())

    outcome = run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    assert [each.asked.rpartition(" ")[2] for each in outcome.dry_run.stand_ins] == ["write", "write", "read"]
    assert not (tmp_path / "saved").exists()
    whole = (8 * 8 + 8) * 4
    written = {each.value for each in outcome.dry_run.stand_ins if each.asked.endswith("write")}
    assert written == {f"nothing: {whole} bytes of this rank, whose copy to the host is not in the price"}


def test_nothing_of_checkpoints_is_replaced_any_more_when_the_program_has_ended(tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    before = (checkpoint.save, checkpoint.load, torch.Generator, torch.set_rng_state, torch.utils.weakref)
    layer = nn.Linear(8, 8)

    def program() -> None:
        layers = layer.cuda()
        _train(lambda: layers(torch.zeros(4, 8, device="cuda")).sum(), layers.parameters())

    run_without_device(program, tmp_path / "plan.ledger", GPU)
    assert (checkpoint.save, checkpoint.load, torch.Generator, torch.set_rng_state, torch.utils.weakref) == before
    assert "data" not in vars(torch._subclasses.FakeTensor)


def test_a_state_of_random_numbers_that_another_rank_sends_is_as_it_was(tmp_path: Path) -> None:
    """Trainers send the state of the sampler's generator to all ranks."""
    drawn: list[list[int]] = []

    def program() -> None:
        dist.init_process_group("nccl")
        generator = torch.Generator()
        state = generator.get_state().to("cuda")
        dist.broadcast(state, 0)
        generator.set_state(state.cpu())
        torch.set_rng_state(state.cpu())
        drawn.append(torch.randperm(5, generator=generator).tolist())
        layer = nn.Linear(8, 8).cuda()
        _train(lambda: layer(torch.zeros(4, 8, device="cuda")).sum(), layer.parameters())

    outcome = run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    assert sorted(drawn[0]) == [0, 1, 2, 3, 4]
    assert [(each.asked, each.value) for each in outcome.dry_run.stand_ins] == [
        ("the state of a random generator", "as it was")
    ] * 2


def test_a_generator_for_the_device_says_that_it_is(tmp_path: Path) -> None:
    said: list[object] = []

    def program() -> None:
        generator = torch.Generator(device="cuda").manual_seed(1)
        said.extend([generator.device, isinstance(torch.default_generator, torch.Generator)])
        layer = nn.Linear(8, 8).cuda()
        _train(lambda: layer(torch.rand(4, 8, device="cuda", generator=generator)).sum(), layer.parameters())

    run_without_device(program, tmp_path / "plan.ledger", GPU)
    assert said == [torch.device("cuda", 0), True]


def test_data_that_a_parameter_is_given_take_it_to_their_device(tmp_path: Path) -> None:
    """So FSDP moves what was built on the host."""
    places: list[str] = []

    def program() -> None:
        dist.init_process_group("nccl")
        layer = nn.Linear(1024, 1024)
        for parameter in layer.parameters():
            parameter.data = parameter.to("cuda")
        places.extend(parameter.device.type for parameter in layer.parameters())
        _train(lambda: layer(torch.zeros(4, 1024, device="cuda")).sum(), layer.parameters())

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    assert places == ["cuda", "cuda"]


def test_modules_of_the_host_are_sharded_on_the_device(tmp_path: Path) -> None:
    def program() -> None:
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("nccl")
        layer = nn.Linear(1024, 1024)
        fully_shard(layer)
        _train(lambda: layer(torch.zeros(4, 1024, device="cuda")).sum(), layer.parameters())

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        found = {each.operation: each.message_bytes for each in ledger.read(Collective)}
    whole = (1024 * 1024 + 1024) * 4
    assert found == {"all_gather": whole, "reduce_scatter": whole}


@pytest.mark.parametrize(("stays", "expected"), [(True, 8 + 2), (False, 2 + 2)])
def test_parameters_that_are_gathered_take_memory_while_they_are(stays: bool, expected: int, tmp_path: Path) -> None:
    """FSDP allocates and frees by the size of storages that there were before the step, when they were empty. Beside
    what is gathered there are a whole gradient and its copy for the scatter."""

    def program() -> None:
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("nccl")
        layers = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8)))
        for layer in layers:
            fully_shard(layer, reshard_after_forward=not stays)
        fully_shard(layers, reshard_after_forward=not stays)
        _train(lambda: layers(torch.zeros(4, 1024, device="cuda")).sum(), layers.parameters())

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 1024))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        (step,) = ledger.read(Step)
        memory = read_memory(ledger, step.name)
    assert memory is not None
    weights = (memory.peak_allocated_bytes - memory.by_category["workspaces"]) / (4 * 1024 * 1024)
    assert weights == pytest.approx(expected, abs=0.1)


def test_what_stands_for_the_device_is_not_compiled_where_a_graph_breaks_into_it(tmp_path: Path) -> None:
    """FSDP's first version has its hooks called between graphs, which record streams."""

    def program() -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

        dist.init_process_group("nccl")
        halves = MixedPrecision(param_dtype=torch.bfloat16)
        layers = FullyShardedDataParallel(
            nn.Linear(1024, 1024), device_id=0, use_orig_params=True, mixed_precision=halves
        )
        compiled = torch.compile(layers, backend="eager")
        _train(lambda: compiled(torch.zeros(4, 1024, device="cuda")).sum(), layers.parameters())

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        found = {each.operation: each.message_bytes for each in ledger.read(Collective)}
    whole = (1024 * 1024 + 1024) * 2
    assert found == {"all_gather": whole, "reduce_scatter": whole}


def test_parameters_that_stay_gathered_after_the_forward_are_gathered_once_a_step(tmp_path: Path) -> None:
    """FSDP's first version asks the storage of what it gathered whether it is still held."""

    def program() -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

        dist.init_process_group("nccl")
        shard = functools.partial(
            FullyShardedDataParallel,
            device_id=0,
            use_orig_params=True,
            sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        )
        whole = shard(nn.Sequential(nn.Linear(1024, 1024), shard(nn.Linear(1024, 1024))))
        _train(lambda: whole(torch.zeros(4, 1024, device="cuda")).sum(), whole.parameters())

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        found = [(each.operation, each.message_bytes) for each in ledger.read(Collective)]
    each_layer = (1024 * 1024 + 1024) * 4
    assert sorted(found) == [("all_gather", each_layer)] * 2 + [("reduce_scatter", each_layer)] * 2


def test_messages_to_experts_have_equal_shares_of_the_tokens(tmp_path: Path) -> None:
    tokens, width, experts = 48, 16, 8

    def program() -> None:
        dist.init_process_group("nccl")
        layer, gate = nn.Linear(width, width).cuda(), nn.Linear(width, experts).cuda()

        def step() -> torch.Tensor:
            x = layer(torch.zeros(tokens, width, device="cuda"))
            chosen = gate(x).topk(2, -1).indices.flatten()
            counts = torch.bincount(chosen, minlength=experts)
            received = torch.empty_like(counts)
            dist.all_to_all_single(received, counts)
            sent, got = (each.view(4, -1).sum(1).tolist() for each in (counts, received))
            rows = x.new_empty(sum(got), width)
            dist.all_to_all_single(rows, x.repeat(2, 1)[chosen.argsort()].detach(), got, sent)
            return x.sum() + gate(x).sum() + rows.sum()

        _train(step, [*layer.parameters(), *gate.parameters()])

    outcome = run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 4))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        found = [each.message_bytes for each in ledger.read(Collective) if each.operation == "all_to_all"]
    assert found == [experts * 8, 2 * tokens * width * 4]
    assert {each.value for each in outcome.dry_run.stand_ins} == {"equal shares"}


def test_a_kernel_that_the_program_launches_itself_is_an_operator_on_its_tensors(tmp_path: Path) -> None:
    """As a call of one of Triton's compiled functions comes to it outside all graphs."""
    from torchledger._torch.fakes.triton import launch_heard

    def program() -> None:
        layer = nn.Linear(8, 8).cuda()

        def step() -> torch.Tensor:
            y = layer(torch.zeros(4, 8, device="cuda"))
            launch_heard("scale_rows", [y.detach(), torch.empty_like(y), 32])
            return y.sum()

        _train(step, layer.parameters())

    run_without_device(program, tmp_path / "plan.ledger", GPU)
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        calls = [call for call in ledger.read(StepCall) if "scale_rows" in call.name]
    assert [(call.name, call.kernels, call.flops) for call in calls] == [("triton_kernels::scale_rows", 1, None)]
    assert [each.shape for each in calls[0].arguments] == [(4, 8), (4, 8)]


def test_a_pipeline_that_torch_splits_has_its_stages_on_the_device(tmp_path: Path) -> None:
    def program() -> None:
        from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline

        dist.init_process_group("nccl")
        layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        split = pipeline(layers, (torch.zeros(2, 8),), split_spec={"1": SplitPoint.BEGINNING})
        stage = split.build_stage(0, torch.device("cuda", 0))
        schedule = ScheduleGPipe(stage, 4, loss_fn=lambda y, target: (y - target).sum())
        optimizer = torch.optim.SGD(stage.submod.parameters(), 0.1)
        for _ in range(8):
            schedule.step(torch.zeros(8, 8, device="cuda"))
            optimizer.step()
            optimizer.zero_grad()

    run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        found = Counter((each.operation, each.message_bytes) for each in ledger.read(Collective))
    assert found == {("send", 2 * 8 * 4): 4, ("recv", 2 * 8 * 4): 4}


def test_processes_of_a_loader_make_rows_of_a_data_set_that_has_no_values(tmp_path: Path) -> None:
    def program() -> None:
        rows = TensorDataset(torch.zeros(1 << 16, 16))  # larger than what stays real
        layer = nn.Linear(16, 16).cuda()
        loader = iter(DataLoader(rows, batch_size=4, num_workers=1))
        _train(lambda: layer(next(loader)[0].cuda(non_blocking=True)).sum(), layer.parameters())

    run_without_device(program, tmp_path / "plan.ledger", GPU)
    with open_ledger(tmp_path / "plan.ledger") as ledger:
        calls = [call for call in ledger.read(StepCall) if call.name == "aten::addmm"]
    assert [call.arguments[1].shape for call in calls] == [(4, 16)]


@pytest.mark.parametrize(("backend", "fails"), [("nccl", True), (None, True), ("cpu:gloo,cuda:nccl", False)])
@pytest.mark.parametrize("is_functional", [False, True])
def test_a_tensor_of_the_host_is_exchanged_only_in_groups_that_have_a_backend_for_it(
    backend: str | None, fails: bool, is_functional: bool, tmp_path: Path
) -> None:
    def program() -> None:
        dist.init_process_group(backend)
        part = dist.new_group([0, 1])
        layer = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for _ in range(8):
            layer(torch.zeros(4, 8, device="cuda")).sum().backward()
            dist.all_reduce(layer.weight.grad, group=part)
            dist.barrier()
            counted = torch.tensor([4])
            if is_functional:
                functional.all_reduce(counted, "sum", part).add(1)
            else:
                dist.all_reduce(counted, group=part)
            optimizer.step()

    said = r"test_dry_run_of_ranks.py:\d+: RuntimeError: No backend type associated with device type cpu\."
    with pytest.raises(PlanError, match=said) if fails else nullcontext():
        run_without_device(program, tmp_path / "plan.ledger", GPU, world=WorldSpec(0, 2))
