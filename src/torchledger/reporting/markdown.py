"""Documents as Markdown, for a pull request or a page of a wiki."""

from __future__ import annotations

import re
from typing import Any

from torchledger.printable import one_line
from torchledger.reporting.columns import Column
from torchledger.reporting.document import Block, Code, Document, Facts, Table


def render_markdown(document: Document) -> str:
    """The document as GitHub's Markdown, ending in a line end. Names in it are text: no markup, no mentions."""
    parts = []
    for section in document.sections:
        if section.title:
            parts.append(f"### {escape(section.title)}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text whose characters mean nothing to Markdown or HTML.

    >>> escape("a_b <c> | @d")
    'a\\\\_b &lt;c> \\\\| &#64;d'
    """
    plain = one_line(text)
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), ("@", "&#64;")):
        plain = plain.replace(character, entity)
    return re.sub(r"([\\`*_{}\[\]|~!])", r"\\\1", plain)


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Facts):
        return "\n".join(f"- {escape(name)}: {escape(value)}" for name, value in block.rows)
    if isinstance(block, Code):
        longest = max((len(run) for run in re.findall("`+", block.text)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{fence}{block.language}\n{block.text.rstrip()}\n{fence}"
    text = escape(block.text)
    return f"**{text}**" if block.tone == "bad" else text


def _table(table: Table) -> str:
    kept = [place for place, _ in enumerate(table.columns) if _has_values(table, place)]
    head = [escape(table.columns[place].label) for place in kept]
    rules = ["---" if table.columns[place].align == "left" else "---:" for place in kept]
    rows = [*table.rows, *([] if table.total is None else [table.total])]
    lines = [[_cell(table.columns[place], row[place]) for place in kept] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rules, *lines))


def _has_values(table: Table, place: int) -> bool:
    return table.columns[place].key not in table.optional or any(row[place] not in (None, "") for row in table.rows)


def _cell(column: Column, value: Any) -> str:
    return escape(column.format(value))
