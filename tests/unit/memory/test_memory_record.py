"""Storages that were heard in a step, as records with their purpose, their call and what was counted beside them."""

from __future__ import annotations

from typing import Any

from tests.factories import make_buffer, make_device, make_launch, make_step, make_step_call

from torchledger._torch.eager_calls import EagerCall
from torchledger._torch.storages import AllocatorCount, HeardMemory, StorageLife
from torchledger.memory.record import Heard, record_memory
from torchledger.nouns import LiveStorage, StepMemory
from torchledger.stepping.entries import Entry
from torchledger.stepping.record import StepRecord
from torchledger.work.op_shapes import OpCall

CALLS = (
    make_step_call(order=0, kind="graph", name="forward_0", phase="forward", call=0, start_us=0.0, host_us=10.0),
    make_step_call(order=1, name="aten::mse_loss", phase="loss", start_us=20.0, host_us=10.0),
    make_step_call(order=2, kind="graph", name="backward_0", phase="backward", call=0, start_us=40.0, host_us=10.0),
    make_step_call(order=3, name="aten::sqrt", phase="optimizer", start_us=60.0, host_us=10.0),
)
ENTRIES = ("forward_0", 0, "backward_0", 1)
LAUNCHES = {
    "forward_0": [
        make_launch(graph="forward_0", order=0, wrapper_line=10, modules=("mlp.0",), kernel_name="fused_0"),
        make_launch(graph="forward_0", order=1, wrapper_line=20, modules=("mlp.2",), kernel_name="fused_1"),
    ],
    "backward_0": [make_launch(graph="backward_0", order=0, wrapper_line=10, kernel_name="fused_2")],
}


def make_heard(name: str, **changes: Any) -> EagerCall:
    return EagerCall(OpCall(name, ()), "default", 1, **changes)


def record(
    *lives: StorageLife, launches: dict[str, Any] | None = None, **changes: Any
) -> tuple[StepMemory, list[LiveStorage]]:
    stack = {name: changes.pop(name) for name in ("library", "behind_line") if name in changes}
    loss = make_heard("aten::mse_loss", module="head", sources=("train.py:7",), **stack)
    heard = Heard(
        HeardMemory(lives, ENTRIES, changes.pop("allocator", None), changes.pop("number_bytes", 0)),
        (loss, make_heard("aten::sqrt")),
    )
    step = StepRecord(make_step(), CALLS, 0, places={0: 1, 1: 3})
    found = record_memory(heard, step, LAUNCHES if launches is None else launches, **changes)
    memory, *storages = found
    assert isinstance(memory, StepMemory)
    return memory, [each for each in storages if isinstance(each, LiveStorage)]


def life(**changes: Any) -> StorageLife:
    return StorageLife(**{"nbytes": 100, "device": "cpu"} | changes)


def test_what_belongs_to_the_model_is_known_by_it_whenever_it_appears() -> None:
    _, storages = record(
        life(owner="parameter", name="mlp.0.weight"),
        life(owner="optimizer_state", name="mlp.0.weight.exp_avg"),
        life(owner="gradient", name="mlp.0.weight", born=5, born_in=2),
        life(owner="buffer", name="norm.mean"),
    )
    assert [each.category for each in storages] == ["parameters", "optimizer_state", "gradients", "buffers"]
    assert [each.module for each in storages] == ["mlp.0", "mlp.0", "mlp.0", "norm"]


def test_what_a_forward_makes_and_the_backward_finds_are_activations() -> None:
    _, (kept, gone) = record(
        life(born=0, born_in=0, born_line=9, freed=6, freed_in=2, freed_line=11),
        life(born=1, born_in=0, born_line=15, freed=2, freed_in=0, freed_line=21),
    )
    assert (kept.category, kept.module, kept.operator, kept.born_launch) == ("activations", "mlp.0", "fused_0", 0)
    assert (kept.freed_in, kept.freed_launch) == (2, 1)
    assert (gone.category, gone.module, gone.born_launch, gone.freed_launch) == ("temporaries", "mlp.2", 1, 2)


def test_eager_tensors_have_the_module_and_line_that_asked_for_them() -> None:
    _, (loss, root) = record(life(born=3, born_in=1, freed=7, freed_in=2), life(born=8, born_in=3, freed=9, freed_in=3))
    assert (loss.category, loss.module, loss.source, loss.born_in) == ("activations", "head", "train.py:7", 1)
    assert (root.category, root.operator, root.born_in) == ("eager", "aten::sqrt", 3)


MODULE_CALL = "torch/nn/modules/module.py:_call_impl"


