"""Documents as terminal text: aligned, as wide as the terminal, plain when it is not one."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from torchledger.printable import one_line, printable, shorten
from torchledger.reporting.document import Block, Code, Document, Facts, Table, Tone

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_STYLES: dict[Tone | None, str] = {"good": "green", "bad": "bold red", "quiet": "dim", None: ""}
_UNBOUNDED = 100_000
_NARROWEST = 40
_READABLE = 36
_LONGEST_TEXT = 4_000
_LONGEST_HIGHLIGHTED = 500_000  # characters; highlighting more takes seconds
_INDENT = 2
_RULES = "\n".join(["    ", "    ", " ── ", "    ", " ── ", "    ", "    ", "    ", ""])
"""A rule below the head and one above the total, in rich's eight lines of a box: row 3 and row 5."""


def render(document: Document, *, width: int | None = None, color: bool = False) -> str:
    """The document as text, ending in a line end.

    ``width`` is in characters; ``None`` is as wide as the longest line, so that nothing is cut or wrapped (for pipes
    and files). ``color`` adds ANSI styles. Nothing in the document is interpreted as markup or as a terminal command.
    """
    parts = []
    for position, section in enumerate(document.sections):
        if position:
            parts.append("\n")
        if section.title:
            parts.append(
                _draw(_text(one_line(shorten(section.title, _LONGEST_TEXT)), "bold"), width=width, color=color)
            )
        parts += [_draw_block(block, width=width, color=color) for block in section.blocks]
    return "".join(parts)


def _draw_block(block: Block, *, width: int | None, color: bool) -> str:
    if isinstance(block, Code):
        text = printable(block.text).rstrip("\n") + "\n"
        is_highlighted = color and len(text) <= _LONGEST_HIGHLIGHTED
        return _draw(_highlighted(text, block.language), width=width, color=color) if is_highlighted else text
    if isinstance(block, Facts):
        return _draw(_layout_facts(block), width=width, color=color, indent=_INDENT)
    if isinstance(block, Table):
        return _draw(_layout_table(block, width), width=width, color=color, indent=_INDENT)
    return _draw(
        _text(printable(shorten(block.text, _LONGEST_TEXT)), _STYLES[block.tone]),
        width=width,
        color=color,
        indent=_INDENT,
    )


def _draw(renderable: RenderableType, *, width: int | None, color: bool, indent: int = 0) -> str:
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream,
        width=_UNBOUNDED if width is None else max(width, _NARROWEST) - indent,
        force_terminal=color,
        force_jupyter=False,
        color_system="standard" if color else None,
        no_color=not color,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    console.print(renderable)
    return "".join((" " * indent + line).rstrip() + "\n" for line in stream.getvalue().splitlines())


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style)


def _layout_facts(facts: Facts) -> RenderableType:
    """A column of names and one of values, whose wrapped lines stay in it."""
    from rich.table import Table as Grid

    grid = Grid.grid(padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts.rows:
        grid.add_row(_text(one_line(name)), _text(one_line(shorten(value, _LONGEST_TEXT))))
    return grid


def _layout_table(table: Table, width: int | None) -> RenderableType:
    from rich.box import Box
    from rich.table import Table as Grid

    table = _narrowed(table, width)
    grid = Grid(box=Box(_RULES), show_edge=False, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for column in table.columns:
        grid.add_column(_text(column.label), justify=column.align, no_wrap=column.align == "right", overflow="fold")
    tones = table.tones or (None,) * len(table.rows)
    for position, (values, tone) in enumerate(zip(table.rows, tones, strict=True)):
        is_last = position == len(table.rows) - 1
        grid.add_row(*_cells(table, values), style=_STYLES[tone], end_section=is_last and table.total is not None)
    if table.total is not None:
        grid.add_row(*_cells(table, table.total))
    return grid


def _cells(table: Table, values: tuple[object, ...]) -> list[Text]:
    return [_text(column.format(value)) for column, value in zip(table.columns, values, strict=True)]


def _narrowed(table: Table, width: int | None) -> Table:
    """Without as many of the optional columns as the width asks for, so that names stay readable."""
    dropped: list[str] = []
    while width is not None and len(dropped) < len(table.optional) and _wanted_width(table.without(dropped)) > width:
        dropped.append(table.optional[len(dropped)])
    return table.without(dropped) if dropped else table


def _wanted_width(table: Table) -> int:
    rows = table.rows if table.total is None else (*table.rows, table.total)
    wanted = _INDENT
    for position, column in enumerate(table.columns):
        longest = max((len(column.format(row[position])) for row in rows), default=0)
        if column.align == "left":
            longest = min(longest, _READABLE)
        wanted += max(longest, len(column.label)) + 2
    return wanted


def _highlighted(text: str, language: str) -> RenderableType:
    from rich.syntax import Syntax

    return Syntax(text, language, theme="ansi_dark", background_color="default", word_wrap=True)
