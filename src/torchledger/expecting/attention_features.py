"""What the regressors see of fused attention: blocks of queries and keys, and how they fill the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.machine import Machine
from torchledger.expecting.rounding import MOST_WASTE, in_blocks, round_up
from torchledger.operators import Operator, Parameters, find_operator

Array = NDArray[np.float64]

_ATTENTION_TILE = 128
_ATTENTION_BLOCKS = ((128, 128), (128, 64), (64, 128), (64, 64))


def attention_shape(operator: Operator, p: Parameters) -> tuple[Array, Array, Array, Array, Array] | None:
    """Heads of all sequences, length, length of keys, d, and whether causal."""
    if operator.name == "sdpa_varlen":
        return p["sequences"] * p["h"], p["l"], p["l"], p["d"], np.asarray(p["causal"])
    form = ("sdpa", p) if operator.name == "sdpa" else operator.general_form(p)
    if form is None or form[0] != "sdpa":
        return None
    q = find_operator("sdpa").resolve(form[1])
    keys = np.where(np.asarray(q["l_kv"]) > 0, q["l_kv"], q["l"])
    return q["b"] * q["h"], q["l"], keys, q["d"], np.asarray(q["causal"])


def attention_rounds(
    shape: tuple[Array, Array, Array, Array, Array], log_base: Array, machine: Machine
) -> dict[str, Array]:
    """Rounds of blocks of queries and the blocks of keys that each goes through, for the sizes of blocks in use."""
    heads, length, keys, _, causal = (np.broadcast_to(part, log_base.shape).astype(np.float64) for part in shape)
    columns: dict[str, Array] = {}
    for tall, wide in _ATTENTION_BLOCKS:
        down, steps = np.ceil(length / tall), np.ceil(keys / wide)
        each = np.where(causal > 0, (steps + 1) / 2, steps)
        name = f"attention {tall}x{wide}"
        for at_once in (1, 2):
            waves = down * heads / (machine.num_multiprocessors * at_once)
            columns[f"{name} rounds {at_once}"] = np.log(np.maximum(np.ceil(waves) * each, steps) + 1) - log_base
            columns[f"{name} wave waste {at_once}"] = np.minimum(np.log(np.ceil(waves) / waves), MOST_WASTE)
        columns[f"{name} blocks"] = np.log(down * heads * each) - log_base
        columns[f"{name} pad"] = np.log(down * tall * steps * wide / (length * keys))
    return columns


def attention_columns(heads: Array, length: Array, d: Array, machine: Machine) -> dict[str, Array]:
    """How fused attention divides into blocks of 128 queries and waves, and what padding the head dimension costs."""
    waves = heads * in_blocks(length, _ATTENTION_TILE) / machine.num_multiprocessors
    return {
        "attention waves": np.log(waves),
        "attention wave waste": np.log(np.ceil(waves) / waves),
        "attention pad 32": np.log(round_up(d, 32) / d),
        "attention pad 64": np.log(round_up(d, 64) / d),
    }
