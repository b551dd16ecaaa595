"""What the regressors see of kernels that give a block or a warp to each row: softmax, norms, lookups, losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.machine import Machine
from torchledger.expecting.rounding import MOST_WASTE, VECTOR_BYTES_LOG2, in_blocks, round_up
from torchledger.operators import Operator, Parameters

Array = NDArray[np.float64]

_ROWS_AT_ONCE = (1, 2, 4, 8, 16)
_ROW_THREADS = (256, 512, 1024, 2048, 4096)
_WARP, _MOST_THREADS = 32, 1024
_WIDEST, _REGISTERS, _SHARED_BYTES, _SHORT_REST = (1024, 2048, 7168, 9216), 9, 48e3, 0.1
_NORM_ROWS, _NORM_BLOCKS = (64, 128, 256, 512, 65536), (8, 16, 32, 64, 128, 256)
_FEW_TOKENS, _VERY_FEW_TOKENS = 3072, 16


def row_columns(
    operator: Operator, p: Parameters, direction: str, item_size: Array, machine: Machine
) -> dict[str, Array]:
    """How kernels that give a block (or a warp) to each row fill the device, and a row the block's threads."""
    found = _rows_and_width(operator, p)
    if found is None:
        return {}
    rows, width = found
    columns = {}
    for each in _ROWS_AT_ONCE:
        waves = rows / (each * machine.num_multiprocessors)
        columns[f"row waste {each}"] = np.minimum(np.log(np.ceil(waves) / waves), MOST_WASTE)
    for size in _ROW_THREADS:
        columns[f"fill {size} width"] = np.minimum(np.log(round_up(width, size) / width), MOST_WASTE)
    vectors = width * item_size / 2**VECTOR_BYTES_LOG2
    # Norms load four elements at once or take another kernel, gathers 16 bytes.
    columns["width in fours"] = (width % 4 == 0).astype(np.float64)
    columns["width in vectors"] = (vectors % 1 == 0).astype(np.float64)
    if "softmax" in operator.name.lower() or "cross_entropy" in operator.name:
        columns.update(_softmax_columns(rows, width, vectors, item_size, machine))
    form = operator.general_form(p)
    general = operator.name if form is None else form[0]
    if general in ("layer_norm", "rms_norm"):
        columns.update(_norm_columns(rows, width, machine))
    if general == "embedding" and direction == "forward":
        columns.update(_lookup_columns(rows, width, vectors, machine))
    elif general == "embedding":
        columns.update(_gathered_columns(rows, np.asarray(p["vocab"] if form is None else form[1]["vocab"])))
    if operator.name == "cross_entropy":
        # The loss itself is one block, of so many threads (``NLLLoss2d``'s and ``Loss.cu``'s ``nll_loss_threads``).
        threads = np.clip(2 ** np.round(np.log2(np.maximum(rows // 16, 1))), _WARP, _MOST_THREADS)
        steps = np.ceil(rows / threads)
        columns.update(
            {
                "log loss threads": np.log2(threads),
                "log loss steps": np.log(steps),
                "loss step waste": np.log(steps * threads / rows),
            }
        )
    return columns


def _softmax_columns(rows: Array, width: Array, vectors: Array, item_size: Array, machine: Machine) -> dict[str, Array]:
    """ATen's softmax (``SoftMax.cuh``): up to 2,048 elements forward and 1,024 backward a warp keeps the row.

    Longer rows have a block of the power of two of threads that leaves each one or two vectors of 16 bytes. Forward it
    keeps up to nine elements of a thread in registers, or the row in shared memory; a row that does not begin at 16
    bytes pays for a rest that is short beside the block."""
    threads = 2 ** np.ceil(np.log2(np.clip(vectors, 1, _MOST_THREADS) / 2))
    threads = np.maximum(threads, _WARP)
    steps = vectors / threads
    rest = steps - np.floor(steps)
    step_waste = np.minimum(np.log(np.ceil(steps) / steps), MOST_WASTE)
    waves = rows * threads / (machine.threads * machine.num_multiprocessors)
    kept = np.ceil(width / _MOST_THREADS)
    is_unaligned, is_of_block = vectors % 1 != 0, width > _MOST_THREADS
    is_kept = (width > _MOST_THREADS / 2) & (width <= _REGISTERS * _MOST_THREADS)
    return {
        "log block threads": np.log(threads),
        "block steps": np.log(np.ceil(steps)),
        "block step waste": step_waste,
        "block wave waste": np.minimum(np.log(np.ceil(waves) / waves), MOST_WASTE),
        **{f"row of {widest} at most": (width <= widest).astype(np.float64) for widest in _WIDEST},
        "row in shared memory": (width * item_size <= _SHARED_BYTES).astype(np.float64),
        "log kept": np.log(np.minimum(kept, _REGISTERS + 1)),
        "kept waste": np.where(is_kept, np.log(kept * _MOST_THREADS / width), 0.0),
        "unaligned step waste": np.where(is_unaligned, step_waste, 0.0),
        "unaligned rest": np.where(is_unaligned & is_of_block, rest, 0.0),
        "short unaligned rest": np.where(is_unaligned & is_of_block, np.exp(-rest / _SHORT_REST), 0.0),
    }


def _norm_columns(rows: Array, width: Array, machine: Machine) -> dict[str, Array]:
    """How ATen's norms (``layer_norm_kernel.cu``) sum the gradients of weights: a block for every 32 columns, of more
    rows the more there are, in two stages for very many rows of few columns."""
    columns = {f"fewer rows than {most}": (rows < most).astype(np.float64) for most in _NORM_ROWS}
    blocks = np.ceil(width / _WARP)
    waves = blocks / machine.num_multiprocessors
    is_two_stages = (rows > _NORM_ROWS[-1]) & (blocks < machine.num_multiprocessors / 2)
    columns["two stages"] = is_two_stages.astype(np.float64)
    columns["log column waves"] = np.log(waves)
    columns["column wave waste"] = np.minimum(np.log(np.ceil(waves) / waves), MOST_WASTE)
    columns["log column rounds"] = np.log(np.ceil(waves) * rows)
    for size in _NORM_BLOCKS:
        columns[f"fill {size} rows"] = np.minimum(np.log(round_up(rows, size) / rows), MOST_WASTE)
    return columns


def _lookup_columns(tokens: Array, width: Array, vectors: Array, machine: Machine) -> dict[str, Array]:
    """How ATen looks up rows (``Indexing.cu``): by vectors of 16 bytes, a block for each row, or by elements where rows
    do not begin at 16 bytes; very few rows by a kernel of their own."""
    threads = np.minimum(round_up(vectors, _WARP), _MOST_THREADS)
    waves = tokens * threads / (machine.threads * machine.num_multiprocessors)
    return {
        "very few tokens": (tokens <= _VERY_FEW_TOKENS).astype(np.float64),
        "log unaligned width": np.where(vectors % 1 != 0, np.log(width), 0.0),
        "thread waste": np.log(in_blocks(vectors / threads, 1) * threads / vectors),
        "row wave waste": np.minimum(np.log(np.ceil(waves) / waves), MOST_WASTE),
    }


def _gathered_columns(tokens: Array, vocab: Array) -> dict[str, Array]:
    """How ATen sums an embedding's gradients (``Embedding.cu``): few tokens by a kernel of their own, more after a
    radix sort of their numbers, in runs of equal ones."""
    bits = np.ceil(np.log2(np.maximum(vocab, 2)))
    distinct = -np.expm1(-tokens / vocab)
    return {
        "few tokens": (tokens <= _FEW_TOKENS).astype(np.float64),
        **{f"passes of {size} bits": np.ceil(bits / size) for size in (6, 7, 8)},
        **{f"at most {most} tokens": (tokens <= most).astype(np.float64) for most in (4096, 8192, 16384)},
        "log tokens each": np.log(tokens / vocab),
        "log distinct": np.log(distinct * vocab),
    }


def _rows_and_width(operator: Operator, p: Parameters) -> tuple[Array, Array] | None:
    form = operator.general_form(p)
    given: Mapping[str, Any] = p if form is None else form[1]
    if form is None and operator.feature_names[-2:] == ("l", "columns"):
        values = operator.features(p)
        given = {"rows": np.prod(np.broadcast_arrays(*values[:-1]), axis=0), "dim": values[-1]}
    for rows, width in (("rows", "dim"), ("tokens", "vocab"), ("tokens", "dim")):
        if rows in given and width in given:
            return np.asarray(given[rows], dtype=np.float64), np.asarray(given[width], dtype=np.float64)
    return None
