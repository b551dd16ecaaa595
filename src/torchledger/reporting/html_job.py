"""A job as one page: ranks as rows on one clock, collectives as bands across them, and the document's tables."""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections.abc import Mapping
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from torchledger import __version__
from torchledger.jobs.read import read_job_and_pieces
from torchledger.jobs.waits import RankPieces
from torchledger.nouns import Job
from torchledger.printable import printable
from torchledger.reporting.columns import format_us
from torchledger.reporting.document import Document, Facts, Sentence, Table
from torchledger.reporting.html_page import embed_json
from torchledger.reporting.job import job_document, ranks_to_show

MOST_PIECES = 30_000
"""Of one rank on the page; what is beyond is not drawn, and said."""

MOST_MATCHES = 20_000


def render_job(path: str | PathLike[str]) -> str:
    """The page of a job's folder; errors as ``read_job``."""
    return job_page(*read_job_and_pieces(path))


def job_page(job: Job, pieces: Mapping[int, RankPieces]) -> str:
    """The page as text: it needs no network, and holds what it draws as JSON."""
    from jinja2 import Environment
    from markupsafe import Markup

    script = f'"use strict";\n(() => {{\n{_asset("job.js")}\n}})();'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    document = job_document(job, top=50)
    facts = [row for block in document.sections[0].blocks if isinstance(block, Facts) for row in block.rows]
    notes = [
        block.text for block in document.sections[0].blocks if isinstance(block, Sentence) and block.text != job.advice
    ]
    template = Environment(autoescape=True).from_string(_asset("job.html"))
    return template.render(
        file=printable(Path(job.path).name),
        advice=None if job.advice is None else printable(job.advice),
        facts=[*facts, *_spread(job)],
        notes=list(map(printable, notes)),
        left_out=len(job.ranks) - len(ranks_to_show(job)),
        sections=_sections(document),
        version=__version__,
        style=Markup(_asset("job.css")),
        script=Markup(script),
        script_hash=Markup(f"'sha256-{digest}'"),
        data=Markup(embed_json(job_data(job, pieces))),
    )


def job_data(job: Job, pieces: Mapping[int, RankPieces]) -> dict[str, Any]:
    """What the script draws: times in microseconds from the first rank's beginning, texts once each."""
    texts: dict[str, int] = {}
    rows = []
    for rank in ranks_to_show(job):
        own = pieces[rank.rank]
        number = min(len(own.start_ns), MOST_PIECES)
        rows.append(
            {
                "rank": rank.rank,
                "start": [ns / 1e3 for ns in own.start_ns[:number]],
                "length": [
                    (end - start) / 1e3 for start, end in zip(own.start_ns[:number], own.end_ns[:number], strict=True)
                ],
                "kind": [place.kind for place in own.places[:number]],
                "label": [texts.setdefault(printable(place.words), len(texts)) for place in own.places[:number]],
            }
        )
    matches = [
        {
            "operation": match.operation,
            "ranks": match.ranks,
            "arrived": [ns / 1e3 for ns in match.arrived_ns],
            "ended": [ns / 1e3 for ns in match.ended_ns],
            "bytes": match.message_bytes,
            "by": None if match.launched_by is None else printable(match.launched_by),
            "cause": None if match.cause is None else printable(match.cause),
            "cause_rank": match.cause_rank,
        }
        for match in job.collectives[:MOST_MATCHES]
    ]
    length = max((end for own in pieces.values() for end in own.end_ns[-1:]), default=0) / 1e3
    return {"rows": rows, "matches": matches, "texts": list(texts), "length_us": max(length, 1.0)}


def _spread(job: Job) -> list[tuple[str, str]]:
    """Of many ranks, how far apart they are."""
    if len(job.ranks) < 3:
        return []
    found = []
    for name in ("compute_us", "exposed_us", "idle_us"):
        values = sorted(getattr(rank, name) for rank in job.ranks)
        said = f"{format_us(values[0])} to {format_us(values[-1])}, median {format_us(statistics.median(values))}"
        found.append((f"{name.removesuffix('_us')} over ranks", said))
    return found


def _sections(document: Document) -> list[dict[str, Any]]:
    return [
        {
            "title": section.title,
            "sentences": [printable(block.text) for block in section.blocks if isinstance(block, Sentence)],
            "tables": [_table(block) for block in section.blocks if isinstance(block, Table)],
        }
        for section in document.sections[1:]
        if section.blocks
    ]


def _table(table: Table) -> dict[str, Any]:
    is_text = [column.align == "left" for column in table.columns]
    return {
        "heads": [(column.label, left) for column, left in zip(table.columns, is_text, strict=True)],
        "rows": [
            [(column.format(cell), left) for column, cell, left in zip(table.columns, row, is_text, strict=True)]
            for row in table.rows
        ],
    }


def _asset(name: str) -> str:
    return resources.files("torchledger.reporting").joinpath("assets", "job", name).read_text(encoding="utf-8")
