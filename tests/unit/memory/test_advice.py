"""What recomputing modules frees of the peak, by the live set added up again."""

from __future__ import annotations

from tests.factories import make_live_storage, make_step_memory

from torchledger.memory.advice import Recomputation, recomputations
from torchledger.memory.live_set import MemoryTotals, add_up_memory
from torchledger.nouns import LiveStorage


def make_training(layers: int = 3, *, output_is_read: bool = True) -> MemoryTotals:
    """Layers that keep a wide tensor of their ``mlp`` and a small output each; the backward frees them in turn."""
    storages: list[LiveStorage] = []
    for layer in range(layers):
        end = 100 + 10 * (layers - layer)
        path = f"layers.{layer}"
        wide = make_live_storage(
            number=len(storages),
            category="activations",
            nbytes=1000,
            module=f"{path}.mlp",
            born=2 * layer,
            born_in=0,
            freed=end,
            freed_in=1,
        )
        readers = (f"layers.{layer + 1}.mlp",) if output_is_read else ()
        small = make_live_storage(
            number=len(storages) + 1,
            category="activations",
            nbytes=100,
            module=path,
            born=2 * layer + 1,
            born_in=0,
            freed=end + 1,
            freed_in=1,
            read_by=readers,
        )
        storages += [wide, small]
    return add_up_memory(make_step_memory(), storages)


def by_pattern(found: list[Recomputation]) -> dict[str, Recomputation]:
    return {each.pattern: each for each in found}


def test_one_instance_s_tensors_come_back_at_a_time() -> None:
    totals = make_training(3)
    found = by_pattern(recomputations(totals, {}, step_us=None))
    # After the forward 3 x 100 are left; each backward in turn has its own 1000 back.
    assert totals.peak_allocated_bytes == 3300
    assert found["layers.*.mlp"].peak_bytes == 1300
    assert found["layers.*.mlp"].freed_bytes == 2000
    assert found["layers.*.mlp"].instances == 3


def test_what_other_modules_read_of_a_module_stays() -> None:
    kept = by_pattern(recomputations(make_training(3), {}, step_us=None))
    dropped = by_pattern(recomputations(make_training(3, output_is_read=False), {}, step_us=None))
    assert kept["layers.*.mlp"].peak_bytes == 1300
    assert "layers.*" not in kept, "it would free no more than its part does"
    assert dropped["layers.*"].peak_bytes < 1300


def test_a_single_module_frees_nothing_where_its_own_backward_is_the_peak() -> None:
    assert recomputations(make_training(1), {}, step_us=None) == []


def test_the_cost_is_the_forward_s_time_of_all_instances_over_the_step_s() -> None:
    times = {"layers.0.mlp": 10.0, "layers.1.mlp.0": 20.0, "layers.2.mlp": 30.0, "head": 500.0}
    found = by_pattern(recomputations(make_training(3), times, step_us=1000.0))
    assert found["layers.*.mlp"].added_us == 60.0
    assert found["layers.*.mlp"].added_share == 0.06


def test_times_of_a_part_that_was_compiled_alone_belong_to_where_it_stands() -> None:
    found = by_pattern(recomputations(make_training(3), {"mlp": 42.0}, step_us=None))
    assert found["layers.*.mlp"].added_us == 42.0
    assert found["layers.*.mlp"].added_share is None


def test_a_cost_that_was_not_measured_is_unknown() -> None:
    found = by_pattern(recomputations(make_training(3), {"head": 5.0}, step_us=100.0))
    assert found["layers.*.mlp"].added_us is None
