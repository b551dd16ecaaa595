"""The HTML report in a real headless Chromium: what a person does with it works, and nothing in a ledger runs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_html_page import write_hostile_ledger

import torchledger
from browser import HOW_TO_GET_ONE, complaints, find_browser, open_browser, open_page, wait_for
from factories import make_device, make_graph, make_launch, make_run, make_sample, make_step, make_step_call
from synthetic import write_ledger
from torchledger.nouns import (
    Breakdown,
    Ceilings,
    Launch,
    Measurement,
    Prediction,
    Profile,
    Timeline,
    TimeRow,
    ValueStats,
)
from torchledger.sampling.dataset import write_samples
from torchledger.store import LedgerWriter, open_ledger
from torchledger.traces.breakdown import import_trace
from torchledger.traces.trace_ledger import write_trace_ledger
from trace_factories import small_trace

if find_browser() is None:
    warnings.warn(HOW_TO_GET_ONE, stacklevel=1)
pytestmark = [
    pytest.mark.skipif(find_browser() is None, reason=HOW_TO_GET_ONE),
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run that has everything: times, ceilings, a timeline, benches, predictions and values."""
    path = tmp_path_factory.mktemp("report") / "all.ledger"
    ceilings = Ceilings(4000.0, {"bfloat16": 800.0, "float32": 50.0}, launch_overhead_us=2.0, measured_utc="2026-11-21")
    device = make_device(name="NVIDIA H200", kind="cuda", ceilings=ceilings)
    write_ledger(path, launches=600, devices=(device,))
    with open_ledger(path) as reader:
        launches = list(reader.iterate(Launch))
    ids = [launch.launch_id for launch in launches]
    times = [5.0 + place % 50 for place in range(len(ids))]
    count = len(ids)
    timeline = Timeline(
        "cupti",
        start_ns=tuple(60_000 * place for place in range(count)),
        duration_ns=tuple(int(time * 1e3) for time in times),
        name=tuple(range(count)),
        category=(0,) * count,
        launch=tuple(range(count)),
        lane=(0,) * count,
        names=tuple(launch.kernel_name for launch in launches),
        categories=("gemm",),
        launch_ids=tuple(ids),
        lanes=("device 0, stream 7",),
        step=1,
    )
    with LedgerWriter(path, append=True) as writer:
        writer.add(
            Profile("cupti", 2, plain_step_us=40_000.0, profiled_step_us=44_000.0, inside_us=1.0, matched_us=1.0),
            timeline,
            *(Measurement(name, "profile", "cupti", (time, time)) for name, time in zip(ids, times, strict=True)),
            Measurement(ids[0], "bench", "cuda_event", (4.0, 4.1, 4.2, 4.3), l2_state="cold", num_warps=4),
            *(
                Prediction(
                    name, time * 1.1, time, time * 1.3, 0.9, "inside" if place % 3 else "extrapolated", "H200", "m"
                )
                for place, (name, time) in enumerate(zip(ids[:40], times[:40], strict=True))
            ),
            ValueStats(ids[3], 0, "buf3", "after", "float32", (8, 8), n_nan=3, n_inf=0, mean=float("nan")),
            ValueStats(ids[0], 0, "buf0", "after", "float32", (8, 8), n_nan=0, n_inf=0, minimum=-1.0, maximum=1.0),
        )
    return torchledger.report(path)


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Any]:
    """A browser that shows the page, and has said nothing on its console when the test is over."""
    open_page(browser, page)
    complaints(browser)
    yield browser
    assert complaints(browser) == []


def shown_kernels(driver: Any) -> list[str]:
    found: list[str] = driver.execute_script(
        "return [...document.querySelectorAll('#kernels tr[data-place]')].map(line => line.innerText)"
    )
    return found


def table_cells(driver: Any, rows: str) -> list[list[str]]:
    found: list[list[str]] = driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(line => [...line.cells].map(cell => cell.innerText))",
        rows,
    )
    return found


def go_to(driver: Any, section: str) -> None:
    driver.execute_script("location.hash = '#' + arguments[0]", section)
    wait_for(driver, f"return !document.getElementById('{section}').classList.contains('waiting')")


def sections_of(driver: Any) -> list[str]:
    found: list[str] = driver.execute_script(
        "return [...document.querySelectorAll('#sections > section')].map(each => each.id)"
    )
    return found


def type_search(driver: Any, text: str) -> None:
    box = driver.find_element("id", "search")
    box.clear()
    box.send_keys(text)


