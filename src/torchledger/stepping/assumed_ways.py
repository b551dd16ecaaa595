"""Where a compiled graph asks values what it does, and there are none: which of its launches are taken to be made.

Of a conditional it is the dearer way, of a loop one turn. Either is said in the step's notes, with the user's line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from torchledger.capturing.conditionals import Conditional, Fork, Lines, Loop, Regions, asker_of, stands_in
from torchledger.nouns import Launch
from torchledger.roofline import USUAL_FLOPS_PER_BYTE

_CHECKS = 2
"""How often a loop of one turn is asked whether it goes on."""


def dearer_ways(launches: Sequence[Launch], forks: Iterable[Fork]) -> dict[Conditional, int]:
    """Which way of each conditional needs longer, by FLOPs and bytes; the first of equals. What an inner conditional
    leaves out does not count for an outer one."""
    found: dict[Conditional, int] = {}
    left: set[str] = set()
    # An outer one stands before its inner ones.
    for fork in reversed([each for each in forks if not isinstance(each, (Loop, Regions))]):
        costs = [sum(_cost(each) for each in _inside(launches, way) if each.launch_id not in left) for way in fork]
        found[fork] = costs.index(max(costs))
        left |= {each.launch_id for each in _left(launches, fork, found[fork])}
    return found


def assumed_times(launches: Sequence[Launch], forks: Sequence[Fork]) -> dict[str, int]:
    """How often a call of a graph is taken to make its launches, by ``launch_id``, where that is not once.

    The ways of conditionals that are not the dearer are not taken, and loops make one turn.
    """
    loops = (fork for fork in forks if isinstance(fork, Loop))
    times = {each.launch_id: _CHECKS for loop in loops for each in _inside(launches, loop.check)}
    for fork, taken in dearer_ways(launches, forks).items():
        times |= {each.launch_id: 0 for each in _left(launches, fork, taken)}
    return times


def notes_on_ways(launches: Mapping[str, Sequence[Launch]], forks: Mapping[str, Sequence[Fork]]) -> tuple[str, ...]:
    """What is assumed of conditionals and loops, each once with its line; both mappings are by graph."""
    priced: dict[str, dict[str, Launch]] = defaultdict(dict)
    left: dict[str, dict[str, Launch]] = defaultdict(dict)
    turns: dict[str, dict[str, Launch]] = defaultdict(dict)
    for graph, found in forks.items():
        entries = launches.get(graph, ())
        for fork, taken in dearer_ways(entries, found).items():
            line = asker_of(fork, entries) or graph
            priced[line] |= {each.launch_id: each for each in _inside(entries, fork[taken])}
            left[line] |= {each.launch_id: each for each in _left(entries, fork, taken)}
        for loop in (fork for fork in found if isinstance(fork, Loop)):
            turns[asker_of(loop, entries) or graph] |= {each.launch_id: each for each in _inside(entries, loop.body)}
    ways = {line: [each for name, each in taken.items() if name not in left[line]] for line, taken in priced.items()}
    return (
        *(
            f"which way torch.cond takes at {line} is decided by values, and there are none: the dearer one is priced "
            f"({_work(taken)}), the other is not ({_work(left[line].values())})"
            for line, taken in ways.items()
        ),
        *(
            f"how often while_loop goes round at {line} is decided by values, and there are none: one turn is priced "
            f"({_work(body.values())}), and each further one takes as long"
            for line, body in turns.items()
        ),
    )


def _inside(launches: Sequence[Launch], functions: Sequence[Lines]) -> list[Launch]:
    return [launch for launch in launches if stands_in(launch, functions)]


def _left(launches: Sequence[Launch], fork: Conditional, taken: int) -> list[Launch]:
    return _inside(launches, [lines for place, way in enumerate(fork) if place != taken for lines in way])


def _cost(launch: Launch) -> float:
    """A way counts by what takes it longer."""
    return max(launch.flops or 0, USUAL_FLOPS_PER_BYTE * (launch.bytes_moved or 0))


def _work(launches: Iterable[Launch]) -> str:
    made = list(launches)
    flops = sum(launch.flops or 0 for launch in made)
    count = f"{len(made):,} launch{'' if len(made) == 1 else 'es'}"
    return f"{count}, {flops / 1e9:,.3g} GFLOP" if flops else count
