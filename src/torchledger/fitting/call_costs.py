"""What eager calls cost that no operator of the catalogue describes: for each, microseconds a kernel, a share of the
bandwidth, and of element-wise ones microseconds an element, learned from calls inside recorded steps.

Enters: calls of batteries (``benchmarks/strangers/strangers_data.py``). Leaves: numbers by name, for
``TimeModel.extras``.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import FitError
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.list_calls import ListCost, fit_list_calls, list_us
from torchledger.nouns import TensorArgument
from torchledger.work.casts import cast_bytes, cast_target, copy_of
from torchledger.work.categories import category_of_operator, operator_name
from torchledger.work.element_sizes import element_size
from torchledger.work.list_costs import CHUNK_ELEMENTS, ListLaunches, launches_of_list, works_on_lists
from torchledger.work.op_shapes import broadcast_shape
from torchledger.work.settings import Settings, settings_from
from torchledger.work.tensor_layouts import layout_of, row_major
from torchledger.work.walks import family_of_walk, steps_of, walk_of

Array = NDArray[np.float64]

_FEWEST = 6
"""Calls below which an operator is left to its roofline."""

_FEWEST_ALONG = 3
"""Calls of a family that goes one way, whose steps say what it takes, below which it is not learned."""

_ENOUGH = 8
"""Calls in steps of programs beyond which those of batteries are left out: one after another of their kind, these find
the cache in another state."""

_BATTERY = "battery"

_KERNEL_US = np.exp(np.linspace(np.log(0.8), np.log(40.0), 32))
_SLOWNESS = np.exp(np.linspace(np.log(0.4), np.log(80.0), 44))
_UNLIKELY = 0.004
"""How much nearer, as a logarithm, calls must be for a slowness a factor of e farther from the device's rate."""

_ELEMENT_US = (0.0, *np.exp(np.linspace(np.log(0.3), np.log(60.0), 26)).tolist())
_CHUNK_US = (0.0, *np.exp(np.linspace(np.log(1.0), np.log(60.0), 15)).tolist())
_STEP_US = (0.0, *np.exp(np.linspace(np.log(0.01), np.log(20.0), 24)).tolist())
_WIDER = 1.5
"""How much wider than over the learned calls intervals are, as drawn ones that were held out ask for
(``benchmarks/models/fit_eager.py --held-out``)."""

_SURELY = 0.25
"""How far, as a logarithm, calls lie from the best price at least: those learned from are few or of few sizes, and what
others do is not in their spread."""


@dataclass(frozen=True)
class CallCost:
    """An eager call takes ``kernel_us`` a kernel, and ``slowness`` times what its bytes take at the device's bandwidth;
    90 % of calls lie within a factor ``exp(spread)``. ``kernels`` are those that it launches as a rule, for calls of
    which nothing but the operator was seen. Over a list of tensors a kernel takes ``chunk_us`` more for the chunk of a
    tensor that one of its blocks goes through, however few there are; with a ``norm``, as ``fitting/list_calls.py``
    has it. An element-wise call takes ``element_us`` for a
    million elements at least, however few bytes these have, and one that goes along dimensions ``step_us`` for each of
    its steps (``work/walks.py``)."""

    kernel_us: float
    slowness: float
    spread: float
    kernels: int = 1
    chunk_us: float = 0.0
    element_us: float = 0.0
    step_us: float = 0.0
    norm: float = 0.0

    def duration_us(
        self,
        kernels: int,
        bytes_moved: int,
        bytes_per_us: float,
        *,
        chunk: float = 0.0,
        elements: int = 0,
        steps: int = 0,
        launches: ListLaunches | None = None,
    ) -> float:
        """Time of a call in microseconds; ``chunk`` is of ``share_of_chunk``, ``elements`` of ``elements_of``,
        ``steps`` of ``steps_along``, ``launches`` of ``launches_of_call``.
        """
        memory_us = bytes_moved / bytes_per_us
        if self.norm and launches is not None:
            return list_us(ListCost(self.kernel_us, self.chunk_us, self.slowness, self.norm), launches, memory_us)
        work_us = max(self.slowness * memory_us, self.element_us * elements / 1e6, self.step_us * steps)
        time_us = (self.kernel_us + self.chunk_us * chunk) * max(1, kernels) + work_us
        is_beyond = bytes_moved > BEYOND_CACHES
        return max(time_us, QUICKEST * memory_us) if is_beyond else time_us


