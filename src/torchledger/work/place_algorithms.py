"""What is done with values at places: looked up, taken, scattered, added up, joined, and the largest of rows (torch
2.11: ``IndexKernel.cu``, ``Indexing.cu``, ``ScatterGatherKernel.cu``, ``Shape.cu``, ``Embedding*.cu``,
``TensorTopK.cu``)."""

from __future__ import annotations

import math
from dataclasses import replace

from torchledger.nouns import TensorArgument
from torchledger.work.algorithm_calls import CACHED, LOADED_AT_ONCE, Call, Parts, has_channels_last
from torchledger.work.copy_algorithms import LATER, SOON, walk_across
from torchledger.work.element_sizes import element_size
from torchledger.work.kernel_counts import MASKS
from torchledger.work.meetings import meeting_of
from torchledger.work.op_shapes import broadcast_shape
from torchledger.work.tensor_layouts import channels_last, is_contiguous, lies_as, row_major
from torchledger.work.walks import SECTOR_BYTES, SELECT_BLOCK, WARP, power_below, waves_of


def rows_added(call: Call) -> Parts | None:
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


def rows_put(call: Call) -> Parts | None:
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


def indexed(call: Call) -> Parts | None:
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
    if len(places) == 1 and width * size % LOADED_AT_ONCE == 0:
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
    return count * max(SECTOR_BYTES, each_bytes) / 1e6 if table_bytes > CACHED else 0.0


