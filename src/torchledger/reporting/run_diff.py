"""What changed between two runs, as a document: what is explained first, what is not last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchledger.comparing.limits import Quantity, Verdict
from torchledger.nouns import EagerChange, LaunchGroup, ReadChange, RunDiff
from torchledger.nouns.run_diff import SettingChange
from torchledger.printable import ended, one_line, shorten
from torchledger.reporting.columns import format_bytes, format_count, format_share, format_si, format_us, signed
from torchledger.reporting.document import Block, Document, Facts, Section, Sentence, Table, as_plain, columns
from torchledger.reporting.memory import CATEGORY_WORDS
from torchledger.reporting.overview import shorten_source

_VERBS = {
    "same": "{first}: the same nodes",
    "changed": "{first} became {second}, of other nodes in part",
    "split": "{first} split into {second}",
    "merged": "{first} merged into {second}",
    "regrouped": "{first} regrouped into {second}",
    "only first": "{first} is only in the first run",
    "only second": "{second} is only in the second run",
}
_NAMED = 4
_READS_TOLD = 3
_LONGEST_NAME = 60
_LONGEST_CELL = 80


def run_diff_as_plain(diff: RunDiff) -> dict[str, Any]:
    """What ``--json`` prints: every field, with the differences computed; keys are stable."""
    plain: dict[str, Any] = as_plain(diff)
    plain["groups"] = [
        as_plain(group)
        | {"delta_ns": group.delta_ns, "delta_bytes": group.delta_bytes, "delta_flops": group.delta_flops}
        for group in diff.groups
    ]
    plain["eager"] = [
        as_plain(change)
        | {
            "kind": change.kind,
            "delta_ns": change.delta_ns,
            "delta_bytes": change.delta_bytes,
            "delta_flops": change.delta_flops,
        }
        for change in diff.eager
    ]
    return plain | {
        "inside_ns": diff.inside_ns,
        "unseen_ns": diff.unseen_ns,
        "delta_ns": diff.delta_ns,
        "explained_ns": diff.explained_ns,
        "remainder_ns": diff.remainder_ns,
        "outside_ns": diff.outside_ns,
    }


def check_as_plain(diff: RunDiff, quantities: Mapping[str, Quantity], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """A comparison under limits: ``run_diff_as_plain`` with the sums and what they say of each limit."""
    return run_diff_as_plain(diff) | {"quantities": as_plain(quantities), "limits": as_plain(verdicts)}


def run_diff_document(diff: RunDiff, first: str, second: str, *, top: int = 10, folder: str = "") -> Document:
    """The comparison of the runs called ``first`` and ``second``, with at most ``top`` groups a list and source paths
    relative to ``folder``."""
    diff = with_short_sources(diff, folder)
    sections = [
        Section(f"From {one_line(first)} to {one_line(second)}", (*_settings(diff), Facts(tuple(_facts(diff))))),
        Section("What changed most", tuple(_sentences(diff, top=top))),
        Section("Launches by what they compute", _table(diff, top=top)),
        Section("Outside compiled graphs, by name and line", _eager_table(diff, top=top)),
        Section("Memory at the peak of a step", _memory_blocks(diff, top=top)),
        Section("Not explained", tuple(_remainder(diff))),
    ]
    return Document(tuple(section for section in sections if section.blocks))


def _memory_blocks(diff: RunDiff, *, top: int) -> tuple[Block, ...]:
    memory = diff.memory
    if memory is None:
        return ()
    peaks = (
        f"{format_bytes(memory.first_peak_bytes)} in the first, {format_bytes(memory.second_peak_bytes)} in the second"
    )
    if not memory.delta_bytes:
        return (Sentence(f"{peaks}."),)
    tables = tuple(
        Table(
            columns(key, "first_alive_bytes", "second_alive_bytes", "delta_alive_bytes"),
            tuple(
                (CATEGORY_WORDS.get(row.name, row.name or "(none)"), row.first_bytes, row.second_bytes, row.delta_bytes)
                for row in rows[:top]
            ),
        )
        for key, rows in (("memory_use", memory.by_category), ("module", memory.by_module))
        if rows
    )
    return (Sentence(f"{peaks}: {signed(memory.delta_bytes, format_bytes)}."), *tables)


def group_sentence(group: LaunchGroup) -> str:
    """``cpp_fused_a_0 split into cpp_fused_b_0 + cpp_fused_c_1: +38.0 us, ...``."""
    text = _VERBS[group.kind].format(first=_kernels(group.first.kernels), second=_kernels(group.second.kernels))
    facts = []
    if group.delta_ns is not None:
        facts.append(signed(group.delta_ns / 1e3, format_us))
    elif group.first.untimed or group.second.untimed:
        unseen = [name for name, side in (("first", group.first), ("second", group.second)) if side.untimed]
        facts.append(f"did not run in the profiled steps of the {' and the '.join(unseen)} run")
    if group.delta_bytes is None:
        facts.append("bytes not known")
    elif group.delta_bytes:
        facts.append(f"{signed(group.delta_bytes, format_bytes)} of traffic")
    if group.delta_flops:
        facts.append(f"{signed(group.delta_flops, format_si)} FLOPs")
    told = [read for read in group.reads if max(read.first, read.second) > 1 or group.kind != "same"]
    facts += [_read_text(read) for read in told[:_READS_TOLD]]
    if len(told) > _READS_TOLD:
        more = len(told) - _READS_TOLD
        facts.append(f"{more:,} more tensor{'' if more == 1 else 's'} read another number of times")
    if group.source is not None:
        facts.append(f"made for {group.source}")
    return one_line(f"{text}: {', '.join(facts)}." if facts else f"{text}.")


def with_short_sources(diff: RunDiff, folder: str) -> RunDiff:
    """The same with source paths relative to ``folder``, and those of installed packages from the package on."""

    def short(source: str | None) -> str | None:
        return source and shorten_source(source, folder)

    return replace(
        diff,
        groups=tuple(replace(group, source=short(group.source)) for group in diff.groups),
        eager=tuple(
            replace(
                change,
                first=replace(change.first, source=short(change.first.source)),
                second=replace(change.second, source=short(change.second.source)),
            )
            for change in diff.eager
        ),
    )


def change_sentences(diff: RunDiff) -> list[tuple[str, int]]:
    """A sentence for each group that changed, those that read the same once, each with how many groups it is of."""
    counts = Counter(group_sentence(group) for group in changed_groups(diff))
    return [(text if count == 1 else f"{count:,} times: {text}", count) for text, count in counts.items()]


def changed_groups(diff: RunDiff) -> list[LaunchGroup]:
    """Groups whose launches or work changed, the largest change first; other groups differ in their times alone."""
    return [group for group in diff.groups if group.kind != "same" or group.delta_bytes or group.delta_flops]


def _read_text(read: ReadChange) -> str:
    name = read.buffer if read.fx_node in (None, read.buffer) else f"{read.buffer} ({read.fx_node})"
    if read.second == 0:
        return f"no longer reads {name}"
    times = {1: "once", 2: "twice"}.get(read.second, f"{read.second} times")
    before = {0: "not at all before", 1: "once before", 2: "twice before"}.get(read.first, f"{read.first} times before")
    return f"reads {name} {times} ({before})"


def _kernels(names: Sequence[str]) -> str:
    counted = [
        shorten(name, _LONGEST_NAME) + (f" x{count}" if count > 1 else "") for name, count in Counter(names).items()
    ]
    if len(counted) > _NAMED:
        counted = [*counted[: _NAMED - 1], f"{len(counted) - _NAMED + 1:,} other kernels"]
    return " + ".join(counted)


def _settings(diff: RunDiff) -> tuple[Block, ...]:
    """What differs between the two runs' software, settings and devices: before any time, for it may explain them."""
    return setting_sentences(diff.settings)


