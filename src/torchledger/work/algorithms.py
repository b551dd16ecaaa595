"""What the algorithm of an operator does whose bytes say little of its time.

Recurrent layers take their time steps one after another, factorizations their columns; samplers and interpolations have
a thread walk through all channels, solvers of alignments through all frames; some launch a kernel for each picture of
a batch. Of each such call the parts are said of which its time is a sum: the launch, turns that follow one another,
and work that all of the device shares. How long each part takes is learned (``fitting/algorithm_costs.py``).

Which way an operator goes is torch's own choice where its source says it (torch 2.11: ``RNN.cpp``, ``GridSampler.cu``,
``Im2Col.cu``, ``LossCTC.cu``, ``Loss.cu``, ``NLLLoss2d.cu``, ``Normalization.cuh``, ``UpSample*.cu``,
``BatchLinearAlgebra.cpp``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchledger.nouns import TensorArgument
from torchledger.work.categories import operator_name
from torchledger.work.element_sizes import element_size
from torchledger.work.kernel_counts import MASKS
from torchledger.work.meetings import meeting_of
from torchledger.work.op_shapes import broadcast_shape
from torchledger.work.settings import Settings
from torchledger.work.tensor_layouts import is_contiguous
from torchledger.work.walks import GROUP_BLOCK, SECTOR_BYTES, SELECT_BLOCK, WARP, power_below, waves_of


@dataclass(frozen=True)
class Parts:
    """The parts of which a call's time is a sum. ``way`` names how it goes, calls of another way being others;
    ``amounts`` is how much there is of each part, in a unit of its own, the launch being 1."""

    way: str
    amounts: tuple[float, ...]


_CHANNELS_LAST = "channels last"


@dataclass(frozen=True)
class _Call:
    name: str
    shapes: tuple[tuple[int, ...], ...]
    tensors: Sequence[TensorArgument]
    settings: Mapping[str, tuple[int, ...]]
    flops: float
    megabytes: float
    is_backward: bool
    is_in_place: bool = False

    @property
    def item_size(self) -> int:
        """Bytes of an element of the first tensor; four where its dtype was not recorded."""
        return element_size(self.tensors[0].dtype) or 4

    @property
    def copied(self) -> float:
        """Megabytes of the copy in which a call writes that leaves its first tensor as it is."""
        return 0.0 if self.is_in_place else 2 * math.prod(self.shapes[0]) * self.item_size / 1e6

    @property
    def copy(self) -> tuple[float, float]:
        """The kernel of such a copy, and its megabytes."""
        return float(not self.is_in_place), self.copied

    @property
    def precision(self) -> str:
        return "float32" if self.tensors[0].dtype == "float32" else "half"

    @property
    def layout(self) -> str:
        """How pictures, lines or volumes lie that the call is given first."""
        first = self.tensors[0]
        is_last = len(first.shape) > 2 and first.shape[1] > 1 and (first.stride or (0, 0))[1] == 1
        return _CHANNELS_LAST if is_last else "channels first"

    def number(self, name: str, default: int | None = None) -> int:
        """The one number under a name; a ``LookupError`` if there is none and no default."""
        values = self.settings.get(name, () if default is None else (default,))
        return values[0]


def costs_of(name: str) -> str:
    """The operator whose costs a call has: one that writes in place those of the one that copies first, which has the
    copy as a part of its own.

    >>> costs_of("aten::index_add_"), costs_of("aten::index_put_")
    ('aten::index_add', 'aten::index_put_')
    """
    return name.removesuffix("_") if operator_name(name)[1] in _COPIES_FIRST else name


_COPIES_FIRST = frozenset({"index_add", "scatter_add", "scatter_reduce", "scatter"})


def parts_of(
    name: str,
    arguments: Sequence[TensorArgument],
    settings: Settings | None,
    *,
    flops: int | None = None,
    bytes_moved: int | None = None,
) -> Parts | None:
    """The parts of a call's work; ``None`` for other operators, and where its sizes are not recorded.

    >>> rows = [TensorArgument((35, 20, 64), "float32", None)]
    >>> options = (("mode", (2,)), ("hidden_size", (64,)), ("num_layers", (2,)))
    >>> parts_of("aten::_cudnn_rnn", rows, options, flops=10**9, bytes_moved=10**6).way
    'persistent, float32, 4 gates'
    """
    bare = operator_name(name)[1]
    found = _FAMILIES.get(bare) or _FAMILIES.get(bare.removesuffix("_backward"))
    if any(each.is_sparse for each in arguments):
        found = _of_sparse
    if found is None or not arguments or (settings is None and found is not _aligned):
        return None
    call = _Call(
        bare,
        tuple(each.shape for each in arguments),
        arguments,
        dict(settings or ()),
        flops or 0.0,
        (bytes_moved or 0) / 1e6,
        bare.endswith("_backward") or "_backward_" in bare,
        name.endswith("_"),
    )
    try:
        return found(call)
    except (LookupError, ValueError, ZeroDivisionError):
        return None  # by another version of torch, with other arguments or options


def _recurrent(call: _Call) -> Parts:
    *sides, width = call.shapes[0]
    is_packed = len(sides) == 1  # the rows of all turns, of which each has fewer than the one before
    if is_packed:
        length = call.number("turns")
        batch = sides[0] / length
    else:
        length, batch = sides[::-1] if call.number("batch_first", 0) else sides
    directions = 1 + call.number("bidirectional", 0)
    mode, hidden = call.number("mode"), call.number("hidden_size")
    gates, count = _GATES.get(mode, 1), call.number("num_layers", 1)
    layers = count * directions
    turns, weights, cells = length * layers, gates * hidden**2, batch * gates * hidden
    inputs = length * cells * directions * (width + (count - 1) * hidden * directions)
    amounts: tuple[float, ...]
    plain, gated = _MOST_PERSISTENT_BACKWARD if call.is_backward else _MOST_PERSISTENT
    is_small = hidden <= (plain if gates == 1 else gated) and call.tensors[0].dtype != "bfloat16"
    if is_small and not is_packed and not call.number("proj_size", 0):
        kind = f", {gates} gates" if call.precision == "float32" else ""
        rows = turns * math.ceil(batch / 64) * (1.0 if call.is_backward else hidden / 1e2)
        amounts = (layers * weights / 1e4, layers * width / 1e3, turns * weights / 1e6, rows)
        wide = 0 if call.is_backward else sum(hidden > most for most in _NARROW)
        way = f"persistent, {call.precision}{kind}{('', ', wide', ', wider')[wide]}"
    else:
        tiles = math.ceil(batch / 64) * math.ceil(gates * hidden / 128) / _TILES_AT_ONCE
        amounts = (turns * weights / 1e6, turns * tiles, turns * max(0.0, tiles - 1), turns * hidden / 1e3)
        # Rows that do not begin at 16 bytes are multiplied without the tensor cores.
        is_aligned = hidden % (4 if call.precision == "float32" else 8) == 0
        way = f"standard, {call.precision}{'' if is_aligned else ', unaligned'}"
    always = (1, layers, turns, turns * cells / 1e6, 2 * inputs / 1e9, call.megabytes)
    return Parts(way, (*always, *amounts))


_NARROW = (96, 128)
"""Hidden sizes up to which a persistent kernel holds all weights in registers, and up to which most of them."""

_GATES = {2: 4, 3: 3}
"""By cuDNN's number of a mode: LSTM and GRU; plain recurrent networks have one."""

