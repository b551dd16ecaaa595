"""What an operator is: parameters, tensors, forward, and the work in each direction."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torchledger.work.element_sizes import ELEMENT_SIZES

Direction = Literal["forward", "backward", "step"]

DTYPE_NAMES: Mapping[str, str] = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8_e4m3fn",
    "float": "float32",
    "half": "float16",
}

Number = Any
"""An int, or a numpy integer array: every formula of the catalogue takes both."""

WorkKind = Literal[
    "gemm", "attention", "convolution", "pointwise", "reduction", "gather", "scatter", "sort", "fill", "optimizer"
]


def dtype_name(text: str) -> str:
    """Torch's name of a dtype given in any of the usual spellings: ``"fp16"``, ``"torch.float16"``, ``"float16"``."""
    plain = text.removeprefix("torch.")
    plain = DTYPE_NAMES.get(plain, plain)
    if plain not in ELEMENT_SIZES:
        known = {**dict.fromkeys(DTYPE_NAMES), **dict.fromkeys(ELEMENT_SIZES)}
        near = difflib.get_close_matches(plain, known, n=5, cutoff=0.5)
        said = f"the nearest known are {', '.join(near)}" if near else f"known are {', '.join(known)}"
        raise ValueError(f"dtype {text!r} is unknown; {said}")
    return plain


class Parameters(dict[str, Any]):
    """Parameters of one shape (or of many, as numpy arrays), readable as attributes: ``p.dim``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no parameter {name!r}; there are {list(self)}") from None


@dataclass(frozen=True)
class Input:
    """One tensor that an operator reads.

    ``dtype`` is the operator's own unless named. ``values`` says what is in it: ``"normal"``, ``"indices"`` (integers
    below ``high``), ``"mask"`` (half true), ``"causal_mask"`` (true above the diagonal of the last two dimensions),
    ``"ends"`` (where equal parts of ``high`` end), ``"starts"`` (0, then the ends), ``"ones"`` or ``"zeros"``.
    ``gradient`` asks the backward for its gradient. ``own`` forbids sharing memory with other inputs, for tensors that
    are written to.
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    values: Literal["normal", "indices", "mask", "causal_mask", "ends", "starts", "ones", "zeros"] = "normal"
    high: int | None = None
    gradient: bool = False
    own: bool = False
    stride: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Work:
    """What one kernel of a direction does at the least.

    ``flops`` are tensor FLOPs (one multiply-add = 2), ``vector_flops`` a count of pointwise and reduction operations;
    bytes count each tensor once. All may be numpy arrays. ``gemm`` is (batch, m, n, k) of a matrix product.
    """

    kind: WorkKind
    bytes_read: Number
    bytes_written: Number
    flops: Number = 0
    vector_flops: Number = 0
    gemm: tuple[Number, Number, Number, Number] | None = None

    @property
    def bytes_moved(self) -> Number:
        """Bytes read plus bytes written."""
        return self.bytes_read + self.bytes_written


