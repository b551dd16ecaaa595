"""A watch's life: same bits, every launch, filters, levels, files, caches, other wrappers."""

from __future__ import annotations

import runpy
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor

import model_zoo
import torchledger
from factories import make_launch
from planted import DIVISION, LOG, faulty, loss_of, make_planted, neutral
from torchledger.errors import UsageError
from torchledger.nouns import Gap, Graph, Launch, ValueStats, WatchedGraph
from torchledger.store import open_ledger
from torchledger.watching.options import ValueOptions, from_environment, parse_calls
from torchledger.watching.saving import load_tensors
from torchledger.watching.session import Watch


def train(name: str) -> list[Tensor]:
    torch._dynamo.reset()
    case = model_zoo.make(name)
    loss = case.loss(torch.compile(case.module), *case.inputs)
    loss.backward()
    return [loss.detach(), *(p.grad for p in case.module.parameters() if p.grad is not None)]


_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("gpt_block", "experts", "mixer")]


@pytest.mark.parametrize("name", ["conv_net", *_SLOW])
def test_every_launch_is_watched_and_results_are_the_same_bits(tmp_path: Path, name: str) -> None:
    with torchledger.values(tmp_path / "a.ledger", find="nan", level="stats") as watch:
        watched = train(name)
    assert all(map(torch.equal, watched, train(name)))
    with open_ledger(watch.path) as reader:
        graphs, launches = reader.read(WatchedGraph), reader.read(Launch)
        assert reader.read(Gap) == []
        stats = reader.read(ValueStats)
    assert stats == watch.stats
    assert {graph.graph for graph in graphs} == {"forward_0", "backward_0"}
    for graph in graphs:
        assert graph.launches == graph.watched == graph.seen > 0
    assert watch.findings == []
    written = {item.subject for item in stats if item.moment == "after"}
    assert written == {launch.launch_id for launch in launches if launch.is_call}
    known = {launch.launch_id: {buffer.name for buffer in launch.buffers} for launch in launches}
    named = [item for item in stats if item.moment != "input" and not is_number(item)]
    assert sum(item.buffer in known[item.subject] for item in named) >= 0.9 * len(named)


def is_number(item: ValueStats) -> bool:
    """True for a number among a launch's arguments, which the ledger's buffers do not name."""
    return item.dtype in ("bool", "int", "float") and item.shape == ()


def run_planted(path: Path | None = None, times: int = 1, **options: Any) -> Watch:
    model, x = make_planted("mlp")
    torch._dynamo.reset()
    with torch.no_grad(), torchledger.values(path, **options) as watch:
        compiled = torch.compile(model)
        for _ in range(times):
            compiled(x, neutral(model))
    return watch


