"""Two ledgers side by side as plain data: totals, categories and kernels aligned by what they compute."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from torchledger.reporting.columns import format_bytes, format_us

_NUMBER = re.compile(r"_\d+$")

# Medians, not sums: one step that was disturbed must not look like a change of the code.
_AMOUNTS = {"time": ("us", "usual_us"), "bytes": ("B", "bytes_moved"), "flops": ("FLOP", "flops")}


def comparison_data(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The page's data for ``report A B``, from the data of the two pages (``html_data.page_data``)."""
    sides = (first["data"], second["data"])
    weight = "time" if all(side["weight"] == "time" for side in sides) else "bytes"
    unit, column = _AMOUNTS[weight]
    groups = [_groups(side, column) for side in sides]
    kernels = []
    for key in dict.fromkeys((*groups[0], *groups[1])):
        (count_a, amount_a), (count_b, amount_b) = (group.get(key, (0, 0.0)) for group in groups)
        kernels.append([*key, count_a, count_b, amount_a, amount_b])
    names = dict.fromkeys(category for _, category in (*groups[0], *groups[1]))
    categories = [(name, _sum_of(groups[0], name), _sum_of(groups[1], name)) for name in names]
    categories.sort(key=lambda row: -max(row[1], row[2]))
    totals = [
        ["step, host clock", "us", *((side["step"] or {}).get("plain_us") for side in sides)],
        ["device time of entries, medians", "us", *(_total(side, "usual_us") for side in sides)],
        ["launches", "", *(len(side["launches"].get("order", ())) for side in sides)],
        ["FLOPs", "FLOP", *(_total(side, "flops") for side in sides)],
        ["minimum bytes", "B", *(_total(side, "bytes_moved") for side in sides)],
    ]
    return {
        "kind": "diff",
        "title": f"{first['data']['file']} and {second['data']['file']}",
        "file": f"{first['data']['file']} and {second['data']['file']}",
        "graphs": [],
        "weight": weight,
        "texts": [],
        "comparison": {
            "sentences": _sentences(sides, weight, unit, column),
            "unit": unit,
            "totals": [row for row in totals if row[2] is not None or row[3] is not None],
            "categories": categories,
            "kernels": kernels,
            "runs": [["file", sides[0]["file"], sides[1]["file"]], *_facts(sides)],
        },
    }


def kernel_stem(name: str) -> str:
    """A kernel's name without the running number that a graph gave it.

    >>> kernel_stem("triton_poi_fused_add_3"), kernel_stem("extern_kernels.mm")
    ('triton_poi_fused_add', 'extern_kernels.mm')
    """
    return _NUMBER.sub("", name)


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


def _sum_of(group: dict[tuple[str, str], tuple[int, float]], category: str) -> float:
    return sum(amount for (_, name), (_, amount) in group.items() if name == category)


def _total(side: dict[str, Any], column: str) -> float | None:
    values = [value for value in side["launches"].get(column, ()) if value is not None]
    return sum(values) if values else None


def _sentences(sides: tuple[dict[str, Any], ...], weight: str, unit: str, column: str) -> list[str]:
    amounts = [_total(side, column) or 0.0 for side in sides]
    show = format_us if unit == "us" else format_bytes
    what = "device time in a step (sum of medians)" if weight == "time" else "minimum traffic"
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
    devices = [side["ceilings"].get("device") for side in sides]
    if devices[0] != devices[1]:
        found.append(f"They ran on different devices: {devices[0] or 'unknown'} and {devices[1] or 'unknown'}.")
    return found


def _facts(sides: tuple[dict[str, Any], ...]) -> list[list[str]]:
    first, second = (dict(side["facts"]) for side in sides)
    return [[name, first.get(name, ""), second.get(name, "")] for name in dict.fromkeys((*first, *second))]
