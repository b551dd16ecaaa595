"""Calls of attention among launches: which library's, over what, with which mask."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchledger.expecting.attention_features import attention_columns
from torchledger.expecting.attention_times import AttentionCall
from torchledger.expecting.machine import Machine
from torchledger.nouns import Buffer, Launch
from torchledger.work.categories import operation_of
from torchledger.work.element_sizes import element_size
from torchledger.work.launch_tensors import alignment_of, tensors_of


def attention_call(launch: Launch) -> AttentionCall | None:
    """A launch of attention as its library sees it; ``None`` for other libraries, and where its tensors are not those
    of a call."""
    name, (inputs, _) = operation_of(launch), tensors_of(launch)
    library = next((each for each in ("flash", "cudnn", "efficient") if f"_{each}_" in name), None)
    tensors = [buffer for buffer in inputs if len(buffer.shape) == 4]
    backward = "backward" in name
    if library is None or len(tensors) < 3 + backward:
        return None
    query, key = tensors[backward], tensors[backward + 1]
    batch, heads, length, d = query.shape
    if min(*query.shape, *key.shape) < 1:
        return None
    biases = _biases(inputs, length, key.shape[2], d, takes_any_rank=library == "cudnn")
    return AttentionCall(
        library, backward, query.dtype == "float32", batch, heads, key.shape[1], length, key.shape[2], d,
        is_causal=is_causal(launch),
        has_bias=bool(biases),
        is_strided=backward and len(tensors[0].stride) == 4 and tensors[0].stride[1] > tensors[0].stride[2],
        has_dropout=has_dropout(launch),
        is_bias_odd=any(map(_is_odd, biases)),
        is_float16=query.dtype == "float16",
        bias_elements=max(map(_stored_elements, biases), default=0),
    )  # fmt: skip


def attention_columns_of(launch: Launch, inputs: list[Buffer], machine: Machine) -> dict[str, float]:
    """Features of a call of attention beside its schedule."""
    queries = [buffer for buffer in inputs if len(buffer.shape) == 4]
    if len(queries) < 3:
        return {"described": 0.0}
    backward = "backward" in operation_of(launch)
    query, key = (queries[1], queries[2]) if backward else (queries[0], queries[1])
    batch, heads, length, d = query.shape
    length_kv, heads_kv = key.shape[-2], key.shape[1]
    name = operation_of(launch)
    biases = _biases(inputs, length, length_kv, d, takes_any_rank="_cudnn_" in name)
    full = 4.0 * batch * heads * length * length_kv * d * (2.5 if backward else 1.0)
    columns = attention_columns(
        np.array([float(batch * heads)]), np.array([float(length)]), np.array([float(d)]), machine
    )
    causal = is_causal(launch)
    return {key_name: float(column[0]) for key_name, column in columns.items()} | {
        "described": 1.0,
        "log heads": math.log(batch * heads),
        "log length": math.log(length),
        "log length kv": math.log(length_kv),
        "log d": math.log(d),
        "grouped": math.log(heads / max(heads_kv, 1)),
        "log full flops": math.log(full),
        # A causal mask hides half of the square; FLOPs are counted over all of it.
        "visible share": 0.5 * (1 + 1 / max(length, 1)) if causal else min((launch.flops or full) / full, 2.0),
        "causal": float(causal),
        "is flash": float("flash" in name),
        "is cudnn": float("cudnn" in name),
        "is efficient": float("efficient" in name),
        "length alignment": alignment_of(length),
        "bias": float(bool(biases)),
        "odd bias": float(any(map(_is_odd, biases))),
        "dropout": float(has_dropout(launch)),
    }


def is_causal(launch: Launch) -> bool:
    """Whether a call of attention hides what comes later, by its arguments: generated code gives them by place, and
    the flag stands behind the one for the log-sum-exp (or, backward, the mask of four gradients)."""
    named = [value for name, value in launch.kwargs.items() if "causal" in name]
    if named:
        return named[0].lower() == "true"
    places = sorted((int(name[3:]), value) for name, value in launch.kwargs.items() if name[3:].isdigit())
    flags = [value == "True" for _, value in places if value in ("True", "False")]
    name = operation_of(launch)
    before = 0 if "flash" in name else 4 if "efficient" in name else 0
    if "backward" not in name:
        before = 0 if "flash" in name else 1
    return len(flags) > before and flags[before]


def has_dropout(launch: Launch) -> bool:
    """Whether a call of attention drops some of its weights: by its arguments, in which generated code gives the rate
    by place, before the scale."""
    named = [value for name, value in launch.kwargs.items() if "dropout" in name]
    scale = launch.kwargs.get("scale")
    places = sorted((int(name[3:]), value) for name, value in launch.kwargs.items() if name[3:].isdigit())
    rates = named or [value for _, value in places if "." in value and value != scale]
    try:
        return bool(rates) and 0 < float(rates[0]) < 1
    except ValueError:
        return False


def _biases(inputs: Sequence[Buffer], length: int, length_kv: int, d: int, *, takes_any_rank: bool) -> list[Buffer]:
    """The masks among what a call reads. cuDNN's calls have one of fewer dimensions as the program gave it, where
    others have it expanded to four; of four dimensions it is told from queries and keys by its last one."""
    found = [buffer for buffer in inputs if len(buffer.shape) == 4 and buffer.shape[-1] == length_kv != d]
    if takes_any_rank:
        flat = [buffer for buffer in inputs if len(buffer.shape) in (2, 3)]
        found += [buffer for buffer in flat if buffer.shape[-1] == length_kv and buffer.shape[-2] in (1, length)]
    return found


def _is_odd(bias: Buffer) -> bool:
    """Whether rows of a bias do not begin where sixteen bytes do."""
    return len(bias.stride) > 1 and bias.stride[-2] * (element_size(bias.dtype) or 1) % 16 != 0


def _stored_elements(buffer: Buffer) -> int:
    """Elements of a tensor that lie in memory: along a stride of 0 all are one."""
    return math.prod(size for size, stride in zip(buffer.shape, buffer.stride, strict=True) if stride)