_TILES_AT_ONCE = 132
"""Of a product's result, on the multiprocessors that an H100 or H200 has."""

_MOST_PERSISTENT, _MOST_PERSISTENT_BACKWARD = (384, 192), (256, 128)
"""Hidden sizes of plain and gated layers up to which torch takes cuDNN's persistent kernels for small ones
(``RNN.cpp``, ``use_rnn_persist_small_h``); these know no bfloat16."""


def _factored(call: _Call) -> Parts:
    *batch, _, size = call.shapes[0]
    count = math.prod(batch)
    work = (count * size**3 / 1e6, count * size**2 * call.item_size / 1e6, count, count * size / 1e3, size**2 / 1e4)
    return Parts(_way_of_factor(call.name, count, size), (1, size, *work))


def _way_of_factor(name: str, count: int, size: int) -> str:
    """Whose kernels factor so many matrices, as torch chooses them: a single matrix by cuSOLVER, many small ones by
    cuBLAS or one block each, others by MAGMA or one after the other."""
    if count == 1:
        return "one"
    if name in _BY_EIGENVALUES:
        return "many small" if size <= _MOST_OF_A_WARP else "one after the other"
    if name in _BY_LU:
        is_by_block = size <= _SMALL_LU or (size <= _WIDE_LU and count <= _FEW_LU)
        return "many small" if is_by_block else "many"
    return "many"


_BY_EIGENVALUES = frozenset({"_linalg_eigh", "linalg_eig", "_linalg_svd"})
_BY_LU = frozenset({"linalg_lu_factor_ex", "linalg_inv_ex", "_linalg_slogdet", "_linalg_det", "_linalg_solve_ex"})
_MOST_OF_A_WARP, _SMALL_LU, _WIDE_LU, _FEW_LU = 32, 16, 128, 16
"""Sides of matrices, and their number, up to which kernels for many small ones are taken
(``BatchLinearAlgebra.cpp``, ``lu_factor``; ``BatchLinearAlgebraLib.cpp``)."""


def _solved(call: _Call) -> Parts:
    is_turned = call.name == "cholesky_solve"
    matrices, given = (call.shapes[1], call.shapes[0]) if is_turned else (call.shapes[0], call.shapes[-1])
    size = matrices[-1]
    columns = given[-1] if call.number("left", 1) else given[-2]
    count = max(math.prod(matrices[:-2]), math.prod(given[:-2]))
    way = "one" if count == 1 else "many"
    if call.name == "linalg_solve_triangular":
        way = "each" if count <= _FEW_TRIANGLES and size >= _LARGE_TRIANGLES else "together"
    elif call.name == "_linalg_solve_ex":
        way = _way_of_factor(call.name, count, size)
    way += ", one column" if columns == 1 else ""
    moved = count * size * (size + columns) * call.item_size / 1e6
    turns = count * size if way.startswith("each") else size
    work = (count * size**2 * columns / 1e6, moved, count, size**2 / 1e4, count * size * columns / 1e6)
    # Many factors are gone through by a kernel for about two of their columns in single precision, for six in double
    # (26 calls, of 4 to 531 kernels); if one column alone is solved for, by six in all.
    is_by_few = is_turned and count > 1 and columns > 1 and call.tensors[0].dtype == "float32"
    return Parts(way, (1, turns, *work, size if is_by_few else 0))