def setting_sentences(settings: Sequence[SettingChange]) -> tuple[Sentence, ...]:
    """A line for each version, setting or device that differs."""
    return tuple(
        Sentence(f"{change.name}: {change.first or '(none)'} -> {change.second or '(none)'}.") for change in settings
    )


def limits_document(
    diff: RunDiff,
    first: str,
    second: str,
    *,
    known: Mapping[str, Quantity],
    verdicts: Sequence[Verdict],
    top: int = 10,
    folder: str = "",
) -> Document:
    """The comparison in short, for a pull request: what fails, what was changed, the sums, the groups that changed."""
    diff = with_short_sources(diff, folder)
    told = [_verdict_sentence(each, (first, second)) for each in sorted(verdicts, key=lambda each: bool(each.holds))]
    if any(each.holds is False for each in verdicts):
        more = "What changed most is below; `torchledger diff` without a limit lists every change."
        told.append(Sentence(more, "quiet"))
    rows = tuple((each.name, *_quantity_cells(each)) for each in known.values() if each.first is not None)
    table = Table(columns("quantity", "first_sum", "second_sum", "change_sum", "change_pct"), rows)
    sections = [
        Section(f"From {one_line(first)} to {one_line(second)}", (*told, *setting_sentences(diff.settings), table)),
        Section("What changed most", tuple(_sentences(diff, top=top))),
    ]
    return Document(tuple(section for section in sections if section.blocks))


