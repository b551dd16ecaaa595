"""The memory of a recorded step on another device."""

from __future__ import annotations

from tests.factories import make_device, make_launch, make_live_storage, make_step_call, make_step_memory

from torchledger.memory.change import memory_change
from torchledger.memory.elsewhere import memory_on
from torchledger.memory.live_set import add_up_memory


def test_on_another_device_sizes_are_rounded_as_there_and_its_libraries_take_their_share() -> None:
    storages = [make_live_storage(nbytes=700), make_live_storage(number=1, category="workspaces", nbytes=9)]
    totals = add_up_memory(make_step_memory(measured_peak_bytes=709), storages)
    device = make_device(name="GPU", kind="cuda", compute_capability=(8, 0))
    products = [make_launch(graph="forward_0", category="extern", kernel_name="extern_kernels.addmm")]
    calls = [make_step_call(kind="graph", name="forward_0", phase="forward")]
    there = memory_on(device, totals, calls, products)
    assert there.memory.device == "GPU"
    assert there.memory.measured_peak_bytes is None
    assert there.by_category == {"eager": 1024, "workspaces": 8_519_680}
    assert there.peak_allocated_bytes == 1024 + 8_519_680


def test_a_device_of_unknown_capability_has_no_workspaces_that_are_known() -> None:
    totals = add_up_memory(make_step_memory(), [make_live_storage(nbytes=700)])
    device = make_device(name="GPU", kind="cuda", compute_capability=None)
    calls = [make_step_call(name="aten::mm")]
    assert memory_on(device, totals, calls, []).by_category == {"eager": 1024}


def test_a_change_names_what_grew_most_first_and_leaves_out_what_stayed() -> None:
    same = make_live_storage(number=0, category="parameters", nbytes=5, module="head")
    first = add_up_memory(make_step_memory(), [same, make_live_storage(number=1, nbytes=10, module="a")])
    second = add_up_memory(make_step_memory(), [same, make_live_storage(number=1, nbytes=40, module="b")])
    change = memory_change(first, second)
    assert (change.first_peak_bytes, change.second_peak_bytes, change.delta_bytes) == (15, 45, 30)
    assert [(row.name, row.delta_bytes) for row in change.by_category] == [("eager", 30)]
    assert [(row.name, row.delta_bytes) for row in change.by_module] == [("b", 40), ("a", -10)]