BEYOND_CACHES, QUICKEST = 2**27, 0.87
"""Bytes of which a cache keeps nothing, and what they take at least of the time at the rate of a copy: nothing is
quicker than the memory."""


def share_of_chunk(tensors: int | None, elements: int | None) -> float:
    """How much of a chunk the mean tensor of a list fills, 1 at most; 0 of what is no list."""
    return min(1.0, elements / tensors / CHUNK_ELEMENTS) if tensors and elements else 0.0


def launches_of_call(
    name: str, arguments: Sequence[TensorArgument], tensors: int | None, elements: int | None, kernels: int
) -> ListLaunches | None:
    """How the kernels of a call over a list share it; ``None`` of any other call, and where its list is unknown."""
    if not tensors or not elements or not works_on_lists(name):
        return None
    largest = max((math.prod(each.shape) for each in arguments), default=0)
    return launches_of_list(tensors, elements, kernels, min(largest, elements))


def is_scaler(name: str) -> bool:
    """True for the operator with which a gradient scaler ends its work in a step."""
    return name.endswith("_amp_update_scale_")


def is_joining(name: str) -> bool:
    """True for operators over lists whose every tensor decides how they are priced."""
    return operator_name(name)[1] in ("cat", "stack")


def known_name(name: str, *, beside_scaler: bool) -> str:
    """What an operator is called whose costs are learned: a fused optimizer beside a gradient scaler is another one,
    since it divides the gradients itself and writes them."""
    return f"{name} scaled" if beside_scaler and "::_fused_" in name else name


_FEW_ROWS = 1024
"""Rows up to which one block of a loss over classes has a thread for each."""


def cost_keys(name: str, arguments: Sequence[TensorArgument] = (), settings: Settings | None = None) -> tuple[str, ...]:
    """What a call is known by, the closest first: its operator with its tensors' layout and the first one's dtype, with
    the layout, and by itself. An element-wise operator has the layout of all its tensors (``work/tensor_layouts.py``),
    and one that was not learned is like others of its layout and width; of any other operator it is the first tensor's:
    not along its last dimension, or with rows that do not follow one another. A softmax is known by the length of its
    rows, which a warp, a block or a block with shared memory reads, a loss over classes by how many rows it has. Where
    it was recorded along which dimensions a call works, it is known by that first (``work/walks.py``), and one that was
    not learned is like others of its family that go the same way.

    >>> cost_keys("aten::clone", [TensorArgument((64, 128), "float16", (1, 64))])[:2]
    ('aten::clone across float16', 'aten::clone across')
    >>> cost_keys("aten::_log_softmax", [TensorArgument((4096, 32000), "float32", (32000, 1))])[0]
    'aten::_log_softmax of rows 2^15'
    >>> cost_keys("aten::exp", [TensorArgument((8, 8), "float16", (16, 1))])
    ('aten::exp padded float16', 'aten::exp padded', 'element-wise padded, 2 bytes', 'element-wise padded')
    >>> places = TensorArgument((64,), "int64", (1,))
    >>> cost_keys("aten::index", [TensorArgument((64, 128), "float16", (128, 1)), places])[0]
    'aten::index_select'
    """
    if not arguments:
        return (name,)
    if works_on_lists(name):
        dtype = arguments[0].dtype
        return (f"{name} {dtype}", name) if dtype else (name,)
    if is_elementwise(name):
        return _elementwise_keys(name, arguments, settings)
    along, alike = _keys_along(name, arguments, settings)
    keys = (*along, *alike, *_keys_by_rows(name, arguments, way=bool(along)))
    return (_TAKES_ROWS, *keys) if _is_given_places(name, arguments) else keys


_TAKES_ROWS = "aten::index_select"