def _verdict_sentence(verdict: Verdict, names: tuple[str, str]) -> Sentence:
    """What became of a limit: the figure of both runs, the limit, and of what is not known how to know it."""
    quantity, limit = verdict.quantity, repr(one_line(verdict.limit.text))
    if verdict.holds is None:
        runs = zip((quantity.first, quantity.second), names, strict=True)
        unknown = " and ".join(dict.fromkeys(one_line(name) for known, name in runs if known is None))
        return Sentence(
            f"Failed: {quantity.name} is not known of {unknown}, so that {limit} cannot be answered. "
            f"{_KNOWN_BY.get(quantity.name, _COUNTED_BY)}",
            "bad",
        )
    first, second, delta, share = _quantity_cells(quantity)
    figure = f"{quantity.name} {first} -> {second} ({delta}{f', {share}' if share else ''})"
    if verdict.holds:
        return Sentence(f"Passed: {figure}; the limit {limit} allows it.", "good")
    return Sentence(f"Failed: {figure}; the limit {limit} does not allow it.", "bad")


_KNOWN_BY = {"time": "`torchledger run --profile SCRIPT` times a step."}
_COUNTED_BY = "`torchledger show FILE` names the launches for which it was not counted."


def _quantity_cells(quantity: Quantity) -> tuple[str, str, str, str]:
    form = {"bytes": format_bytes, "flops": format_si, "time": format_us, "predicted": format_us}
    write: Any = form.get(quantity.name, format_count)
    if quantity.first is None or quantity.second is None or quantity.delta is None:
        return "?", "?", "?", ""
    share = "" if quantity.delta_pct is None else f"{quantity.delta_pct:+.2f} %"
    return write(quantity.first), write(quantity.second), signed(quantity.delta, write), share


def _eager_table(diff: RunDiff, *, top: int) -> tuple[Block, ...]:
    if not diff.eager:
        return ()
    shown = diff.eager if len(diff.eager) <= top + 1 else diff.eager[:top]
    rest, is_timed = diff.eager[len(shown) :], diff.basis == "time"
    rows = [
        (change.kind, change.name, eager_source(change), *_eager_cells([change], is_timed=is_timed)) for change in shown
    ]
    if rest:
        rows.append(("", f"({len(rest):,} others)", "", *_eager_cells(rest, is_timed=is_timed)))
    counts, times = ("first_calls", "second_calls"), ("first_us", "second_us", "delta_us")
    keys = ("change", "step_call", "source", *counts, *times, "delta_bytes", "delta_flops")
    total = ("total", "", "", *_eager_cells(diff.eager, is_timed=is_timed))
    return (Table(columns(*keys), tuple(rows), total, optional=("delta_flops", "delta_bytes")),)


def eager_source(change: EagerChange) -> str:
    """The line of an eager group: one, or that of either run."""
    first, second = change.first.source or "", change.second.source or ""
    return first or second if not first or not second or first == second else f"{first} -> {second}"


