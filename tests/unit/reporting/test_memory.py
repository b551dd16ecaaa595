"""What reports say of a step's memory."""

from __future__ import annotations

from tests.factories import make_live_storage, make_step_call, make_step_memory

from torchledger.memory.advice import Recomputation
from torchledger.memory.live_set import MemoryTotals, add_up_memory
from torchledger.nouns import LiveStorage
from torchledger.reporting.document import Facts, Table
from torchledger.reporting.html_memory import MOST_POINTS, memory_of_step
from torchledger.reporting.memory import advice_sentence, entry_name, memory_as_plain, memory_sections

CALLS = (make_step_call(kind="graph", name="forward_0", phase="forward", order=0, call=1),)


def make_totals(*storages: LiveStorage) -> MemoryTotals:
    made = make_live_storage(
        number=1, category="activations", nbytes=300, born=0, born_in=0, born_launch=4, module="mlp", source="m.py:3"
    )
    return add_up_memory(
        make_step_memory(counter="cpu_profiler", measured_peak_bytes=400, counted={"0": 400}),
        [make_live_storage(category="parameters", name="mlp.weight"), made, *storages],
    )


def test_the_json_has_the_peak_its_entry_and_what_is_alive_there() -> None:
    plain = memory_as_plain(make_totals(), CALLS)
    assert plain is not None
    assert plain["peak_allocated_bytes"] == plain["measured_peak_bytes"] == 400
    assert plain["peak_at"] == {"order": 0, "entry": "forward_0#4 (call 2)", "launch": 4, "phase": "forward"}
    assert plain["by_category"] == {"parameters": 100, "activations": 300}
    assert plain["by_module"] == {"mlp": 300, "(none)": 100}
    assert [each["nbytes"] for each in plain["heaviest"]] == [300, 100]
    assert memory_as_plain(None, ()) is None


def test_the_tables_of_the_peak_add_to_it_however_few_rows_are_shown() -> None:
    storages = [make_live_storage(number=10 + n, nbytes=10 + n, module=f"part_{n}") for n in range(9)]
    sections = memory_sections(make_totals(*storages), CALLS, top=3)
    for section in sections[:2]:
        (table,) = (block for block in section.blocks if isinstance(block, Table))
        assert table.total is not None
        assert sum(row[1] for row in table.rows) == table.total[1]


def test_reserved_memory_stands_apart_from_what_is_allocated() -> None:
    memory = make_step_memory(
        device="cuda:0", counter="cuda_allocator", measured_peak_bytes=1000, reserved_peak_bytes=1500
    )
    (facts, *_) = memory_sections(add_up_memory(memory, [make_live_storage()]), CALLS, top=3)[0].blocks
    assert isinstance(facts, Facts)
    assert dict(facts.rows)["reserved"] == (
        "1.50 kB, 500 B of it held beside these (fragmentation, caches, pools of CUDA graphs)"
    )


def test_advice_is_one_sentence_and_an_unknown_cost_is_said() -> None:
    advice = Recomputation("layers.*.mlp", 12, 11_200_000_000, 1, 5.0, 0.06)
    assert advice_sentence(advice) == "Recompute layers.*.mlp: -11.2 GB at +6.0 % step time."
    unknown = Recomputation("layers.*.mlp", 12, 11_200_000_000, 1, None, None)
    assert advice_sentence(unknown) == "Recompute layers.*.mlp: -11.2 GB; its forward's time was not measured."


def test_a_moment_before_all_calls_is_the_beginning_of_the_step() -> None:
    assert entry_name(-1, None, CALLS) == "the beginning of the step"


def test_the_page_s_levels_add_to_what_is_alive_and_hold_the_peak() -> None:
    totals = make_totals()
    data = memory_of_step(totals, CALLS, (), words=str, shorten=str)
    assert data is not None
    heights = [sum(level) for level in zip(*data["levels"], strict=True)]
    assert heights == [100, 400]
    assert max(heights) == data["peak_bytes"]
    assert data["entries"] == ["the beginning of the step", "forward_0#4 (call 2)"]
    assert data["counted"] == [None, 400]


def test_a_long_step_is_drawn_by_the_highest_of_its_neighbours() -> None:
    storages = [
        make_live_storage(number=n, nbytes=n % 7 + 1, born=2 * n, born_in=n, freed=2 * n + 1, freed_in=n)
        for n in range(5000)
    ]
    totals = add_up_memory(make_step_memory(), storages)
    data = memory_of_step(totals, (), (), words=str, shorten=str)
    assert data is not None
    assert len(data["entries"]) <= MOST_POINTS
    assert data["left_out"] == 5001 - len(data["entries"])
    assert max(sum(level) for level in zip(*data["levels"], strict=True)) == totals.peak_allocated_bytes == 7
