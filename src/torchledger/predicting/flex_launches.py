"""Launches of ``flex_attention``, whose kernels Inductor writes for each score and mask."""

from __future__ import annotations

import math

from torchledger.expecting.flex_times import COMPUTE_CAPABILITY, FlexCall, flex_us
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction
from torchledger.work.flex import HARD, MOST_VISITED, PARTIAL, SIMPLE, VISITED

_OPERATORS = {"flex_attention": False, "flex_attention_backward": True}

_FORWARD_WIDTH, _BACKWARD_WIDTH = math.log(1.36), math.log(1.24)
"""Within which nine of ten configurations held out are (``benchmarks/launches/flex_cuda.py fit``)."""

_UNKNOWN_SHARE, _UNKNOWN_WIDTH = 0.5, math.log(2.5)
"""Of the blocks, where a mask depends on data; and how far off that may be."""

_ELSEWHERE_WIDTH = math.log(2.0)
_PARTS = {False: 4, True: 10}
"""FLOPs for a pair and an element of a head: two products, or five."""


def flex_prediction(model: TimeModel, launch: Launch) -> Prediction | None:
    """What a launch of ``flex_attention`` takes; ``None`` for other launches, and where its FLOPs are not known."""
    backward = next((_OPERATORS[op] for op in reversed(launch.aten_ops) if op in _OPERATORS), None)
    device = model.machine.device
    if backward is None or launch.category != "template" or not launch.flops or device.kind != "cuda":
        return None
    heads = [buffer for buffer in launch.buffers if len(buffer.shape) == 4 and "int" not in buffer.dtype]
    if not heads:
        return None
    whole = max(heads, key=lambda buffer: math.prod(buffer.shape))
    batch, count, length, d = whole.shape
    visited = launch.kwargs.get(VISITED)
    share = taken_share(launch) if visited is None else float(visited)
    call = FlexCall(
        backward=backward,
        is_float32=whole.dtype == "float32",
        batch=batch,
        heads=count,
        length=length,
        length_kv=round(launch.flops / (_PARTS[backward] * batch * count * length * d)),
        d=d,
        visited=share,
        partial=float(launch.kwargs.get(PARTIAL, 0.0)),
        simple=int(launch.kwargs.get(SIMPLE, 0)),
        hard=int(launch.kwargs.get(HARD, 0)),
    )
    us = flex_us(call, multiprocessors=device.num_multiprocessors)
    was_measured = device.compute_capability == COMPUTE_CAPABILITY
    width = _BACKWARD_WIDTH if backward else _FORWARD_WIDTH
    width += _UNKNOWN_WIDTH * (visited is None) + _ELSEWHERE_WIDTH * (not was_measured)
    return Prediction(
        subject=launch.launch_id,
        duration_us=us,
        low_us=us / math.exp(width),
        high_us=us * math.exp(width),
        coverage=COVERAGE,
        range="inside" if visited is not None and was_measured else "extrapolated",
        device=model.device,
        model="launch:attention/flex",
        note=None
        if visited is not None
        else f"its mask depends on data: {share:.0%} of the blocks are taken to be visited",
    )


def taken_share(launch: Launch) -> float:
    """Share of the blocks that a launch is taken to visit whose mask depends on data: half of them, or all that the
    rest of its mask leaves where these are fewer (a window)."""
    return min(_UNKNOWN_SHARE, float(launch.kwargs.get(MOST_VISITED, 1.0)))