def _eager_cells(changes: Sequence[EagerChange], *, is_timed: bool) -> tuple[Any, ...]:
    """Of several changes of timed runs, times that nothing was seen of count as none: those calls launched nothing."""
    times = [[change.first.time_ns, change.second.time_ns, change.delta_ns] for change in changes]
    if len(changes) > 1 and is_timed:
        times = [[time or 0 for time in row] for row in times]
    one, other, delta = (list(column) for column in zip(*times, strict=True))
    return (
        sum(change.first.calls for change in changes),
        sum(change.second.calls for change in changes),
        _us(one),
        _us(other),
        _us(delta),
        _known([change.delta_bytes for change in changes]),
        _known([change.delta_flops for change in changes]),
    )


def _facts(diff: RunDiff) -> list[tuple[str, str]]:
    kinds = Counter(group.kind for group in diff.groups)
    if diff.first_ns is not None and diff.second_ns is not None and diff.explained_ns is not None:
        delta = diff.second_ns - diff.first_ns
        launches = f"{_groups(len(diff.groups))} of launches"
        eager = f" and {_groups(len(diff.eager))} of eager calls" if diff.eager else ""
        share = f" ({'+' if delta > 0 else ''}{format_share(delta / diff.first_ns)})" if diff.first_ns else ""
        rows = [
            ("explained", f"{signed(diff.explained_ns / 1e3, format_us)} by {launches}{eager}"),
            (
                "device time of a step",
                f"{format_us(diff.first_ns / 1e3)} -> {format_us(diff.second_ns / 1e3)}: "
                f"{signed(delta / 1e3, format_us)}{share}",
            ),
        ]
    else:
        traffic = [group.delta_bytes for group in diff.groups if group.delta_bytes is not None]
        flops = [group.delta_flops for group in diff.groups if group.delta_flops is not None]
        rows = [
            ("minimum traffic", f"{signed(sum(traffic), format_bytes)} in {_groups(len(traffic))} of launches"),
            ("tensor FLOPs", f"{signed(sum(flops), format_si)} in {_groups(len(flops))} of launches"),
        ]
    rows.append(("groups", ", ".join(f"{format_count(count)} {kind}" for kind, count in kinds.most_common()) or "none"))
    sides = [side for group in diff.groups for side in (group.first, group.second)]
    if diff.holds_steps and any(side.calls > 1 for side in sides):
        rows.append(("calls", "; ".join(_call_counts(diff))))
    if any(one != other for one, other in diff.graphs):
        rows.append(("graphs", ", ".join(f"{one or '(none)'} -> {other or '(none)'}" for one, other in diff.graphs)))
    return rows


def _call_counts(diff: RunDiff) -> list[str]:
    """How often each run's step calls its graphs, where that is more than once."""
    found = []
    for word, sides in (("first", [g.first for g in diff.groups]), ("second", [g.second for g in diff.groups])):
        counts = {name.rpartition("#")[0]: side.calls for side in sides for name in side.launches}
        named = [f"{graph} x{count}" for graph, count in counts.items()]
        found.append(f"{word} {', '.join(named) or 'none'}")
    return found


def _groups(count: int) -> str:
    return f"{count:,} group" + ("" if count == 1 else "s")


def _sentences(diff: RunDiff, *, top: int) -> list[Sentence]:
    told = change_sentences(diff)
    lines = [Sentence(text) for text, _ in told[:top]]
    if len(told) > top:
        left = sum(count for _, count in told[top:])
        lines.append(Sentence(f"{_groups(left)} more changed; --top shows more, --json all.", "quiet"))
    if diff.groups and not told:
        lines.append(Sentence("Both runs launch the same kernels' work: no launch split, merged, came or went."))
    return lines


