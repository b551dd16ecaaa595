"""Documents as a piece of HTML, for a notebook's cell."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from torchledger.printable import one_line, printable
from torchledger.reporting.document import Block, Code, Document, Facts, Table

_STYLE = "text-align:{align};white-space:{space};padding:2px 8px"
_TONES = {"bad": "color:#b3261e;font-weight:600", "good": "color:#1b6e3c", "quiet": "opacity:.7", None: ""}


def render_fragment(document: Document) -> str:
    """The document as HTML without scripts and styles of its own; names in it are text."""
    parts = []
    for section in document.sections:
        if section.title:
            parts.append(f"<h4>{escape(one_line(section.title))}</h4>")
        parts += [_block(block) for block in section.blocks]
    return f'<div class="torchledger">{"".join(parts)}</div>'


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Facts):
        rows = "".join(
            f"<tr>{_cell('td', 'left', name)}{_cell('td', 'left', value, wraps=True)}</tr>"
            for name, value in block.rows
        )
        return f"<table>{rows}</table>"
    if isinstance(block, Code):
        return f"<pre>{escape(printable(block.text))}</pre>"
    return f'<div style="{_TONES[block.tone]}">{escape(one_line(block.text))}</div>'


def _table(table: Table) -> str:
    head = _row("th", [(column.align, column.label) for column in table.columns])
    rows = [*table.rows, *([] if table.total is None else [table.total])]
    lines = [
        _row("td", [(column.align, column.format(value)) for column, value in zip(table.columns, row, strict=True)])
        for row in rows
    ]
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"


def _row(tag: str, cells: Iterable[tuple[str, str]]) -> str:
    return f"<tr>{''.join(_cell(tag, align, text) for align, text in cells)}</tr>"


def _cell(tag: str, align: str, text: str, *, wraps: bool = False) -> str:
    style = _STYLE.format(align=align, space="normal" if wraps else "nowrap")
    return f'<{tag} style="{style}">{escape(one_line(text))}</{tag}>'