def category(*library: str, behind_line: int = 0) -> str:
    """What a tensor is for that an operator made behind these functions, and a backward finds."""
    _, (found,) = record(life(born=3, born_in=1, freed=7, freed_in=2), library=library, behind_line=behind_line)
    return found.category


def test_what_a_wrapper_calls_is_the_programs_and_what_it_does_itself_is_of_its_collectives() -> None:
    wrapper = "torch/nn/parallel/distributed.py:forward"
    assert category(MODULE_CALL, wrapper) == "collectives"
    assert category(MODULE_CALL, wrapper, MODULE_CALL, "torch/nn/modules/linear.py:forward") == "activations"
    assert category(MODULE_CALL, wrapper, "torch/nn/functional.py:silu", behind_line=2) == "activations"
    hook = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:foreach_all_gather"
    assert category(MODULE_CALL, wrapper, MODULE_CALL, hook) == "collectives"


def test_operators_on_distributed_tensors_are_the_programs_and_their_redistribution_is_not() -> None:
    dispatch = "torch/distributed/tensor/_dispatch.py:dispatch"
    assert category(MODULE_CALL, dispatch) == "activations"
    redistribution = "torch/distributed/tensor/_redistribute.py:redistribute_local_tensor"
    assert category(MODULE_CALL, dispatch, redistribution) == "collectives"


def test_a_schedules_backward_and_loss_are_the_programs() -> None:
    schedule = "torch/distributed/pipelining/schedules.py:_step_microbatches"
    engine = "torch/autograd/graph.py:_engine_run_backward"
    loss = "torch/distributed/pipelining/schedules.py:_compute_loss"
    assert category(schedule, engine) == category(schedule, loss) == "activations"
    assert category(schedule) == "collectives"


def test_what_was_there_before_is_of_collectives_if_one_was_given_it() -> None:
    _, (bucket,) = record(life(uses=(0,), is_exchanged=True))
    assert bucket.category == "collectives"


def test_what_was_there_before_is_an_input_if_a_call_was_given_it() -> None:
    _, storages = record(life(uses=(0,)), life())
    assert [each.category for each in storages] == ["inputs", "kept"]


def test_memory_that_torch_did_not_allocate_is_named_and_not_counted() -> None:
    memory, storages = record(life(), life(of_allocator=False, nbytes=77))
    assert len(storages) == 1
    (note,) = memory.notes
    assert note.startswith("77 bytes of tensors lie in memory that torch did not allocate") and "not counted" in note


def test_the_fullest_accelerator_is_the_device_and_its_sizes_are_rounded() -> None:
    memory, storages = record(life(nbytes=10_000), life(device="cuda:0"))
    assert (memory.device, memory.rounding) == ("cuda:0", 512)
    assert [each.device for each in storages] == ["cuda:0"]


def test_what_a_call_works_on_itself_and_what_no_operator_showed_stand_apart() -> None:
    memory, _ = record(
        life(nbytes=1000),
        life(nbytes=50, born=3, born_in=1, freed=4, freed_in=1),
        number_bytes=8,
        # 8 bytes that nobody saw; then the loss of 50 bytes and 30 that its operator gives back at once.
        allocations=[(5_000, 8), (21_000, 50), (22_000, 30), (23_000, -30), (24_000, -50)],
    )
    assert memory.measured_peak_bytes == 1088
    assert memory.scratch == {"0": 8, "1": 30}
    assert memory.unseen == {"1": 8}
    assert memory.counted == {"0": 1008, "1": 1088}


def test_the_parts_of_an_operator_that_was_heard_whole_are_one_call_whose_tensors_nobody_saw() -> None:
    heard = Heard(HeardMemory((life(nbytes=1000),), ENTRIES), (make_heard("aten::matmul"), make_heard("aten::sqrt")))
    parts = [None, (7, "aten::matmul"), (7, "aten::matmul"), None]
    entries = tuple(
        Entry(call.kind, call.name, place, 0, 0, 0, part_of=part)
        for place, (call, part) in enumerate(zip(CALLS, parts, strict=True))
    )
    step = StepRecord(make_step(), CALLS, 0, entries=(entries,), places={0: 1, 1: 3})
    changes = [(21_000, 50), (41_000, 30), (42_000, -30), (43_000, -50)]
    memory, *_ = record_memory(heard, step, LAUNCHES, allocations=changes)
    assert isinstance(memory, StepMemory) and (memory.scratch, memory.unseen) == ({"1": 80}, {})