def test_the_first_screen_tells_the_step_the_balance_and_the_heaviest(opened: Any) -> None:
    text = opened.find_element("id", "overview").text
    assert "One step takes 40.0 ms: its 600 launches" in text
    assert "the books balance" in opened.find_element("id", "balance-badge").text
    assert opened.execute_script("return document.querySelectorAll('.bar-row').length") >= 3
    assert opened.execute_script("return document.querySelectorAll('.heaviest tbody tr').length") > 3


def test_every_section_draws(opened: Any) -> None:
    sections = sections_of(opened)
    assert sections == ["overview", "roofline", "flame", "timeline", "kernels", "predictions", "values", "balance"]
    for section in sections:
        go_to(opened, section)
    assert "could not be drawn" not in opened.find_element("id", "sections").text
    assert opened.execute_script("return document.querySelectorAll('#roofline-plot .scatterlayer .trace').length") > 3


def test_what_a_ledger_has_nothing_of_has_no_section(browser: Any, tmp_path: Path) -> None:
    open_page(browser, torchledger.report(write_ledger(tmp_path / "untimed.ledger")))
    assert sections_of(browser) == ["overview", "flame", "kernels", "balance"]
    assert "Nothing was timed" in browser.find_element("id", "overview").text
    with LedgerWriter(tmp_path / "empty.ledger") as writer:
        writer.add(make_run())
    open_page(browser, torchledger.report(tmp_path / "empty.ledger"))
    assert sections_of(browser) == ["overview", "balance"]


def test_every_section_of_an_imported_trace_draws(browser: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(small_trace(copies=3)))
    write_trace_ledger(tmp_path / "trace.ledger", *import_trace(trace))
    complaints(browser)
    open_page(browser, torchledger.report(tmp_path / "trace.ledger"))
    for section in sections_of(browser):
        go_to(browser, section)
    assert "could not be drawn" not in browser.find_element("id", "sections").text
    assert "An imported trace holds no launches" in browser.find_element("id", "balance").text
    assert complaints(browser) == []