def rows_taken(call: Call) -> Parts | None:
    """A block takes a row that can be loaded piece by piece of sixteen bytes, which takes as long as blocks are begun
    or as bytes are moved, whichever is longer; values one by one are as ``index`` takes them."""
    places = call.tensors[1].stride
    if call.name == "gather" and (call.number("dim", 0) != 0 or places is None or places[1:] != (0,)):
        return by_element(call)
    if call.number("dim", 0) != 0:
        return None
    (_, *others), (rows, *_) = call.shapes[:2]
    width = math.prod(others)
    size = call.item_size
    if call.name == "index_select" and rows <= _FEW_INDICES:
        blocks = min(-(-width // _INDEX_BLOCK), _INDEX_BLOCKS)
        turns = rows * -(-width // (blocks * _INDEX_BLOCK))
        return Parts("few", (1, turns / 1e1, rows * width / 1e6, rows * width * size / 1e6))
    is_whole = width * size % LOADED_AT_ONCE == 0 and is_contiguous(call.tensors[0])
    if call.name == "index_select" and not (is_whole and (places is None or places == (1,))):
        return Parts("by element", (1, 0.0, rows * width / 1e6, rows * width * size / 1e6))
    if not is_whole:
        return by_element(call)
    more = max(0.0, rows * (width * size - _BYTES_OF_A_BLOCK) / 1e6)
    return Parts("by row", (1, rows / 1e3, more, 0.0))


_BYTES_OF_A_BLOCK = 1536
"""Of a row, that are moved while the next block begins (of 143 calls: 1,536 to 2,048 leave the least error, of 512 to
2,560)."""


def words_looked_up(call: Call) -> Parts | None:
    """Rows of a table that are narrow and many, so that beginning a block for each is all that they take; what others
    take an operator of the catalogue knows."""
    (_, width), words = call.shapes[0], math.prod(call.shapes[1])
    row_bytes = width * call.item_size
    if words < _MANY_WORDS or row_bytes > _BYTES_OF_A_BLOCK or row_bytes % LOADED_AT_ONCE:
        return None
    return Parts("by row", (1, words / 1e3, 0.0, 0.0)) if is_contiguous(call.tensors[0]) else None


_MANY_WORDS = 32768
"""Whose blocks take twenty microseconds to begin."""


_FEW_INDICES, _INDEX_BLOCK, _INDEX_BLOCKS = 16, 128, 132 * 8
"""Up to how many rows one kernel's threads take one after the other, each a value of all of them (``Indexing.cu``,
``indexSelectSmallIndex``), and how many threads and blocks those are."""


def by_element(call: Call) -> Parts:
    """Values gathered or scattered one by one: a block's threads take eight places each, one after the other
    (``ScatterGatherKernel.cu``), so that few places are done after one turn."""
    places = math.prod(call.shapes[1])
    work = (1, min(_IN_TURN, math.ceil(places / _INDEX_BLOCK)), places / 1e6)
    if call.name == "gather":
        return Parts("by element", (*work, call.megabytes))
    return Parts("by element", (*work, max(0.0, call.megabytes - call.copied), *call.copy))


_IN_TURN = 8
"""Places of a thread."""


def joined(call: Call) -> Parts | None:
    """Tensors beside one another: each leaves a piece wherever those before it do, which is copied by sixteen bytes at
    a time if it is made of as many and lies as it is read (``Shape.cu``).

    Other pieces that lie as they are read are loaded so, but each element is stored for itself: threads beside one
    another do not store into the same sector where pieces are short. What is strided is gone through by as many blocks
    for each tensor, whose threads find where an element lies by a division for each dimension. Tensors of more
    dimensions than four, or of unlike dtypes, are copied one by one.
    """
    given, dim = _put_beside(call)
    if len(given) < 2 or dim >= len(given[0].shape):
        return None
    sizes, sides = {element_size(each.dtype) for each in given}, len(given[0].shape)
    if None in sizes:
        return None  # nor are the bytes known
    size = max(each for each in sizes if each)
    is_alike, recorded = len({each.dtype for each in given}) == 1, sum(math.prod(each.shape) for each in given) / 1e6
    elements = call.megabytes / (2 * size) if is_alike else recorded
    is_last = all(map(_is_dense_with_channels_last, given))
    inside = [_inside(each.shape, dim, is_last=is_last) for each in given]
    piece = sum(inside) / len(inside) * size
    # Of a long list not all tensors are recorded.
    count = max(len(given), elements * len(given) / recorded)
    are_crowded = count > _MEETING + 0.5 and piece < _LINE_BYTES
    is_dense = is_last or all(map(is_contiguous, given))
    is_one_kernel = is_alike and sides <= _MOST_JOINED_SIDES
    if is_dense and is_one_kernel:
        is_even = not is_last and not any(each * size % LOADED_AT_ONCE for each in inside)
        load = LOADED_AT_ONCE if is_even else _LOADED_OF.get(size, LOADED_AT_ONCE)
        each = load if is_even else size
        stores = elements * size / each / _of_a_sector(piece, count, load)
        work = (1, call.megabytes, elements, 0.0, 0.0, stores, 0.0, stores if are_crowded else 0.0)
        return Parts("pieces of sixteen bytes" if is_even else "dense", work)
    across = 0.0 if is_last else sum(_across(each) for each in given)
    apart = elements if piece < SECTOR_BYTES else 0.0
    if not is_one_kernel:
        way = "one by one" if is_alike else "of unlike dtypes"
        return Parts(way, (len(given), call.megabytes, elements, 0.0, 0.0, apart, across, 0.0))
    largest = max(math.prod(each.shape) for each in given) * len(given) / 1e6
    return Parts("strided", (1, call.megabytes, elements, elements * (sides - 1), largest, apart, across, 0.0))


_MOST_JOINED_SIDES = 4
"""Dimensions of tensors that one kernel joins."""

_LOADED_OF = {1: 1, 2: 8}
"""Bytes that are loaded at a time of elements of so many."""

_MEETING, _LINE_BYTES = 2, 128
"""Tensors whose stores may meet in a line of the cache at little cost, and its bytes. Measured, not read from a source:
of 19 calls with pieces shorter than a line (2026-11), an element takes 1.0 to 3.6 ps in the ten of two tensors, 8.2 to
14.8 in the nine of more."""


def _put_beside(call: Call) -> tuple[list[TensorArgument], int]:
    """What is joined, and along which dimension: tensors are stacked along a new one by being joined along the one that
    is there, and only behind their last are they given one more."""
    given, dim = [each for each in call.tensors if each.shape and min(each.shape) > 0], call.number("dim", 0)
    if call.name == "stack" and given and dim == len(given[0].shape):
        given = [
            replace(each, shape=(*each.shape, 1), stride=None if each.stride is None else (*each.stride, 1))
            for each in given
        ]
    return given, dim


def _is_dense_with_channels_last(tensor: TensorArgument) -> bool:
    shape, stride = tensor.shape, tensor.stride
    if stride is None or len(shape) not in _PICTURES or not has_channels_last(tensor):
        return False
    return lies_as(shape, stride, channels_last(shape))


_PICTURES = (4, 5)
"""Dimensions of pictures and volumes, whose channels may lie side by side."""


def _inside(shape: tuple[int, ...], dim: int, *, is_last: bool) -> int:
    """Elements of a piece."""
    order = (0, *range(2, len(shape)), 1) if is_last else tuple(range(len(shape)))
    return math.prod(shape[each] for each in order[order.index(dim) :])


def _of_a_sector(piece: float, count: float, apart: int) -> float:
    """Stores of one instruction that fall into one sector: by threads that read ``apart`` bytes
    each, of pieces that ``count`` tensors have in turn."""
    own = min(SECTOR_BYTES, piece) / apart
    return max(1.0, own, SECTOR_BYTES / (apart * count) if piece * count <= SECTOR_BYTES else 0.0)


def _across(tensor: TensorArgument) -> float:
    """Millions of sectors that are read for one element each, those from memory two at a time."""
    found = walk_across(tensor, row_major(tensor.shape))
    size = element_size(tensor.dtype)
    if found is None or size is None or found[1] <= SOON:
        return 0.0
    gap, behind = found
    return math.prod(tensor.shape) * min(1.0, gap * size / SECTOR_BYTES) * (2 if behind > LATER else 1) / 1e6


def put_where_masked(call: Call) -> Parts | None:
    """Values that are put one after the other where a mask says: the mask is summed up first, to tell which value each
    place takes, and both go through all places however few values there are (``IndexKernel.cu``,
    ``launch_masked_scatter_kernel``)."""
    if not call.is_in_place:
        return None  # copies first, which no measured call does
    values = math.prod(call.shapes[2]) * call.item_size
    return Parts("any", (1, math.prod(call.shapes[0]) / 1e6, values / 1e6))


def words_gradient(call: Call) -> Parts:
    """Few words are gone through by each block of one kernel, more are sorted first."""
    grad, words = call.shapes[:2]
    count, width = math.prod(words), grad[-1]
    size = call.item_size / 1e6
    table = call.number("num_weights")
    filled, moved = table * width * size, count * width * size
    sums = sums_of_words(count, table, is_scaled=bool(call.number("scale_grad_by_freq", 0)))
    way = "sorted" if sums else "in one kernel"
    return Parts(way, (1, count / 1e3, filled, moved, sums * width * 4 / 1e6))


def bags(call: Call) -> Parts:
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


def bags_gradient(call: Call) -> Parts:
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


def largest_of_rows(call: Call) -> Parts:
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