def _is_given_places(name: str, arguments: Sequence[TensorArgument]) -> bool:
    """Whether rows are taken by numbers that were recorded with the call. Of calls of ``index`` without, which taught
    what it takes, some were given truth values, whose places are looked for first."""
    is_by_number = len(arguments) > 1 and all(each.dtype in ("int64", "int32") for each in arguments[1:])
    return operator_name(name)[1] == "index" and is_by_number


def _keys_by_rows(name: str, arguments: Sequence[TensorArgument], *, way: bool) -> tuple[str, ...]:
    joined = arguments if is_joining(name) else arguments[:1]
    is_across = any(map(_is_across, joined))
    is_padded = not is_across and any(map(_is_padded, joined))
    shape, dtype = arguments[0].shape, arguments[0].dtype
    known = f"{name} across" if is_across else f"{name} padded" if is_padded else name
    keys = (f"{known} {dtype}", known) if dtype else (known,)
    if not shape or min(shape) < 1 or is_across:
        return keys
    if "softmax" in name and not way:
        return (f"{name} {_rows_of(shape[-1], dtype)}", *keys)
    if "nll_loss" in name:
        known = f"{name} of {'few' if shape[0] <= _FEW_ROWS else 'many'} rows"
        return (f"{known} {dtype}", known, *keys) if dtype else (known, *keys)
    return keys