class Operator:
    """Base of all operators; a subclass is one declaration.

    A subclass gives ``name``, ``parameters``, ``tensors``, ``forward`` and ``work``; its docstring states what forward
    and backward include. Example, a whole operator in a user's file::

        class Square(Operator):
            \"\"\"x * x. Backward: the gradient of x.\"\"\"
            name = "square"
            parameters = ("numel",)

            def tensors(self, p):
                return {"x": Input((p.numel,), gradient=True)}

            def forward(self, p, x):
                return x * x

            def work(self, p, direction, item_size):
                reads = 1 if direction == "forward" else 2
                return (Work("pointwise", reads * p.numel * item_size, p.numel * item_size),)
    """

    name: ClassVar[str] = ""
    parameters: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Optional parameters and what they are when not given."""
    directions: ClassVar[tuple[Direction, ...]] = ("forward", "backward")
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "float32")
    ratio_bounds: ClassVar[tuple[float, float]] = (0.3, 8.0)
    """What backward time over forward time may be for shapes that keep the device busy; outside, a label is doubted."""
    feature_names: ClassVar[tuple[str, ...]] = ()
    """Names of ``features``; the parameters themselves unless given."""
    keeps_result: ClassVar[bool] = False
    """Its backward reads what the forward wrote, and not what that read."""
    copies_first: ClassVar[tuple[Direction, ...]] = ()
    """Directions whose first kernel is the driver's copy of a whole tensor."""
    guide: ClassVar[bool] = False
    """Belongs to the kernel sampling guide's list."""
    originals: ClassVar[tuple[str, ...]] = ()
    """Names in a profile of the functions that this one stands for, where it runs others in their place."""

    @property
    def key(self) -> str:
        """The unique name: ``"linear"``, or ``"guide.bmm"`` for the guide's, some of whose names are general too."""
        return f"guide.{self.name}" if self.guide else self.name

    def resolve(self, given: Mapping[str, Any] | Sequence[Any]) -> Parameters:
        """The parameters by name, defaults filled in; raises ``ValueError`` for missing or unknown ones."""
        if not isinstance(given, Mapping):
            if len(given) != len(self.parameters):
                raise ValueError(
                    f"{self.name} takes {len(self.parameters)} parameters {list(self.parameters)}, not {len(given)}"
                )
            given = dict(zip(self.parameters, given, strict=True))
        if unknown := [key for key in given if key not in self.parameters and key not in self.defaults]:
            known = [*self.parameters, *self.defaults]
            raise ValueError(f"{self.name} has no parameter {unknown[0]!r}; it has {known}")
        if missing := [key for key in self.parameters if key not in given]:
            raise ValueError(f"{self.name} needs parameter {missing[0]!r}")
        return Parameters({key: given[key] for key in self.parameters} | {**self.defaults} | dict(given))

    def check(self, p: Parameters) -> str | None:
        """Why these parameters make no tensors, or ``None`` if they do."""
        return None

    def tensors(self, p: Parameters) -> dict[str, Input]:
        """The inputs by name, in the order of ``forward``'s arguments."""
        raise NotImplementedError(f"{type(self).__name__} declares no tensors")

    def forward(self, p: Parameters, *ordered: Any, **tensors: Any) -> Any:
        """What is run and timed; the backward is torch's own of this, for the inputs that ask for gradients."""
        raise NotImplementedError(f"{type(self).__name__} declares no forward")

    needs_peers: ClassVar[bool] = False
    """One process alone cannot run it: it is sampled as a collective, and fitted and predicted like any other."""

    counts_work: ClassVar[bool] = True
    """Whether ``work`` is what the operator does; else its FLOPs and bytes are unknown, and it has no roofline."""

    in_place: ClassVar[bool] = False
    """The timed forward is ``run_in_place``, without autograd; the backward still comes from ``forward``."""

    def run_in_place(self, p: Parameters, *ordered: Any, **tensors: Any) -> Any:
        """The forward where it writes into its inputs, as models run it; needed when ``in_place`` is set."""
        raise NotImplementedError(f"{type(self).__name__} declares no run_in_place")

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        """The kernels of a direction with their FLOPs and bytes; ``p`` may hold numpy arrays."""
        raise NotImplementedError(f"{type(self).__name__} declares no work")

    def least_work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        """What any implementation must do, where that is less than ``work``: for judging labels of other makers."""
        return self.work(p, direction, item_size)

    def flops(self, p: Mapping[str, Any], direction: str) -> Number:
        """Tensor FLOPs of a direction."""
        return sum((work.flops for work in self.work(self.resolve(p), direction, 2)), start=0)

    def vector_flops(self, p: Mapping[str, Any], direction: str) -> Number:
        """Pointwise and reduction operations of a direction."""
        return sum((work.vector_flops for work in self.work(self.resolve(p), direction, 2)), start=0)

    def bytes_moved(self, p: Mapping[str, Any], direction: str, dtype: str) -> Number:
        """Bytes that the kernels of a direction must move at the least, each tensor of each kernel once."""
        item_size = ELEMENT_SIZES[dtype_name(dtype)]
        return sum((work.bytes_moved for work in self.work(self.resolve(p), direction, item_size)), start=0)

    def features(self, p: Mapping[str, Any]) -> tuple[Number, ...]:
        """The shape of the tensors as a vector: what shapes with the same kernels have in common."""
        resolved = self.resolve(p)
        return tuple(resolved[name] for name in self.parameters)

    def general_form(self, p: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """The general operator and its parameters that this one amounts to, or ``None`` if it is one itself."""
        return None

    def input_bytes(self, p: Mapping[str, Any], dtype: str) -> int:
        """Memory that the inputs take."""
        own_size = ELEMENT_SIZES[dtype_name(dtype)]
        inputs = self.tensors(self.resolve(p)).values()
        return sum(i.numel * (ELEMENT_SIZES[i.dtype] if i.dtype else own_size) for i in inputs)


def ceil_div(a: Number, b: Number) -> Number:
    """``a / b`` rounded up, for ints and integer arrays."""
    return -(-a // b)


def divides(p: Mapping[str, Any], divisor: str, whole: str) -> str | None:
    """A reason if ``p[divisor]`` does not divide ``p[whole]``."""
    if p[whole] % p[divisor]:
        return f"{divisor}={p[divisor]} does not divide {whole}={p[whole]}"
    return None
