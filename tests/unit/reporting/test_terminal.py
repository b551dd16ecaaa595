"""Documents laid out as text."""

from __future__ import annotations

import re

import pytest

from torchledger.reporting.document import Code, Document, Facts, Section, Sentence, Table, columns
from torchledger.reporting.terminal import render

_TABLE = Table(
    columns("kernel_name", "launches", "flops", "flops_share"),
    (("triton_poi_fused_relu_0", 3, 75_497_472, 0.75), ("extern_kernels.mm", 1, None, 0.25)),
    total=("total", 4, 75_497_472, 1.0),
    optional=("flops_share", "flops"),
)


def _document(*blocks: object) -> Document:
    return Document((Section("Title", blocks),))  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = render(_document(_TABLE, Sentence("many words " * 30), Facts((("name", "value " * 30),))), width=width)
    assert max(map(len, text.splitlines())) <= width


def test_in_a_pipe_nothing_is_cut_or_wrapped() -> None:
    text = render(_document(Sentence("many words " * 30), Facts((("name", "x" * 500),))))
    assert len(text.splitlines()) == 3
    assert "x" * 500 in text


def test_a_narrow_table_drops_optional_columns_before_it_breaks_names() -> None:
    text = render(_document(_TABLE), width=44)
    assert "triton_poi_fused_relu_0" in text
    assert "of FLOPs" not in text
    assert "of FLOPs" in render(_document(_TABLE), width=100)


def test_numbers_stand_in_one_right_aligned_column() -> None:
    lines = [line for line in render(_document(_TABLE)).splitlines() if " % " in f"{line} "]
    assert len({len(line) for line in lines}) == 1


def test_unknown_is_a_question_mark() -> None:
    assert re.search(r"extern_kernels\.mm\s+1\s+\?", render(_document(_TABLE)))


def test_a_pipe_gets_no_escape_codes_and_a_terminal_gets_colour() -> None:
    document = _document(Sentence("careful", "bad"))
    assert "\x1b" not in render(document)
    assert "\x1b[" in render(document, width=80, color=True)


@pytest.mark.parametrize("block", [Sentence, Code, lambda text: Facts(((text, text),))])
def test_escape_codes_and_markup_in_data_are_shown_as_text(block: object) -> None:
    text = render(_document(block("[bold]\x1b[31mred[/bold] :smile:")))  # type: ignore[operator]
    assert "\x1b" not in text
    assert "[bold]\\x1b[31mred[/bold] :smile:" in text


def test_code_in_a_pipe_is_the_code() -> None:
    code = "def call(args):\n\tif True:\n    \treturn 1   \n"
    assert render(Document((Section("", (Code(code),)),))) == code


def test_a_source_of_ten_megabytes_in_one_line_breaks_nothing() -> None:
    huge = "x" * 10_000_000
    table = Table(columns("kernel_name"), ((huge,),))
    document = _document(Sentence(huge), Facts((("name", huge),)), table)
    assert len(render(document, width=80)) < 20_000
    assert len(render(document)) < 20_000
    assert render(Document((Section("", (Code(huge),)),)), width=80, color=True) == huge + "\n"