def test_names_are_told_as_launches_start_and_end() -> None:
    lines: list[str] = []
    watch = run_planted(level="names", print_to=lines.append)
    assert watch.stats == []
    assert [line.split()[0] for line in lines] == ["before", "after"] * (len(lines) // 2)
    assert any("extern_kernels.addmm" in line for line in lines)
    assert any("planted.py" in line for line in lines)


def test_filters_select_by_kernel_category_module_line_graph_and_call() -> None:
    everything = run_planted(times=3)
    subjects = {item.subject for item in everything.stats if "#" in item.subject}
    for options, expected in (
        ({"kernel": ("addmm",)}, lambda launch: "addmm" in launch.kernel_name),
        ({"category": ("extern",)}, lambda launch: launch.category == "extern"),
        ({"module": ("plants.1",)}, lambda launch: "plants.1" in launch.modules),
        ({"source": ("*planted.py:*",)}, lambda launch: any("planted.py" in line.file for line in launch.sources)),
        ({"graph": ("inference",)}, lambda launch: True),
    ):
        watch = run_planted(**options)
        chosen = {subject for subject in subjects if expected(everything.launch(subject))}  # type: ignore[no-untyped-call]
        assert {item.subject for item in watch.stats if "#" in item.subject} == chosen, options
    assert {item.call_index for item in run_planted(times=3, calls="1-").stats} == {1, 2}


def test_of_inputs_and_of_launches_a_filter_leaves_what_it_asks_for(tmp_path: Path) -> None:
    watch = run_planted(tmp_path / "a.ledger", kernel=("addmm",))
    with open_ledger(tmp_path / "a.ledger") as reader:
        (graph,) = reader.read(WatchedGraph)
        asked = [launch for launch in reader.read(Launch) if "addmm" in launch.kernel_name]
    read = {buffer.name for launch in asked for buffer in launch.buffers}
    assert {item.buffer for item in watch.stats if item.moment == "input"} <= read
    assert graph.watched == graph.seen == len(asked) < graph.launches


def test_numbers_of_a_library_call_bear_the_names_of_the_operators_schema(tmp_path: Path) -> None:
    torch._dynamo.reset()
    layer = torch.compile(torch.nn.Conv2d(2, 4, 3, groups=2))
    with torchledger.values(tmp_path / "a.ledger") as watch:
        layer(torch.ones(1, 2, 8, 8, requires_grad=True)).sum().backward()
    named = {item.buffer: item.elements for item in watch.stats if item.dtype in ("int", "bool")}
    assert named["groups"] == "2" and named["transposed"] == "False"
    assert not any(name.startswith("argument") for name in named)


def test_a_filter_that_matches_nothing_says_so_with_near_names() -> None:
    watch = run_planted(kernel=("extern_kernels.admm",))
    assert watch.stats == [] or all(item.moment == "input" for item in watch.stats)
    with open_ledger(watch.path) as reader:
        (note,) = reader.run().notes
        assert reader.run().values_lack == ("nothing matched",)
    assert "no launch passed the filters" in note
    assert "extern_kernels.addmm" in note


def test_saved_tensors_are_what_the_launch_computed_and_nothing_is_overwritten(tmp_path: Path) -> None:
    watch = run_planted(tmp_path / "a.ledger", times=2, level="save", kernel=("addmm",))
    stats = [item for item in watch.stats if item.moment == "after"]
    paths = {item.path for item in stats}
    assert None not in paths
    assert len(paths) == 2 * len({item.subject for item in stats})
    for item in stats:
        tensor = load_tensors(item.path or "")[f"after.{item.buffer}"]
        assert tuple(tensor.shape) == item.shape
        assert float(tensor.max()) == item.maximum
    assert all(Path(path or "").parent.parent == tmp_path / "a.values" for path in paths)


def test_an_extracted_kernel_starts_from_what_the_bad_launch_read(tmp_path: Path) -> None:
    from torchledger.replaying.extract import extract_kernel

    watch = run_planted(tmp_path / "a.ledger", level="save", kernel=("fused", "addmm"))
    for word in ("fused", "addmm"):
        item = next(
            item
            for item in watch.stats
            if item.moment == "before"
            and not is_number(item)
            and word in (watch.launch(item.subject) or make_launch()).kernel_name
        )
        extracted = extract_kernel(watch.path, item.subject, tmp_path / f"{word}.py")
        namespace = runpy.run_path(str(extracted.path))
        inputs = namespace["make_inputs"]()
        assert torch.equal(inputs[item.buffer], load_tensors(item.path or "")[f"before.{item.buffer}"])
        assert namespace["check"]() is not False


def test_a_spent_budget_keeps_what_was_saved_and_counts_the_rest(tmp_path: Path) -> None:
    watch = run_planted(tmp_path / "a.ledger", times=2, level="save", budget_bytes=8_000)
    saved = {item.path for item in watch.stats if item.path}
    assert saved
    for path in saved:
        load_tensors(path)
    with open_ledger(watch.path) as reader:
        (note,) = reader.run().notes
        assert reader.run().values_lack == ("not saved",)
    assert "budget" in note
    assert not list((tmp_path / "a.values").rglob("*.unfinished"))


def test_a_full_disk_stops_saving_and_not_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch

    def full(*args: object, **keywords: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    watch = run_planted(tmp_path / "a.ledger", level="save")
    assert watch.stats
    with open_ledger(watch.path) as reader:
        (note,) = reader.run().notes
    assert "No space left" in note


def test_without_anything_to_do_generated_code_is_left_alone() -> None:
    watch = run_planted(level="off")
    assert watch._graphs == []


def test_after_the_block_nothing_is_watched_any_more() -> None:
    model, x = make_planted("mlp")
    torch._dynamo.reset()
    with torch.no_grad(), torchledger.values(find="nan", level="off") as watch:
        compiled = torch.compile(model)
        compiled(x, neutral(model))
    with torch.no_grad():
        assert compiled(x, faulty(model, 0, LOG, -1.0)).isnan().any()
    assert watch.findings == []


def test_graphs_out_of_a_warm_cache_are_watched_as_fresh_ones(tmp_path: Path) -> None:
    run_planted()  # fills the cache
    watch = run_planted(tmp_path / "a.ledger")
    with open_ledger(watch.path) as reader:
        assert [graph.cache_hit for graph in reader.read(Graph)] == [True]
        (graph,) = reader.read(WatchedGraph)
    assert graph.launches == graph.watched == graph.seen > 0


def test_a_wrapper_that_is_loaded_twice_is_told_by_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache with two entries loads a wrapper for the first, finds that it does not serve, and loads it again."""
    load = Watch._on_load

    def load_twice(self: Watch, module: ModuleType, path: str) -> None:
        if hasattr(module, "call"):
            unused = ModuleType("unused")
            unused.call = module.call  # type: ignore[attr-defined]
            load(self, unused, path)
        load(self, module, path)

    monkeypatch.setattr(Watch, "_on_load", load_twice)
    watch = run_planted(times=2, level="stats")
    assert watch.stats and all(stats.subject.startswith("inference_0") for stats in watch.stats)


def test_what_asks_for_a_cpp_wrapper_is_watched_launch_by_launch_and_says_so(tmp_path: Path) -> None:
    torch._dynamo.reset()
    x = torch.tensor([[1.0, -1.0, 2.0]], requires_grad=True)
    with (
        torch._inductor.config.patch(cpp_wrapper=True),
        torchledger.values(tmp_path / "a.ledger", find="nan") as watch,
    ):
        (torch.compile(lambda x: x.log() @ torch.ones(3, 3))(x)).sum().backward()
    assert watch.first_bad is not None and watch.first_bad.verdict == "created here"
    with open_ledger(watch.path) as reader:
        assert any("C++ wrappers were written in Python" in note for note in reader.run().notes)
        assert {graph.wrapper_language for graph in reader.read(Graph)} == {"python"}
        graphs = reader.read(WatchedGraph)
    assert {graph.graph for graph in graphs} == {"forward_0", "backward_0"}
    assert all(graph.launches == graph.watched == graph.seen > 0 for graph in graphs)


def test_small_tensors_are_kept_whole_and_numbers_that_a_launch_is_given_too(tmp_path: Path) -> None:
    lines: list[str] = []
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: torch.relu(x @ y) * 3, dynamic=True)
    with torchledger.values(tmp_path / "a.ledger", print_to=lines.append, elements=6) as watch:
        compiled(torch.ones(2, 4), torch.ones(4, 3))
    whole = {item.buffer: item.elements for item in watch.stats if item.elements is not None and item.shape}
    assert set(whole.values()) == {"[[4, 4, 4], [4, 4, 4]]", "[[12, 12, 12], [12, 12, 12]]"}
    assert all(item.elements is None for item in watch.stats if item.shape in ((2, 4), (4, 3)))
    sizes = [item for item in watch.stats if item.dtype == "int"]
    assert sizes and all(item.buffer.startswith("s") and item.elements in ("2", "3", "4") for item in sizes)
    assert [line for line in lines if line.endswith("= [[12, 12, 12], [12, 12, 12]]")]


def test_a_tensor_can_be_saved_in_a_file_of_its_own(tmp_path: Path) -> None:
    watch = run_planted(tmp_path / "a.ledger", level="save", kernel=("addmm",), files="tensor")
    saved = [item for item in watch.stats if item.path is not None]
    assert len({item.path for item in saved}) == len(saved) > 1
    for item in saved:
        (tensor,) = load_tensors(item.path or "").values()
        assert Path(item.path or "").name == f"{item.moment}.{item.buffer}.safetensors"
        assert float(tensor.max()) == item.maximum


def test_multi_output_calls_inline_lines_and_branches_are_seen(tmp_path: Path) -> None:
    def mixed(x: Tensor) -> Tensor:
        values, indices = torch.sort(x @ x, dim=-1)
        picked = torch.cond(x.sum() > 0, lambda x: (x @ x).sin(), lambda x: (x @ x).cos() * 2, (values,))
        return picked + indices

    torch._dynamo.reset()
    with torch.no_grad(), torchledger.values(tmp_path / "a.ledger") as watch:
        torch.compile(mixed)(torch.rand(8, 8))
    kernels = {
        item.subject: launch.kernel_name for item in watch.stats if (launch := watch.launch(item.subject)) is not None
    }
    sorted_dtypes = {item.dtype for item in watch.stats if "sort" in kernels.get(item.subject, "")}
    assert {"float32", "int64"} <= sorted_dtypes
    with open_ledger(watch.path) as reader:
        (graph,) = reader.read(WatchedGraph)
    assert graph.watched == graph.launches > graph.seen  # one branch did not run


def test_two_runs_part_where_the_second_was_changed(tmp_path: Path) -> None:
    from torchledger.watching.compare import compare_values

    model, x = make_planted("mlp")
    for name, dial in (("one", neutral(model)), ("same", neutral(model)), ("other", faulty(model, 1, DIVISION, 2.0))):
        torch._dynamo.reset()
        with torch.no_grad(), torchledger.values(tmp_path / f"{name}.ledger"):
            torch.compile(model)(x, dial)
    with (
        open_ledger(tmp_path / "one.ledger") as one,
        open_ledger(tmp_path / "same.ledger") as same,
        open_ledger(tmp_path / "other.ledger") as other,
    ):
        equal, changed = compare_values(one, same), compare_values(one, other)
        first = next(pair for pair in changed.apart if pair.first.moment == "after")
        launch = next(launch for launch in one.iterate(Launch) if launch.launch_id == first.first.subject)
    assert equal.apart == ()
    assert (equal.only_first, equal.only_second) == (0, 0)
    assert changed.apart[0].first.moment == "input"  # the dial itself
    assert "plants.1" in launch.modules


def test_a_bad_gradient_stays_out_of_a_clean_step(tmp_path: Path) -> None:
    model, x = make_planted("mlp")
    torch._dynamo.reset()
    with torchledger.values(tmp_path / "a.ledger", find="nan", level="off") as watch:
        loss_of(torch.compile(model)(x, neutral(model))).backward()
    assert watch.first_bad is None


def test_options_that_mean_nothing_are_refused_at_once() -> None:
    for wrong in ({"level": "loud"}, {"find": "trouble"}, {"calls": "first"}, {"beyond": "int8"}):
        with pytest.raises(UsageError):
            ValueOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be loaded"):
        torchledger.values(find="absent_module:function")


def test_the_builtin_printers_variables_choose_level_and_kernels() -> None:
    environment = {
        "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER": "3",
        "AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT": "mm_1, mm_2",
    }
    assert from_environment(environment) == {"level": "names", "kernel": ("mm_1", "mm_2")}
    assert from_environment({}) == {}


def test_options_survive_the_way_into_another_process() -> None:
    import json

    options = ValueOptions(level="save", find="inf", kernel=("a", "b"), calls="1-2")
    assert ValueOptions.from_plain(json.loads(json.dumps(options.as_plain()))) == options
    assert parse_calls(None) == []


def test_a_run_in_which_nothing_is_found_says_so(tmp_path: Path) -> None:
    watch = run_planted(tmp_path / "a.ledger", find="nan", level="off")
    assert watch.findings == []
    with open_ledger(watch.path) as reader:
        assert any(note.startswith("no NaN in 1 call of compiled graphs") for note in reader.run().notes)


def test_a_buffer_that_is_filled_and_then_changed_in_place_is_no_difference_to_eager() -> None:
    def most(x: Tensor, places: Tensor) -> Tensor:
        return torch.full((6,), -1e9).scatter_reduce(0, places, x.sin(), "amax")[places].exp()

    torch._dynamo.reset()
    with torchledger.values(against_eager=True, level="off") as watch:
        torch.compile(most)(torch.randn(20), torch.arange(20) % 6)
    assert any(item.compiled_error == 0.0 and item.fx_node == "scatter_reduce" for item in watch.comparisons)
    assert not any(item.is_within is False for item in watch.comparisons)


def test_a_graph_that_is_recorded_and_a_call_that_is_kept_on_two_threads_do_not_wait_for_each_other(
    tmp_path: Path,
) -> None:
    with torchledger.values(tmp_path / "a.ledger", level="off", find="nan") as watch:
        is_kept = threading.Event()

        def call() -> None:
            with watch._lock:
                is_kept.set()
                with watch._capture.lock:
                    pass

        with watch._capture.lock:  # as while a graph is recorded, of which the watch is told next
            thread = threading.Thread(target=call, daemon=True)
            thread.start()
            is_kept.wait(timeout=0.2)
            assert watch._lock.acquire(timeout=5)
            watch._lock.release()
        thread.join(timeout=5)
        assert not thread.is_alive()
