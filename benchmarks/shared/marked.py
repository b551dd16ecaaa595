"""The part of a page that a script writes, between marks in it; what else stands there is written by hand."""

from __future__ import annotations

from pathlib import Path


def write_between_marks(page: Path, name: str, text: str) -> None:
    """Put ``text`` between ``<!-- name -->`` and ``<!-- /name -->``; a page without these marks gets them at its end.

    Raises ``ValueError`` if the second mark is missing: nobody can tell where the part ends.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, has_begin, rest = (page.read_text() if page.exists() else "").partition(begin)
    _, has_end, after = rest.partition(end)
    if has_begin and not has_end:
        raise ValueError(f"{page} has {begin.strip()} and no {end} behind it: put it where that part ends")
    page.write_text(f"{before}{begin}{text.rstrip()}\n{end}{after or chr(10)}")
