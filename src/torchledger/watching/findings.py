"""From the tensors that each launch read and wrote to the launches that went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torchledger.nouns import ValueFinding
from torchledger.nouns.value_stats import Verdict

if TYPE_CHECKING:  # findings are also read where there is no torch
    from torchledger.watching.call_records import CallRecord, Seen
    from torchledger.watching.reductions import Summary

UNINITIALISED = "uninitialised"


def find_bad(record: CallRecord, question: str) -> Iterator[ValueFinding]:
    """The findings of one call, in the order of its launches; what came in bad is told before its first reader.

    ``question`` is ``"nan"``, ``"inf"``, ``"overflow"`` or the name of a predicate.
    """
    summaries = record.summaries
    reaches = any(_count(seen, summaries, question) for seen in record.outputs)
    written: set[str] = set()
    told: set[str] = set()
    for event in record.events:
        subject = record.graph.subject(event.site)
        for seen in event.unwritten:
            yield _finding(record, event.sequence, "read before written", UNINITIALISED, subject, seen, None, None)
        bad_before = [seen for seen in event.before if _count(seen, summaries, question)]
        bad_after = [seen for seen in event.after if _count(seen, summaries, question)]
        for seen in bad_before:
            if seen.name in record.graph.input_names and seen.name not in written | told:
                told.add(seen.name)
                name = record.graph.name or "unrecorded graph"
                yield _finding(record, event.sequence, "came in", question, name, seen, summaries, reaches)
        written.update(seen.name for seen in event.after)
        if bad_after:
            verdict: Verdict = "passed through" if bad_before else "created here"
            for seen in bad_after:
                yield _finding(record, event.sequence, verdict, question, subject, seen, summaries, reaches)
        elif bad_before and event.after:
            yield _finding(record, event.sequence, "stopped here", question, subject, bad_before[0], summaries, reaches)


def first_created(findings: Iterable[ValueFinding]) -> ValueFinding | None:
    """The finding that explains the others: the first launch that made bad values, else what came in from outside."""
    ordered = sorted(findings, key=lambda finding: finding.sequence)
    for verdicts in (("created here", "read before written"), ("came in",)):
        for finding in ordered:
            if finding.verdict in verdicts and (finding.verdict != "read before written" or finding.count != 0):
                return finding
    return None


def _count(seen: Seen, summaries: dict[int, Summary], question: str) -> int:
    """How many elements of a tensor are bad; the writers of its memory count where it was not looked at itself."""
    return max((_bad(summaries[ticket], question) for ticket in seen.tickets if ticket in summaries), default=0)


def _bad(summary: Summary, question: str) -> int:
    if question == "nan":
        return summary.n_nan or 0
    if question == "inf" or (question == "overflow" and summary.n_flagged is None):
        return summary.n_inf or 0
    return summary.n_flagged or 0


def _finding(
    record: CallRecord,
    sequence: int,
    verdict: Verdict,
    question: str,
    subject: str,
    seen: Seen,
    summaries: dict[int, Summary] | None,
    reaches: bool | None,
) -> ValueFinding:
    summary = summaries.get(seen.tickets[0]) if summaries is not None and seen.tickets else None
    indices: tuple[tuple[int, ...], ...] = ()
    if summary is not None:
        indices = summary.flagged if summary.n_flagged else summary.not_finite
    return ValueFinding(
        question=question,
        verdict=verdict,
        subject=subject,
        call_index=record.index,
        sequence=sequence,
        buffer=seen.name,
        dtype=seen.dtype,
        shape=seen.shape,
        count=_count(seen, summaries, question) if summaries is not None else None,
        indices=indices,
        reaches_output=reaches,
    )
