"""A page's data and the vendored assets to one HTML file that needs nothing else.

The data stands in a script element that browsers do not run, with every ``<`` escaped; the policy in the page's head
lets exactly the two scripts run whose hashes it names, so that no text of a ledger can become code.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import zlib
from importlib import resources
from typing import Any

import orjson

from torchledger import __version__
from torchledger.errors import ReportError

PLOTLY_VERSION = "4.1.1"
PLOTLY_SHA256 = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
"""Of ``plotly-basic.min.js`` in npm's plotly.js-basic-dist-min 4.1.1."""

SCRIPTS = (
    "elements.js",
    "format.js",
    "data.js",
    "table.js",
    "step.js",
    "overview.js",
    "plots.js",
    "memory.js",
    "flame.js",
    "timeline.js",
    "source.js",
    "kernel.js",
    "predictions.js",
    "values.js",
    "samples.js",
    "comparison.js",
    "app.js",
)
"""In the order in which they build on each other."""


def render_page(data: dict[str, Any], details: dict[str, Any], *, title: str, file: str) -> str:
    """The page as text. Raises ``ReportError`` if the vendored plot library is not the one that was vendored."""
    from jinja2 import Environment
    from markupsafe import Markup

    plotly = _asset("plotly-basic.min.js")
    if hashlib.sha256(plotly.encode()).hexdigest() != PLOTLY_SHA256:
        raise ReportError("the plot library in this installation was changed. Install torchledger again.")
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(f"page/{name}") for name in SCRIPTS) + "\n})();"
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in (plotly, script))
    packed = base64.b64encode(zlib.compress(orjson.dumps(details), 6)).decode()
    template = Environment(autoescape=True).from_string(_asset("page/page.html"))
    return template.render(
        title=title,
        file=file,
        version=__version__,
        written=f"{datetime.date.today():%Y-%m-%d}",
        plotly_version=PLOTLY_VERSION,
        script_hashes=Markup(hashes),
        style=Markup(_asset("page/report.css")),
        data=Markup(embed_json(data)),
        details=packed,
        plotly=Markup(plotly),
        script=Markup(script),
    )


def embed_json(plain: Any) -> str:
    r"""JSON that no HTML parser can read anything but text in.

    >>> embed_json({"name": "</script><!--"})
    '{"name":"\\u003c/script>\\u003c!--"}'
    """
    return orjson.dumps(plain).decode().replace("<", "\\u003c")


@functools.cache
def _asset(name: str) -> str:
    return resources.files("torchledger.reporting").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