@pytest.fixture(scope="module")
def step_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step of a GPU: a graph called four times, a stale one, an eager loss and an optimizer, on two streams."""
    path = tmp_path_factory.mktemp("step") / "step.ledger"
    graphs = [make_graph(name=name, wrapper_calls=("k0",)) for name in ("forward_0", "forward_1")]
    launches = [make_launch(graph=graph.name, wrapper_line=1, flops=8) for graph in graphs]
    calls = [
        make_step_call(kind="graph", name="forward_0", phase="forward", order=n, call=n, samples_us=(20.0,), flops=8)
        for n in range(4)
    ]
    calls += [
        make_step_call(name="aten::_log_softmax", order=4, samples_us=(15.0,), sources=("train.py:7",), bytes_moved=64),
        make_step_call(name="my::operator", order=5, samples_us=(), modules=("head",)),
        make_step_call(name="aten::_fused_adamw_", phase="optimizer", order=6, samples_us=(5.0,), kernels=1),
    ]
    timeline = Timeline(
        "cupti",
        start_ns=(0, 30_000, 60_000),
        duration_ns=(20_000, 15_000, 5_000),
        name=(0, 1, 2),
        category=(0, 1, 2),
        launch=(0, None, None),
        lane=(0, 0, 1),
        names=("triton_poi", "softmax_kernel", "adamw_kernel"),
        categories=("pointwise", "reduction", "foreach"),
        launch_ids=("forward_0#0",),
        lanes=("device 0, stream 7", "device 0, stream 9"),
        phase=(0, 1, 2),
        phases=("forward", "loss", "optimizer"),
    )
    with LedgerWriter(path) as writer:
        writer.add(make_run(), *graphs, *launches, timeline, Profile("cupti", 1, plain_step_us=1000.0))
        writer.add(Measurement("forward_0#0", "profile", "cupti", (20.0,) * 4))
        writer.add(make_step(clock="cupti", graph_calls={"forward_0": 4}, device_us=100.0, covered_us=100.0), *calls)
    return torchledger.report(path)


def test_the_page_of_a_step_begins_with_its_verdict_and_phases(browser: Any, step_page: Path) -> None:
    open_page(browser, step_page)
    text = browser.find_element("id", "overview").text
    assert text.index("A step takes 1.00 ms") < text.index("It goes to forward 80.0 %") < text.index("Look first at")
    assert "Compiled, not called in the step: forward_1." in text
    bars = browser.execute_script("return [...document.querySelectorAll('.phase-bar span')].map(each => each.title)")
    assert bars == ["forward: 80.0 µs, 80.0 %", "loss: 15.0 µs, 15.0 %", "optimizer: 5.00 µs, 5.0 %"]
    rows = table_cells(browser, "#phases tbody tr")
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("forward", "4", "80.0 µs"),
        ("loss", "2", "15.0 µs"),
        ("optimizer", "1", "5.00 µs"),
        ("one step", "7", "100 µs"),
    ]


def test_the_calls_of_a_step_sort_and_filter_and_unknown_is_a_question_mark(browser: Any, step_page: Path) -> None:
    open_page(browser, step_page)
    complaints(browser)
    go_to(browser, "step")
    rows = table_cells(browser, "#step tr[data-place]")
    assert [row[0] for row in rows][:5] == ["forward_0"] * 4 + ["aten::_log_softmax"]
    unknown = next(row for row in rows if row[0] == "my::operator")
    assert unknown[-1] == "head" and unknown[4:8] == ["?", "?", "?", "?"]
    browser.execute_script("document.querySelector('#step th button[data-key=name]').click()")
    names = [row[0] for row in table_cells(browser, "#step tr[data-place]")]
    assert names == sorted(names)
    box = browser.find_element("id", "search-calls")
    box.send_keys("train.py:7")
    assert [row[0] for row in table_cells(browser, "#step tr[data-place]")] == ["aten::_log_softmax"]
    assert "15.0 µs (15.0 %)" in browser.find_element("id", "found-calls").text
    assert complaints(browser) == []


def test_the_timeline_is_coloured_by_category_or_phase(browser: Any, step_page: Path) -> None:
    open_page(browser, step_page)
    go_to(browser, "timeline")
    assert "reduction" in browser.find_element("id", "timeline-legend").text
    before = browser.execute_script("return document.querySelector('canvas.timeline').toDataURL()")
    browser.execute_script("document.querySelector('#timeline-colour [data-color=phase]').click()")
    assert "loss" in browser.find_element("id", "timeline-legend").text
    assert browser.execute_script("return document.querySelector('canvas.timeline').toDataURL()") != before
    height = browser.execute_script("return document.querySelector('canvas.timeline').clientHeight")
    assert height >= 56 + 2 * 40, "a row for each of the two streams"


def test_the_step_of_a_cpu_is_drawn_by_thread(browser: Any, tmp_path: Path) -> None:
    calls = [
        make_step_call(order=n, thread=n % 2, start_us=100.0 * n, host_us=50.0, name=f"aten::op{n}") for n in range(4)
    ]
    with LedgerWriter(tmp_path / "cpu.ledger") as writer:
        writer.add(make_run(), make_step(), *calls)
    open_page(browser, torchledger.report(tmp_path / "cpu.ledger"))
    go_to(browser, "timeline")
    assert "4 device events on one clock (host)" in browser.find_element("id", "timeline").text
    assert "could not be drawn" not in browser.find_element("id", "sections").text


def test_a_category_on_the_first_screen_leads_to_its_launches(opened: Any) -> None:
    opened.execute_script("document.querySelector('.bar-row').click()")
    wait_for(opened, "return location.hash === '#kernels'")
    chosen = opened.execute_script("return document.getElementById('filter-category').value")
    rows = shown_kernels(opened)
    assert chosen and rows and all(chosen.replace("_", " ") in row for row in rows)


def test_search_filters_rows_and_clearing_it_brings_them_back(opened: Any) -> None:
    go_to(opened, "kernels")
    type_search(opened, "gelu backward")
    rows = shown_kernels(opened)
    assert rows and all("gelu" in row and "backward_0#" in row for row in rows)
    assert "found" in opened.find_element("id", "found").text
    type_search(opened, "zzz no such kernel")
    assert "Nothing matches." in opened.find_element("id", "kernels").text


def test_only_rows_in_sight_are_in_the_document(opened: Any) -> None:
    go_to(opened, "kernels")
    assert 10 < len(shown_kernels(opened)) < 100
    opened.execute_script("document.querySelector('.long-table-box').scrollTop = 1e9")
    wait_for(opened, "return document.querySelector('#kernels tr[data-place=\"599\"]') !== null")


def test_a_head_sorts_both_ways(opened: Any) -> None:
    go_to(opened, "kernels")
    read = """return [...document.querySelectorAll('#kernels tr[data-place]')].slice(0, 20).map(
        line => parseFloat(line.cells[3].innerText))"""
    head = "document.querySelector('#kernels th button[data-key=time]').click()"
    opened.execute_script(head)
    falling = opened.execute_script(read)
    assert falling == sorted(falling, reverse=True) and falling[0] == 54.0
    opened.execute_script(head)
    rising = opened.execute_script(read)
    assert rising == sorted(rising) and rising[0] == 5.0


def test_a_filter_keeps_one_category(opened: Any) -> None:
    from selenium.webdriver.support.ui import Select

    go_to(opened, "kernels")
    Select(opened.find_element("id", "filter-category")).select_by_value("pointwise")
    rows = shown_kernels(opened)
    assert rows and all("pointwise" in row for row in rows)


def test_a_kernel_opens_with_its_source_and_leads_to_a_launch(opened: Any) -> None:
    go_to(opened, "kernels")
    type_search(opened, "triton_poi_fused_gelu forward_0#4")
    opened.execute_script("document.querySelector('#kernels tr[data-place=\"0\"] td:nth-child(3)').click()")
    wait_for(opened, "return document.querySelector('#page .code') !== null")
    text = opened.find_element("id", "page").text
    for part in ("What it costs", "Where the model calls it", "What it computes", "Buffers", "Generated source"):
        assert part in text


def test_a_kernel_of_many_launches_leads_to_each_of_them(opened: Any) -> None:
    opened.execute_script("document.querySelector('.heaviest tbody tr:nth-child(1) a').click()")
    wait_for(opened, "return document.querySelector('#page .small-table a') !== null")
    opened.execute_script("document.querySelector('#page .small-table a').click()")
    wait_for(opened, "return location.hash.startsWith('#/launch/')")
    wanted = opened.execute_script("return decodeURIComponent(location.hash.split('/')[2])")
    wait_for(opened, f"return document.getElementById('launch-title').innerText === 'Launch {wanted}'")
    opened.back()
    wait_for(opened, f"return document.getElementById('launch-title').innerText !== 'Launch {wanted}'")


def test_a_launch_shows_bench_prediction_and_values_where_the_ledger_has_them(opened: Any) -> None:
    opened.execute_script("location.hash = '#/launch/' + encodeURIComponent('forward_0#0')")
    wait_for(opened, "return document.getElementById('launch-title') !== null")
    text = opened.find_element("id", "page").text
    assert "alone, in a bench: 4.15 µs" in text
    assert "predicted 5.50 µs" in text and "10.0 % too long" in text
    assert "Values" in text and "buf0" in text


def test_the_keyboard_alone_reaches_a_kernel_and_comes_back(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    body = opened.find_element("tag name", "body")
    body.send_keys("/")
    wait_for(opened, "return document.activeElement.id === 'search'")
    opened.execute_script("document.querySelector('#kernels .long-table-box').focus()")
    opened.switch_to.active_element.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    wait_for(opened, "return location.hash.startsWith('#/launch/') && !document.getElementById('page').hidden")
    wait_for(opened, "return document.querySelector('.kernel-title') !== null")
    opened.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait_for(opened, "return document.getElementById('page').hidden")


def test_the_theme_switches_and_is_kept(opened: Any) -> None:
    color = "return getComputedStyle(document.body).backgroundColor"
    button = opened.find_element("id", "theme")
    seen = {}
    for _ in range(3):
        button.click()
        seen[opened.execute_script("return document.documentElement.dataset.theme")] = opened.execute_script(color)
    assert set(seen) == {"auto", "light", "dark"}
    assert seen["light"] != seen["dark"]


def test_the_icicle_zooms_in_and_out(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    go_to(opened, "flame")
    opened.execute_script("document.querySelectorAll('.flame button.inner')[1].click()")
    assert "›" in opened.find_element("css selector", ".trail").text
    opened.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert "›" not in opened.find_element("css selector", ".trail").text


def test_the_ceilings_are_those_that_were_measured(opened: Any) -> None:
    go_to(opened, "roofline")
    legend = opened.find_element("id", "roofline-plot").text
    assert "bfloat16 800 TFLOP/s" in legend and "copy 4000 GB/s" in legend


def test_an_address_that_leads_nowhere_says_so(opened: Any) -> None:
    opened.execute_script("location.hash = '#/launch/forward_9%2399'")
    wait_for(opened, "return document.getElementById('page').innerText.includes('has no launch')")


def test_a_phone_sees_the_page_without_scrolling_sideways(browser: Any, page: Path) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        open_page(browser, page)
        for section in ("roofline", "flame", "timeline", "kernels", "predictions", "balance"):
            go_to(browser, section)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        browser.execute_script("location.hash = '#/kernel/0'")
        wait_for(browser, "return document.getElementById('source') !== null")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_name_without_a_break_does_not_widen_a_phone(browser: Any, tmp_path: Path) -> None:
    name = "cudnn_generated_fort_native_sdpa_" * 6
    row = TimeRow(name, 4, 40.0, 1.0, 10.0, category="attention")
    with LedgerWriter(tmp_path / "t.ledger") as writer:
        writer.add(
            make_run(), Breakdown(name, "trace", 40.0, 0.0, 0.0, 50.0, 40.0, 4, kernels=(row,), verdict=(name, name))
        )
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        open_page(browser, torchledger.report(tmp_path / "t.ledger"))
        for section in sections_of(browser):
            go_to(browser, section)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_printing_draws_every_section(opened: Any) -> None:
    opened.execute_cdp_cmd("Page.printToPDF", {})
    assert opened.execute_script("return document.querySelectorAll('section.waiting').length") == 0


def test_a_hostile_ledger_neither_runs_nor_breaks_anything(browser: Any, tmp_path: Path) -> None:
    page = torchledger.report(write_hostile_ledger(tmp_path / "hostile.ledger"))
    complaints(browser)
    open_page(browser, page)
    assert {"flame", "kernels", "predictions", "values", "balance"} <= set(sections_of(browser))
    for section in sections_of(browser):
        go_to(browser, section)
    browser.execute_script("location.hash = '#/kernel/0'")
    wait_for(browser, "return document.querySelector('#page .code') !== null")
    text = browser.find_element("id", "page").text
    assert "</script><script>alert(1)</script>" in text
    assert "\\x1b[31m" in text
    assert browser.execute_script("return document.querySelectorAll('img, iframe, object').length") == 0
    assert complaints(browser) == []  # an alert would also have failed every call above


def test_a_script_that_got_into_the_page_would_not_run(browser: Any, page: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.html"
    changed.write_text(page.read_text().replace("<noscript>", "<script>window.ran = true</script><noscript>"))
    open_page(browser, changed)
    assert browser.execute_script("return window.ran === undefined")
    assert any("Content Security Policy" in complaint for complaint in complaints(browser))


def test_two_ledgers_open_side_by_side(browser: Any, tmp_path: Path) -> None:
    first = write_ledger(tmp_path / "a.ledger", launches=60)
    second = write_ledger(tmp_path / "b.ledger", launches=120)
    complaints(browser)
    open_page(browser, torchledger.report(first, against=second))
    text = browser.find_element("id", "comparison").text
    assert "100.0 % more than A's" in text
    assert "extern_kernels.addmm" in text
    assert "only in B" in text
    assert complaints(browser) == []


def test_a_set_of_samples_has_its_page(browser: Any, tmp_path: Path) -> None:
    samples = [make_sample(f"p{place}", 10.0 + place, dtype="bfloat16") for place in range(40)]
    write_samples(tmp_path / "s.parquet", samples)
    complaints(browser)
    open_page(browser, torchledger.report(tmp_path / "s.parquet", predict="H200"))
    assert "40 labels of 40 shapes of 1 operator" in browser.find_element("id", "samples").text
    assert "Cost by operator" in browser.find_element("id", "samples").text
    go_to(browser, "predictions")
    assert "Error by operator" in browser.find_element("id", "predictions").text
    assert complaints(browser) == []


def test_every_section_explains_itself_on_demand(opened: Any) -> None:
    go_to(opened, "balance")
    opened.execute_script("document.querySelector('#overview details summary').click()")
    assert "The books balance when" in opened.find_element("id", "overview").text
    count = "return document.querySelectorAll('#sections details.how').length"
    assert opened.execute_script(count) >= 6


def test_a_tall_window_is_filled_with_rows(opened: Any) -> None:
    go_to(opened, "kernels")
    hidden = """const box = document.querySelector('#kernels .long-table-box');
        const rows = [...box.querySelectorAll('tr[data-place]')];
        return rows[rows.length - 1].getBoundingClientRect().bottom - box.getBoundingClientRect().bottom"""
    assert opened.execute_script(hidden) > 0
