"""What recomputing modules frees of the peak, by the live set added up again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.factories import make_live_storage, make_step, make_step_call, make_step_memory
from tests.synthetic import write_ledger

from torchledger.books import open_books, read_recomputations
from torchledger.memory.advice import ForwardTimes, Recomputation, recomputations
from torchledger.memory.live_set import MemoryTotals, add_up_memory
from torchledger.nouns import LiveStorage
from torchledger.reporting.memory import advice_sentence
from torchledger.store import LedgerWriter, open_ledger


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
    found = by_pattern(recomputations(totals, ForwardTimes()))
    # After the forward 3 x 100 are left; each backward in turn has its own 1000 back.
    assert totals.peak_allocated_bytes == 3300
    assert found["layers.*.mlp"].peak_bytes == 1300
    assert found["layers.*.mlp"].freed_bytes == 2000
    assert found["layers.*.mlp"].instances == 3


def test_what_a_module_made_in_several_eager_calls_comes_back_together() -> None:
    def made(number: int, layer: int, born: int) -> LiveStorage:
        changes = {
            "module": f"layers.{layer}",
            "born": born,
            "born_in": born,
            "freed": 20 - born,
            "freed_in": 20 - born,
        }
        return make_live_storage(number=number, category="activations", nbytes=1000, **changes)

    storages = [made(number, number // 2, number) for number in range(4)]
    again = [replace(each, number=4 + each.number, born=30 + each.number, freed=50 - each.number) for each in storages]
    found = by_pattern(recomputations(add_up_memory(make_step_memory(), storages), ForwardTimes()))["layers.*"]
    assert (found.instances, found.peak_bytes) == (2, 2000)
    twice = recomputations(add_up_memory(make_step_memory(), [*storages, *again]), ForwardTimes())
    assert by_pattern(twice)["layers.*"].instances == 4, "a backward lies between"


def test_what_other_modules_read_of_a_module_stays() -> None:
    kept = by_pattern(recomputations(make_training(3), ForwardTimes()))
    dropped = by_pattern(recomputations(make_training(3, output_is_read=False), ForwardTimes()))
    assert kept["layers.*.mlp"].peak_bytes == 1300
    assert "layers.*" not in kept, "it would free no more than its part does"
    assert dropped["layers.*"].peak_bytes < 1300


def test_a_single_module_frees_nothing_where_its_own_backward_is_the_peak() -> None:
    assert recomputations(make_training(1), ForwardTimes()) == []


def test_the_cost_is_the_forward_s_time_of_all_instances_over_the_step_s() -> None:
    times = {"layers.0.mlp": 10.0, "layers.1.mlp.0": 20.0, "layers.2.mlp": 30.0, "head": 500.0}
    found = by_pattern(recomputations(make_training(3), ForwardTimes(1000.0, 990.0, times, {"layers.0.mlp": 400.0})))
    assert found["layers.*.mlp"].added_us == 60.0
    assert found["layers.*.mlp"].added_share == 0.06


def test_times_of_a_part_that_was_compiled_alone_belong_to_where_it_stands() -> None:
    found = by_pattern(recomputations(make_training(3), ForwardTimes(device_us={"mlp": 42.0})))
    assert found["layers.*.mlp"].added_us == 42.0
    assert found["layers.*.mlp"].added_share is None


def test_a_cost_that_was_not_measured_is_unknown() -> None:
    found = by_pattern(recomputations(make_training(3), ForwardTimes(100.0, device_us={"head": 5.0})))
    assert found["layers.*.mlp"].added_us is None


def test_where_the_device_waits_for_the_host_the_cost_is_the_hosts() -> None:
    totals, device = make_training(3), {"layers.0.mlp": 60.0}
    host_bound = ForwardTimes(1000.0, 700.0, device, {"layers.0.mlp": 200.0})
    found = by_pattern(recomputations(totals, host_bound))["layers.*.mlp"]
    # Three calls of a checkpoint, with a tensor saved in each, take 3 x (60 + 15) us of the host beside its forward.
    assert (found.added_us, found.added_share, found.host_decides) == (425.0, 0.425, True)
    assert "+42.5 % step time at least: the host decides" in advice_sentence(found)
    quick_host = ForwardTimes(1000.0, 890.0, {"layers.0.mlp": 500.0}, {"layers.0.mlp": 5.0})
    assert by_pattern(recomputations(totals, quick_host))["layers.*.mlp"].added_us == 390.0
    unknown = ForwardTimes(1000.0, 700.0, device)
    assert by_pattern(recomputations(totals, unknown))["layers.*.mlp"].added_us == 60.0


def test_modules_inside_one_graph_are_made_again_by_it_without_a_checkpoint_of_their_own() -> None:
    training = make_training(3)
    compiled = [replace(each, born_launch=0) for each in training.storages]
    times = ForwardTimes(1000.0, 700.0, {"layers.0.mlp": 60.0}, {"layers.0.mlp": 200.0})
    found = by_pattern(recomputations(add_up_memory(make_step_memory(), compiled), times))["layers.*.mlp"]
    assert (found.added_us, found.host_decides, found.is_least) == (200.0, True, False)
    assert "at about +20.0 % step time: the host decides" in advice_sentence(found)
    apart = [replace(each, born_in=each.number // 2) for each in compiled]
    found = by_pattern(recomputations(add_up_memory(make_step_memory(), apart), times))["layers.*.mlp"]
    assert (found.added_us, found.is_least) == (425.0, True), "each is a call of a graph, with a checkpoint around it"


def test_the_cost_is_a_share_of_the_step_as_it_is_without_the_profiler(tmp_path: Path) -> None:
    path = write_ledger(tmp_path / "a.ledger", launches=1)
    step = make_step(plain_us=(1000.0,), wall_us=2000.0, busy_us=500.0, clock="cupti")
    facts = {"kind": "operator", "phase": "forward", "modules": ("layers.0.mlp",), "samples_us": (10.0,)}
    with LedgerWriter(path, append=True) as writer:
        writer.add(
            step,
            make_step_call(step=step.name, name="aten::mm", start_us=0.0, host_us=20.0, **facts),
            make_step_call(step=step.name, name="aten::relu", order=1, start_us=300.0, host_us=20.0, **facts),
            make_step_call(step=step.name, name="aten::add", order=2, start_us=600.0, phase="backward"),
            make_step_memory(step=step.name),
            *(replace(each, step=step.name) for each in make_training(3).storages),
        )
    with open_ledger(path) as reader:
        found = by_pattern(read_recomputations(open_books(reader)))["layers.*.mlp"]
    own = 0.225
    assert found.added_share == pytest.approx(0.3 + own), "600 us between its calls, under a profiler that doubles it"
