"""What a ledger says about values: what was watched, the first bad launch, and how far compiled and eager are apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchledger.nouns import Launch, Run, ValueComparison, ValueFinding, WatchedGraph
from torchledger.nouns.run import ValuesLack
from torchledger.nouns.run_diff import SettingChange
from torchledger.printable import counted, one_line, sentence
from torchledger.reporting.document import Document, Facts, Section, Sentence, as_plain
from torchledger.reporting.run_diff import setting_sentences
from torchledger.store import LedgerReader
from torchledger.store.value_stats import count_value_stats, iterate_value_stats
from torchledger.watching.compare import ValuePair, ValuesDiff
from torchledger.watching.findings import first_created
from torchledger.watching.lines import comparison_line, finding_line


@dataclass(frozen=True)
class ValuesSummary:
    """Everything about values in one ledger."""

    file: str
    graphs: tuple[WatchedGraph, ...]
    findings: tuple[ValueFinding, ...]
    comparisons: tuple[ValueComparison, ...]
    launches: dict[str, Launch]
    n_stats: int
    n_saved: int
    notes: tuple[str, ...]
    lack: tuple[ValuesLack, ...]
    is_unfinished: bool = False
    """The program was killed, or crashed outside Python, or still runs."""
    was_watched: bool = False
    """Values were asked for; of older files that is not known."""

    @property
    def first_bad(self) -> ValueFinding | None:
        """The finding that explains the others."""
        return first_created(self.findings)

    @property
    def exit_code(self) -> int:
        """2 if the filters matched nothing, 3 if something was left out or could not be asked, else 0."""
        return 2 if "nothing matched" in self.lack else 3 if self.lack else 0

    @property
    def first_outside(self) -> ValueComparison | None:
        """The first launch that left the tolerance."""
        return next((item for item in self.comparisons if item.is_within is False), None)


def summarize_values(reader: LedgerReader) -> ValuesSummary:
    """Read what a ledger holds about values."""
    findings = tuple(reader.read(ValueFinding))
    comparisons = tuple(sorted(reader.read(ValueComparison), key=lambda item: item.sequence))
    wanted = {finding.subject for finding in findings} | {item.subject for item in comparisons}
    launches = {launch.launch_id: launch for launch in reader.iterate(Launch) if launch.launch_id in wanted}
    run = reader.run()
    saved = {stats.path for stats in iterate_value_stats(reader) if stats.path}
    return ValuesSummary(
        str(reader.path),
        tuple({graph.graph: graph for graph in reader.read(WatchedGraph)}.values()),  # the latest of each
        findings,
        comparisons,
        launches,
        count_value_stats(reader),
        len(saved),
        run.notes,
        run.values_lack if run.values_lack is not None else _lack_of_older(run),
        run.status != "finished" and run.finished_utc is None,
        run.values_lack is not None,
    )


def _lack_of_older(run: Run) -> tuple[ValuesLack, ...]:
    """What is missing, as files said it before they had a field for it: by the words of their notes."""
    words: tuple[tuple[str, ValuesLack], ...] = (
        ("no launch passed the filters", "nothing matched"),
        ("launches were not saved", "not saved"),
        ("the predicate failed on", "predicate failed"),
    )
    return tuple(lack for said, lack in words if any(said in note for note in run.notes))


def values_as_plain(summary: ValuesSummary) -> dict[str, Any]:
    """The same for ``--json``."""
    return {
        "file": summary.file,
        "graphs": as_plain(summary.graphs),
        "first_bad": as_plain(summary.first_bad),
        "findings": as_plain(summary.findings),
        "first_outside_tolerance": as_plain(summary.first_outside),
        "comparisons": [as_plain(item) | {"further": item.further} for item in summary.comparisons],
        "stats": summary.n_stats,
        "saved_files": summary.n_saved,
        "notes": list(summary.notes),
    }


def why_empty(summary: ValuesSummary) -> str | None:
    """Why a ledger holds nothing of values, and what to do; ``None`` where it does, or its notes say it."""
    if summary.graphs or summary.n_stats:
        return None
    if summary.is_unfinished:
        return (
            "The program was killed, or crashed, before any values were kept: `torchledger values --level names "
            "SCRIPT` names the launch that it ended in."
        )
    if not summary.was_watched:
        return "No values were watched in this run: record some with `torchledger values SCRIPT`."
    if "predicate failed" in summary.lack:
        return None
    return (
        "No compiled graph was called in this run, so there were no launches to look at. Is `torch.compile` called, "
        "and what it returns?"
    )


def values_document(summary: ValuesSummary, *, top: int) -> Document:
    """The summary as a report; ``top`` rows per list."""
    sections = [_watched_section(summary)]
    if summary.findings:
        sections.append(_findings_section(summary, top=top))
    if summary.comparisons:
        sections += _comparison_sections(summary, top=top)
    remarks = [Sentence(one_line(sentence(note))) for note in summary.notes]
    if (reason := why_empty(summary)) is not None:
        remarks.insert(0, Sentence(reason))
    if summary.first_bad is not None and summary.first_bad.subject in summary.launches:
        remarks.append(
            Sentence(f"The bad kernel's story: torchledger show {summary.file} '{summary.first_bad.subject}'.")
        )
    if remarks:
        sections.append(Section("What to know", tuple(remarks)))
    return Document(tuple(sections))


def values_diff_as_plain(diff: ValuesDiff) -> dict[str, Any]:
    """Two runs side by side, for ``--json``: the tensors that differ, the earliest first."""
    return {
        "compared": len(diff.pairs),
        "only_first": diff.only_first,
        "only_second": diff.only_second,
        "tolerance": diff.tolerance,
        "apart": as_plain(diff.apart),
    }


def values_diff_document(
    diff: ValuesDiff, first: str, second: str, *, top: int, settings: Sequence[SettingChange] = ()
) -> Document:
    """Where two runs first part, and what differs most; ``top`` rows per list. What differs between their ``settings``
    stands first."""
    changed = setting_sentences(settings)
    apart = diff.apart
    elementwise = sum(pair.is_elementwise for pair in diff.pairs)
    rows = (
        ("first", first),
        ("second", second),
        ("compared", f"{len(diff.pairs):,} tensors, {elementwise:,} of them by all elements"),
        ("without partner", f"{diff.only_first:,} in the first, {diff.only_second:,} in the second"),
    )
    if not apart:
        verdict = Sentence(f"No tensor differs by more than {diff.tolerance:g}.", "good")
        return Document((Section("Values of two runs", (*changed, Facts(rows), verdict)),))
    sections = [
        Section(
            "Values of two runs",
            (*changed, Facts(rows), Sentence(f"They part at: {_pair_line(apart[0])}", "bad")),
        ),
        Section(f"Then ({len(apart):,} in all)", tuple(Sentence(_pair_line(pair)) for pair in apart[1 : top + 1])),
    ]
    return Document(tuple(section for section in sections if section.blocks))


def _pair_line(pair: ValuePair) -> str:
    one, other = pair.first, pair.second
    node = f" ({one.fx_node})" if one.fx_node else ""
    text = f"{one.subject} call {one.call_index} {one.buffer}{node} {one.dtype} {one.shape}"
    if other.subject != one.subject or other.dtype != one.dtype:
        text += f" and {other.subject} {other.buffer} {other.dtype}"
    if (one.n_nan, one.n_inf) != (other.n_nan, other.n_inf):
        text += f"  nan {one.n_nan} and {other.n_nan}, inf {one.n_inf} and {other.n_inf}"
    else:
        text += f"  differs by {pair.difference:.3g} of its largest magnitude"
    return one_line(text + (f"; {pair.source}" if pair.source else ""))


def _watched_section(summary: ValuesSummary) -> Section:
    rows = []
    for graph in summary.graphs:
        calls = counted(graph.calls, "call")
        text = f"{graph.watched} of {graph.launches} launches watched, {graph.seen} ran, in {calls}"
        rows.append((graph.graph, text + (f" ({graph.note})" if graph.note else "")))
    rows.append(("tensors", f"{summary.n_stats:,} statistics, {summary.n_saved:,} saved files"))
    return Section(f"Values in {summary.file}", (Facts(tuple(rows)),))


def _findings_section(summary: ValuesSummary, *, top: int) -> Section:
    blocks = []
    first = summary.first_bad
    if first is not None:
        line = finding_line(first, summary.launches.get(first.subject))
        blocks.append(Sentence(f"First: {one_line(line)}", "bad"))
    counts = Counter(finding.verdict for finding in summary.findings)
    blocks.append(Sentence(", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())))
    shown = [finding for finding in summary.findings if finding is not first and finding.verdict != "passed through"]
    blocks += [
        Sentence(one_line(finding_line(finding, summary.launches.get(finding.subject)))) for finding in shown[:top]
    ]
    if len(shown) > top:
        blocks.append(Sentence(f"... and {len(shown) - top:,} more"))
    return Section("Bad values", tuple(blocks))


def _comparison_sections(summary: ValuesSummary, *, top: int) -> list[Section]:
    judged = [item for item in summary.comparisons if item.compiled_error is not None or item.n_different is not None]
    further = Counter(item.further for item in judged if item.further)
    first = summary.first_outside
    blocks = [
        Sentence(
            f"{len(judged):,} outputs compared, {len(summary.comparisons) - len(judged):,} could not be; further from "
            f"float64: compiled {further['compiled']:,}, eager {further['eager']:,}, neither {further['neither']:,}."
        ),
        Sentence(f"First to leave the tolerance: {one_line(comparison_line(first))}", "bad")
        if first is not None
        else Sentence("Every output is within its tolerance.", "good"),
    ]
    ranked = sorted(judged, key=lambda item: -(item.compiled_error or 0.0))
    ranking = Section(
        "Largest errors of the compiled code",
        tuple(Sentence(one_line(_with_source(item, summary.launches))) for item in ranked[:top]),
    )
    return [Section("Against eager, judged by float64", tuple(blocks)), ranking]


def _with_source(comparison: ValueComparison, launches: dict[str, Launch]) -> str:
    launch = launches.get(comparison.subject)
    where = f"  {launch.source}" if launch is not None and launch.source else ""
    return comparison_line(comparison) + where
