"""The documentation as a site: the same Markdown files that are read in the repository."""

from __future__ import annotations

import re
from typing import Any

project = "torchledger"
author = "the torchledger authors"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "torchledger"
html_show_copyright = False
html_show_sourcelink = False
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
# Console transcripts hold output, which no lexer expects.
suppress_warnings = ["misc.highlighting_failure"]

_OUT_OF_DOCS = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:benchmarks|src|tests|examples|\.ci)[^)]*\)")


def _name_files_of_the_repository(app: Any, docname: str, source: list[str]) -> None:
    """Links to files that are no pages become their text."""
    source[0] = _OUT_OF_DOCS.sub(r"\1", source[0])


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _name_files_of_the_repository)
