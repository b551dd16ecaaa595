"""What a model asked for, and the names of what compilation did of it otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchledger.capturing import flops as flop_count
from torchledger.capturing import provenance
from torchledger.capturing.descriptions import Recording
from torchledger.capturing.flop_changes import Reasons, name_changes
from torchledger.nouns import Difference, FlopReference, Launch

_REASONS = Reasons(
    added="put in by graph passes",
    replaced="rewritten as {}",
    removed="taken out by graph passes: dead, duplicate or constant",
)


@dataclass(frozen=True)
class Model:
    """What the model asked of one direction: its count, FLOPs by operator of what was traced and nothing reads, and
    what its checkpoints would not run again (``flops.past_last_saved``)."""

    reference: FlopReference
    dead_flops: Mapping[str, int]
    past_last_saved: frozenset[tuple[int, int]]


def differences_of(
    recording: Recording, launches: tuple[Launch, ...], model: Model, direction: str
) -> list[Difference]:
    """Name the FLOPs that compilation added to, or took from, what the model asked for."""
    ledger: Counter[str] = Counter()
    for launch in launches:
        ledger.update(launch.flops_by_op)
    found: list[Difference] = []
    for graph, node in recording.counted:
        padding = flop_count.padding_flops(node.node, graph)
        if padding:
            ledger[node.op] -= padding
            found.append(Difference("flops", node.node.name, f"{node.op} padded for alignment (pad_mm)", padding))
        if direction == "backward" and _is_recomputed(node.node):
            amount = node.flops - padding
            ledger[node.op] -= amount
            meta = node.node.meta
            is_asked = meta.get("recompute") is not None or _restores_random_state(node.node)
            reason = f"{node.op} recomputed in the backward" + (", as a checkpoint asks" if is_asked else "")
            if is_asked and (meta.get("ac_graph_id"), meta.get("seq_nr")) in model.past_last_saved:
                is_asked, reason = False, f"{node.op} recomputed in the backward, where an eager checkpoint has stopped"
            found.append(Difference("flops", node.node.name, reason, amount, is_eager_too=is_asked))
    ledger.update(recording.not_lowered)
    return found + name_changes("flops", ledger, model.reference.flops_by_op, _REASONS)


def dead_differences(model: Model) -> list[Difference]:
    """What an eager step does and a compiled one does not, as its result is thrown away: gradients that a user's
    ``autograd.Function`` computes unasked, values that a module returns to nobody."""
    reason = "nothing reads it: eager code computes it, the compiler leaves it out"
    return [Difference("step_flops", op, f"{op}: {reason}", -flops) for op, flops in model.dead_flops.items()]


def _is_recomputed(fx_node: Any) -> bool:
    """A node of a backward graph that belongs to the forward (with its random state restored, under checkpointing)."""
    return fx_node.meta.get("partitioner_tag") == "is_forward" or _restores_random_state(fx_node)


def _restores_random_state(fx_node: Any) -> bool:
    return getattr(fx_node.target, "__name__", "") in provenance.RESTORES_RANDOM_STATE
