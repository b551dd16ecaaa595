"""Launches of dynamic graphs at the sizes that a step calls them with: in the mean, where its calls differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from torchledger.nouns import Launch, Measurement, Prediction, StepCall
from torchledger.work.sizes import sizes_at

_MOST_SIZES = 16
"""So many sizes of a graph's calls are told apart, the most frequent ones."""

CallSizes = Mapping[str, Sequence[tuple[Mapping[str, int], int]]]
"""By graph the symbols of its calls and how many calls have them, the most frequent first."""


def sizes_of_calls(calls: Iterable[StepCall]) -> CallSizes:
    """The sizes that a step calls its dynamic graphs with."""
    found: dict[str, Counter[tuple[tuple[str, int], ...]]] = defaultdict(Counter)
    for call in calls:
        if call.kind == "graph" and call.sizes:
            found[call.name][tuple(sorted(call.sizes))] += 1
    return {
        graph: [(dict(sizes), count) for sizes, count in counts.most_common(_MOST_SIZES)]
        for graph, counts in found.items()
    }


def at_usual_sizes(launches: Iterable[Launch], sizes: CallSizes) -> list[Launch]:
    """Each launch at the sizes of most calls of its graph."""
    return [_at(launch, sizes[launch.graph][0][0]) if launch.graph in sizes else launch for launch in launches]


def predict_at_sizes(
    launches: Sequence[Launch], sizes: CallSizes, predict: Callable[[Sequence[Launch]], list[Prediction]]
) -> list[Prediction]:
    """What ``predict`` says of the launches, as the step calls their graphs.

    Where calls of a graph differ in their sizes, a launch's time and interval are the mean over its calls.
    """
    found = predict(at_usual_sizes(launches, sizes))
    others = {graph: each for graph, each in sizes.items() if len(each) > 1}
    if not others:
        return found
    sums = {each.subject: _Sum(each, sizes[_graph_of(each)][0][1]) for each in found if _graph_of(each) in others}
    for place in range(1, max(map(len, others.values()))):
        now = {graph: each[place] for graph, each in others.items() if place < len(each)}
        asked = [_at(launch, now[launch.graph][0]) for launch in launches if launch.graph in now]
        for each in predict(asked):
            sums[each.subject].add(each, now[_graph_of(each)][1])
    return [sums[each.subject].mean if each.subject in sums else each for each in found]


def measured_of_calls(measurements: Iterable[Measurement], calls: Iterable[StepCall]) -> dict[str, float]:
    """What each launch took, in microseconds: the median of its calls, or their mean where their sizes differ."""
    unlike = {graph for graph, each in sizes_of_calls(calls).items() if len(each) > 1}
    return {
        item.subject: fmean(item.samples_us) if item.subject.rpartition("#")[0] in unlike else item.duration_us
        for item in measurements
    }


class _Sum:
    """The predictions of a launch at several sizes, as often as each is called."""

    def __init__(self, usual: Prediction, calls: int) -> None:
        self._usual = usual
        self._members = [(usual, calls)]

    def add(self, prediction: Prediction, calls: int) -> None:
        self._members.append((prediction, calls))

    @property
    def mean(self) -> Prediction:
        calls = sum(count for _, count in self._members)
        rooflines = [each.roofline_us for each, _ in self._members]
        return replace(
            self._usual,
            duration_us=sum(each.duration_us * count for each, count in self._members) / calls,
            low_us=sum(each.low_us * count for each, count in self._members) / calls,
            high_us=sum(each.high_us * count for each, count in self._members) / calls,
            roofline_us=(
                None
                if None in rooflines
                else sum((each.roofline_us or 0.0) * count for each, count in self._members) / calls
            ),
        )


def _at(launch: Launch, symbols: Mapping[str, int]) -> Launch:
    """A launch at these sizes; as recorded where they do not say what it moves."""
    (moved,) = sizes_at([launch], symbols)
    return launch if moved.bytes_moved is None and launch.bytes_moved is not None else moved


def _graph_of(prediction: Prediction) -> str:
    return prediction.subject.rpartition("#")[0]
