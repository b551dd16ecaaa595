"""What layers over sequences do one after the other, and losses of alignments, rows and pictures, and running sums
(torch 2.11: ``RNN.cpp``, ``LossCTC.cu``, ``Loss.cu``, ``NLLLoss2d.cu``, ``ScanUtils.cuh``)."""

from __future__ import annotations

import math

from torchledger.work.algorithm_calls import CACHED, MOST_THREADS, TILES_AT_ONCE, Call, Parts
from torchledger.work.walks import waves_of


def recurrent(call: Call) -> Parts:
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
        tiles = math.ceil(batch / 64) * math.ceil(gates * hidden / 128) / TILES_AT_ONCE
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


_MOST_PERSISTENT, _MOST_PERSISTENT_BACKWARD = (384, 192), (256, 128)
"""Hidden sizes of plain and gated layers up to which torch takes cuDNN's persistent kernels for small ones
(``RNN.cpp``, ``use_rnn_persist_small_h``); these know no bfloat16."""


def aligned(call: Call) -> Parts:
    (length, batch, classes), targets = call.shapes[1:3] if call.is_backward else call.shapes[:2]
    longest = targets[-1] if len(targets) > 1 else targets[0] // batch
    states, scores = 2 * longest + 1, length * batch * classes / 1e6
    amounts = (1, length, length * -(-states // MOST_THREADS), length * batch * states / 1e6, scores)
    if not call.is_backward:
        return Parts("frames", amounts)
    if 2 * length + 2.4 * batch + 0.2 * classes > _MOST_SMALL:
        return Parts("large", (*amounts, 0.0, 0.0, 0.0, 0.0))
    # A thread for each frame of each sequence goes through all states, and then through all classes.
    busy = min(batch, max(1, MOST_THREADS // 2 ** math.ceil(math.log2(length))))
    return Parts("small", (*amounts, states / 1e1, states * busy / 1e2, classes / 1e2, classes * busy / 1e3))


_MOST_SMALL = 450
"""Size of a loss of alignments, counted as torch does, up to which one kernel makes the gradients of all classes
(``LossCTC.cu``)."""


def pictures_loss(call: Call) -> Parts:
    """Each picture has a block, or one for each 131,072 pixels, whose threads wait for one pixel after the other; then
    blocks add to one sum by atomics, which in half precision try again until nobody was in between
    (``NLLLoss2d.cu``)."""
    scores = call.shapes[1 if call.is_backward else 0]
    batch, classes, *sides = scores
    pixels, elements = math.prod(sides), math.prod(scores)
    blocks = max(1, math.ceil(pixels / MOST_THREADS) // _TURNS_OF_A_BLOCK)
    if not call.number("reduction", 1):
        return Parts("each", (1, 0.0, 0.0, 0.0, elements / 1e6, elements / classes / 1e6, call.megabytes))
    retried = batch * blocks if call.precision == "half" and not call.is_backward else 0
    work = (pixels / blocks / 1e3, elements / 1e6, elements / classes / 1e6, call.megabytes)
    return Parts("summed", (1, batch * blocks, retried, *work))


_TURNS_OF_A_BLOCK = 128
"""Pixels of a thread from which on a picture has a further block (``blocks_per_sample``)."""


def encoder(call: Call) -> Parts:
    return Parts(call.precision, (1, call.flops / 1e9, call.megabytes, math.prod(call.shapes[0]) / 1e6))


def ragged(call: Call) -> Parts:
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


def rows_loss(call: Call) -> Parts:
    """One block adds up all rows, with a thread for about sixteen of them, which waits for a score that nobody else
    asks for, longer where the scores do not fit into the cache. Without a sum each row has a thread of its own."""
    scores = call.shapes[1 if call.is_backward else 0]
    rows = scores[0] if len(scores) > 1 else 1
    filled = call.megabytes if call.is_backward else 0.0
    if not call.number("reduction", 1):
        return Parts("each", (1, 0.0, 0.0, rows / 1e3, filled))
    threads = min(max(2 ** round(math.log2(max(rows // 16, 1))), 32), 1024)
    turns = math.ceil(rows / threads)
    far = turns if math.prod(scores) * call.item_size > CACHED else 0
    return Parts("summed", (1, turns, far, rows / 1e3, filled))


def scanned(call: Call) -> Parts | None:
    """Running sums and products. Along rows a block's 512 threads share as many rows as leave each at least sixteen;
    where there are more than 512 rows for each of their elements, what says how many wraps round, and each row has all
    of them. Down columns a thread goes through one. Each way has parts of its own, so that ways of which few calls are
    known are told by what all of them are made of."""
    shape = call.shapes[0]
    if len(shape) < _ROWS_OF_ROWS:
        return None
    dim = call.number("dim") % len(shape)
    length, count = shape[dim], math.prod(shape)
    if dim < len(shape) - 1:
        inner = math.prod(shape[dim + 1 :])
        blocks = count // length // inner * math.ceil(inner / _SCANNING)
        rounds = waves_of(blocks, min(_SCANNING, inner))
        return Parts("down columns", (1, 0.0, 0.0, rounds * length / 1e3, call.megabytes))
    rows = count // length
    along, apart = ((max(1, each) - 1).bit_length() for each in (length, rows))
    wide = _LOG_SCANNING + along - apart
    log_threads = _LOG_SCANNING if wide < 0 else min(max(_LEAST_LOG_SCANNING, wide // 2), _LOG_SCANNING)
    blocks = math.ceil(rows / (_SCANNING >> log_threads))
    turns = math.ceil(length / (2 << log_threads))
    if wide < 0:
        return Parts("a block for each row", (1, blocks * turns / 1e3, 0.0, 0.0, call.megabytes))
    return Parts("rows of a block", (1, 0.0, waves_of(blocks, _SCANNING) * turns / 1e1, 0.0, call.megabytes))


_ROWS_OF_ROWS = 2
_LOG_SCANNING, _LEAST_LOG_SCANNING = 9, 4
_SCANNING = 1 << _LOG_SCANNING
"""Threads of a block, and the fewest that go through a row together (``_get_log_num_threads_x_inner_scan``)."""
