"""Which names, in order, are which entries: operators of a graph's call, and kernels that a CUDA graph replays."""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from torchledger.capturing.conditionals import Fork, Loop, Regions, stands_in
from torchledger.nouns import Launch
from torchledger.profiling.time_categories import main_kind, time_category
from torchledger.work.categories import SAY_THEMSELVES
from torchledger.work.kernel_names import is_finishing_kernel

_REACH = 64
"""How many kernels a replay may differ in one place from the known sequence."""

_NEAR = 64
"""How many operators are looked at one by one for what an entry launched."""

DECIDES = frozenset({"aten::is_nonzero", "aten::item", "aten::_local_scalar_dense"})
"""What a wrapper calls to read on the host which way to take, or whether to go on."""

CPU_PREFIX = re.compile(r"^graph_\w*?_(?=cpp_)")

NAMED_IN_TRACES = SAY_THEMSELVES - {"cpp"}
"""Entries whose kernels stand under their own names in a trace of the device."""


def match_operators(
    names: Sequence[str],
    entries: Sequence[Launch],
    forks: Sequence[Fork] = (),
) -> dict[int, int]:
    """Position of an operator to the place of its entry; both run in the same order.

    Of the ways of a conditional that was taken whose entries find the most operators, and a loop made as many turns; a
    region that is called from several lines runs as often.
    """
    places = list(range(len(entries)))
    for fork in forks:
        if isinstance(fork, (Loop, Regions)):
            continue
        ways = []
        for taken in fork:
            others = [lines for way in fork if way is not taken for lines in way]
            rest = [place for place in places if not stands_in(entries[place], others)]
            ways.append((len(_matched(names, [entries[place] for place in rest])), -len(rest), rest))
        places = max(ways)[2]
    for fork in forks:
        if isinstance(fork, Loop):
            places = _with_turns(names, entries, places, fork)
    lines = [entry.wrapper_line for entry in entries if entry.wrapper_line is not None]
    for fork in forks:
        if isinstance(fork, Regions) and len(lines) == len(entries):
            places = fork.in_order(places, lines)
    found = _matched(names, [entries[place] for place in places])
    return {position: places[place] for position, place in found.items()}


def _with_turns(names: Sequence[str], entries: Sequence[Launch], places: Sequence[int], loop: Loop) -> list[int]:
    """The places in the order in which they run, those of a loop as often as it makes turns: as few as find the most
    operators."""
    check = [place for place in places if stands_in(entries[place], loop.check)]
    body = [place for place in places if stands_in(entries[place], loop.body)]
    if not body:
        return list(places)
    first = places.index(min(*check, *body) if check else body[0])
    outside = [place for place in places if place not in (*check, *body)]
    before, behind = outside[:first], outside[first:]

    def turned(turns: int) -> list[int]:
        return [*before, *check, *turns * [*body, *check], *behind]

    def n_found(turns: int) -> int:
        return len(_matched(names, [entries[place] for place in turned(turns)]))

    low, high = 0, len(names) // len(body) + 1
    most = n_found(high)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if n_found(middle) >= most else (middle + 1, high)
    while n_found(low + 1) > n_found(low):
        low += 1
    return turned(low)


def _matched(names: Sequence[str], entries: Sequence[Launch]) -> dict[int, int]:
    """The same for entries that all run.

    An entry without an operator of its name gets the lone operator that stands between its neighbours', if there is
    exactly one (a library function that goes by another name inside).
    """
    matched: dict[int, int] = {}
    places: dict[int, int] = {}
    positions: dict[str, list[int]] = defaultdict(list)
    for at, name in enumerate(names):
        positions[name].append(at)
    position = 0
    for place, entry in enumerate(entries):
        candidate = _next_fitting(names, positions, position, entry)
        if candidate is not None:
            matched[candidate] = place
            places[place] = candidate
            position = candidate + 1
    for place, entry in enumerate(entries):
        # A call that replays a CUDA graph has operators of its own (input copies), but none of an entry.
        if not matched or place in places or entry.category in NAMED_IN_TRACES:
            continue
        before = places.get(place - 1, -1)
        after = places.get(place + 1, len(names))
        between = [at for at in range(before + 1, after) if at not in matched and not _is_no_launch(names[at])]
        if len(between) == 1:
            matched[between[0]] = place
            places[place] = between[0]
    return matched


def _next_fitting(
    names: Sequence[str], positions: Mapping[str, Sequence[int]], start: int, entry: Launch
) -> int | None:
    """The first operator from ``start`` on that an entry fits; ``positions`` are the places of each name."""
    near = min(start + _NEAR, len(names))
    for candidate in range(start, near):
        if _fits(names[candidate], entry):
            return candidate
    # A first call may launch thousands of trials before what comes next: look at each name once.
    found = []
    for name, at in positions.items():
        index = bisect.bisect_left(at, near)
        if index < len(at) and _fits(name, entry):
            found.append(at[index])
    return min(found, default=None)