def _table(diff: RunDiff, *, top: int) -> tuple[Block, ...]:
    if not diff.groups:
        return (Sentence("Neither run calls a kernel.", "bad"),)
    shown = diff.groups if len(diff.groups) <= top + 1 else diff.groups[:top]
    rest = diff.groups[len(shown) :]
    cells = [_cells(group.kind, group_name(group), [group]) for group in shown]
    if rest:
        cells.append(_cells("", f"({len(rest):,} others)", rest))
    places = ("launch_id", "shape", "source")
    keys = ("change", "kernel_name", *places, "first_us", "second_us", "delta_us", "delta_bytes", "delta_flops")
    total = _cells("total", "", diff.groups)
    table = Table(columns(*keys), tuple(cells), total, optional=("delta_flops", "shape", "source"))
    return (table if diff.basis == "time" else table.without(("first_us", "second_us", "delta_us")),)


def group_name(group: LaunchGroup) -> str:
    """The kernels of a group: ``"cpp_a -> cpp_b + cpp_c"``, or one side's where both are alike."""
    first, second = _kernels(group.first.kernels), _kernels(group.second.kernels)
    name = first or second if not first or not second or first == second else f"{first} -> {second}"
    return shorten(name, _LONGEST_CELL)


def _cells(change: str, name: str, groups: Sequence[LaunchGroup]) -> tuple[Any, ...]:
    one = groups[0] if len(groups) == 1 and change != "total" else None
    return (
        change,
        name,
        "" if one is None else _launch_names(one),
        "" if one is None else one.shape,
        "" if one is None else one.source or "",
        _us([group.first.time_ns for group in groups]),
        _us([group.second.time_ns for group in groups]),
        _us([group.delta_ns for group in groups]),
        _known([group.delta_bytes for group in groups]),
        _known([group.delta_flops for group in groups]),
    )


def _launch_names(group: LaunchGroup) -> str:
    """``forward_0#3``, or ``forward_0#3 -> forward_0#4`` where the runs place it differently."""
    first, second = (_first_of(side.launches) for side in (group.first, group.second))
    return first or second if not first or not second or first == second else f"{first} -> {second}"


def _first_of(launches: Sequence[str]) -> str:
    return f"{launches[0]} and {len(launches) - 1} more" if len(launches) > 1 else "".join(launches)


def _known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _us(times: Sequence[int | None]) -> float | None:
    total = _known(times)
    return None if total is None else total / 1e3


def remainder_sentences(diff: RunDiff) -> list[str]:
    """What the groups of launches leave unexplained, and what the comparison could not know, as lines of text."""
    lines = [f"{name}: {text}" for name, text in _remainder_facts(diff)]
    return lines + [str(block.text) for block in _remainder(diff) if isinstance(block, Sentence)]


def _remainder_facts(diff: RunDiff) -> tuple[tuple[str, str], ...]:
    if diff.remainder_ns is None or diff.outside_ns is None:
        return ()
    spread = diff.remainder_ns - diff.outside_ns
    rows = [
        ("unexplained", signed(diff.remainder_ns / 1e3, format_us)),
        ("outside the entries", signed(diff.outside_ns / 1e3, format_us)),
    ]
    if diff.unseen_ns:
        spread -= diff.unseen_ns
        rows.append(("did not run in one", f"{signed(diff.unseen_ns / 1e3, format_us)}: no time to compare with"))
    if diff.inside_ns:
        spread -= diff.inside_ns
        rows.append(("inside graphs", f"{signed(diff.inside_ns / 1e3, format_us)}: in their calls, of no launch"))
    return (
        *rows,
        ("means less medians", f"{signed(spread / 1e3, format_us)}: entries count with their median times"),
    )


def _remainder(diff: RunDiff) -> list[Block]:
    blocks: list[Block] = []
    rows = _remainder_facts(diff)
    if rows:
        blocks.append(Facts(rows))
    untimed = sum(group.first.untimed for group in diff.groups), sum(group.second.untimed for group in diff.groups)
    if any(untimed):
        blocks.append(
            Sentence(
                f"Launches that did not run in the profiled steps: {untimed[0]:,} of the first run, {untimed[1]:,} of "
                "the second; they have no time.",
                "bad",
            )
        )
    unknown = sum(group.delta_bytes is None for group in diff.groups)
    if unknown:
        blocks.append(Sentence(f"Minimum traffic is not known for {_groups(unknown)} of launches.", "quiet"))
    return blocks + [Sentence(ended(note), "quiet") for note in diff.notes]
