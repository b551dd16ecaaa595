"""What samplers, interpolations, windows and pooling do with pictures and volumes (torch 2.11: ``GridSampler.cu``,
``Im2Col.cu``, ``UpSample*.cu``, ``DilatedMaxPool2d.cu``)."""

from __future__ import annotations

import math

from torchledger.work.algorithm_calls import CHANNELS_LAST, MOST_THREADS, Call, Parts, has_channels_last
from torchledger.work.tensor_layouts import is_contiguous
from torchledger.work.walks import WARP, power_below


def grid_sampled(call: Call) -> Parts:
    """A thread goes through all channels of its place; gradients are added to pictures by atomics. What neighbours read
    lies in sectors of its own where channels lie side by side, and mostly where places are points in no order."""
    is_given_first = call.is_backward and not call.name.startswith("cudnn")
    image, grid = call.shapes[1:3] if is_given_first else call.shapes[:2]
    channels, places = image[1], math.prod(grid[:-1])
    ways = [f"interpolation {call.number('interpolation_mode', 0)}"]
    ways += [CHANNELS_LAST] if has_channels_last(call.tensors[int(is_given_first)]) else []
    ways += ["of points"] if 1 in grid[1:-1] else []
    values = channels * places / 1e6
    meeting = min(math.prod(grid[1:-1]) / math.prod(image[2:]), _MOST_MEETING) if call.is_backward else 0.0
    return Parts(", ".join(ways), (1, channels, values, places / 1e6, call.megabytes, values * meeting))


_MOST_MEETING = 100.0
"""Places that ask for the same pixels, beyond which more make no difference."""


def grid_made(call: Call) -> Parts:
    batch, _, *sides = call.settings["size"]
    return Parts("any", (1, batch * math.prod(sides) / 1e6, math.prod(sides) / 1e6))


def unfolded(call: Call) -> Parts:
    shape = call.shapes[0]
    batch, channels, height, width = shape if len(shape) > 3 else (1, *shape)
    sides = call.settings["kernel_size"]
    places = 1
    options = (call.settings[each] for each in ("padding", "dilation", "stride"))
    for size, side, padding, dilation, stride in zip((height, width), sides, *options, strict=True):
        places *= _windows_along(size, side, padding, stride, dilation)
    written = batch * channels * math.prod(sides) * places
    return Parts("each picture", (1, batch, written / 1e6, batch * math.prod(sides), call.megabytes))


