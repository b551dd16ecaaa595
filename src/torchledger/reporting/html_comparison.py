"""Two ledgers side by side as plain data: totals, categories, and launches aligned by what they compute.

The alignment is that of ``torchledger diff`` (``comparing.run_diff``). Imported traces hold no launches; then kernels
are aligned by name, and the page says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any

from torchledger.nouns import LaunchGroup, RunDiff
from torchledger.nouns.run_diff import DiffSide, EagerChange, EagerSide
from torchledger.reporting.columns import format_bytes, format_us
from torchledger.reporting.html_texts import Texts, clean, in_words
from torchledger.reporting.run_diff import (
    change_sentences,
    eager_source,
    group_name,
    remainder_sentences,
    with_short_sources,
)
from torchledger.work.categories import category_of_operator

_NUMBER = re.compile(r"_\d+$")
_SENTENCES = 8

# Medians, not sums: one step that was disturbed must not look like a change of the code.
_AMOUNTS = {"time": ("us", "usual_us"), "bytes": ("B", "bytes_moved")}


def comparison_data(
    first: dict[str, Any], second: dict[str, Any], diff: RunDiff | None = None, *, folder: str = ""
) -> dict[str, Any]:
    """The page's data for ``report A B``, from the data of the two pages (``html_data.page_data``) and the ``diff`` of
    the two runs; without a diff, kernels are aligned by name. Source paths are relative to ``folder``."""
    if diff is not None:
        diff = with_short_sources(diff, folder)
    sides = (first["data"], second["data"])
    if diff is not None:
        weight = diff.basis
    else:
        weight = "time" if all(side["weight"] == "time" for side in sides) else "bytes"
    unit, column = _AMOUNTS[weight]
    texts = Texts()
    if diff is None:
        rows = _rows_by_name(sides, column, texts)
    else:
        categories_of = [_category_of_launch(side) for side in sides]
        rows = [_row(group, categories_of, weight, texts) for group in diff.groups]
        rows += [_eager_row(change, weight, texts) for change in diff.eager]
    sums = [_by_category(side, column) for side in sides]
    if diff is not None and diff.holds_steps:
        for side, sums_of_side in zip(sides, sums, strict=True):
            _add_eager(side, sums_of_side, weight)
    names = dict.fromkeys((*sums[0], *sums[1]))
    categories = [(name, sums[0].get(name, 0.0), sums[1].get(name, 0.0)) for name in names]
    categories.sort(key=lambda row: -max(row[1], row[2]))
    totals = [
        ["step, host clock", "us", *((side["step"] or {}).get("plain_us") for side in sides)],
        ["device time of entries, medians", "us", *(_total(side, "usual_us") for side in sides)],
        ["launches", "", *(len(side["launches"].get("order", ())) for side in sides)],
        ["FLOPs", "FLOP", *(_total(side, "flops") for side in sides)],
        ["minimum bytes", "B", *(_total(side, "bytes_moved") for side in sides)],
    ]
    if diff is not None and diff.holds_steps:
        recorded = [side["recorded"] for side in sides]
        totals = [
            ["step, host clock", "us", *(step["duration_us"] for step in recorded)],
            ["device time of a step", "us", *(_in_us(time) for time in (diff.first_ns, diff.second_ns))],
            *(
                [label, unit, *(step["total"][key] for step in recorded)]
                for label, unit, key in (
                    ("calls in a step", "", "calls"),
                    ("launches in a step", "", "launches"),
                    ("FLOPs of a step", "FLOP", "flops"),
                    ("minimum bytes of a step", "B", "bytes"),
                )
            ),
        ]
    changes = _told(diff)
    return {
        "kind": "diff",
        "title": " and ".join(_short_names(first["data"]["file"], second["data"]["file"])),
        "file": f"{first['data']['file']} and {second['data']['file']}",
        "graphs": [],
        "weight": weight,
        "comparison": {
            "sentences": [
                *(in_words(text) for text in _sentences(sides, weight, unit, column, diff)),
                f"A is {sides[0]['file']}, B is {sides[1]['file']}.",
            ],
            "unit": unit,
            "is_aligned": diff is not None,
            "totals": [row for row in totals if row[2] is not None or row[3] is not None],
            "categories": categories,
            "changes": changes[:_SENTENCES],
            "more_changes": max(0, len(changes) - _SENTENCES),
            "rows": rows,
            "unexplained": [] if diff is None else [in_words(text) for text in remainder_sentences(diff)],
            "settings": [] if diff is None else _setting_rows(diff),
            "runs": [["file", sides[0]["file"], sides[1]["file"]], *_facts(sides)],
        },
        "texts": texts.all,
    }


def _short_names(first: str, second: str) -> list[str]:
    """Two files without the folder that both lie in.

    >>> _short_names("runs/a.job/rank0.ledger", "runs/b.job/rank0.ledger")
    ['a.job/rank0.ledger', 'b.job/rank0.ledger']
    """
    folders = [PurePath(name).parent.parts for name in (first, second)]
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*folders, strict=False)))
    return [str(PurePath(*PurePath(name).parts[shared:])) for name in (first, second)]


def kernel_stem(name: str) -> str:
    """A kernel's name without the running number that a graph gave it.

    >>> kernel_stem("triton_poi_fused_add_3"), kernel_stem("extern_kernels.mm")
    ('triton_poi_fused_add', 'extern_kernels.mm')
    """
    return _NUMBER.sub("", name)


def _told(diff: RunDiff | None) -> list[str]:
    return [] if diff is None else [in_words(text) for text, _ in change_sentences(diff)]


def _row(group: LaunchGroup, categories_of: Sequence[dict[str, str]], weight: str, texts: Texts) -> list[Any]:
    """[change, name, category, launches and amount of each run, traffic and FLOPs more, operators, line, module]."""
    ids = [(side, name) for side, part in enumerate((group.second, group.first)) for name in part.launches]
    found = (categories_of[1 - side].get(name) for side, name in ids)
    return [
        texts.place(group.kind),
        texts.place(group_name(group)),
        texts.place(next((name for name in found if name), "other")),
        len(group.first.launches) * group.first.calls,
        len(group.second.launches) * group.second.calls,
        _amount(group.first, weight),
        _amount(group.second, weight),
        group.delta_bytes,
        group.delta_flops,
        texts.place(", ".join(group.aten_ops)),
        texts.place(group.source),
        texts.place(group.module),
    ]


def _eager_row(change: EagerChange, weight: str, texts: Texts) -> list[Any]:
    """As ``_row``, of calls outside compiled graphs."""
    amounts = [_amount(side, weight) for side in (change.first, change.second)]
    return [
        texts.place(change.kind),
        texts.place(change.name),
        texts.place(category_of_operator(change.name) or "other"),
        change.first.calls,
        change.second.calls,
        *amounts,
        change.delta_bytes,
        change.delta_flops,
        texts.place(change.name),
        texts.place(eager_source(change) or None),
        0,
    ]


def _add_eager(side: dict[str, Any], sums: dict[str, float], weight: str) -> None:
    """Add a step's calls outside compiled graphs to its sums by category."""
    texts = side["texts"]
    for kind, _, _, category, _, _, time_us, _, moved, *_ in side["recorded"]["calls"]:
        if texts[kind] != "graph":
            name = texts[category]
            sums[name] = sums.get(name, 0.0) + ((time_us if weight == "time" else moved) or 0.0)


