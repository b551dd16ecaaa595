"""Boosted regression trees as arrays, asked with numpy alone; scripts and ``fitting.learning`` make them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_LEAVES = 16
"""Leaves of one tree at most: the set of leaves still reachable is one 16-bit word."""
_ROWS_COUNTED = 8192
_CELLS = 1 << 16
"""Rows times trees at once: their masks stay in the processor's cache."""
_FEW_THRESHOLDS = 12
"""So many are compared one after the other, with all values at once."""
_BINS = (64, 128, 256, 512, 1024, 2048)
_ENOUGH_COMPARED, _MOST_COMPARED = 2, 6
"""Thresholds in one bin: no more bins are tried where there are so few; more are found by halves instead."""
_MOST_PLACES = 1536
_FEW_ROWS = 64


@dataclass(frozen=True)
class TreeEnsemble:
    """Boosted regression trees of at most 16 leaves: the sum over trees of the value of the leaf that a row reaches.

    Arrays are [trees, nodes]; node 0 is the root, a row goes ``left`` where its feature is <= the threshold; ``left``
    of a leaf is -1. Trees smaller than the widest are padded with leaves that nothing reaches.
    """

    baseline: float
    feature: NDArray[np.int16]
    threshold: Array
    left: NDArray[np.int16]
    right: NDArray[np.int16]
    value: NDArray[np.float32]

    def predict(self, rows: Array) -> Array:
        """One number per row of [rows, features]."""
        if len(rows) <= _FEW_ROWS:
            return self.walk(rows)
        step = _ROWS_COUNTED
        return np.concatenate([self._by_masks(rows[start : start + step]) for start in range(0, len(rows), step)])

    def walk(self, rows: Array) -> Array:
        """The obvious way: every row down every tree. Quick for few rows, and what ``predict`` is tested against."""
        trees = np.arange(len(self.feature))[None, :]
        node = np.zeros((len(rows), len(self.feature)), dtype=np.int64)
        each = np.arange(len(rows))[:, None]
        while True:
            left = self.left[trees, node]
            inner = left >= 0
            if not inner.any():
                break
            goes_left = rows[each, self.feature[trees, node]] <= self.threshold[trees, node]
            node = np.where(inner, np.where(goes_left, left, self.right[trees, node]), node)
        return np.asarray(self.baseline + self.value[trees, node].sum(axis=1, dtype=np.float64))

    def _by_masks(self, rows: Array) -> Array:
        tables, leaf_values = self._masks
        always = np.full(len(self.feature), np.uint16(0xFFFF))
        varied: list[tuple[NDArray[np.intp], NDArray[np.uint16]]] = []
        for features, table in tables:
            # The number of thresholds below the value says which comparisons fail, for all trees at once.
            place: Any = 0
            for feature, thresholds in features:
                place = place * (len(thresholds.rising) + 1) + thresholds.count_below(rows[:, feature])
            if isinstance(place, int):
                always &= table[place]
            else:
                varied.append((place.astype(np.intp), table))
        found = np.empty(len(rows), np.float64)
        leaves, first_leaf = leaf_values.ravel(), np.arange(0, leaf_values.size, MAX_LEAVES)
        step = max(_CELLS // len(self.feature), 1)
        # In pieces whose masks stay in the processor's cache.
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            alive = np.repeat(always[None], len(found[some]), axis=0)
            own = np.empty_like(alive)
            for places, table in varied:
                table.take(places[some], axis=0, out=own, mode="clip")
                alive &= own
            np.negative(alive, out=own)
            alive &= own
            alive *= _DE_BRUIJN
            alive >>= _DE_BRUIJN_SHIFT
            leaf = leaves.take(np.add(alive, first_leaf), mode="clip")
            leaf.sum(axis=1, dtype=np.float64, out=found[some])
        found += self.baseline
        return found

    @cached_property
    def _masks(self) -> tuple[list[tuple[list[tuple[int, _Thresholds]], NDArray[np.uint16]]], NDArray[np.float32]]:
        """For each few features their thresholds, and for each number of failed ones the leaves still reachable per
        tree; and each tree's leaves, in the order of ``_DE_BRUIJN``.

        The method of QuickScorer (Lucchese et al., SIGIR 2015): leaves are numbered from left to right, a failed
        comparison rules out the leaves on its left, and the lowest leaf left standing is the one reached. Features of
        few thresholds share a table, which has a row for each of their numbers together.
        """
        trees = len(self.feature)
        leaf_values = np.zeros((trees, MAX_LEAVES), dtype=np.float32)
        splits: dict[int, list[tuple[float, int, int]]] = {}
        for tree in range(trees):
            self._number_leaves(tree, 0, 0, leaf_values, splits)
        tables: list[tuple[list[tuple[int, _Thresholds]], NDArray[np.uint16]]] = []
        for feature, found in sorted(splits.items(), key=lambda item: len({each[0] for each in item[1]})):
            thresholds = np.unique([threshold for threshold, _, _ in found])
            table = np.full((len(thresholds) + 1, trees), 0xFFFF, dtype=np.uint16)
            for threshold, tree, mask in found:
                row = int(np.searchsorted(thresholds, threshold)) + 1
                table[row, tree] &= np.uint16(mask)
            table = np.bitwise_and.accumulate(table, axis=0)
            if tables and len(tables[-1][1]) * len(table) <= _MOST_PLACES:
                features, before = tables.pop()
                both = (before[:, None] & table[None]).reshape(-1, trees)
                tables.append(([*features, (feature, _Thresholds(thresholds))], both))
            else:
                tables.append(([(feature, _Thresholds(thresholds))], table))
        return tables, leaf_values[:, _DE_BRUIJN_ORDER]

    def _number_leaves(
        self,
        tree: int,
        node: int,
        first: int,
        leaf_values: NDArray[np.float32],
        splits: dict[int, list[tuple[float, int, int]]],
    ) -> int:
        if self.left[tree, node] < 0:
            leaf_values[tree, first] = self.value[tree, node]
            return 1
        on_left = self._number_leaves(tree, int(self.left[tree, node]), first, leaf_values, splits)
        ruled_out = ((1 << on_left) - 1) << first
        splits.setdefault(int(self.feature[tree, node]), []).append(
            (float(self.threshold[tree, node]), tree, 0xFFFF & ~ruled_out)
        )
        on_right = self._number_leaves(tree, int(self.right[tree, node]), first + on_left, leaf_values, splits)
        return on_left + on_right


@dataclass(frozen=True)
class _Thresholds:
    """Some rising thresholds, and bins of one width that they lie in. A value's bin says how many thresholds lie before
    it, and the value is compared only with the few inside."""

    rising: Array

    def count_below(self, values: Array) -> int | NDArray[np.uint16]:
        """How many thresholds each value lies above; one number where all values are the same. What is no number lies
        above all."""
        if values[0] == values[-1] and (values == values[0]).all():
            return int(np.searchsorted(self.rising, values[0], side="left"))
        if len(self.rising) <= _FEW_THRESHOLDS:
            count, is_below = np.full(len(values), len(self.rising), np.uint8), np.empty(len(values), np.bool_)
            for threshold in self.rising:
                np.less_equal(values, threshold, out=is_below)
                count -= is_below.view(np.uint8)
            return count.astype(np.uint16)
        bins_per_unit, before, inside = self._bins
        if len(inside) > _MOST_COMPARED:
            return np.searchsorted(self.rising, values, side="left").astype(np.uint16)
        place = self._places(values, bins_per_unit, len(before) - 1)
        found = before.take(place, mode="clip")
        for thresholds in inside:
            found += np.greater(values, thresholds.take(place, mode="clip"))
        return found

    def _places(self, values: Array, bins_per_unit: float, last: int) -> NDArray[np.intp]:
        """The bin of each value. Whatever rounding does, a value has no lower bin than a lesser one."""
        place = values - self.rising[0]
        place *= bins_per_unit
        np.fmin(place, last, out=place)
        np.fmax(place, 0, out=place)
        return np.asarray(place.astype(np.intp))

    @cached_property
    def _bins(self) -> tuple[float, NDArray[np.uint16], Array]:
        """Bins in a unit; how many thresholds lie before each bin, and the thresholds inside it, [place, bin], infinite
        where there are no more. After the last bin comes one for what lies above all thresholds."""
        for number in _BINS:
            bins_per_unit = (number - 0.5) / (self.rising[-1] - self.rising[0])
            place = self._places(self.rising, bins_per_unit, number)
            counts = np.bincount(place, minlength=number + 1)
            if counts.max() <= _ENOUGH_COMPARED:
                break
        before = np.concatenate([[0], np.cumsum(counts)[:-1]])
        inside = np.full((counts.max(), number + 1), np.inf)
        inside[np.arange(len(place)) - before[place], place] = self.rising
        return bins_per_unit, before.astype(np.uint16), inside


_DE_BRUIJN, _DE_BRUIJN_SHIFT = np.uint16(0x09AF), np.uint16(12)
"""A power of two below 2**16 times the first has another number in its four highest bits than every other."""
_DE_BRUIJN_ORDER = np.argsort((np.uint16(1) << np.arange(MAX_LEAVES, dtype=np.uint16)) * _DE_BRUIJN >> _DE_BRUIJN_SHIFT)
"""Which leaf has each of these numbers."""
