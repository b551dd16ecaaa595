"""What a fused kernel's time is made of, from how its loops go over memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import make_buffer, make_h200, make_launch, make_machine
from torchledger.expecting.launch_costs import KernelCosts, kernel_costs
from torchledger.expecting.launch_features import features_of_launches
from torchledger.expecting.launch_tiles import cost_of_tiles
from torchledger.expecting.machine import LATEST_NETWORKS
from torchledger.expecting.memory_accesses import distinct_divisions_of, divisions_of, local_strides, memory_accesses
from torchledger.nouns import Access, Launch, LoopNest

_MACHINE = make_machine("TEST", 132, {"bfloat16": 8e8}, 4.5e6, 0.8)


def _load(strides: tuple[int | None, ...], buffer: str = "x", index: str = "p0") -> Access:
    return Access(buffer, "load", index, strides, "bfloat16")


def _kernel(*nests: LoopNest, category: str = "pointwise") -> Launch:
    return make_launch(category=category, loops=nests)


def _costs(launch: Launch) -> KernelCosts:
    return kernel_costs(launch, _MACHINE, cold_bytes=0.0, warm_us=0.0, vector_us=[0.0] * len(launch.loops))


def test_a_load_across_rows_asks_for_more_sectors_than_one_along_them() -> None:
    along = _costs(_kernel(LoopNest((4096, 4096), accesses=(_load((4096, 1)),))))
    across = _costs(_kernel(LoopNest((4096,), (4096,), accesses=(_load((1, 4096)),)), category="reduction"))
    scattered = _costs(_kernel(LoopNest((4096, 4096), accesses=(_load((4096 * 64, 64)),))))
    assert along.parts["load"] == pytest.approx(across.parts["load"], rel=0.3)
    assert scattered.parts["load"] > 8 * along.parts["load"]


def test_a_transpose_gets_blocks_of_two_axes_unless_another_nest_has_no_border_there() -> None:
    store = Access("y", "store", "p0", (1 << 20, 1024, 1), "bfloat16")
    turned = LoopNest((8, 1024, 1024), accesses=(_load((1 << 20, 1, 1024)), store))
    flat = LoopNest((8 << 20,), accesses=(_load((1,), "z"),))
    alone, beside_flat = _costs(_kernel(turned)), _costs(_kernel(turned, flat))
    assert alone.chosen is not None and beside_flat.chosen is not None
    assert alone.chosen.tile.split == 1024 and beside_flat.chosen.tile.split == 0
    assert beside_flat.parts["load"] > 4 * alone.parts["load"]


def test_what_a_kernel_has_just_made_is_not_loaded() -> None:
    first = LoopNest((64,), accesses=(_load((1,), "x"), Access("y", "store", "p0", (1,), "bfloat16")))
    second = LoopNest((64,), accesses=(_load((1,), "y"), _load((1,), "x")))
    launch = _kernel(first, second)
    assert [access.declared.buffer for access in memory_accesses(launch, launch.loops)] == ["x", "y"]


def test_two_nests_that_cut_one_axis_into_different_loops_load_once() -> None:
    flat = LoopNest((128,), (64,), {"sum": 1}, (_load((64, 1)), _load((0, 1), "scale"), _load((1, 0), "mean")), "sum")
    cut = LoopNest((8, 16, 64), accesses=(_load((1024, 64, 1)), _load((0, 0, 1), "scale"), _load((16, 1, 0), "mean")))
    launch = _kernel(flat, cut, category="persistent_reduction")
    assert [access.declared.buffer for access in memory_accesses(launch, launch.loops)] == ["x", "scale", "mean"]


def test_a_kernel_that_also_adds_across_its_rows_takes_them_one_after_the_other() -> None:
    def made(*more: LoopNest) -> KernelCosts:
        rows = LoopNest((8192,), (768,), {"sum": 1}, (_load((768, 1)),), "sum")
        return _costs(_kernel(rows, *more, category="persistent_reduction"))

    columns = LoopNest((16, 512, 768), ops={"partial_accumulate": 1}, accesses=(_load((393216, 768, 1)),))
    plain, mixed = made(), made(columns)
    assert mixed.chosen is not None and plain.chosen is not None
    assert (mixed.chosen.tile.rows, mixed.chosen.blocks, mixed.chosen.turns) == (16, 512, 16)
    assert mixed.parts["row turn"] > 0 == plain.parts["row turn"]
    assert plain.chosen.blocks == 8192


def _gradient_of_a_norm(width: int, masks: int) -> Launch:
    read = tuple(Access(f"mask{number}", "load", "p0", (width, 1), "bool") for number in range(masks))
    rows = LoopNest((8192,), (width,), {"sum": 1}, (_load((width, 1)), *read), "sum")
    columns = LoopNest((16, 512, width), ops={"partial_accumulate": 1}, accesses=(_load((512 * width, width, 1)),))
    return _kernel(rows, columns, category="persistent_reduction")


def test_masks_cost_most_where_a_thread_holds_many_elements_of_rows_that_come_in_turns() -> None:
    machine = make_h200()

    def cost(launch: Launch) -> KernelCosts:
        return kernel_costs(launch, machine, cold_bytes=0.0, warm_us=0.0, vector_us=[0.0] * len(launch.loops))

    narrow, wide = (cost(_gradient_of_a_norm(width, 2)) for width in (512, 1024))
    assert narrow.held["log thread elements"] > wide.held["log thread elements"]
    assert narrow.parts["mask"] > 3 * wide.parts["mask"] > 0
    assert cost(_gradient_of_a_norm(512, 1)).parts["mask"] == pytest.approx(narrow.parts["mask"] / 2)
    assert cost(_gradient_of_a_norm(512, 0)).parts["mask"] == 0
    in_one_turn = LoopNest((8192,), (512,), {"sum": 1}, (Access("m", "load", "p0", (512, 1), "bool"),), "sum")
    assert cost(_kernel(in_one_turn, category="persistent_reduction")).parts["mask"] == 0


def test_a_model_that_knew_no_masks_is_asked_without_them() -> None:
    launch = _gradient_of_a_norm(512, 2)
    for networks, is_known in ((LATEST_NETWORKS, True), (6, False)):
        machine = make_h200(networks=networks)
        costs = kernel_costs(launch, machine, cold_bytes=0.0, warm_us=0.0, vector_us=[0.0] * len(launch.loops))
        assert (costs.parts["mask"] > 0) == is_known


def test_short_runs_that_begin_anywhere_meet_more_sectors_than_those_that_begin_where_a_sector_does() -> None:
    def turned(side: int) -> float:
        store = Access("y", "store", "p0", (1 << 20, 512, 1), "bfloat16")
        nest = LoopNest((64, side, 512), accesses=(_load((1 << 20, 1, side)), store))
        buffers = (make_buffer(name="x"), make_buffer(name="y", role="output"))
        return _costs(make_launch(category="pointwise", loops=(nest,), buffers=buffers)).parts["load"] / side

    assert turned(196) > 1.2 * turned(192)


def test_atomics_on_few_addresses_cost_a_hundred_times_those_on_rows() -> None:
    def summed(strides: tuple[int, ...], size: int) -> KernelCosts:
        atomic = Access("table", "atomic", "indirect0", strides, "float32", is_indirect=True)
        buffer = make_buffer(name="table", shape=(size,), stride=(1,))
        nest = LoopNest((1024, 1024), accesses=(atomic,))
        return _costs(make_launch(category="pointwise", loops=(nest,), buffers=(buffer,)))

    rows, crowded = summed((0, 1), 1 << 20), summed((0, 0), 256)
    assert crowded.parts["crowded atomic"] > 100 * rows.parts["row atomic"] > 0
    assert crowded.baseline_us(_MACHINE) > 500


def _narrow_us(dtype: str, strides: tuple[int, ...], table: int = 4096) -> float:
    """Of 65,536 atomics on a table of so many elements."""
    atomic = Access("table", "atomic", "indirect0", strides, dtype, is_indirect=True)
    nest = LoopNest((64, 1024), accesses=(atomic,))
    buffer = make_buffer(name="table", shape=(table,), stride=(1,))
    return _costs(make_launch(category="pointwise", loops=(nest,), buffers=(buffer,))).parts["narrow atomic"]


def test_scattered_atomics_on_two_bytes_cost_many_times_those_on_four() -> None:
    assert _narrow_us("bfloat16", (1, 0)) > 50
    assert _narrow_us("float32", (1, 0)) == _narrow_us("bfloat16", (0, 1)) == 0


def test_scattered_atomics_on_two_bytes_that_do_not_meet_cost_little() -> None:
    assert _narrow_us("bfloat16", (1, 0)) > 20 * _narrow_us("bfloat16", (1, 0), table=65_536) > 0


def test_scattered_stores_cost_more_in_rows_that_several_blocks_write() -> None:
    def scattered(width: int, networks: int = LATEST_NETWORKS) -> float:
        index = Access("index", "load", "p0", (width, 1), "int64")
        store = Access("y", "store", f"{width}*p0 + indirect0", (width, 0), "float32", is_indirect=True)
        nest = LoopNest((2**22 // width, width), accesses=(_load((width, 1)), index, store))
        buffers = (make_buffer(name="x"), make_buffer(name="index"), make_buffer(name="y", role="output"))
        launch = make_launch(category="pointwise", loops=(nest,), buffers=buffers)
        machine = make_h200(networks=networks)
        return kernel_costs(launch, machine, cold_bytes=0.0, warm_us=0.0, vector_us=[0.0]).parts["gather"]

    assert scattered(512) == pytest.approx(scattered(768), rel=0.01)
    assert scattered(2048) > 5 * scattered(512)
    assert scattered(2048, networks=7) == pytest.approx(scattered(512), rel=0.01)


def test_strides_that_are_no_constant_are_those_of_a_usual_step() -> None:
    assert local_strides("64*(p0 // 4) + (p1 % 32)", (None, None), (16, 64)) == (0, 1)
    assert local_strides("min(p0, 56)*3584 + p1", (None, 1), (40, 64)) == (3584, 1)


@given(st.text(alphabet="p0123456789+-*/%()., minax_", max_size=40))
def test_no_text_of_an_index_is_more_than_arithmetic(index: str) -> None:
    strides = local_strides(index, (None,), (8,))
    assert len(strides) == 1 and isinstance(strides[0], int)


@pytest.mark.parametrize("index", ["__import__('os').getpid()", "p0 ** p0", "open('x')", "p0 if p0 else 1", "("])
def test_an_index_that_is_no_arithmetic_is_not_evaluated(index: str) -> None:
    assert local_strides(index, (None,), (8,)) == (0,)


def test_shifts_are_cheaper_than_divisions() -> None:
    assert (
        divisions_of("p0 // 64", 0.2, 0.25)
        < divisions_of("p0 // 49", 0.2, 0.25)
        < divisions_of("p0 // 49 + p0 % 49", 0.2, 0.25)
    )
    assert divisions_of("p0 // 1", 0.2, 0.25) == 0


def test_what_addresses_of_a_pass_have_in_common_is_divided_once() -> None:
    one, shifted = "640*((p0 + 2) % 20) + p1", "320*((p0 + 2) % 20) + p1 // 3"
    assert distinct_divisions_of([one], 0.2, 0.25) == 1
    assert distinct_divisions_of([one, one], 0.2, 0.25) == 1
    assert distinct_divisions_of([one, shifted], 0.2, 0.25) == 2
    assert distinct_divisions_of(["(p0 % 20) // 4 + (p0 % 20) % 4"], 0.2, 0.25) == pytest.approx(1.4)
    assert distinct_divisions_of(["min(p0 // 1, 7)"], 0.2, 0.25) == 0.25


def test_an_index_that_cannot_be_read_counts_as_it_is_written() -> None:
    assert distinct_divisions_of(["ks0*(p0 // 20", "p0 // 20"], 0.2, 0.25) == 2


@given(
    extents=st.tuples(st.integers(1, 300), st.integers(1, 3000)),
    strides=st.tuples(st.sampled_from([0, 1, 7, 64, 3000]), st.sampled_from([0, 1, 8, 4096])),
    category=st.sampled_from(["pointwise", "reduction", "persistent_reduction"]),
)
def test_costs_are_finite_and_a_block_is_never_without_time(
    extents: tuple[int, int], strides: tuple[int, int], category: str
) -> None:
    outer, inner = ((extents[0],), (extents[1],)) if category != "pointwise" else (extents, ())
    nest = LoopNest(outer, inner, {"sum": 1}, (_load(strides),), "sum" if inner else None)
    launch = _kernel(nest, category=category)
    costs = _costs(launch)
    assert all(math.isfinite(value) for value in costs.columns(_MACHINE, costs.baseline_us(_MACHINE)).values())
    assert all(time >= 0 for time in costs.parts.values())
    tiles = cost_of_tiles(launch, launch.loops, memory_accesses(launch, launch.loops), _MACHINE)
    assert all(cost.blocks >= 1 and cost.time_us > 0 for cost in tiles)


def test_a_kernel_without_loops_costs_its_memory_and_the_launch() -> None:
    costs = kernel_costs(make_launch(loops=()), _MACHINE, cold_bytes=4.5e6, warm_us=0.0, vector_us=[])
    assert 1.0 < costs.baseline_us(_MACHINE) < 3.0


def _sorting_ops(columns: int, dtype: str = "float32", results: int = 1, networks: int = LATEST_NETWORKS) -> float:
    """Instructions of a kernel that sorts 4,096 rows."""
    access = Access("in", "load", f"{columns}*p0 + p1", strides=(columns, 1), dtype=dtype)
    nest = LoopNest((4096,), reduction_extents=(columns,), ops={"sort": results}, accesses=(access,))
    launch = make_launch(category="persistent_reduction", device="cuda:0", loops=(nest,))
    (found,) = features_of_launches([launch], make_h200(networks=networks))
    assert found is not None
    return sum(math.expm1(found.values[f"log {kind} ops"]) for kind in ("plain", "select"))


@given(st.integers(2, 512), st.integers(1, 9))
def test_a_longer_row_is_never_sorted_in_less_per_element(length: int, doublings: int) -> None:
    longer = length * 2**doublings
    assert 0 < _sorting_ops(length) / length < _sorting_ops(longer) / longer


@pytest.mark.parametrize("columns", [2, 100, 512])
def test_a_sort_costs_more_for_wide_elements_and_for_where_they_were(columns: int) -> None:
    narrow, wide = (_sorting_ops(columns, dtype) for dtype in ("bfloat16", "float32"))
    assert narrow < wide < _sorting_ops(columns, "float32", results=2)
    assert 2 * narrow < _sorting_ops(columns, "bfloat16", results=2)


def test_a_model_of_before_sorts_all_elements_alike() -> None:
    assert _sorting_ops(512, "bfloat16", networks=5) == _sorting_ops(512, "float32", networks=5)
