"""IPython: the magic, results that draw themselves, data frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torchledger
from factories import make_graph, make_run
from synthetic import write_ledger
from torchledger.answers import check
from torchledger.errors import UsageError
from torchledger.integrations.frames import frame
from torchledger.integrations.notebook import Page, page
from torchledger.nouns import Breakdown
from torchledger.planning.plan import Plan

CELL = "import torch\nmade = torch.compile(lambda x: (x + 1).relu())(torch.zeros(4))\n"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from IPython.core.interactiveshell import InteractiveShell

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        made = InteractiveShell.instance()
        made.run_line_magic("load_ext", "torchledger")
        yield made
        InteractiveShell.clear_instance()


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ledgers")
    return [write_ledger(folder / f"{name}.ledger", launches=count) for name, count in (("a", 60), ("b", 66))]


def test_the_magic_records_its_cell_and_leaves_the_ledger_in_a_variable(shell: Any, tmp_path: Path) -> None:
    path = tmp_path / "cell.ledger"
    found = shell.run_cell_magic("ledger", f"-o {path} --name mine", CELL)
    assert shell.user_ns["made"].tolist() == [1.0] * 4
    assert shell.user_ns["mine"] is found
    assert (len(found.launches), found.path) == (1, str(path))
    again = shell.run_cell_magic("ledger", f"-o {path}", CELL)
    assert len(again.launches) == 1, "what is compiled already is recorded again"
    assert "Balance sheet" in shell.display_formatter.format(again)[0]["text/html"]


def test_a_fault_of_the_cell_is_the_cells_own(shell: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("ledger", "", "1 / 0")


def test_an_option_that_the_magic_does_not_have_is_named_with_those_it_has(shell: Any) -> None:
    with pytest.raises(UsageError, match=r"'--fast' is no option of the magic: %%ledger .-o FILE"):
        shell.run_cell_magic("ledger", "--fast", CELL)


def test_comparisons_and_predictions_draw_themselves(shell: Any, ledgers: list[Path]) -> None:
    def drawn(result: Any) -> str:
        return str(shell.display_formatter.format(result)[0]["text/html"])

    assert "Launches by what they compute" in drawn(torchledger.diff(*ledgers))
    assert "linear forward bfloat16" in drawn(torchledger.predict("linear", {"m": 64, "k": 64, "n": 64}))
    step, launches = torchledger.predict_step(ledgers[0])
    assert "gaps between them" in drawn(step) and f"of {len(launches)} launches" not in drawn(step)
    assert f"of {len(launches)} launches" in drawn(torchledger.predict_step(ledgers[0]))
    assert "Failed: launches" in drawn(check(*ledgers, ["launches > +0"]))


def test_what_show_answers_is_text_that_is_read_line_by_line(shell: Any, ledgers: list[Path]) -> None:
    answer = torchledger.show(ledgers[0])
    assert shell.display_formatter.format(answer)[0]["text/plain"] == answer == str(answer)


def test_a_breakdown_a_bench_and_a_plan_draw_themselves(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchledger.replaying.bench_report import BenchReport
    from torchledger.reporting.document import Document, Section, Sentence

    drawing = shell.display_formatter.formatters["text/html"]
    assert drawing.lookup_by_type(Breakdown) and drawing.lookup_by_type(Plan)
    monkeypatch.setattr(
        "torchledger.reporting.benches.bench_document", lambda report: Document((Section("alone", (Sentence("x"),)),))
    )
    assert "alone" in drawing.lookup_by_type(BenchReport)(None)


def test_a_cell_is_no_path_of_the_kernels_temporary_folder(tmp_path: Path) -> None:
    from torchledger.reporting.overview import run_facts, title_of
    from torchledger.reporting.summary import summarize_ledger
    from torchledger.store import LedgerWriter, open_ledger

    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run(argv=("/env/ipykernel_launcher.py", "-f", "/run/kernel-1.json")), make_graph())
    with open_ledger(tmp_path / "a.ledger") as reader:
        summary = summarize_ledger(reader)
    assert dict(run_facts(summary))["script"] == "a notebook, or IPython"
    assert title_of(summary.run) == "a notebook"


def test_a_page_is_drawn_in_a_frame_that_sees_nothing_of_the_notebook(ledgers: list[Path]) -> None:
    made = page(ledgers[0], height=300)
    text = made._repr_html_()
    assert text.startswith('<iframe sandbox="allow-scripts" srcdoc="') and 'height="300"' in text
    assert "<script" not in text and "&lt;script" in text
    assert isinstance(made, Page) and made.path.exists()


def test_names_in_a_ledger_are_no_html(tmp_path: Path) -> None:
    from torchledger.reporting.document import Document, Section, Sentence, Table, columns
    from torchledger.reporting.fragment import render_fragment

    table = Table(columns("kernel_name"), (("<script>alert(1)</script>",),))
    text = render_fragment(Document((Section("<b>", (table, Sentence("<i>"))),)))
    assert "<script" not in text and "<b>" not in text and "<i>" not in text


def test_launches_and_groups_are_data_frames(ledgers: list[Path]) -> None:
    ledger = torchledger.load(ledgers[0])
    launches = ledger.to_frame()
    assert len(launches) == 60 and launches["flops"].sum() == sum(each.flops or 0 for each in ledger.launches)
    groups = frame(torchledger.diff(*ledgers))
    assert groups["launches_second"].sum() - groups["launches_first"].sum() == 6
    predictions = frame([torchledger.predict("linear", {"m": 64, "k": 64, "n": 64})])
    assert predictions["duration_us"][0] > 0


def test_without_pandas_the_extra_is_named(ledgers: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install torchledger\[notebook\]"):
        torchledger.load(ledgers[0]).to_frame()


def test_results_are_text_in_a_terminal_and_not_their_fields(shell: Any, ledgers: list[Path]) -> None:
    def written(result: Any) -> str:
        return str(shell.display_formatter.format(result)[0]["text/plain"])

    assert written(torchledger.load(ledgers[0])).startswith("Ledger ")
    assert "Launches by what they compute" in written(torchledger.diff(*ledgers))
    assert written(torchledger.predict("linear", {"m": 64, "k": 64, "n": 64})).startswith("Predicted on ")
    assert "gaps between them" in written(torchledger.predict_step(ledgers[0]))
    assert "Failed: launches" in written(check(*ledgers, ["launches > +0"]))