def folded(call: Call) -> Parts:
    """A thread adds up all windows that hold its pixel, one after the other: of those along a side as many as strides
    lie in a window."""
    shape, sides = call.shapes[0], call.settings["kernel_size"]
    batch, rows = shape[:2] if len(shape) > 2 else (1, shape[0])
    windows = math.prod(math.ceil(side / stride) for side, stride in zip(sides, call.settings["stride"], strict=True))
    written = batch * (rows // math.prod(sides)) * math.prod(call.settings["output_size"])
    return Parts("all pictures", (1, windows, math.prod(shape) / 1e6, written * windows / 1e6, written / 1e6))


def enlarged(call: Call) -> Parts:
    """Of lines and volumes a thread makes one place, in all channels of all pictures one after the other; gradients are
    added up by atomics, which take longer in half precision."""
    large, small = call.settings["output_size"], call.settings.get("input_size", call.shapes[0])
    rows, pixels = math.prod(small[:2]), math.prod(large)
    work = (rows, rows * pixels / 1e6)
    halves = work if call.is_backward and call.precision == "half" else (0.0, 0.0)
    return Parts(call.layout, (1, *work, rows * math.prod(small[2:]) / 1e6, pixels / 1e6, *halves))


def repeated(call: Call) -> Parts:
    """Of nearest volumes a thread makes a place of one channel, of all pictures one after the other
    (``UpSampleNearest3d.cu``)."""
    large, small = call.settings["output_size"], call.settings.get("input_size", call.shapes[0])
    batch, channels, *sides = small
    threads = channels * math.prod(sides if call.is_backward else large) / 1e6
    made = batch * channels * math.prod(large) / 1e6
    return Parts(call.layout, (1, batch, threads, made, call.megabytes))


def smoothed(call: Call) -> Parts:
    """Pictures at another size without aliases: a thread goes through all places that one pixel is a mean of, which
    are as many more as the picture is made smaller; gradients are added to these by atomics, which meet the more the
    picture is enlarged."""
    made, given = call.settings["output_size"], call.settings.get("input_size", call.shapes[0])
    reach = _CUBIC_REACH if "cubic" in call.name else 1
    taps = 1.0
    for size, before in zip(made, given[2:], strict=True):
        taps *= min(2 * reach * max(1.0, before / size) + 1, before)
    pixels = math.prod(made)
    all_taps, larger = math.prod(given[:2]) * pixels * taps / 1e9, max(1.0, pixels / math.prod(given[2:]))
    way = call.precision if call.is_backward else "any"
    return Parts(way, (1, all_taps, taps / 1e3, all_taps * larger if call.is_backward else 0.0, call.megabytes))


_CUBIC_REACH = 2
"""Pixels to each side that a cubic mean is made of, where a linear one takes one."""


def cubic_gradient(call: Call) -> Parts:
    """A thread for each pixel of the larger picture goes through all planes of all pictures, and adds to sixteen places
    by atomics, where those of a warp meet that one pixel became along a row: in half precision all that one became try
    again until nobody was in between."""
    (height, width), given = call.settings["output_size"], call.settings["input_size"]
    planes, wider = math.prod(given[:2]), max(1.0, min(width / given[3], _WIDEST))
    turns, added = planes * math.ceil(height * width / _THREADS), planes * height * width / 1e6
    larger = max(1.0, min(height * width / math.prod(given[2:]), _MOST_TIMES))
    meeting = larger if call.precision == "half" else wider
    way = f"{call.layout}, {call.precision}"
    return Parts(way, (1, turns / 1e3, turns * meeting / 1e3, added, added * meeting, call.megabytes))


def enlarged_picture(call: Call) -> Parts:
    """Kernels give a thread to a pixel, of the smaller or larger picture, and have it go through all channels, all
    pictures, or both; gradients of what is interpolated are added up by atomics, which wait for one another the longer
    the more a picture is enlarged. What does not lie without gaps is copied first."""
    height, width = call.settings["output_size"]
    batch, channels, low, narrow = call.settings.get("input_size", call.shapes[0])
    times, wider = height * width / (low * narrow), max(1.0, min(width / narrow, _WIDEST))
    planes, made = batch * channels, batch * channels * height * width / 1e6
    way = call.precision
    amounts: tuple[float, ...] = (made, made * wider, made * wider**2)
    is_few = not call.is_backward and channels < (_FEWEST_NEAREST if "nearest" in call.name else _FEWEST_LINEAR)
    if call.layout == CHANNELS_LAST and not is_few:
        # In places of their own: what pixels of other layouts take says nothing of these.
        more = made * max(1.0, min(times, _MOST_TIMES)) if call.is_backward else 0.0
        return Parts(f"{call.layout}, {way}", (1, call.megabytes, 0.0, 0.0, 0.0, made, more, 0.0))
    is_copied = ("nearest" in call.name or call.is_backward) and not is_contiguous(call.tensors[0])
    copied = 2 * math.prod(call.shapes[0]) * call.item_size / 1e6 if is_copied else 0.0
    if "nearest" in call.name and call.is_backward:
        # A thread goes through all pictures, and in each through all pixels that one became.
        amounts = (batch / 1e3, batch * times / 1e3, max(made, made / times))
    elif "nearest" in call.name:
        amounts = (planes * _covered(height, width) / 1e6, 0.0, 0.0)
    elif not call.is_backward:
        way = way if "linear" in call.name else "any"
        amounts = (planes / 1e3, planes * math.ceil(height * width / (_THREADS // 2)) / 1e3, 0.0)
    elif "linear" in call.name:
        way = f"{way}, {'much' if wider > _MUCH else 'little'} wider"
    return Parts(way, (1, call.megabytes, *amounts, 0.0, 0.0, copied))


_FEWEST_NEAREST, _FEWEST_LINEAR = 4, 16
"""Channels from which on pictures whose channels lie side by side are enlarged by kernels of their own
(``UpSampleNearest2d.cu``, ``UpSampleBilinear2d.cu``)."""


def _covered(height: int, width: int) -> int:
    """Threads of the blocks that cover a plane, whose sides are powers of two (``UpSampleNearest2d.cu``)."""
    across = power_below(min(width, _PLANE_BLOCK))
    down = power_below(min(height, _PLANE_BLOCK // across))
    return math.ceil(width / across) * across * math.ceil(height / down) * down


_PLANE_BLOCK = 512
"""Threads of such a block."""


_THREADS = 132 * 2048
"""That run at once on an H100 or H200."""


_WIDEST, _MUCH, _MOST_TIMES = 32.0, 3.0, 16.0
"""Threads of a warp, how many times wider a picture is made from where they are in each other's way, and how many
times its pixels are with channels last where more make no difference."""


def upward_volume(call: Call) -> Parts | None:
    """Of convolutions, transposed ones of volumes: others are priced as graphs launch them. Products are made in tiles,
    which few channels leave half empty."""
    shape = call.shapes[0]
    if not call.number("transposed", 0) or len(shape) != _OF_VOLUME or call.number("groups", 1) > 1:
        return None
    way = f"transposed, {call.tensors[0].dtype}"
    channels = call.shapes[2 if call.is_backward else 1][:2]
    tiled = call.flops * math.prod(math.ceil(each / _TILE) * _TILE / each for each in channels)
    return Parts(way, (1, call.flops / 1e9, call.megabytes, math.prod(shape) / 1e6, tiled / 1e9))


_OF_VOLUME, _TILE = 5, 64
"""Dimensions of a volume, and channels along a tile's side (of 170 calls: 64 leaves less error than 32)."""


def padded_gradient(call: Call) -> Parts | None:
    """Of gradients of mirrored edges each value of the larger picture is added where it came from, by an atomic, behind
    a kernel that writes zeros (``ReflectionPad.cu``)."""
    if not call.is_backward:
        return None
    return Parts(call.precision, (1, call.megabytes, math.prod(call.shapes[0]) / 1e6))


def pooled(call: Call) -> Parts:
    """A thread makes one value of the result, or one of the gradient out of all windows that hold it. Gradients go as
    the pictures lie that were pooled; others are copied first (``DilatedMaxPool2d.cu``, ``AveragePool2d.cu``)."""
    picture = call.tensors[1 if call.is_backward else 0]
    given, is_last = picture.shape, has_channels_last(picture, _CHANNELS_OF_ONE)
    copied = 0.0
    if call.is_backward and has_channels_last(call.tensors[0], _CHANNELS_OF_ONE) != is_last:
        copied = 2 * math.prod(call.shapes[0]) * call.item_size / 1e6
    sides = _both(call.settings["kernel_size"])
    made = math.prod(call.shapes[0] if call.is_backward else _windows_of(call, sides))
    windows = made * math.prod(sides)
    way = f"channels {'last' if is_last else 'first'}, {call.precision}"
    amounts = (1, math.prod(given) / 1e6, windows / 1e6, made / 1e6, call.megabytes, copied)
    is_by_channels = is_last and call.name == "max_pool2d_with_indices"
    return Parts(way, (*amounts, _turns_of_channels(call, sides) if is_by_channels else 0))


_CHANNELS_OF_ONE = -3
"""The dimension of a picture's channels, whether it is one of several or alone."""


def _turns_of_channels(call: Call, sides: tuple[int, ...]) -> int:
    """What a thread makes one after the other of the largest of channels that lie side by side: up to four channels of
    up to two pixels along each side."""
    _, channels, height, width = _windows_of(call, sides)
    block_x = min(power_below(channels), WARP)
    block_y = min(power_below(width), MOST_THREADS // block_x)
    block_z = min(power_below(height), MOST_THREADS // block_x // block_y)
    block_x = min(power_below(channels), MOST_THREADS // block_y // block_z)
    slices = math.ceil(channels / (block_x * 4))
    pixels = min(2, math.ceil(height / block_z)) * min(2, math.ceil(width / block_y))
    return pixels * math.ceil(channels / (block_x * slices))


def _windows_of(call: Call, sides: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what pooling makes: a value of each window."""
    *others, height, width = call.shapes[0]
    moves = _both(call.settings.get("stride") or sides)
    edges = _both(call.settings.get("padding", (0,)))
    made = (
        _windows_along(size, side, edge, move)
        for size, side, move, edge in zip((height, width), sides, moves, edges, strict=True)
    )
    return (*others, *made)


def _windows_along(size: int, side: int, padding: int, stride: int, dilation: int = 1) -> int:
    """How many windows lie along a picture's side."""
    return (size + 2 * padding - dilation * (side - 1) - 1) // stride + 1


def _both(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """A number for each of a picture's two sides, where one stands for both."""
    return numbers * 2 if len(numbers) == 1 else numbers