def _setting_rows(diff: RunDiff) -> list[list[str]]:
    return [[clean(each.name), clean(each.first or ""), clean(each.second or "")] for each in diff.settings]


def _in_us(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e3


def _amount(side: DiffSide | EagerSide, weight: str) -> float | int | None:
    if weight == "bytes":
        return side.bytes_moved
    return None if side.time_ns is None else side.time_ns / 1e3


def _category_of_launch(side: dict[str, Any]) -> dict[str, str]:
    launches, texts, graphs = side["launches"], side["texts"], side["graphs"]
    columns = (launches.get(name, ()) for name in ("graph", "order", "category"))
    return {
        f"{graphs[graph]['name']}#{order}": texts[category]
        for graph, order, category in zip(*columns, strict=True)
        if graph >= 0
    }


def _rows_by_name(sides: Sequence[dict[str, Any]], column: str, texts: Texts) -> list[list[Any]]:
    groups = [_groups(side, column) for side in sides]
    rows = []
    for name, category in dict.fromkeys((*groups[0], *groups[1])):
        (count_a, amount_a), (count_b, amount_b) = (group.get((name, category), (0, 0.0)) for group in groups)
        change = "same name" if count_a and count_b else "only first" if count_a else "only second"
        rows.append(
            [*texts.places((change, name, category)), count_a, count_b, amount_a, amount_b, None, None, 0, 0, 0]
        )
    return rows


def _groups(side: dict[str, Any], column: str) -> dict[tuple[str, str], tuple[int, float]]:
    """Launches and amount of each (stem, category)."""
    launches, texts, names = side["launches"], side["texts"], side["kernel_names"]
    groups: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for kernel, category, amount in zip(
        launches.get("kernel", ()), launches.get("category", ()), launches.get(column, ()), strict=True
    ):
        sums = groups[kernel_stem(names[kernel]), texts[category]]
        sums[0] += 1
        sums[1] += amount or 0.0
    return {key: (int(count), amount) for key, (count, amount) in groups.items()}


def _by_category(side: dict[str, Any], column: str) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    launches = side["launches"]
    for category, amount in zip(launches.get("category", ()), launches.get(column, ()), strict=True):
        sums[side["texts"][category]] += amount or 0.0
    return sums


def _total(side: dict[str, Any], column: str) -> float | None:
    values = [value for value in side["launches"].get(column, ()) if value is not None]
    return sum(values) if values else None


def _sentences(
    sides: tuple[dict[str, Any], ...], weight: str, unit: str, column: str, diff: RunDiff | None
) -> list[str]:
    amounts = [_total(side, column) or 0.0 for side in sides]
    is_step = diff is not None and diff.holds_steps and weight == "time"
    if diff is not None and is_step:
        amounts = [_in_us(time) or 0.0 for time in (diff.first_ns, diff.second_ns)]
    show = format_us if unit == "us" else format_bytes
    time_words = "device time in a step" if is_step else "device time in a step (sum of medians)"
    what = time_words if weight == "time" else "minimum traffic"
    if not amounts[0]:
        return [f"A has no {what} to compare with; B has {show(amounts[1])}."]
    change = amounts[1] / amounts[0] - 1
    more = (
        f"{abs(change) * 100:.1f} % {'more' if change >= 0 else 'less'} than"
        if change < 2
        else f"{change + 1:.1f} times"
    )
    found = [f"B takes {show(amounts[1])} of {what}, {more} A's {show(amounts[0])}."]
    if weight != "time":
        found.append("At least one of the two was not timed, so minimum traffic is compared.")
    if diff is None:
        found.append("At least one of the two holds no launches (an imported trace), so kernels are aligned by name.")
    devices = [side["ceilings"].get("device") for side in sides]
    if devices[0] != devices[1]:
        found.append(f"They ran on different devices: {devices[0] or 'unknown'} and {devices[1] or 'unknown'}.")
    return found


def _facts(sides: tuple[dict[str, Any], ...]) -> list[list[str]]:
    first, second = (dict(side["facts"]) for side in sides)
    return [[name, first.get(name, ""), second.get(name, "")] for name in dict.fromkeys((*first, *second))]
