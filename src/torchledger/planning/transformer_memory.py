"""What a rank of a transformer's layout holds: parameters, buffers, and what its backward keeps."""

from __future__ import annotations

import math

from torchledger.nouns import Layout
from torchledger.planning.transformer import Transformer
from torchledger.work.element_sizes import ELEMENT_SIZES


def parameters_of_rank(model: Transformer, layout: Layout, *, is_first: bool, is_last: bool) -> float:
    """Parameters that one rank computes with."""
    stages = layers_by_stage(model.layers, layout.pp, model.head_layers)
    blocks = (stages[-1] if is_last else stages[0]) * model.block_parameters / layout.tp
    embedding = model.vocabulary * model.hidden / layout.tp
    ends = (embedding if is_first else 0.0) + (embedding if is_last and not (model.tied and is_first) else 0.0)
    return blocks + ends


def layers_by_stage(layers: int, stages: int, head_layers: float = 0.0) -> tuple[int, ...]:
    """How many layers each stage of a pipeline has: the last one, which has the output too, the fewest.

    With ``head_layers`` a stage is dealt layers until it and those before it have more than their share of all, the
    output at the end among them (as ``nanotron/models/base.py`` does).

    >>> layers_by_stage(28, 8), layers_by_stage(10, 8), layers_by_stage(16, 2, 4.0)
    ((4, 4, 4, 4, 4, 4, 4, 0), (2, 2, 1, 1, 1, 1, 1, 1), (11, 5))
    """
    if head_layers:
        share = (layers + head_layers) / stages
        dealt, stage = [0] * stages, 0
        for layer in range(1, layers + 1):
            dealt[stage] += 1
            stage += layer > share * (stage + 1) and stage < stages - 1
        return tuple(dealt)
    most = math.ceil(layers / stages)
    before = most * (stages - 1)
    if before <= layers:
        return (*(most for _ in range(stages - 1)), layers - before)
    few, more = divmod(layers, stages)
    return (*(few + 1 for _ in range(more)), *(few for _ in range(stages - more)))


def memory_of_rank(model: Transformer, layout: Layout, stage: int) -> int:
    """The most that a rank of a pipeline's stage has allocated in a step, in bytes.

    Weights in the model's dtype, gradients and the optimizer's state (of which ZeRO's ranks each have a share) are
    there all the time, and what microbatches in flight keep for their backward until it is over. On top comes the loss
    or the backward of a block, whichever needs more.
    """
    size = int(ELEMENT_SIZES[model.dtype])
    is_first, is_last = stage == 0, stage == layout.pp - 1
    weights = parameters_of_rank(model, layout, is_first=is_first, is_last=is_last)
    shares = max(1, layout.fsdp) * layout.cp
    state = model.optimizer_bytes / (shares if layout.zero >= 1 else 1)
    state += (model.gradient_bytes + model.spare_gradient_bytes) / (shares if layout.zero >= 2 else 1)
    state += size / (shares if layout.zero >= 3 else 1)
    kept = kept_of_block(model, layout)
    layers = layers_by_stage(model.layers, layout.pp, model.head_layers)[stage]
    micro_batches = model.batch // (layout.dp * layout.micro_batch)
    in_flight = in_flight_of(layout, stage, micro_batches)
    activations = in_flight * layers * kept
    tokens = layout.micro_batch * model.length / layout.cp
    rows = tokens / (layout.tp if layout.sequence_parallel else 1)
    work = _work_of_block(model, layout)
    if is_last:
        work = max(work, tokens * model.vocabulary / layout.tp * model.logit_bytes)
        activations += in_flight * rows * model.hidden * size
    if layout.zero >= 3:
        work += 2 * model.block_parameters / layout.tp * size
    return int(weights * state + activations + work + _buffers(model, layout, is_last=is_last))


def _work_of_block(model: Transformer, layout: Layout) -> float:
    """Bytes that the backward of a block needs beside what it kept: of its feed-forward half, and where blocks are
    computed again what that keeps."""
    size = int(ELEMENT_SIZES[model.dtype])
    tokens = layout.micro_batch * model.length / layout.cp
    # The gradient of the activation's input, twice as wide where it is gated; its output's takes the output's place.
    work = tokens * (2 if model.gated else 1) * model.ffn / layout.tp * size
    return work + (kept_of_block(model, layout, whole=True) if layout.recomputation == "full" else 0.0)


def _buffers(model: Transformer, layout: Layout, *, is_last: bool) -> float:
    """Bytes that an eager program holds all the time: gathered rows, and with its own kernels one gradient of each
    shape of a weight that is never written, as autograd is given one (Transformer Engine 2.3 and later, Megatron-Core
    with it)."""
    if model.fused:
        return 0.0
    size, tp = int(ELEMENT_SIZES[model.dtype]), layout.tp
    hidden, up = model.hidden, (2 if model.gated else 1) * model.ffn
    gathered = 0
    if layout.sequence_parallel and tp > 1:
        gathered = 2 if model.overlaps_shards else int(model.own_kernels and is_last)
    held = gathered * layout.micro_batch * model.length / layout.cp * hidden
    if model.own_kernels:
        shapes = {(hidden + 2 * model.kv * model.head, hidden), (hidden, hidden), (up, hidden), (hidden, model.ffn)}
        if is_last:
            shapes.add((model.vocabulary, hidden))
        held += sum(n * k for n, k in shapes) / tp
    return size * held


def in_flight_of(layout: Layout, stage: int, micro_batches: int) -> float:
    """How many microbatches a stage keeps at once."""
    if layout.schedule == "GPipe":
        return micro_batches
    if layout.stages_per_rank > 1:
        v, p = layout.stages_per_rank, layout.pp
        return min(micro_batches, ((v - 1) * p + 2 * (p - stage - 1) + 1) / v)
    return min(micro_batches, layout.pp - stage)


def kept_of_block(model: Transformer, layout: Layout, *, whole: bool = False) -> float:
    """Bytes that a block keeps for its backward, of one microbatch. ``whole``: as if nothing were computed again."""
    size, tp = int(ELEMENT_SIZES[model.dtype]), layout.tp
    tokens = layout.micro_batch * model.length / layout.cp
    rows = tokens / (tp if layout.sequence_parallel else 1)
    hidden = model.hidden
    if layout.recomputation == "full" and not whole:
        return rows * hidden * size
    qkv = (hidden + 2 * model.kv * model.head) / tp
    up = (2 if model.gated else 1) * model.ffn / tp
    # Inputs of both norms and of the two products behind them; with sequence parallelism those are kept in shares.
    kept = 4 * rows * hidden * size
    kept += tokens * (qkv + hidden / tp) * size + tokens * (up + model.ffn / tp) * size
    if model.gated and not (model.fused or model.own_kernels):
        # The activated gate, a factor of the product that comes next.
        kept += tokens * model.ffn / tp * size
    heads = model.heads / tp
    if model.exchanges_heads and layout.cp > 1:
        kept += tokens * hidden / tp * size
    if model.attention == "flash":
        kept += tokens * heads * 4
    elif layout.recomputation != "attention" or whole:
        scores = layout.micro_batch * heads * (model.length / layout.cp) * model.length
        kept += scores * (size + (size + 1 if model.bias else 0))
    if model.bias:
        kept += 2 * rows * hidden
    return kept