def test_what_an_autograd_graph_of_the_step_before_holds_is_found_by_what_is_freed() -> None:
    lives = (life(nbytes=1000), life(nbytes=60, born=3, born_in=1), life(nbytes=40, born=4, born_in=3))
    changes = ((21_000, 60), (22_000, -60), (61_000, 40), (62_000, -40))
    held, _ = record(*lives, allocations=changes)
    assert (held.held_bytes, held.measured_peak_bytes) == (100, 1160)
    grown, _ = record(*lives, allocations=[each for each in changes if each[1] > 0])
    assert (grown.held_bytes, grown.measured_peak_bytes) == (0, 1100)
    gradient = life(nbytes=60, born=3, born_in=1, owner="gradient", name="mlp.0.weight")
    assert record(lives[0], gradient, allocations=changes[:2])[0].held_bytes == 0


def test_a_profiler_that_keeps_what_torch_func_wraps_is_no_reference_for_the_peak() -> None:
    lives = (life(nbytes=1000), life(nbytes=50, born=3, born_in=1, freed=4, freed_in=1))
    changes = ((1_000, 50), (2_000, -50))
    mapped = ("torch/_functorch/apis.py:wrapped", "torch/_functorch/vmap.py:vmap_impl")
    whole, _ = record(*lives, library=mapped, allocations=changes)
    kept, _ = record(*lives, library=mapped, allocations=changes[:1])
    other, _ = record(*lives, allocations=changes[:1])
    assert (whole.measured_peak_bytes, whole.notes) == (1050, ())
    assert (kept.measured_peak_bytes, kept.counter) == (None, None)
    assert kept.notes[0].startswith("50 bytes were still allocated at the end of a recorded step")
    assert other.measured_peak_bytes == 1050


def test_the_caching_allocator_s_counts_stand_beside_what_is_known() -> None:
    count = AllocatorCount(allocated_peak=4096, requested_peak=4000, reserved_peak=8192, allocated_before=1536)
    memory, _ = record(life(device="cuda:0", nbytes=600), allocator=count)
    assert memory.counter == "cuda_allocator"
    assert (memory.measured_peak_bytes, memory.reserved_peak_bytes) == (4096, 8192)
    assert memory.unseen_before_bytes == 1536 - 1024


def test_a_gpu_whose_products_run_in_a_library_holds_its_workspaces() -> None:
    product = make_launch(graph="forward_0", order=0, category="extern", kernel_name="extern_kernels.mm")
    device = make_device(kind="cuda", compute_capability=(9, 0))
    made = life(device="cuda:0", born=0, born_in=0, born_line=9)
    _, storages = record(made, launches={"forward_0": [product]}, devices=[device])
    spaces = [each for each in storages if each.category == "workspaces"]
    assert [each.nbytes for each in spaces] == [32 << 20]


def test_a_replayed_cuda_graph_keeps_no_workspace_outside_of_its_pool() -> None:
    product = make_launch(graph="forward_0", order=0, category="extern", kernel_name="extern_kernels.mm")
    device = make_device(kind="cuda", compute_capability=(9, 0))
    out = life(device="cuda:0", born=0, born_in=0, is_unseen=True)
    _, storages = record(out, launches={"forward_0": [product]}, devices=[device])
    assert not [each for each in storages if each.category == "workspaces"]


def test_a_part_that_was_compiled_alone_is_named_by_the_parameters_that_it_is_given() -> None:
    _, storages = record(
        life(owner="parameter", name="layers.3.mlp.0.weight", uses=(0, 2)),
        life(owner="parameter", name="layers.3.mlp.2.weight", uses=(0, 2)),
        life(born=0, born_in=0, born_line=9, freed=6, freed_in=2, freed_line=11),
    )
    assert storages[2].module == "layers.3.mlp.0"


def test_the_modules_that_read_a_buffer_of_a_graph_are_known_by_its_launches() -> None:
    made = make_buffer(name="buf0", role="output", shape=(5, 5))
    read = make_buffer(name="buf0", role="input", shape=(5, 5))
    launches = {
        "forward_0": [
            make_launch(graph="forward_0", order=0, wrapper_line=10, modules=("first",), buffers=(made,)),
            make_launch(graph="forward_0", order=1, wrapper_line=20, modules=("second",), buffers=(read,)),
        ]
    }
    _, (storage,) = record(life(born=0, born_in=0, born_line=9, shape=(5, 5), freed=6, freed_in=2), launches=launches)
    assert (storage.module, storage.read_by) == ("first", ("second",))


def test_a_step_without_storages_has_no_memory() -> None:
    step = StepRecord(make_step(), CALLS, 0)
    assert record_memory(Heard(HeardMemory((), ()), ()), step, {}) == []
