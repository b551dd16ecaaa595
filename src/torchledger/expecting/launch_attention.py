"""Calls of attention among launches: which library's, over what, with which mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

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
    asked = AttentionCall(
        library, backward, query.dtype == "float32", batch, heads, key.shape[1], length, key.shape[2], d,
        is_causal=is_causal(launch),
        has_bias=bool(biases),
        is_strided=backward and len(tensors[0].stride) == 4 and tensors[0].stride[1] > tensors[0].stride[2],
        has_dropout=has_dropout(launch),
        is_bias_odd=any(map(_is_odd, biases)),
        is_float16=query.dtype == "float16",
        bias_elements=max(map(_stored_elements, biases), default=0),
    )  # fmt: skip
    return _as_run(asked)


def _as_run(call: AttentionCall) -> AttentionCall:
    """What a forward's kernels go through of what is asked.

    A mask of FlashAttention ends at the last query and the last key, those of the other libraries begin at the first
    of both: keys beyond as many as there are queries are not read. One query sees all keys, and FlashAttention takes
    those that share keys for one head's queries (``seqlenq_ngroups_swapped`` in its ``flash_api.cpp``).
    """
    if call.is_backward:
        return call
    if call.library != "flash":
        return replace(call, length_kv=min(call.length, call.length_kv)) if call.is_causal else call
    if call.length > 1:
        return call
    groups = call.heads // call.heads_kv
    is_joined = groups > 1 and call.d % 8 == 0 and not call.has_dropout
    if not is_joined:
        return replace(call, is_causal=False)
    return replace(call, is_causal=False, length=groups, heads=call.heads_kv)


def attention_columns_of(launch: Launch, machine: Machine) -> dict[str, float]:
    """Features of a call of attention beside its schedule."""
    call = attention_call(launch)
    if call is None:
        return {"described": 0.0}
    full = 4.0 * call.batch * call.heads * call.length * call.length_kv * call.d * (2.5 if call.is_backward else 1.0)
    columns = attention_columns(
        np.array([float(call.batch * call.heads)]), np.array([float(call.length)]), np.array([float(call.d)]), machine
    )
    return {key_name: float(column[0]) for key_name, column in columns.items()} | {
        "described": 1.0,
        "log heads": math.log(call.batch * call.heads),
        "log length": math.log(call.length),
        "log length kv": math.log(call.length_kv),
        "log d": math.log(call.d),
        "grouped": math.log(call.heads / max(call.heads_kv, 1)),
        "log full flops": math.log(full),
        # A causal mask hides half of the square; FLOPs are counted over all of it.
        "visible share": (
            0.5 * (1 + 1 / max(call.length, 1)) if call.is_causal else min((launch.flops or full) / full, 2.0)
        ),
        "causal": float(call.is_causal),
        "is flash": float(call.library == "flash"),
        "is cudnn": float(call.library == "cudnn"),
        "is efficient": float(call.library == "efficient"),
        "length alignment": alignment_of(call.length),
        "bias": float(call.has_bias),
        "odd bias": float(call.is_bias_odd),
        "dropout": float(call.has_dropout),
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
