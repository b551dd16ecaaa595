"""Addresses as arithmetic progressions: one way to write each, and how many there are in a union.

An affine index over a box of loops is ``offset + sum(stride * [0, count))``. Loops that overlap (windows) are merged
until every address is written in one way only, so that the product of the counts is exact; the progressions of several
accesses become boxes in one mixed-radix digit space, whose union is swept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ENUMERATION_LIMIT = 4096
"""Iterations up to which an access that has no closed form is enumerated."""
MAX_UNROLL = 64
_MAX_PIECES = 256
_MAX_SWEEPS = 4000


@dataclass(frozen=True)
class Progression:
    """The addresses ``offset + sum(stride * x)`` for ``0 <= x < count`` of each term ``(stride, count)``."""

    offset: int
    terms: tuple[tuple[int, int], ...]


class TooComplex(Exception):
    """No closed form within the budget."""


def _separate(piece: Progression) -> list[Progression]:
    """Rewrite a progression as ones whose counts multiply to their number of distinct addresses.

    In each result every stride is larger than the span of all smaller strides together. Raises ``TooComplex``.
    """
    result, pending = [], [piece]
    budget = _MAX_PIECES
    while pending:
        budget -= 1
        if budget < 0:
            raise TooComplex
        current = pending.pop()
        offset, terms = _merge_terms(current.offset, current.terms)
        conflict = _first_conflict(terms)
        if conflict is None:
            result.append(Progression(offset, terms))
        else:
            pending.extend(_resolve(offset, terms, conflict))
    return result


def _merge_terms(offset: int, terms: Iterable[tuple[int, int]]) -> tuple[int, tuple[tuple[int, int], ...]]:
    counts: dict[int, int] = {}
    for stride, count in terms:
        if stride == 0 or count == 1:
            continue
        if stride < 0:
            offset += stride * (count - 1)
            stride = -stride
        counts[stride] = counts.get(stride, 1) + count - 1
    merged = sorted(counts.items())
    i = 0
    while i < len(merged):
        stride, count = merged[i]
        for j in range(i + 1, len(merged)):
            ratio, rest = divmod(merged[j][0], stride)
            if rest == 0 and ratio <= count:
                # Steps of `ratio` between runs of at least that length leave no gap: one longer run.
                merged[i] = (stride, count + ratio * (merged[j][1] - 1))
                del merged[j]
                i = -1
                break
        i += 1
    return offset, tuple(merged)


def _first_conflict(terms: Sequence[tuple[int, int]]) -> int | None:
    span = 0
    for position, (stride, count) in enumerate(terms):
        if stride <= span:
            return position
        span += stride * (count - 1)
    return None


def _resolve(offset: int, terms: tuple[tuple[int, int], ...], conflict: int) -> list[Progression]:
    """Unroll the cheapest loop that stands in the way, or split the conflicting one at the period of a smaller."""
    stride, count = terms[conflict]
    cheapest = min(range(conflict + 1), key=lambda i: terms[i][1])
    period = None
    for smaller, _ in terms[:conflict]:
        candidate = smaller // math.gcd(smaller, stride)
        if 1 < candidate < count and (period is None or candidate < period):
            period = candidate
    if period is not None and period < terms[cheapest][1]:
        if period > MAX_UNROLL:
            raise TooComplex
        others = terms[:conflict] + terms[conflict + 1 :]
        return [
            Progression(offset + stride * start, (*others, (stride * period, (count - start + period - 1) // period)))
            for start in range(period)
        ]
    stride, count = terms[cheapest]
    if count > MAX_UNROLL:
        raise TooComplex
    others = terms[:cheapest] + terms[cheapest + 1 :]
    return [Progression(offset + stride * step, others) for step in range(count)]


def _size(piece: Progression) -> int:
    return math.prod(count for _, count in piece.terms)


def _last(piece: Progression) -> int:
    return piece.offset + sum(stride * (count - 1) for stride, count in piece.terms)


def clamp(piece: Progression, low: int, high: int) -> list[Progression]:
    """The part of a progression with addresses in ``[low, high]``."""
    parts: list[Progression] = []
    for separated in _separate(piece):
        for part in _clamp_below(separated, low):
            # Mirrored, the upper limit is a lower one.
            mirrored = Progression(-_last(part), part.terms)
            parts.extend(Progression(-_last(kept), kept.terms) for kept in _clamp_below(mirrored, -high))
    return parts


def _clamp_below(piece: Progression, low: int) -> list[Progression]:
    if piece.offset >= low:
        return [piece]
    if _last(piece) < low:
        return []
    *lower, (stride, count) = piece.terms
    span = sum(s * (n - 1) for s, n in lower)
    first_whole = min(-((piece.offset - low) // stride), count)
    parts = []
    if first_whole < count:
        rest = count - first_whole
        terms = (*lower, (stride, rest)) if rest > 1 else tuple(lower)
        parts.append(Progression(piece.offset + stride * first_whole, terms))
    start = piece.offset + stride * (first_whole - 1)
    if first_whole > 0 and start + span >= low:
        parts.extend(_clamp_below(Progression(start, tuple(lower)), low))
    return parts


# ---------------------------------------------------------------------------------------------------------------------
# Union of progressions


def count_union(pieces: Sequence[Progression]) -> tuple[int, bool]:
    """Distinct addresses in the union, and whether that is exact (otherwise it is an upper bound)."""
    if not pieces:
        return 0, True
    separated: dict[Progression, None] = {}
    total_bound, is_exact = 0, True
    for piece in dict.fromkeys(pieces):
        try:
            separated.update(dict.fromkeys(_separate(piece)))
        except TooComplex:
            addresses = _enumerate_progression(piece)
            if addresses is not None:
                separated.update(dict.fromkeys(addresses))
                continue
            is_exact = False
            total_bound += _bound(piece)
    count = 0
    for cluster in _clusters(list(separated)):
        cluster_count, cluster_is_exact = _count_cluster(cluster)
        count += cluster_count
        is_exact = is_exact and cluster_is_exact
    return count + total_bound, is_exact


def _bound(piece: Progression) -> int:
    _, terms = _merge_terms(piece.offset, piece.terms)
    divisor = math.gcd(*(stride for stride, _ in terms))
    span = sum(stride * (count - 1) for stride, count in terms)
    return min(math.prod(count for _, count in terms), span // divisor + 1)


def _enumerate_progression(piece: Progression) -> list[Progression] | None:
    offset, terms = _merge_terms(piece.offset, piece.terms)
    if math.prod(count for _, count in terms) > ENUMERATION_LIMIT:
        return None
    return [Progression(int(address), ()) for address in np.unique(_addresses(Progression(offset, terms)))]


def _addresses(piece: Progression) -> Any:
    addresses = np.array([piece.offset], dtype=np.int64)
    for stride, count in piece.terms:
        addresses = (addresses[:, None] + stride * np.arange(count, dtype=np.int64)).reshape(-1)
    return addresses


def _clusters(pieces: list[Progression]) -> list[list[Progression]]:
    """Groups whose address ranges do not overlap; pieces inside an unbroken run of another are dropped."""
    pieces.sort(key=lambda piece: (piece.offset, -_last(piece)))
    clusters: list[list[Progression]] = []
    end = None
    for piece in pieces:
        if end is None or piece.offset > end:
            clusters.append([])
            end = _last(piece)
        clusters[-1].append(piece)
        end = max(end, _last(piece))
    return [_without_covered(cluster) if len(cluster) > 1 else cluster for cluster in clusters]


def _without_covered(cluster: list[Progression]) -> list[Progression]:
    runs = [piece for piece in cluster if len(piece.terms) == 1 and piece.terms[0][0] == 1]
    if not runs:
        return cluster
    longest = max(runs, key=_size)
    first, last = longest.offset, _last(longest)
    return [piece for piece in cluster if piece is longest or piece.offset < first or _last(piece) > last]


def _count_cluster(cluster: list[Progression]) -> tuple[int, bool]:
    if len(cluster) == 1:
        return _size(cluster[0]), True
    total = sum(map(_size, cluster))
    if len(cluster) > _MAX_PIECES and total > 16 * ENUMERATION_LIMIT:
        return _loose_bound(cluster, total), False
    try:
        if len(cluster) <= _MAX_PIECES:
            return _sweep(_boxes(cluster)), True
    except TooComplex:
        pass
    if total <= 16 * ENUMERATION_LIMIT:
        return int(np.unique(np.concatenate([_addresses(piece) for piece in cluster])).size), True
    return _loose_bound(cluster, total), False


def _loose_bound(cluster: list[Progression], total: int) -> int:
    first = cluster[0].offset
    divisor = _common_divisor(cluster)
    return min(total, (max(map(_last, cluster)) - first) // divisor + 1)


def _common_divisor(cluster: list[Progression]) -> int:
    first = cluster[0].offset
    return math.gcd(
        *(piece.offset - first for piece in cluster), *(stride for piece in cluster for stride, _ in piece.terms)
    )


_Box = tuple[tuple[int, int], ...]


def _boxes(cluster: list[Progression]) -> list[_Box]:
    """Write the progressions as boxes (a closed interval per digit) in one mixed-radix number system."""
    first = min(piece.offset for piece in cluster)
    divisor = _common_divisor(cluster)
    strides = {stride // divisor for piece in cluster for stride, _ in piece.terms}
    radices = _radix_chain(strides)
    boxes: dict[_Box, None] = {}
    for piece in cluster:
        offset = (piece.offset - first) // divisor
        terms = [(stride // divisor, count) for stride, count in piece.terms]
        for start, counts in _on_chain(offset, terms, radices):
            _carry(start, counts, radices, boxes)
    return list(boxes)


def _radix_chain(strides: set[int]) -> list[int]:
    """Place values, each dividing the next, such that each stride is one of them or divides one by a small factor."""
    chain = [1]
    for stride in sorted(strides):
        common = math.lcm(stride, chain[-1])
        if common // stride > MAX_UNROLL:
            raise TooComplex
        if common != chain[-1]:
            chain.append(common)
    return chain


def _on_chain(
    offset: int, terms: Sequence[tuple[int, int]], radices: Sequence[int]
) -> list[tuple[int, dict[int, int]]]:
    """The progression with all strides on place values: (offset, count - 1 per place value), unrolled as needed."""
    results: list[tuple[int, dict[int, int]]] = [(offset, {})]
    for stride, count in terms:
        place = next(radix for radix in radices if radix % stride == 0)
        factor = place // stride
        unrolled = []
        for start, reach in results:
            for step in range(min(factor, count)):
                extended = dict(reach)
                extended[place] = extended.get(place, 0) + (count - 1 - step) // factor
                unrolled.append((start + stride * step, extended))
        results = unrolled
        if len(results) > _MAX_PIECES:
            raise TooComplex
    return results


def _carry(start: int, reach: Mapping[int, int], radices: Sequence[int], boxes: dict[_Box, None]) -> None:
    """Resolve the carries between digits: at most three boxes a digit, for the first, whole and last period."""
    pending: list[tuple[int, int, int, _Box]] = [(0, 0, 0, ())]
    while pending:
        position, carry_low, carry_high, box = pending.pop()
        place = radices[position]
        if position == len(radices) - 1:
            low = start // place + carry_low
            boxes[(*box, (low, start // place + reach.get(place, 0) + carry_high))] = None
            if len(boxes) > 4 * _MAX_PIECES:
                raise TooComplex
            continue
        radix = radices[position + 1] // place
        digit = start // place % radix
        low, high = digit + carry_low, digit + reach.get(place, 0) + carry_high
        first_period, last_period = low // radix, high // radix
        if first_period == last_period:
            part = (low - first_period * radix, high - first_period * radix)
            pending.append((position + 1, first_period, first_period, (*box, part)))
            continue
        if low % radix:
            pending.append((position + 1, first_period, first_period, (*box, (low % radix, radix - 1))))
            first_period += 1
        if high % radix != radix - 1:
            pending.append((position + 1, last_period, last_period, (*box, (0, high % radix))))
            last_period -= 1
        if first_period <= last_period:
            pending.append((position + 1, first_period, last_period, (*box, (0, radix - 1))))


def _sweep(boxes: list[_Box]) -> int:
    """Number of points in the union of boxes, digit by digit; equal sets of open boxes are counted once."""
    dimensions = len(boxes[0])
    known: dict[tuple[int, int], int] = {}
    budget = [_MAX_SWEEPS]

    def count(position: int, active: int) -> int:
        if position < 0:
            return 1
        if active & (active - 1) == 0:
            low_high = boxes[active.bit_length() - 1][: position + 1]
            return math.prod(high - low + 1 for low, high in low_high)
        key = (position, active)
        if key in known:
            return known[key]
        budget[0] -= 1
        if budget[0] < 0:
            raise TooComplex
        events: dict[int, int] = {}
        remaining = active
        while remaining:
            lowest = remaining & -remaining
            low, high = boxes[lowest.bit_length() - 1][position]
            events[low] = events.get(low, 0) ^ lowest
            events[high + 1] = events.get(high + 1, 0) ^ lowest
            remaining ^= lowest
        widths: dict[int, int] = {}
        open_boxes, previous = 0, 0
        for place in sorted(events):
            if open_boxes:
                widths[open_boxes] = widths.get(open_boxes, 0) + place - previous
            open_boxes ^= events[place]
            previous = place
        result = sum(width * count(position - 1, subset) for subset, width in widths.items())
        known[key] = result
        return result

    return count(dimensions - 1, (1 << len(boxes)) - 1)
