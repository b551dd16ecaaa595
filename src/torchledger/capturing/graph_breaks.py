"""What ``torch.compile`` was asked for and left to run eagerly: only a recorded step has entries of it, so the ledger
says what it was."""

from __future__ import annotations

from collections import Counter

from torchledger._torch.dynamo import COMPILED, FRAMES, runs_exported, runs_packages

_LISTED = 5


def graph_breaks_note(before: Counter[str], after: Counter[str], *, has_graphs: bool = True) -> str | None:
    """One sentence on the frames that were not compiled and the reasons that broke graphs; ``None`` if there are none.

    ``has_graphs``: the capture heard of a graph. Dynamo counts a frame as compiled also where nothing was left of it.

    >>> graph_breaks_note(Counter(), Counter({"frames": 3, "compiled frames": 2, "print": 1}))
    'torch.compile compiled 2 of 3 frames; what it left to run eagerly is only in a recorded step: print (once)'
    """
    new = after - before
    frames, compiled = new.pop(FRAMES, 0), new.pop(COMPILED, 0)
    if not new and compiled >= frames:
        return None
    reasons = [f"{reason} ({'once' if count == 1 else f'{count:,} times'})" for reason, count in new.most_common()]
    if len(reasons) > _LISTED:
        reasons[_LISTED:] = [f"and {len(reasons) - _LISTED:,} other reasons"]
    given = f"{frames:,} frame{'s' * (frames != 1)}"
    text = (
        f"torch.compile compiled {compiled:,} of {given}"
        if has_graphs
        else f"torch.compile gave Inductor no graph of {given}"
    )
    what = "; what it left to run eagerly is only in a recorded step"
    return f"{text}{what}: {'; '.join(reasons)}" if reasons else f"{text}{what}"


def absent_graphs_note(before: Counter[str]) -> str | None:
    """One sentence on why a capture heard of no graph, where that can be told; ``None`` if it cannot.

    >>> absent_graphs_note(Counter({"compiled frames": 2}))
    'torch.compile compiled 2 frames before this capture began, which have no entries: compile inside it'
    """
    if runs_packages():
        return (
            "the program loads a package that was compiled ahead of time (AOTInductor): its launches are entries of "
            "the program that compiles it, so record that one"
        )
    if compiled := before[COMPILED]:
        frames = f"{compiled:,} frame{'s' * (compiled != 1)}"
        return f"torch.compile compiled {frames} before this capture began, which have no entries: compile inside it"
    if runs_exported():
        return (
            "the program holds what torch.export made, which runs operator by operator: torch.compile of the exported "
            "program's module() has entries"
        )
    return None