_FEW_TRIANGLES, _LARGE_TRIANGLES = 8, 64
"""Up to how many matrices, from which side on, are solved one after the other (``BatchLinearAlgebra.cpp``,
``triangular_solve_kernel``)."""


def _of_sparse(call: _Call) -> Parts:
    """What a sparse tensor holds, whatever its shape: values with the places of these, put in order and added up, taken
    from a dense tensor or added to it; in a product each value times a row of the other matrix."""
    held = next(each for each in call.tensors if each.is_sparse)
    is_product = call.name in _SPARSE_PRODUCTS
    width = element_size(held.dtype) or 4
    each_bytes = 2 * _PLACE_BYTES + width if is_product else _PLACE_BYTES + math.prod(held.shape[1:]) * width
    held_bytes = held.held_bytes or 0
    values = held_bytes / each_bytes
    dense = next((each.shape for each in reversed(call.tensors) if each.shape and not each.is_sparse), ())
    columns = dense[-1] if is_product and len(dense) > 1 else 0
    written = held.shape[0] * columns * width
    ordered = values / 1e6 if is_product or call.name in _BY_ORDER else 0.0
    return Parts("sparse", (1, held_bytes / 1e6, ordered, values * columns / 1e6, written / 1e6))


_BY_ORDER = frozenset({"_coalesce", "sparse_mask"})
"""What puts places in order, or looks them up in such an order; others take as long as the bytes that are held."""
_SPARSE_PRODUCTS, _PLACE_BYTES = frozenset({"mm", "_sparse_addmm", "addmm", "spmm", "_sparse_mm"}), 8


def _grid_sampled(call: _Call) -> Parts:
    """A thread goes through all channels of its place; gradients are added to pictures by atomics."""
    is_given_first = call.is_backward and not call.name.startswith("cudnn")
    image, grid = call.shapes[1:3] if is_given_first else call.shapes[:2]
    channels, places = image[1], math.prod(grid[:-1])
    way, values = f"interpolation {call.number('interpolation_mode', 0)}", channels * places / 1e6
    meeting = min(math.prod(grid[1:-1]) / math.prod(image[2:]), _MOST_MEETING) if call.is_backward else 0.0
    return Parts(way, (1, channels, values, places / 1e6, call.megabytes, values * meeting))


_MOST_MEETING = 100.0
"""Places that ask for the same pixels, beyond which more make no difference."""


def _grid_made(call: _Call) -> Parts:
    batch, _, *sides = call.settings["size"]
    return Parts("any", (1, batch * math.prod(sides) / 1e6, math.prod(sides) / 1e6))


def _unfolded(call: _Call) -> Parts:
    shape = call.shapes[0]
    batch, channels, height, width = shape if len(shape) > 3 else (1, *shape)
    sides = call.settings["kernel_size"]
    places = 1
    options = (call.settings[each] for each in ("padding", "dilation", "stride"))
    for size, side, padding, dilation, stride in zip((height, width), sides, *options, strict=True):
        places *= _windows_along(size, side, padding, stride, dilation)
    written = batch * channels * math.prod(sides) * places
    return Parts("each picture", (1, batch, written / 1e6, batch * math.prod(sides), call.megabytes))