def _keys_along(
    name: str, arguments: Sequence[TensorArgument], settings: Settings | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys of a call itself by the way that it goes, and of all of its family."""
    walk = walk_of(name, arguments, settings)
    if walk is None:
        return (), ()
    dtype = arguments[0].dtype
    # Truth values and integers are made wider first; complex numbers are two of a float each.
    of = "" if dtype is None or "float" in dtype or dtype.startswith("complex") else " of integers"
    # The largest of a single row are found as those of several: by one block of each, or by all.
    way = "inner" if operator_name(name)[1] == "topk" and walk.way == "whole" else walk.way
    plain, plain_alike = f"{name} {way}", f"{LIKE_OTHERS_ALONG} {family_of_walk(name)} {way}"
    known, alike = plain + of, plain_alike + of
    rows: tuple[str, ...] = ()
    if "softmax" in name and walk.way == "inner":
        of_rows = _rows_of(walk.size, dtype)
        rows = (f"{name} {of_rows}",)
        if of_rows.endswith(_UNEVEN):
            known, alike = known + _UNEVEN, alike + _UNEVEN
    elif operator_name(name)[1] == "topk":
        known += "" if _is_counted_by_digits(arguments[0]) else ", rows in one block"
    elif family_of_walk(name) == "sort":
        known += ", rows in one block" if walk.size <= _SORTED_BY_A_BLOCK else ""
    own = (*rows, *((f"{known} {dtype}",) if dtype else ()), known)
    if is_joining(name) and walk.way == "whole":
        return own, ()  # one behind the other, as it is known of tensors of more dimensions
    # The way decides more than the type: integers that were not learned so are as other numbers that go it.
    return own, (alike, *((plain, plain_alike) if of else ()))


def _rows_of(size: int, dtype: str | None) -> str:
    """The length of a softmax's rows; long ones that do not begin at multiples of 16 bytes are read more often."""
    is_uneven = size > _IN_REGISTERS and size * (element_size(dtype) or 1) % 16 != 0
    return f"of rows 2^{round(math.log2(size))}{_UNEVEN if is_uneven else ''}"


_IN_REGISTERS, _UNEVEN = 1024, ", uneven"

LIKE_OTHERS_ALONG = "along dimensions:"
"""With what the keys of calls begin that stand for any of their family which goes the same way."""

_SORTED_BY_A_BLOCK = 4096
"""Rows up to which one block sorts each; longer ones are sorted by their digits, all together."""


def steps_along(name: str, arguments: Sequence[TensorArgument], settings: Settings | None) -> int:
    """What one thread of a call does after the other along its dimensions (``work/walks.py``); 0 where unknown."""
    walk = walk_of(name, arguments, settings)
    if walk is None or (operator_name(name)[1] == "topk" and _is_counted_by_digits(arguments[0])):
        return 0  # by all blocks, however long a row is
    return steps_of(name, walk)


def _is_across(tensor: TensorArgument) -> bool:
    return bool(tensor.shape) and bool(tensor.stride) and tensor.shape[-1] > 1 and (tensor.stride or (1,))[-1] != 1


def _is_padded(tensor: TensorArgument) -> bool:
    shape, stride = tensor.shape, tensor.stride or ()
    return len(shape) > 1 and len(stride) > 1 and stride[-2] > shape[-1]


def is_elementwise(name: str) -> bool:
    """True for an operator that reads and writes each element of its tensors once, by one kernel, copies included."""
    bare = operator_name(name)[1]
    if bare.startswith(
        ("upsample_", "_upsample_", "max_pool", "avg_pool", "_adaptive_", "grid_sampler", "affine_grid")
    ):
        return False
    return bare in _COPIES or category_of_operator(name) == "pointwise"


def bytes_of_call(
    name: str, arguments: Sequence[TensorArgument], settings: Settings | None, recorded: int | None
) -> int | None:
    """What a call moves: of a cast to a dtype that was not written down, recordings had the result in its own."""
    if recorded is None or not arguments or operator_name(name)[1] != "_to_copy":
        return recorded
    return cast_bytes(arguments[0], settings) or recorded


def _is_cast(name: str) -> bool:
    return operator_name(name)[1] in _COPIES


_COPIES = frozenset({"copy", "_to_copy", "clone"})

_COMPACT = frozenset({"clone"})
"""Operators whose result is dense as a rule, in the order of the dimensions, whatever they are given."""


def _elementwise_keys(name: str, arguments: Sequence[TensorArgument], settings: Settings | None) -> tuple[str, ...]:
    tensors, into = list(arguments), None
    if _is_cast(name):
        made = copy_of(tensors[0], settings)
        compact = row_major(made.shape) if operator_name(name)[1] in _COMPACT else tensors[0].stride
        tensors.append(replace(made, dtype=tensors[0].dtype, stride=made.stride or compact))
        into = cast_target(tensors[0], settings)
    layout = layout_of(tensors) or "dense"
    named = "" if layout == "dense" else f" {layout}"
    width = max((element_size(each.dtype) or 0 for each in tensors), default=0)
    dtype = tensors[0].dtype
    # Values of several dtypes are cast one by one as they are read.
    named += " mixed" if len({each.dtype for each in tensors if each.shape}) > 1 and not _is_cast(name) else ""
    if into is not None:  # between other dtypes than training's it is as much as any element-wise work of the wider one
        name, width = f"{name} to {into}", max(width, element_size(into) or 0)
    own = (f"{name}{named} {dtype}", f"{name}{named}") if dtype else (f"{name}{named}",)
    return (*own, f"{LIKE_OTHERS}{named}, {width} bytes", f"{LIKE_OTHERS}{named}") if width else own


def elements_of(name: str, arguments: Sequence[TensorArgument], of_list: int | None = None) -> int:
    """What a kernel goes through, where that and not its bytes may decide: elements of an element-wise operator's
    result, of what is reduced or scanned, joined or gathered. What one block goes through while others wait (a channel
    of a batch norm, the rows of a loss over classes) counts as if all blocks had as much. 0 where nothing is known.
    ``of_list`` are the elements of a list of tensors, of which only the first are among the arguments.
    """
    bare = operator_name(name)[1]
    shapes = [each.shape for each in arguments]
    if not shapes:
        return 0
    if is_elementwise(name):
        return math.prod(broadcast_shape(shapes) or (0,))
    if "batch_norm" in bare:
        return _elements_of_channels(shapes[0]) if len(shapes[0]) > 1 else 0
    if bare == "topk" and not _is_counted_by_digits(arguments[0]):
        return _BLOCKS * shapes[0][-1] * -(-math.prod(shapes[0][:-1]) // _ROWS_AT_ONCE) if shapes[0] else 0
    if bare.startswith("nll_loss"):
        return _BLOCKS * next((shape[0] for shape in shapes if len(shape) > 1), 0)
    if is_joining(name):
        return of_list or sum(map(math.prod, shapes))
    if bare in ("gather", "index_select", "index", "index_add", "scatter_add"):
        return math.prod(shapes[-1])
    return math.prod(shapes[0]) if bare in _READ_WHOLE else 0


def _elements_of_channels(shape: tuple[int, ...]) -> int:
    """Of a batch norm: what one block reads of its channel. Where a norm is of single images (``instance_norm``, whose
    channels are those of all images) there are more of these than run at once."""
    channel = math.prod(shape) // max(shape[1], 1)
    rounds = max(1.0, shape[1] / _CHANNELS_AT_ONCE) if shape[0] == 1 else 1.0
    return round(_BLOCKS * (channel * rounds + _BEGUN_ANEW * (rounds - 1)))


_CHANNELS_AT_ONCE, _BEGUN_ANEW = 528, 2000
"""Channels that have a block each at once (on an H100, four for each multiprocessor), and what the next ones take to
begin, in elements."""

_ROWS_AT_ONCE = 264
"""Rows of which one block each finds the largest at once."""


def _is_counted_by_digits(tensor: TensorArgument) -> bool:
    """Whether the largest of long rows are found by several blocks for each row, as PyTorch decides: it counts digits
    (``aten/src/ATen/native/cuda/TensorTopK.cu``, ``should_use_multiblock``)."""
    if not tensor.shape:
        return False
    rows, size = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    least = next((size_of for most, size_of in _LONG_ROWS if rows <= most), 400)
    return size >= least


_LONG_ROWS = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
"""Up to how many rows how long ones are counted by several blocks."""

_BLOCKS = 128
"""About as many blocks as run at once, where each keeps a multiprocessor busy."""

_READ_WHOLE = frozenset(
    (
        *("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "std", "var", "prod"),
        *("logsumexp", "linalg_vector_norm", "cumsum", "cumprod", "sort", "topk", "embedding_dense_backward"),
        *("native_group_norm", "native_group_norm_backward"),
    )
)


def cost_of(keys: Sequence[str], extras: Mapping[str, float], bytes_moved: int | None = None) -> CallCost | None:
    """What a model has learned of a call, by the first of its ``cost_keys`` that it knows; ``None`` if nothing.

    A call that moves far more bytes than any that was learned under a key is asked for by the next one that knows of
    such: what small calls take says nothing of their bytes.
    """
    known = [key for key in keys if f"{key} kernel us" in extras]
    if not known:
        return None
    enough = (bytes_moved or 0) / _REACHES
    reach = {key: extras.get(f"{key} reach", math.inf) for key in known}
    key = next((key for key in known if reach[key] >= enough), max(known, key=lambda key: reach[key]))
    kernel_us, slowness, spread = (extras[f"{key} {what}"] for what in ("kernel us", "slowness", "spread"))
    kernels, chunk_us = round(extras.get(f"{key} kernels", 1.0)), extras.get(f"{key} chunk us", 0.0)
    element_us, step_us = (extras.get(f"{key} {what} us", 0.0) for what in ("element", "step"))
    norm = extras.get(f"{key} norm", 0.0)
    return CallCost(kernel_us, slowness, spread, kernels, chunk_us, element_us, step_us, norm)


_REACHES = 8
"""How many times the bytes of the largest call of a kind others of it may move."""


def fit_call_costs(rows: Sequence[Mapping[str, Any]], bytes_per_us: float) -> dict[str, float]:
    """The costs of each operator with enough calls, by least mean absolute logarithm, long calls
    counting more than short ones (by the fourth root of their time); as ``extras``.

    A row has ``name``, ``kernels``, ``bytes_moved``, ``us``, and ``arguments`` (shape, dtype, stride), and ``settings``
    where they were recorded; ``program`` says by its name whether it is of a battery.
    """
    rows = [{**row, "bytes_moved": bytes_of_call(row["name"], tensors_of(row), settings_from(row.get("settings")),
             row["bytes_moved"])} for row in rows]  # fmt: skip
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    elements: dict[int, int] = {}
    steps: dict[int, int] = {}
    for row in rows:
        if row["bytes_moved"] is not None and row["us"] > 0:
            name, tensors = str(row["name"]), tensors_of(row)
            if any(each.is_sparse for each in tensors):
                continue  # by what its sparse tensors hold (``work/algorithms.py``)
            settings = settings_from(row.get("settings"))
            elements[id(row)] = elements_of(name, tensors, row.get("elements"))
            steps[id(row)] = steps_along(name, tensors, settings)
            for key in cost_keys(name, tensors, settings):
                # Calls of several kernels say little of what one of their kind takes.
                if not key.startswith(LIKE_OTHERS) or row["kernels"] == 1:
                    by_name.setdefault(key, []).append(row)
    found: dict[str, float] = {}
    for name, rows_of_name in sorted(by_name.items()):
        in_steps = [row for row in rows_of_name if not str(row.get("program", _BATTERY)).startswith(_BATTERY)]
        own = in_steps if len(in_steps) >= _ENOUGH else rows_of_name
        if len(own) < (_FEWEST_ALONG if name.startswith(LIKE_OTHERS_ALONG) else _FEWEST):
            continue
        kernels = np.array([max(1, row["kernels"]) for row in own], dtype=np.float64)
        memory_us = np.array([row["bytes_moved"] / bytes_per_us for row in own])
        log_us = np.log([row["us"] for row in own])
        if all(_launches_of(row) for row in own):
            small = [row for row in rows_of_name if own is in_steps and _is_small(row)]
            cost = _fit_lists(own, small, bytes_per_us)
        else:
            chunks = np.array([share_of_chunk(row.get("tensors"), row.get("elements")) for row in own])
            millions = np.array([elements[id(row)] / 1e6 for row in own])
            walked = np.array([steps[id(row)] for row in own], dtype=np.float64)
            cost = _fit(kernels, memory_us, log_us, chunks, millions, walked)
        if cost.norm:
            found[f"{name} norm"] = cost.norm
        if cost.step_us:
            found[f"{name} step us"] = cost.step_us
        if cost.chunk_us:
            found[f"{name} chunk us"] = cost.chunk_us
        if cost.element_us:
            found[f"{name} element us"] = cost.element_us
        found |= {f"{name} kernel us": cost.kernel_us, f"{name} slowness": cost.slowness, f"{name} spread": cost.spread}
        found[f"{name} reach"] = float(max(row["bytes_moved"] for row in own))
        if (usual := int(np.median(kernels))) > 1:
            found[f"{name} kernels"] = float(usual)
    return found


def _launches_of(row: Mapping[str, Any]) -> ListLaunches | None:
    return launches_of_call(str(row["name"]), tensors_of(row), row.get("tensors"), row.get("elements"), row["kernels"])


def _is_small(row: Mapping[str, Any]) -> bool:
    """True for a battery's call over a list without a tensor of any size, whose state in the cache says little."""
    launches = _launches_of(row)
    return str(row.get("program", _BATTERY)).startswith(_BATTERY) and launches is not None and launches.fill < _SMALL


_SMALL, _COUNTS_LESS = 0.3, 0.3


def _fit_lists(own: Sequence[Mapping[str, Any]], small: Sequence[Mapping[str, Any]], bytes_per_us: float) -> CallCost:
    """What calls over lists cost, by those of programs; what a kernel takes alone is seen where all tensors are small,
    as no model's are."""
    rows = [*own, *small]
    log_us = np.log([row["us"] for row in rows])
    weights = np.exp(log_us / 4) * np.where(np.arange(len(rows)) < len(own), 1.0, _COUNTS_LESS)
    launches = [each for each in map(_launches_of, rows) if each is not None]
    cost, off = fit_list_calls(launches, [row["bytes_moved"] / bytes_per_us for row in rows], log_us, weights)
    spread = math.hypot(_WIDER * float(np.quantile(off[: len(own)], COVERAGE)), _SURELY)
    return CallCost(cost.kernel_us, cost.slowness, spread, chunk_us=cost.chunk_us, norm=cost.norm)


def fit_rooflines(rows: Sequence[Mapping[str, Any]], roofline_us: Sequence[float]) -> dict[str, float]:
    """How far products that nothing else describes stay above their rooflines (microseconds, one for each row), by
    operator and dtype; as ``extras`` that ``cost_of`` reads by ``roofline_keys``. Rows as for ``fit_call_costs``."""
    by_key: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        for key in roofline_keys(str(row["name"]), tensors_of(row)):
            by_key.setdefault(key, []).append(place)
    found: dict[str, float] = {}
    for key, places in by_key.items():
        if len(places) < _FEWEST:
            continue
        kernels = np.array([max(1, rows[place]["kernels"]) for place in places], dtype=np.float64)
        scales = np.array([roofline_us[place] for place in places])
        nothing = np.zeros(len(places))
        cost = _fit(kernels, scales, np.log([rows[place]["us"] for place in places]), nothing, nothing, nothing)
        found |= {f"{key} kernel us": cost.kernel_us, f"{key} slowness": cost.slowness, f"{key} spread": cost.spread}
    return found


def roofline_keys(name: str, arguments: Sequence[TensorArgument]) -> tuple[str, ...]:
    """What a product is known by that is priced by its roofline, the closest first."""
    dtype = arguments[0].dtype if arguments else None
    known = f"{name} by its roofline"
    return (f"{known} {dtype}", known) if dtype else (known,)


LIKE_OTHERS = "element-wise"
"""With what the keys of element-wise calls begin that stand for any of their layout."""


def tensors_of(row: Mapping[str, Any]) -> list[TensorArgument]:
    """The tensors that a row's call was given: shape, dtype, stride, and of a sparse one the bytes that it holds."""
    return [
        TensorArgument(tuple(shape), dtype, None if stride is None else tuple(stride), *held)
        for shape, dtype, stride, *held in row["arguments"]
    ]


def _fit(kernels: Array, memory_us: Array, log_us: Array, chunks: Array, millions: Array, steps: Array) -> CallCost:
    best: tuple[float, CallCost] | None = None
    weights = np.exp(log_us / 4)
    # Of calls that are all small anything may be true of large ones: what is likely then counts.
    unlikely = _UNLIKELY * np.abs(np.log(_SLOWNESS))[None, :]
    of_work = [(0.0, each) for each in _STEP_US] if steps.any() else [(0.0, 0.0)]
    of_work += [(each, 0.0) for each in _ELEMENT_US[1:]] if millions.any() and not steps.any() else []
    for chunk_us in _CHUNK_US if chunks.any() else (0.0,):
        for element_us, step_us in of_work:
            work_us = np.maximum(_SLOWNESS[None, :, None] * memory_us, element_us * millions + step_us * steps)
            predicted = np.log((_KERNEL_US[:, None, None] + chunk_us * chunks) * kernels + work_us)
            off = np.abs(predicted - log_us)
            errors = np.average(off, axis=2, weights=weights) + unlikely
            place = np.unravel_index(int(errors.argmin()), errors.shape)
            if best is None or errors[place] < best[0]:
                spread = math.hypot(_WIDER * float(np.quantile(off[place], COVERAGE)), _SURELY)
                kernel_us, slowness = float(_KERNEL_US[place[0]]), float(_SLOWNESS[place[1]])
                cost = CallCost(kernel_us, slowness, spread, 1, chunk_us, float(element_us), float(step_us))
                best = float(errors[place]), cost
    assert best is not None
    return best[1]


def read_calls(path: Path) -> list[dict[str, Any]]:
    """The calls of a file of ``benchmarks/strangers/strangers_data.py``. Raises ``FitError`` if it is none."""
    try:
        rows = json.loads(zlib.decompress(path.read_bytes(), wbits=31))
    except (OSError, ValueError, zlib.error) as error:
        raise FitError(f"{path} is no file of eager calls ({error}).") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) and {"name", "us"} <= row.keys() for row in rows):
        raise FitError(f"{path} is no file of eager calls: each has a name and a time.")
    return rows