def _fits(name: str, entry: Launch) -> bool:
    if entry.category not in ("extern", "inline"):
        kernel = CPU_PREFIX.sub("", name)
        return kernel == entry.kernel_name or (
            entry.category == "multi_kernel" and kernel.startswith("triton_") and _shares_stem(kernel, entry)
        )
    called = (entry.call or entry.kernel_name).removeprefix("torch.ops.").removeprefix("extern_kernels.")
    operator = name.split("::")[-1].rstrip("_")
    parts = [part.rstrip("_") for part in called.strip(".").split(".")]
    return operator in parts or operator in [part.rstrip("_") for part in entry.kernel_name.split(".")]


def _shares_stem(kernel: str, entry: Launch) -> bool:
    return any(op.split(".")[-1] in kernel for op in entry.aten_ops)


def _is_no_launch(name: str) -> bool:
    allocates = name.startswith(("aten::empty", "aten::as_strided", "aten::view", "aten::set_", "aten::resize"))
    return allocates or name in DECIDES


def match_replay(
    names: Sequence[str], entries: Sequence[Launch], learned: Sequence[tuple[str, int]] | None
) -> list[tuple[int, int]]:
    """Give replayed kernels their entries: from the learned sequence, or from the entries' own names.

    The two are different witnesses of one order; the one that explains more kernels is believed.
    """
    if learned and [name for name, _ in learned] == list(names):
        return [(index, order) for index, (_, order) in enumerate(learned)]
    generated = [place for place, entry in enumerate(entries) if entry.category in NAMED_IN_TRACES]
    known = {entries[place].kernel_name for place in generated}
    replayed = [index for index, name in enumerate(names) if name in known]
    matches = _aligned([names[index] for index in replayed], [entries[place].kernel_name for place in generated])
    by_name = _filled(names, entries, {replayed[index]: generated[place] for index, place in matches})
    if not learned:
        return by_name
    matches = _aligned(names, [name for name, _ in learned])
    by_learning = _filled(names, entries, {index: learned[place][1] for index, place in matches})
    return max(by_learning, by_name, key=len)


def _filled(names: Sequence[str], entries: Sequence[Launch], pairs: Mapping[int, int]) -> list[tuple[int, int]]:
    """The pairs, and the kernels between two of them: they belong to the entries that stand between the two."""
    result = []
    before, start = -1, 0
    for index in [*sorted(pairs), len(names)]:
        after = pairs.get(index, len(entries))
        result += _between(names, range(start, index), entries, range(before + 1, after))
        if index in pairs:
            result.append((index, after))
        before, start = after, index + 1
    return result


def _between(
    names: Sequence[str], kernels: Sequence[int], entries: Sequence[Launch], places: Sequence[int]
) -> list[tuple[int, int]]:
    """Share kernels among the library calls that stand between two known launches.

    A lone call gets them all. Several calls are told apart by their main kernels (products, convolutions, attention)
    if those come in the calls' order; what prepares a product goes with the next main kernel, what finishes one with
    the last.
    """
    if len(places) == 1:
        return [(index, places[0]) for index in kernels]
    mains = [index for index in kernels if main_kind(names[index]) is not None]
    wanted = [time_category(entries[place], None) for place in places]
    if not places or [main_kind(names[index]) for index in mains] != wanted:
        return []
    result = []
    for index in kernels:
        following = bisect.bisect_left(mains, index)
        finishes = is_finishing_kernel(names[index]) and following > 0
        at = following - 1 if finishes and index not in mains else following
        result.append((index, places[min(at, len(mains) - 1)]))
    return result


def _aligned(names: Sequence[str], known: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Walk both sequences together; where they part, go on from the nearest place at which they agree again."""
    at, place = 0, 0
    while at < len(names) and place < len(known):
        if names[at] == known[place]:
            yield at, place
            at, place = at + 1, place + 1
            continue
        for skipped in range(1, 2 * _REACH):
            steps = (
                (ahead, skipped - ahead)
                for ahead in range(skipped + 1)
                if _agree(names, known, at + ahead, place + skipped - ahead)
            )
            # Of equally near places the one that skips alike in both is a kernel that was exchanged for another.
            best = min(steps, key=lambda step: abs(step[0] - step[1]), default=None)
            if best is not None:
                at, place = at + best[0], place + best[1]
                break
        else:
            return


def _agree(names: Sequence[str], known: Sequence[str], at: int, place: int) -> bool:
    """The next kernels are the same: three of them, or all that are left on both sides."""
    ahead = list(names[at : at + 3])
    return bool(ahead) and ahead == list(known[place : place + 3])