def _folded(call: _Call) -> Parts:
    shape, side = call.shapes[0], math.prod(call.settings["kernel_size"])
    batch, rows = shape[:2] if len(shape) > 2 else (1, shape[0])
    written = batch * (rows // side) * math.prod(call.settings["output_size"])
    return Parts("all pictures", (1, batch, math.prod(shape) / 1e6, written * side / 1e6, side))


def _aligned(call: _Call) -> Parts:
    (length, batch, classes), targets = call.shapes[1:3] if call.is_backward else call.shapes[:2]
    longest = targets[-1] if len(targets) > 1 else targets[0] // batch
    states, scores = 2 * longest + 1, length * batch * classes / 1e6
    amounts = (1, length, length * -(-states // _MOST_THREADS), length * batch * states / 1e6, scores)
    if not call.is_backward:
        return Parts("frames", amounts)
    if 2 * length + 2.4 * batch + 0.2 * classes > _MOST_SMALL:
        return Parts("large", (*amounts, 0.0, 0.0, 0.0, 0.0))
    # A thread for each frame of each sequence goes through all states, and then through all classes.
    busy = min(batch, max(1, _MOST_THREADS // 2 ** math.ceil(math.log2(length))))
    return Parts("small", (*amounts, states / 1e1, states * busy / 1e2, classes / 1e2, classes * busy / 1e3))


_MOST_THREADS, _MOST_SMALL = 1024, 450
"""Of a block; and the size, counted as torch does, up to which one kernel makes the gradients of all classes
(``LossCTC.cu``)."""


def _pictures_loss(call: _Call) -> Parts:
    """Each picture has a block, or one for each 131,072 pixels, whose threads wait for one pixel after the other; then
    blocks add to one sum by atomics, which in half precision try again until nobody was in between
    (``NLLLoss2d.cu``)."""
    scores = call.shapes[1 if call.is_backward else 0]
    batch, classes, *sides = scores
    pixels, elements = math.prod(sides), math.prod(scores)
    blocks = max(1, math.ceil(pixels / _MOST_THREADS) // _TURNS_OF_A_BLOCK)
    if not call.number("reduction", 1):
        return Parts("each", (1, 0.0, 0.0, 0.0, elements / 1e6, elements / classes / 1e6, call.megabytes))
    retried = batch * blocks if call.precision == "half" and not call.is_backward else 0
    work = (pixels / blocks / 1e3, elements / 1e6, elements / classes / 1e6, call.megabytes)
    return Parts("summed", (1, batch * blocks, retried, *work))


_TURNS_OF_A_BLOCK = 128
"""Pixels of a thread from which on a picture has a further block (``blocks_per_sample``)."""


def _enlarged(call: _Call) -> Parts:
    """Of lines and volumes a thread makes one place, in all channels of all pictures one after the other; gradients are
    added up by atomics, which take longer in half precision."""
    large, small = call.settings["output_size"], call.settings.get("input_size", call.shapes[0])
    rows, pixels = math.prod(small[:2]), math.prod(large)
    work = (rows, rows * pixels / 1e6)
    halves = work if call.is_backward and call.precision == "half" else (0.0, 0.0)
    return Parts(call.layout, (1, *work, rows * math.prod(small[2:]) / 1e6, pixels / 1e6, *halves))


def _repeated(call: _Call) -> Parts:
    """Of nearest volumes a thread makes a place of one channel, of all pictures one after the other
    (``UpSampleNearest3d.cu``)."""
    large, small = call.settings["output_size"], call.settings.get("input_size", call.shapes[0])
    batch, channels, *sides = small
    threads = channels * math.prod(sides if call.is_backward else large) / 1e6
    made = batch * channels * math.prod(large) / 1e6
    return Parts(call.layout, (1, batch, threads, made, call.megabytes))


def _smoothed(call: _Call) -> Parts:
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


def _cubic_gradient(call: _Call) -> Parts:
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


def _enlarged_picture(call: _Call) -> Parts:
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
    if call.layout == _CHANNELS_LAST and not is_few:
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
_THREADS = 132 * 2048
"""That run at once on an H100 or H200."""

_WIDEST, _MUCH, _MOST_TIMES = 32.0, 3.0, 16.0
"""Threads of a warp, how many times wider a picture is made from where they are in each other's way, and how many
times its pixels are with channels last where more make no difference."""


def _rows_added(call: _Call) -> Parts | None:
    """Rows that are added up, or joined otherwise, where their places say: by atomics, which wait for one another where
    many rows have few places."""
    if call.number("dim", 0) != 0 or len(call.shapes) < _WITH_PLACES:
        return None
    places, (rows, *others) = call.shapes[0][0], call.shapes[2]
    width = math.prod(others)
    shared, moved = rows / max(places, 1), rows * width
    amounts = (rows / 1e3, moved / 1e6, moved * min(shared, _MOST_SHARED) / 1e9, shared * width / 1e3)
    return Parts(call.precision, (1, max(0.0, call.megabytes - call.copied), *amounts, *call.copy))


_WITH_PLACES, _MOST_SHARED = 3, 1e4
"""Tensors of such a call, and rows for one place beyond which more make no difference."""


def _rows_put(call: _Call) -> Parts | None:
    """Places are sorted first where what falls on one of them is added up (``work/meetings.py``). Each further
    dimension that they are given in is added to them by kernels of its own, and more of them if places are spread."""
    meeting = meeting_of(call.name, call.tensors, tuple(call.settings.items()))
    if meeting is None:
        return None
    sort = "sorted at once" if meeting.taken <= _MOST_AT_ONCE else "sorted"
    work = (call.megabytes, meeting.taken / 1e3, meeting.steps)
    return Parts(f"{sort}, {meeting.kind}", (1, *work, meeting.named - 1, meeting.spread - 1))


_MOST_AT_ONCE = 2304
"""Rows that one block sorts: nine for each of its 256 threads (calls of up to 2,233 are of twelve kernels, those of
2,432 and more of 31)."""


def _indexed(call: _Call) -> Parts | None:
    """Values at places that tensors name, each its own dimension; masks, which are counted first, are others, and so
    are whole rows and those along later dimensions, which go by their bytes.

    A block's threads take four values each, one after the other (``IndexKernel.cu``), and wait for each place of a
    value before they know the next. Where a table does not fit into the cache, each value is loaded from memory in
    sectors of 32 bytes.
    """
    table, *places = call.shapes
    if not places or "indices" in call.settings or any(each.dtype in MASKS for each in call.tensors[1:]):
        return None
    shape = broadcast_shape(places)
    if shape is None:
        return None
    count, width = math.prod(shape), math.prod(table[len(places) :])
    size = call.item_size
    named = count * sum(element_size(each.dtype) or 8 for each in call.tensors[1:]) / 1e6
    far = _far_megabytes(count, width * size, math.prod(table) * size)
    if len(places) == 1 and width * size % _LOADED_AT_ONCE == 0:
        return None
    # Places that are spread over one another are made whole first, each by a kernel.
    way = "by value" if len(set(places)) == 1 else "by places of parts"
    turns = min(_VALUES_IN_TURN, math.ceil(count * width / _INDEX_BLOCK))
    waits = (turns, turns * (len(places) - 1))
    return Parts(way, (1, named, count * width / 1e6, count * width * size / 1e6, far, *waits))


_VALUES_IN_TURN = 4
"""Of a thread that looks up values."""


def _far_megabytes(count: int, each_bytes: int, table_bytes: int) -> float:
    """What comes from memory of values taken from a table that does not fit into the cache, in whole sectors."""
    return count * max(SECTOR_BYTES, each_bytes) / 1e6 if table_bytes > _CACHED else 0.0


_CACHED = 4e7
"""Bytes of a table that an H100's or H200's cache holds."""


def _rows_taken(call: _Call) -> Parts | None:
    """A block takes a row that can be loaded piece by piece of sixteen bytes, which takes as long as blocks are begun
    or as bytes are moved, whichever is longer; values one by one are as ``index`` takes them."""
    places = call.tensors[1].stride
    if call.name == "gather" and (call.number("dim", 0) != 0 or places is None or places[1:] != (0,)):
        return _by_element(call)
    if call.number("dim", 0) != 0:
        return None
    (_, *others), (rows, *_) = call.shapes[:2]
    width = math.prod(others)
    size = call.item_size
    if call.name == "index_select" and rows <= _FEW_INDICES:
        blocks = min(-(-width // _INDEX_BLOCK), _INDEX_BLOCKS)
        turns = rows * -(-width // (blocks * _INDEX_BLOCK))
        return Parts("few", (1, turns / 1e1, rows * width / 1e6, rows * width * size / 1e6))
    is_whole = width * size % _LOADED_AT_ONCE == 0 and is_contiguous(call.tensors[0])
    if call.name == "index_select" and not (is_whole and (places is None or places == (1,))):
        return Parts("by element", (1, 0.0, rows * width / 1e6, rows * width * size / 1e6))
    if not is_whole:
        return _by_element(call)
    more = max(0.0, rows * (width * size - _BYTES_OF_A_BLOCK) / 1e6)
    return Parts("by row", (1, rows / 1e3, more, 0.0))


_BYTES_OF_A_BLOCK = 1536
"""Of a row, that are moved while the next block begins (of 143 calls: 1,536 to 2,048 leave the least error, of 512 to
2,560)."""


_FEW_INDICES, _INDEX_BLOCK, _INDEX_BLOCKS = 16, 128, 132 * 8
"""Up to how many rows one kernel's threads take one after the other, each a value of all of them (``Indexing.cu``,
``indexSelectSmallIndex``), and how many threads and blocks those are."""


def _grouped(call: _Call) -> Parts | None:
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


def _by_norm(call: _Call) -> Parts:
    """Weights by their norms over all dimensions but the first, each by a block, or but the last, where one block goes
    through all rows of sixteen of them, 64 at a time (``WeightNorm.cu``)."""
    shape, along = call.shapes[0], call.number("dim")
    if along == 0:
        steps = math.ceil(math.prod(shape[1:]) / GROUP_BLOCK)
        return Parts("first", (1, call.megabytes, waves_of(shape[0], GROUP_BLOCK) * (1 + steps)))
    rows = math.prod(shape) // shape[-1]
    waves = math.ceil(math.ceil(shape[-1] / 16) / _TILES_AT_ONCE)
    return Parts("last", (1, call.megabytes, waves * math.ceil(rows / 64)))


def _normalized(call: _Call) -> Parts | None:
    """Of few long rows each is gone through by one block, three times, while the device waits; others go by their bytes
    or their steps."""
    shape = call.shapes[0]
    if len(shape) < 2 or shape[-1] < _LONG_ROW or math.prod(shape[:-1]) > _TILES_AT_ONCE:
        return None
    if call.settings["dim"] != (len(shape) - 1,) or not is_contiguous(call.tensors[0]):
        return None
    return Parts(f"few long rows, {call.precision}", (1, shape[-1] / 1e3, call.megabytes))


_LONG_ROW = 4096
"""Elements of a row from which on one block has to go through it in turns."""


def _by_element(call: _Call) -> Parts:
    """Values gathered or scattered one by one: a block's threads take eight places each, one after the other
    (``ScatterGatherKernel.cu``), so that few places are done after one turn."""
    places = math.prod(call.shapes[1])
    work = (1, min(_IN_TURN, math.ceil(places / _INDEX_BLOCK)), places / 1e6)
    if call.name == "gather":
        return Parts("by element", (*work, call.megabytes))
    return Parts("by element", (*work, max(0.0, call.megabytes - call.copied), *call.copy))


_IN_TURN = 8
"""Places of a thread."""


def _joined(call: _Call) -> Parts | None:
    """Tensors beside one another: each leaves a piece wherever those before it do, which is copied by sixteen bytes at
    a time if it is made of as many and lies as it is read (``Shape.cu``).

    What is strided is gone through by as many blocks for each tensor, whose threads find where an element lies by a
    division for each dimension. Tensors of more dimensions than four are copied one by one.
    """
    given = [each for each in call.tensors if each.shape and min(each.shape) > 0]
    dim = call.number("dim", 0)
    if len(given) < 2 or len({each.dtype for each in given}) > 1 or dim >= len(given[0].shape):
        return None
    size, sides = element_size(given[0].dtype), len(given[0].shape)
    if size is None:
        return None  # nor are the bytes known
    is_dense = all(map(is_contiguous, given))
    pieces = [math.prod(each.shape[dim:]) * size for each in given]
    is_even = is_dense and not any(piece % _LOADED_AT_ONCE for piece in pieces)
    is_across = any(each.stride and each.stride[-1] != 1 for each in given)
    way = "pieces of sixteen bytes" if is_even else "dense" if is_dense else "across" if is_across else "strided"
    elements = call.megabytes / (2 * size)
    if way != "strided" or sides > _MOST_JOINED_SIDES:
        return Parts(way, (1, call.megabytes, elements, 0.0, 0.0))
    largest = max(math.prod(each.shape) for each in given) * len(given) / 1e6
    return Parts(way, (1, call.megabytes, elements, elements * (sides - 1), largest))


_MOST_JOINED_SIDES = 4
"""Dimensions of tensors that one kernel joins."""


def _encoder(call: _Call) -> Parts:
    return Parts(call.precision, (1, call.flops / 1e9, call.megabytes, math.prod(call.shapes[0]) / 1e6))


def _ragged(call: _Call) -> Parts:
    """Attention of sequences of unlike lengths: a block for each 128 places of each head, as many for each sequence as
    the longest has, goes through all others of its sequence; a score takes an exponential, however wide the heads."""
    longest = max(call.number("max_q"), call.number("max_k"))
    _, heads, width = call.shapes[0]
    sequences = next(each.shape[0] for each in call.tensors if each.dtype == "int32" and len(each.shape) == 1) - 1
    elements, products = math.prod(call.shapes[0]) / 1e6, call.flops / 1e9
    blocks = sequences * heads * math.ceil(call.number("max_q") / 128)
    return Parts(
        "lengths", (1, products, products / width, elements, longest / 1e3, longest * width / 1e5, blocks / 1e3)
    )


def _distances(call: _Call) -> Parts:
    one, other = call.shapes[1:3] if call.is_backward else call.shapes[:2]
    pairs = max(math.prod(one[:-2]), math.prod(other[:-2])) * one[-2] * other[-2]
    return Parts("pairs", (1, pairs * one[-1] / 1e9, pairs / 1e6, one[-1], one[-2] + other[-2]))


def _upward_volume(call: _Call) -> Parts | None:
    """Of convolutions, transposed ones of volumes: others are priced as graphs launch them."""
    shape = call.shapes[0]
    if not call.number("transposed", 0) or len(shape) != _OF_VOLUME or call.number("groups", 1) > 1:
        return None
    way = f"transposed, {call.tensors[0].dtype}"
    return Parts(way, (1, call.flops / 1e9, call.megabytes, math.prod(shape) / 1e6))


_OF_VOLUME = 5


def _transformed(call: _Call) -> Parts:
    """Each dimension is a kernel's, or two's if it is long. Scaling is a kernel of its own, and so is what fills the
    half of a real transform that mirrors the other (``SpectralOps.cpp``)."""
    shape, dims = call.shapes[0], call.settings["dim"]
    lengths = [shape[dim] for dim in dims]
    if "last_dim_size" in call.settings:
        lengths[-1] = call.number("last_dim_size")
    largest = max(map(_largest_prime, lengths))
    way = "small factors" if largest <= _UNROLLED else "large factors" if largest <= _MOST_DIRECT else "by a longer one"
    way = "powers of two" if largest <= 2 else way
    long = sum(length > _IN_ONE_KERNEL for length in lengths)
    inner = len(dims) < len(shape) and max(dims) < len(shape) - 1
    passes = len(lengths) + long
    longer = 0.0 if way == "powers of two" else call.megabytes * long
    is_scaled = call.number("normalization", 0) != 0
    further = is_scaled + (1 - call.number("onesided", 1))
    direct = sum(map(_largest_prime, lengths)) if way == "large factors" else 0
    amounts = (passes, call.megabytes * passes, longer, call.megabytes * inner, call.megabytes * is_scaled)
    return Parts(way, (1, *amounts, further, math.prod(shape) * direct / 1e9))


_UNROLLED, _MOST_DIRECT = 13, 127
"""Prime factors that cuFFT has kernels of its own for, and beyond which it goes round by a transform of another length
(its documentation, "Accuracy and Performance")."""

_IN_ONE_KERNEL = 4096


def _picture_norm(call: _Call) -> Parts | None:
    """Of pictures whose channels lie beside one another, or that have but one pixel; others go by their channels
    (``fitting/picture_norms.py``)."""
    (batch, channels, *sides), stride = call.shapes[0], call.tensors[0].stride
    pixels = batch * math.prod(sides)
    if not call.number("training", 1):
        # A picture's pixels follow one another where its channels lie side by side; else its planes do.
        is_last = call.layout == _CHANNELS_LAST
        follow = channels * math.prod(sides) if is_last else batch * channels
        return Parts(f"known sums, {call.layout}, {call.precision}", (1, call.megabytes, follow / 1e6))
    if pixels == batch:
        return Parts("one pixel", (1, channels / 1e3, call.megabytes))
    if stride is None or stride[1] != 1:
        return None
    is_uneven = channels * call.item_size % _LOADED_AT_ONCE
    way = f"channels last, {call.precision}{', uneven' if is_uneven else ''}"
    return Parts(way, (1, call.megabytes, pixels / 1e6))


def _by_known_sums(call: _Call) -> Parts | None:
    """Of norms of pictures those that do not train: each value by what is known of its channel. Gradients of weights
    are sums over pictures again, as where norms train."""
    if call.is_backward:
        trains = call.number("train", 1) or any(call.settings["output_mask"][1:])
    else:
        trains = call.number("training", 1)
    return None if trains else Parts(f"known sums, {call.precision}", (1, call.megabytes))


def _pooled(call: _Call) -> Parts:
    """A thread makes one value of the result, or one of the gradient out of all windows that hold it. Gradients go as
    the pictures lie that were pooled; others are copied first (``DilatedMaxPool2d.cu``, ``AveragePool2d.cu``)."""
    picture = call.tensors[1 if call.is_backward else 0]
    given, is_last = picture.shape, _has_channels_last(picture)
    copied = 0.0
    if call.is_backward and _has_channels_last(call.tensors[0]) != is_last:
        copied = 2 * math.prod(call.shapes[0]) * call.item_size / 1e6
    sides = _both(call.settings["kernel_size"])
    made = math.prod(call.shapes[0] if call.is_backward else _windows_of(call, sides))
    windows = made * math.prod(sides)
    way = f"channels {'last' if is_last else 'first'}, {call.precision}"
    amounts = (1, math.prod(given) / 1e6, windows / 1e6, made / 1e6, call.megabytes, copied)
    is_by_channels = is_last and call.name == "max_pool2d_with_indices"
    return Parts(way, (*amounts, _turns_of_channels(call, sides) if is_by_channels else 0))


def _turns_of_channels(call: _Call, sides: tuple[int, ...]) -> int:
    """What a thread makes one after the other of the largest of channels that lie side by side: up to four channels of
    up to two pixels along each side."""
    _, channels, height, width = _windows_of(call, sides)
    block_x = min(power_below(channels), WARP)
    block_y = min(power_below(width), _MOST_THREADS // block_x)
    block_z = min(power_below(height), _MOST_THREADS // block_x // block_y)
    block_x = min(power_below(channels), _MOST_THREADS // block_y // block_z)
    slices = math.ceil(channels / (block_x * 4))
    pixels = min(2, math.ceil(height / block_z)) * min(2, math.ceil(width / block_y))
    return pixels * math.ceil(channels / (block_x * slices))


def _has_channels_last(picture: TensorArgument) -> bool:
    return len(picture.shape) > 2 and picture.shape[-3] > 1 and (picture.stride or (0, 0, 0))[-3] == 1


def _windows_of(call: _Call, sides: tuple[int, ...]) -> tuple[int, ...]:
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


_LOADED_AT_ONCE = 16
"""Bytes that one load of a thread takes at most."""


def _channel_sums(call: _Call) -> Parts:
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


def _ranks_joined(call: _Call) -> Parts:
    """What each rank summed of each channel, put together by one thread for each channel."""
    ranks, channels = call.shapes[1]
    return Parts("by ranks", (1, ranks, ranks * channels / 1e3))


def _rows_loss(call: _Call) -> Parts:
    """One block adds up all rows, with a thread for about sixteen of them, which waits for a score that nobody else
    asks for, longer where the scores do not fit into the cache. Without a sum each row has a thread of its own."""
    scores = call.shapes[1 if call.is_backward else 0]
    rows = scores[0] if len(scores) > 1 else 1
    filled = call.megabytes if call.is_backward else 0.0
    if not call.number("reduction", 1):
        return Parts("each", (1, 0.0, 0.0, rows / 1e3, filled))
    threads = min(max(2 ** round(math.log2(max(rows // 16, 1))), 32), 1024)
    turns = math.ceil(rows / threads)
    far = turns if math.prod(scores) * call.item_size > _CACHED else 0
    return Parts("summed", (1, turns, far, rows / 1e3, filled))


def _words_gradient(call: _Call) -> Parts:
    """Few words are gone through by each block of one kernel, more are sorted first."""
    grad, words = call.shapes[:2]
    count, width = math.prod(words), grad[-1]
    size = call.item_size / 1e6
    table = call.number("num_weights")
    filled, moved = table * width * size, count * width * size
    sums = sums_of_words(count, table, is_scaled=bool(call.number("scale_grad_by_freq", 0)))
    way = "sorted" if sums else "in one kernel"
    return Parts(way, (1, count / 1e3, filled, moved, sums * width * 4 / 1e6))


def _bags(call: _Call) -> Parts:
    """A thread adds up its column of all words of a bag, one after the other."""
    (rows, width), (words, *_), (bags, *_) = call.shapes[:3]
    each, moved = words / bags, words * width
    turns = math.ceil(bags * math.ceil(width / WARP) / _WARPS_OF_BAGS) * each
    far = _far_megabytes(words, width * call.item_size, rows * width * call.item_size)
    return Parts("any", (1, turns / 1e2, moved / 1e6, far, bags * width / 1e6))


_WARPS_OF_BAGS = 1024 * 8
"""Warps that go through bags at once (torch 2.11, ``EmbeddingBag.cu``)."""


_MEAN_OF_BAG, _LARGEST_OF_BAG = 1, 2
"""Modes of a bag, by torch's numbers for them."""


def _bags_gradient(call: _Call) -> Parts:
    """Words are sorted, and what falls on each of them is added up in that order; a row of a bag is read once for each
    of its words. A sparse gradient is the rows alone, and where a bag was its largest word the sums are atomic."""
    (bags, width), (words, *_) = call.shapes[:2]
    table, size = call.number("num_weights"), call.item_size / 1e6
    mode = call.number("mode", 0)
    filled, moved = table * width * size, words * width * size
    if call.number("sparse", 0):
        return Parts("sparse, a mean" if mode == _MEAN_OF_BAG else "sparse", (1, 0.0, 0.0, moved, 0.0, 0.0))
    if mode == _LARGEST_OF_BAG:
        return Parts("of the largest", (1, 0.0, filled, bags * width * 4 / 1e6, 0.0, 0.0))
    sums = sums_of_words(words, table, is_scaled=True)
    way = "sorted at once" if words <= _MOST_AT_ONCE else "sorted"
    return Parts(way, (1, words / 1e3, filled, moved, sums * width * 4 / 1e6, sums / 1e3))


def _largest(call: _Call) -> Parts:
    """A block looks for the largest of a row, by so many bits at a time, or several do where rows are long; more than
    one are sorted afterwards (torch 2.11, ``TensorTopK.cu``)."""
    shape, dim = call.shapes[0], call.number("dim", -1)
    length = shape[dim]
    rows, many = math.prod(shape) // length, call.number("k")
    if length >= next(least for most, least in _SEVERAL_BLOCKS if rows <= most):
        return Parts("several blocks", (1, rows / 1e2, call.megabytes, rows * length / 1e6, 0.0))
    threads = min(WARP * math.ceil(length / WARP), SELECT_BLOCK)
    rounds = waves_of(rows, threads)
    ordered = rows * power_below(2 * many - 1) / 1e6 if many > 1 else 0.0
    amounts = (rounds, rounds * math.ceil(length / threads), rows * length / 1e6, ordered)
    return Parts(f"one block{', sorted' if many > 1 else ''}, {call.precision}", (1, *amounts))


_SEVERAL_BLOCKS = (
    (20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800), (math.inf, 400)
)  # fmt: skip
"""Rows, at most, and their length from which on several blocks share one."""


def sums_of_words(count: int, table: int, *, is_scaled: bool) -> float:
    """How many sums there are room for where the gradients of ``count`` words of a table are sorted: of ten rows of a
    word each, of as many words as there may be. 0 where they are not sorted, as few are."""
    if count <= _MOST_UNSORTED and not is_scaled:
        return 0.0
    return count / _ROWS_ADDED + min(count, table)


_MOST_UNSORTED, _ROWS_ADDED = 3072, 10
"""Words whose gradients one kernel adds up (torch 2.11, ``Embedding.cu``), and rows that a thread does where they are
sorted (``EmbeddingBackwardKernel.cu``)."""


def _largest_prime(number: int) -> int:
    largest, factor = 1, 2
    while factor * factor <= number:
        while number % factor == 0:
            number, largest = number // factor, factor
        factor += 1
    return max(largest, number)


_FAMILIES: dict[str, Callable[[_Call], Parts | None]] = {
    **dict.fromkeys(("_cudnn_rnn", "miopen_rnn"), _recurrent),
    **dict.fromkeys(
        (
            *("linalg_cholesky_ex", "linalg_lu_factor_ex", "linalg_inv_ex", "linalg_qr", "linalg_matrix_exp"),
            *("_linalg_slogdet", "_linalg_det", "_linalg_eigh", "_linalg_svd", "linalg_eig"),
            "cholesky_inverse",
        ),
        _factored,
    ),
    **dict.fromkeys(("linalg_lu_solve", "cholesky_solve", "linalg_solve_triangular", "_linalg_solve_ex"), _solved),
    **dict.fromkeys(("grid_sampler_2d", "cudnn_grid_sampler"), _grid_sampled),
    "affine_grid_generator": _grid_made,
    "im2col": _unfolded,
    "col2im": _folded,
    "_ctc_loss": _aligned,
    **dict.fromkeys(("nll_loss2d_forward", "nll_loss2d"), _pictures_loss),
    **dict.fromkeys(("upsample_linear1d", "upsample_trilinear3d"), _enlarged),
    "upsample_nearest3d": _repeated,
    **dict.fromkeys(("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), _smoothed),
    "upsample_bicubic2d_backward": _cubic_gradient,
    **dict.fromkeys(("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"), _enlarged_picture),
    **dict.fromkeys(("index_add", "scatter_add", "scatter_reduce"), _rows_added),
    **dict.fromkeys(("index_put", "_index_put_impl"), _rows_put),
    "index": _indexed,
    "cat": _joined,
    "native_group_norm": _grouped,
    "_weight_norm_interface": _by_norm,
    **dict.fromkeys(("_softmax", "_log_softmax"), _normalized),
    **dict.fromkeys(("index_select", "gather"), _rows_taken),
    "scatter": _by_element,
    "_transformer_encoder_layer_fwd": _encoder,
    **dict.fromkeys(("_flash_attention_forward", "_flash_attention"), _ragged),
    **dict.fromkeys(("_cdist_forward", "_cdist"), _distances),
    "convolution": _upward_volume,
    "cudnn_batch_norm": _picture_norm,
    "native_batch_norm": _by_known_sums,
    **dict.fromkeys(("avg_pool2d", "max_pool2d_with_indices"), _pooled),
    "_embedding_bag": _bags,
    "_embedding_bag_backward": _bags_gradient,
    "topk": _largest,
    **dict.fromkeys(("batch_norm_stats", "batch_norm_backward_reduce"), _channel_sums),
    "batch_norm_gather_stats_with_counts": _ranks_joined,
    **dict.fromkeys(("nll_loss_forward", "nll_loss"), _rows_loss),
    "embedding_dense_backward": _words_gradient,
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), _transformed),
}
