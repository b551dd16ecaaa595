"""What norms do, by groups, weights, rows and channels (torch 2.11: ``group_norm_kernel.cu``, ``WeightNorm.cu``,
``Normalization.cuh``)."""

from __future__ import annotations

import math

from torchledger.work.algorithm_calls import CHANNELS_LAST, LOADED_AT_ONCE, TILES_AT_ONCE, Call, Parts
from torchledger.work.tensor_layouts import is_contiguous
from torchledger.work.walks import GROUP_BLOCK, WARP, power_below, waves_of


def grouped(call: Call) -> Parts | None:
    """Of norms of groups each group has a block, or a warp if it is small (``group_norm_kernel.cu``): blocks that do
    not fit at once follow one another, and those of the last ones are waited for. All numbers are then gone through
    once more. Their gradients have a block or a warp for each channel of each picture, and sum over pictures."""
    shape, groups = call.shapes[0], call.number("group")
    if not is_contiguous(call.tensors[0]):
        return None
    if call.is_backward:
        channel = math.prod(shape[2:])
        threads = GROUP_BLOCK if channel >= GROUP_BLOCK else WARP
        waves = waves_of(shape[0] * shape[1], threads)
        by_block = math.ceil(shape[0] / WARP) if shape[0] > _SUMMED_BY_THREADS else shape[0]
        return Parts(
            "small channels" if threads == WARP else "channels",
            (1, waves, waves * math.ceil(channel / threads) / 1e1, call.megabytes, by_block / 1e1),
        )
    rows = shape[0] * groups
    size = math.prod(shape) // rows
    threads = GROUP_BLOCK if size >= GROUP_BLOCK else WARP
    waves, steps = waves_of(rows, threads), math.ceil(size / threads)
    way = "small groups" if threads == WARP else "groups"
    return Parts(way, (1, waves, waves * steps / 1e1, call.megabytes))


_SUMMED_BY_THREADS = 128
"""Pictures up to which one thread sums a channel's gradient over all of them."""


def by_norm(call: Call) -> Parts:
    """Weights by their norms over all dimensions but the first, each by a block, or but the last, where one block goes
    through all rows of sixteen of them, 64 at a time (``WeightNorm.cu``)."""
    shape, along = call.shapes[0], call.number("dim")
    if along == 0:
        steps = math.ceil(math.prod(shape[1:]) / GROUP_BLOCK)
        return Parts("first", (1, call.megabytes, waves_of(shape[0], GROUP_BLOCK) * (1 + steps)))
    rows = math.prod(shape) // shape[-1]
    waves = math.ceil(math.ceil(shape[-1] / 16) / TILES_AT_ONCE)
    return Parts("last", (1, call.megabytes, waves * math.ceil(rows / 64)))


def normalized(call: Call) -> Parts | None:
    """Of few long rows each is gone through by one block, three times, while the device waits; others go by their bytes
    or their steps."""
    shape = call.shapes[0]
    if len(shape) < 2 or shape[-1] < _LONG_ROW or math.prod(shape[:-1]) > TILES_AT_ONCE:
        return None
    if call.settings["dim"] != (len(shape) - 1,) or not is_contiguous(call.tensors[0]):
        return None
    return Parts(f"few long rows, {call.precision}", (1, shape[-1] / 1e3, call.megabytes))


_LONG_ROW = 4096
"""Elements of a row from which on one block has to go through it in turns."""


def picture_norm(call: Call) -> Parts | None:
    """Of pictures whose channels lie beside one another, or that have but one pixel; others go by their channels
    (``fitting/picture_norms.py``)."""
    (batch, channels, *sides), stride = call.shapes[0], call.tensors[0].stride
    pixels = batch * math.prod(sides)
    if not call.number("training", 1):
        # A picture's pixels follow one another where its channels lie side by side; else its planes do.
        is_last = call.layout == CHANNELS_LAST
        follow = channels * math.prod(sides) if is_last else batch * channels
        return Parts(f"known sums, {call.layout}, {call.precision}", (1, call.megabytes, follow / 1e6))
    if pixels == batch:
        return Parts("one pixel", (1, channels / 1e3, call.megabytes))
    if stride is None or stride[1] != 1:
        return None
    is_uneven = channels * call.item_size % LOADED_AT_ONCE
    way = f"channels last, {call.precision}{', uneven' if is_uneven else ''}"
    return Parts(way, (1, call.megabytes, pixels / 1e6))


def by_known_sums(call: Call) -> Parts | None:
    """Of norms of pictures those that do not train: each value by what is known of its channel. Gradients of weights
    are sums over pictures again, as where norms train."""
    if call.is_backward:
        trains = call.number("train", 1) or any(call.settings["output_mask"][1:])
    else:
        trains = call.number("training", 1)
    return None if trains else Parts(f"known sums, {call.precision}", (1, call.megabytes))


def channel_sums(call: Call) -> Parts:
    """``SyncBatchNorm``'s own sums: a block for each channel, whose threads follow one another through pixels and
    pictures; channels that lie beside one another are gone through by blocks that share their pixels if at least eight
    do, and else alone (``Normalization.cuh``)."""
    (batch, channels, *sides), stride = call.shapes[0], call.tensors[0].stride
    pixels = math.prod(sides)
    if stride is not None and stride[1] == 1:
        rows = batch * pixels
        width = min(power_below(channels), WARP)
        height = min(power_below(math.ceil(rows / _SUMMED_IN_TURN)), _WIDTHS[-1] // width)
        width = min(power_below(channels), _WIDTHS[-1] // height)
        sharing = min(math.ceil(rows / (height * _SUMMED_IN_TURN)), _MOST_SHARING)
        sharing = 1 if sharing < _FEWEST_SHARING else sharing
        waves = waves_of(sharing * math.ceil(channels / width), width * height)
        turns = math.ceil(rows / (height * sharing))
        return Parts(
            f"channels last, {call.precision}",
            (1, turns / 1e2, call.megabytes, float(sharing > 1), waves * turns / 1e2),
        )
    wide = next((each for each in _WIDTHS if pixels <= each), _WIDTHS[-1])
    if call.is_backward:
        high = min(power_below(batch), _WIDTHS[-1] // _WIDTHS[0])
        wide = min(wide, _WIDTHS[-1] // high)
    else:
        high = _WIDTHS[-1] // wide
    turns = math.ceil(batch / high) * math.ceil(pixels / wide)
    return Parts("by channels", (1, turns / 1e2, call.megabytes, 0.0, 0.0))


_SUMMED_IN_TURN, _FEWEST_SHARING, _MOST_SHARING = 16, 8, 128
"""Pixels of a thread, and blocks that share the pixels of channels beside one another: none where fewer would, and no
more."""


_WIDTHS = (32, 64, 128, 256, 512)
"""Threads that go along the pixels of a channel, of at most so many in a block (torch 2.11, ``Normalization.cuh``)."""


def ranks_joined(call: Call) -> Parts:
    """What each rank summed of each channel, put together by one thread for each channel."""
    ranks, channels = call.shapes[1]
    return Parts("by ranks", (1, ranks, ranks * channels / 1e3))
