"""What ``show`` answers, as data and as text; golden files beside the arithmetic that must hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from factories import (
    make_buffer,
    make_environment,
    make_graph,
    make_kernel,
    make_launch,
    make_run,
    make_step,
    make_step_call,
)
from synthetic import write_ledger
from torchledger.errors import UsageError
from torchledger.nouns import Access, Compilation, FlopReference, Gap, LoopNest, Measurement, Run, SourceLine
from torchledger.reporting.guards import guards_document, read_compilations
from torchledger.reporting.overview import (
    ledger_document,
    overview_as_plain,
    overview_document,
    shorten_source,
    verdict,
)
from torchledger.reporting.remarks import remarks
from torchledger.reporting.story import story_as_plain, story_document, tell_story, wrapper_document
from torchledger.reporting.summary import Costs, Summary, fold_modules, summarize_ledger
from torchledger.reporting.terminal import render
from torchledger.reporting.values import summarize_values, values_document
from torchledger.store import LedgerReader, LedgerWriter, open_ledger
from torchledger.store.find import find_kernel
from torchledger.traces.breakdown import breakdown_of_trace
from torchledger.traces.reading import trace_from_events
from trace_factories import small_trace

Golden = Callable[[str, str], None]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    with open_ledger(write_ledger(Path("gpt.ledger"), launches=60)) as opened:
        yield opened


def _summarize(path: Path, *records: Any) -> Summary:
    with LedgerWriter(path) as writer:
        writer.add(*records)
    with open_ledger(path) as reader:
        return summarize_ledger(reader)


def _remarks(path: Path, *records: Any) -> str:
    return " ".join(remarks(_summarize(path, *records)))


# --- overview --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_overview_on_screen(reader: LedgerReader, golden: Golden, width: int) -> None:
    golden(f"show_{width}.txt", render(overview_document(summarize_ledger(reader)), width=width))


@pytest.mark.parametrize("grouping", ["by_category", "by_source", "by_module", "graphs", "kernels"])
def test_groups_add_to_the_total(reader: LedgerReader, grouping: str) -> None:
    plain = overview_as_plain(summarize_ledger(reader))
    for key in ("launches", "flops", "vector_flops", "bytes_moved", "unknown_flops"):
        assert sum(group[key] for group in plain[grouping]) == plain["totals"][key]


def test_rows_of_every_table_add_to_its_total_although_tables_are_capped(reader: LedgerReader) -> None:
    document = overview_document(summarize_ledger(reader), top=2, module_depth=4)
    tables = [block for section in document.sections for block in section.blocks if getattr(block, "total", None)]
    assert len(tables) == 4
    for table in tables:
        position = [column.key for column in table.columns].index("launches")
        assert sum(row[position] for row in table.rows) == table.total[position] == 60


@pytest.mark.parametrize("depth", [1, 2, 3, 9])
def test_folding_modules_keeps_their_sum(reader: LedgerReader, depth: int) -> None:
    groups = fold_modules(summarize_ledger(reader).by_module, depth)
    assert sum(group.costs.launches for group in groups) == 60
    assert all(len(group.name.split(".")) <= depth for group in groups)


def test_the_balance_in_json_is_account_by_account(reader: LedgerReader) -> None:
    balance = overview_as_plain(summarize_ledger(reader))["balance"]
    assert {"launches", "flops", "bytes", "sources"} <= set(balance)
    for account in balance.values():
        assert {"ledger", "reference", "missing", "differences", "unit", "note", "is_balanced"} <= set(account)
        assert isinstance(account["missing"], list)


def test_a_group_of_unknown_costs_is_unknown_and_not_zero(tmp_path: Path) -> None:
    summary = _summarize(tmp_path / "x", make_run(), make_graph(), make_launch(flops=None, call="f()"))
    assert summary.totals == Costs(1, None, None, 8192, unknown_flops=1, unknown_bytes=0)
    assert "unknown" in render(overview_document(summary))


def test_a_run_that_compiled_nothing_asks_whether_torch_compile_is_called(tmp_path: Path) -> None:
    said = _remarks(tmp_path / "x", make_run()).lower()
    assert "no compiled graph: is torch.compile called?" in said and "starts by multiprocessing" in said
    assert "`torchledger run --profile` records steps" in said


def test_a_run_whose_profile_found_no_step_is_not_sent_to_profile_it(tmp_path: Path) -> None:
    gap = Gap("device_time", "profile", "no optimizer stepped")
    said = _remarks(tmp_path / "x", make_run(), gap)
    assert "no compiled graph: is torch.compile called?" in said.lower()
    assert "run --profile" not in said and "end with an optimizer's step" in said
    lines = verdict(_summarize(tmp_path / "y", make_run(), gap))
    assert lines[1] == "A profile was made and holds no step: no optimizer stepped."


@pytest.mark.parametrize(
    ("program", "advice"),
    [("train.py", "torchledger run --profile SCRIPT."), ("/env/ipykernel_launcher.py", "%%ledger --profile.")],
)
def test_how_to_profile_is_said_for_where_it_was_recorded(tmp_path: Path, program: str, advice: str) -> None:
    summary = _summarize(tmp_path / "x", make_run(argv=(program,)), make_graph())
    assert verdict(summary)[-1] == f"What a step takes and where it goes: {advice}"


def test_an_empty_ledger_says_so_at_once_and_why(tmp_path: Path) -> None:
    why = "the program loads a package"
    lines = verdict(_summarize(tmp_path / "x", make_run(left_eager=why, notes=(why,))))
    assert lines == ("This ledger is empty: no graph was compiled.", "The program loads a package.")
    first, second = verdict(_summarize(tmp_path / "y", make_run(status="failed", exit_code=1)))
    assert "the script failed (exit code 1) before" in first and "is torch.compile called?" in second
    with open_ledger(tmp_path / "x") as reader:
        assert render(overview_document(summarize_ledger(reader))).count("The program loads a package") == 1


def test_an_imported_trace_is_not_asked_whether_torch_compile_is_called(tmp_path: Path) -> None:
    imported = make_run(environment=make_environment(platform="imported trace"))
    summary = _summarize(tmp_path / "x", imported)
    assert not any("is torch.compile called?" in text for text in remarks(summary))
    assert "a trace that somebody else recorded" in verdict(summary)[0]
    assert not any("holds no step" in line or "run --profile" in line for line in verdict(summary))


def test_an_imported_trace_has_no_balance_sheet_as_sums_of_nothing_would_balance(tmp_path: Path) -> None:
    imported = make_run(environment=make_environment(platform="imported trace"))
    assert "balance" not in render(overview_document(_summarize(tmp_path / "x", imported))).lower()


def test_a_ledger_with_a_step_says_once_what_to_look_at_first(tmp_path: Path) -> None:
    breakdown = replace(
        breakdown_of_trace(trace_from_events(small_trace()["traceEvents"], {}, source="a")),
        verdict=("Most of it is copies.", "Look first at copies."),
    )
    with LedgerWriter(tmp_path / "a") as writer:
        writer.add(make_run(), make_graph(), breakdown)
    with LedgerWriter(tmp_path / "b") as writer:
        writer.add(make_run(), make_graph(), breakdown, make_step(device_us=1000.0), make_step_call())
    with open_ledger(tmp_path / "a") as without, open_ledger(tmp_path / "b") as step:
        assert "Look first at copies" in render(ledger_document(without))
        shown = render(ledger_document(step))
    assert "Most of it is copies" in shown and shown.count("Look first at") == 1 and "at copies" not in shown


def test_values_of_a_run_that_watched_none_say_how_to_record_some(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(status="finished"), make_graph())
    with open_ledger(tmp_path / "x") as reader:
        summary = summarize_values(reader)
    assert "No values were watched in this run" in render(values_document(summary, top=3))
    killed = render(values_document(replace(summary, is_unfinished=True), top=3))
    assert "No values" not in killed and "values --level names SCRIPT" in killed
    asked = render(values_document(replace(summary, was_watched=True), top=3))
    assert "No compiled graph was called in this run" in asked and "record some" not in asked


def test_a_predicate_that_cannot_be_loaded_says_nothing_of_graphs_that_nobody_watched(tmp_path: Path) -> None:
    said = "the predicate foo:bar cannot be loaded"
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(status="finished", notes=(said,), values_lack=("predicate failed",)), make_graph())
    with open_ledger(tmp_path / "x") as reader:
        shown = render(values_document(summarize_values(reader), top=3)).lower()
    assert said in shown and "was called in this run" not in shown and "record some" not in shown


def test_a_process_that_crashed_before_any_values_were_kept_is_not_asked_to_watch_them(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(status="failed", exit_code=139), make_graph())  # who ends in its own way writes when
    with open_ledger(tmp_path / "x") as reader:
        assert "names the launch that it ended in" in render(values_document(summarize_values(reader), top=3))


def test_a_run_that_is_not_finished_says_so(tmp_path: Path) -> None:
    assert "still being written, or was killed" in _remarks(tmp_path / "x", make_run())


def test_a_script_that_failed_is_named(tmp_path: Path) -> None:
    assert "script failed (exit code 3)" in _remarks(tmp_path / "x", make_run(status="failed", exit_code=3))


def test_a_frame_that_was_recompiled_is_named(tmp_path: Path) -> None:
    graphs = [make_graph(name=f"forward_{n}", compile_id=f"0/{n}") for n in range(3)]
    assert "1 frame compiled more than once (up to 3 times): TORCH_LOGS" in _remarks(
        tmp_path / "x", make_run(), *graphs
    )


def _compiled_again(number: int, reason: str = "tensor 'x' size mismatch at index 0. expected 8, actual 9") -> Any:
    failed = (f"0/{number - 1}: {reason}",) if number else ()
    return Compilation(f"0/{number}", "forward", "model.py", 12, failed, ("L['x'] is there", "k == 1"), 2)


def test_a_recompiled_frame_is_named_with_the_guard_that_failed(tmp_path: Path) -> None:
    graphs = [make_graph(name=f"forward_{n}", compile_id=f"0/{n}") for n in range(8)]
    summary = _summarize(tmp_path / "x", make_run(), *graphs, *map(_compiled_again, range(8)))
    said = [remark for remark in remarks(summary) if "compil" in remark]
    assert said[0] == "1 frame compiled more than once (up to 8 times): dynamic=True may compile once for all sizes."
    assert said[1] == (
        "forward (model.py:12) was compiled again as 0/1, as a guard failed: "
        "0/0: tensor 'x' size mismatch at index 0. expected 8, actual 9."
    )
    assert len(said) == 7 and said[6].startswith("2 further compilations")
    plain = overview_as_plain(summary)["compilations"]
    assert [each["compile_id"] for each in plain] == [graph.compile_id for graph in graphs]
    assert plain[0]["reason"] is None and plain[7]["reason"].startswith("0/6: tensor 'x'")


def test_dynamic_sizes_are_no_advice_where_another_guard_failed(tmp_path: Path) -> None:
    graphs = [make_graph(name=f"forward_{n}", compile_id=f"0/{n}") for n in range(2)]
    text = _remarks(tmp_path / "x", make_run(), *graphs, _compiled_again(0), _compiled_again(1, "k == 1"))
    assert "compiled more than once (up to 2 times). forward (model.py:12)" in text
    assert "dynamic=True" not in text


def test_the_guards_of_a_graph_are_shown_with_those_that_failed_before_it(tmp_path: Path) -> None:
    graphs = [make_graph(name=f"forward_{n}", compile_id=f"0/{n}") for n in range(2)]
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(), *graphs, _compiled_again(0), _compiled_again(1, "\x1b[2J == 1"))
    with open_ledger(tmp_path / "x") as reader:
        first, second = (render(guards_document(graph, read_compilations(reader, graph))) for graph in graphs)
    assert "Guards of forward_0: forward (model.py:12), 0/0" in first
    assert "these hold (2 guards):" in first and "k == 1" in first
    assert "failed" not in first
    assert "0/0: \\x1b[2J == 1" in second and "\x1b" not in second


def test_a_frame_that_became_dynamic_needs_no_advice(tmp_path: Path) -> None:
    graphs = [make_graph(name=f"forward_{n}", compile_id=f"0/{n}", is_dynamic=n == 1) for n in range(2)]
    assert "other sizes need no further compilation" in _remarks(tmp_path / "x", make_run(), *graphs)


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("tensor 'x' size mismatch at index 0", "further compilation."),
        ("len(G['a']) == 1", "what else failed below may."),
    ],
)
def test_a_dynamic_frame_is_not_called_settled_where_another_guard_failed(
    tmp_path: Path, reason: str, end: str
) -> None:
    graphs = [make_graph(name=f"forward_{n}", compile_id=f"0/{n}", is_dynamic=n == 1) for n in range(2)]
    summary = _summarize(tmp_path / "x", make_run(), *graphs, _compiled_again(0), _compiled_again(1, reason))
    (said,) = (remark for remark in remarks(summary) if "symbolic sizes" in remark)
    assert said.endswith(end)


def test_times_alone_say_what_the_cache_held(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(), make_graph(), make_kernel(), make_launch(wrapper_line=1))
        for state, us in (("warm", 10.0), ("cold", 30.0), ("step", 20.0)):
            writer.add(Measurement("forward_0#0", "bench", "cupti", (us,), l2_state=state))
    with open_ledger(tmp_path / "x") as reader:
        lines = render(story_document(tell_story(reader, "forward_0#0"))).splitlines()
    found = [re.split(r"\s{2,}", line.strip())[0] for line in lines if "clock: cupti" in line]
    assert found == ["alone, warm", "alone, cold", "alone, in place"]


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        ((), "12.0 us"),
        (("bench",), "12.0 us, 0.5 of the time alone"),
        (("bench", "profile"), "12.0 us, 0.5 of the time in the step"),
    ],
)
def test_the_compilers_estimate_stands_beside_what_was_measured(
    tmp_path: Path, kinds: tuple[Any, ...], text: str
) -> None:
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(), make_graph(), make_kernel(), make_launch(compiler_estimate_us=12.0, wrapper_line=1))
        writer.add(*(Measurement("forward_0#0", kind, "cupti", (24.0,)) for kind in kinds))
    with open_ledger(tmp_path / "x") as reader:
        story = tell_story(reader, "forward_0#0")
        plain = story_as_plain(reader, story)
    assert f"Inductor's estimate  {text}\n" in render(story_document(story))
    assert plain["launches"][0]["compiler_estimate_us"] == 12.0


def _looped(path: Path) -> Path:
    """A step that calls one graph twelve times, one launch of which the profile saw, and a graph no more."""
    launches = [make_launch(graph="forward_0", order=order, wrapper_line=1 + order) for order in (0, 1)]
    with LedgerWriter(path) as writer:
        writer.add(make_run(), make_graph(name="forward_0"), make_graph(name="forward_1"), make_kernel())
        writer.add(*launches, make_launch(graph="forward_1", kernel_name="cpp_fused_add_1", wrapper_line=1))
        writer.add(Measurement("forward_0#0", "profile", "cpu_profiler", (5.0,) * 12))
        writer.add(make_step(graph_calls={"forward_0": 12}, device_us=240.0))
    return path


def test_a_graph_that_the_step_does_not_call_is_named_stale_and_the_others_show_their_calls(tmp_path: Path) -> None:
    with open_ledger(_looped(tmp_path / "a.ledger")) as reader:
        summary = summarize_ledger(reader)
    assert {graph["name"]: graph["calls"] for graph in overview_as_plain(summary)["graphs"]} == {
        "forward_0": 12,
        "forward_1": 0,
    }
    text = render(overview_document(summary), width=120)
    assert "1 stale graph: compiled, not called in the step, in none of its sums: forward_1." in text
    assert "count each graph once" in text


def test_a_launch_tells_its_calls_and_share_of_a_step_or_that_it_did_not_run(tmp_path: Path) -> None:
    with open_ledger(_looped(tmp_path / "a.ledger")) as reader:
        stories = {name: tell_story(reader, name) for name in ("forward_0#0", "forward_0#1", "forward_1#0")}
        texts = {name: render(story_document(story), width=120) for name, story in stories.items()}
        plain = story_as_plain(reader, stories["forward_0#0"])
    assert plain["use"] == {"calls": 12, "share": 0.25}
    assert "12 calls of its graph, 25.0 % of the device time" in texts["forward_0#0"]
    assert "so it has no time" in texts["forward_0#1"] and "0.00 us" not in texts["forward_0#1"]
    assert "did not run: the recorded step does not call its graph" in texts["forward_1#0"]


def test_forward_and_backward_of_one_compilation_are_no_recompilation(tmp_path: Path) -> None:
    graphs = [make_graph(compile_id="0/0"), make_graph(name="backward_0", compile_id="0/0")]
    assert "compiled more than once" not in _remarks(tmp_path / "x", make_run(), *graphs)


def test_books_that_do_not_balance_are_the_first_thing_to_look_at(tmp_path: Path) -> None:
    finished = make_run(status="finished", exit_code=0)
    found = remarks(_summarize(tmp_path / "x", finished, make_graph(wrapper_calls=("a",))))
    assert found[0].startswith("The books do not balance: see launches")


def test_a_sum_that_nothing_explains_is_put_into_numbers(tmp_path: Path) -> None:
    graph = make_graph(wrapper_calls=("f",), flop_references=(FlopReference("model", {"mm": 1000}),))
    summary = _summarize(tmp_path / "x", make_run(), graph, make_launch(flops=3500, call="f()"))
    assert "the ledger holds 2,500 FLOPs more than" in render(overview_document(summary))


def test_hostile_names_reach_the_screen_as_text(tmp_path: Path) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07<script>\u202e[red]"
    launch = make_launch(kernel_name=evil, sources=(SourceLine(evil, 1),), modules=(evil,), call=evil, reason=evil)
    run = make_run(argv=(evil,), notes=(evil,))
    summary = _summarize(tmp_path / "x", run, make_graph(), make_kernel(name=evil, source=evil), launch)
    with open_ledger(tmp_path / "x") as reader:
        text = render(overview_document(summary)) + render(story_document(tell_story(reader, "forward_0#0")))
    assert not set(text) & {"\x1b", "\x07", "\u202e"}
    assert "\\x1b[2J" in text and "<script>" in text and "[red]" in text


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("/home/me/work/model.py:3", "model.py:3"),
        ("/home/me/work/lib/site-packages/transformers/gpt.py:7", "transformers/gpt.py:7"),
        ("/elsewhere/model.py:3", "/elsewhere/model.py:3"),
        ("/home/me/workshop/model.py:3", "/home/me/workshop/model.py:3"),
    ],
)
def test_source_paths_are_shown_from_where_they_are_known(source: str, shown: str) -> None:
    assert shorten_source(source, "/home/me/work") == shown


# --- one kernel ------------------------------------------------------------------------------------------------------


def test_one_launch_on_screen(reader: LedgerReader, golden: Golden) -> None:
    golden("show_kernel.txt", render(story_document(tell_story(reader, "forward_0#4")), width=100))


def test_a_library_call_on_screen(reader: LedgerReader, golden: Golden) -> None:
    golden("show_extern.txt", render(story_document(tell_story(reader, "extern_kernels.mm")), width=100))


@pytest.mark.parametrize("question", ["triton_poi_fused_gelu_16", "gelu_16", "triton_poi_fused_gelu_16"])
def test_a_kernel_is_found_by_its_name_or_a_part_that_only_it_has(tmp_path: Path, question: str) -> None:
    with open_ledger(write_ledger(tmp_path / "x", launches=30)) as reader:
        assert find_kernel(reader, question).kernel_name == "triton_poi_fused_gelu_16"


def test_a_kernel_is_found_by_the_beginning_of_its_key(reader: LedgerReader) -> None:
    target = find_kernel(reader, "forward_0#0")
    assert find_kernel(reader, target.key[:11]).key == target.key


def test_a_name_that_two_graphs_use_lists_both_launches(reader: LedgerReader) -> None:
    with pytest.raises(UsageError, match="is 2 kernels") as caught:
        find_kernel(reader, "triton_poi_fused_gelu_4")
    assert "forward_0#4" in str(caught.value) and "backward_0#4" in str(caught.value)


@pytest.mark.parametrize("question", ["gelu_9999", "", "\x1b[2J"])
def test_an_unknown_kernel_names_its_neighbours(reader: LedgerReader, question: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_kernel(reader, question)
    assert "Near it: " in str(caught.value) or "kernels" in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_the_story_in_json_holds_every_launch_of_the_kernel(reader: LedgerReader) -> None:
    plain = story_as_plain(reader, tell_story(reader, "extern_kernels.mm"))
    assert len(plain["launches"]) == 10
    first = plain["launches"][0]
    assert first["bytes_moved"] == first["bytes_read"] + first["bytes_written"]
    assert first["arithmetic_intensity"] == first["flops"] / first["bytes_moved"]
    assert first["buffers"][0]["shape"] == [2048, 768]


def test_the_story_of_one_launch_in_json_is_that_launch(reader: LedgerReader) -> None:
    plain = story_as_plain(reader, tell_story(reader, "backward_0#3"))
    assert plain["launch_id"] == "backward_0#3"


def test_symbolic_sizes_are_shown_beside_their_hints(tmp_path: Path) -> None:
    buffer = make_buffer(shape_expr=("s0", "64"), stride_expr=("64", "1"))
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(), make_graph(), make_kernel(), make_launch(buffers=(buffer,)))
    with open_ledger(tmp_path / "x") as reader:
        assert "(s0=32, 64)" in render(story_document(tell_story(reader, "forward_0#0")))


def test_reads_and_writes_show_their_index_and_the_loops_around_it(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        access = Access("arg0", "load", "64*p0 + p1", (64, 1), dtype="float32")
        writer.add(make_run(), make_launch(loops=(LoopNest((8,), (64,), accesses=(access,)),)))
    with open_ledger(tmp_path / "a.ledger") as reader:
        text = render(story_document(tell_story(reader, "forward_0#0")))
    assert re.search(r"load +arg0 +64\*p0 \+ p1 +p0 < 8, p1 < 64 +float32", text)


def test_a_recomputed_operator_is_marked(tmp_path: Path) -> None:
    launch = make_launch(aten_ops=("aten.exp.default", "aten.mul.Tensor"), recomputed_ops=("aten.exp.default",))
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(), make_graph(), make_kernel(), launch)
    with open_ledger(tmp_path / "x") as reader:
        text = render(story_document(tell_story(reader, "forward_0#0")))
    assert "aten.exp.default (recomputed), aten.mul.Tensor" in text


def test_a_launch_whose_kernel_was_lost_still_has_a_story(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(), make_launch())
    with open_ledger(tmp_path / "x") as reader:
        assert "not recorded" in render(story_document(tell_story(reader, "cpp_fused_relu_0")))


def test_a_part_of_another_kernel_has_a_story_without_launches(tmp_path: Path) -> None:
    whole = make_kernel(sub_kernels=("k1",))
    part = make_kernel(key="k1", name="sub_kernel", source="the part")
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(), make_graph(), whole, part, make_launch())
    with open_ledger(tmp_path / "x") as reader:
        assert "the part" in render(story_document(tell_story(reader, "sub_kernel")))
        assert "the part" in render(story_document(tell_story(reader, "forward_0#0")))


# --- the wrapper -----------------------------------------------------------------------------------------------------


def test_the_wrapper_is_shown_as_it_was_generated() -> None:
    code = "def call(args):\n    return args\n"
    assert render(wrapper_document(make_graph(wrapper_source=code))) == code


def test_a_wrapper_that_was_not_recorded_says_where_it_was() -> None:
    assert "/tmp/w.py" in render(wrapper_document(make_graph(wrapper_path="/tmp/w.py")))


def test_the_run_of_a_summary_is_the_recorded_one(reader: LedgerReader) -> None:
    assert summarize_ledger(reader).run == reader.run()
    assert isinstance(reader.run(), Run)
