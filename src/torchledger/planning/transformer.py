"""A transformer by its sizes: what a rank of a layout runs, as operators with shapes, and what it keeps.

Forward and backward of one block, of what stands around the blocks, and of the optimizer, each as a list of pieces that
a model of times prices. The shapes are those of Megatron's shards: attention heads and feed-forward columns by tensor
parallelism, rows by sequence parallelism, sequences by context parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from torchledger.errors import PredictError
from torchledger.nouns import Layout
from torchledger.work.element_sizes import ELEMENT_SIZES

Direction = Literal["forward", "backward", "step"]


@dataclass(frozen=True)
class Transformer:
    """A decoder and its batch. ``length`` is tokens of a sequence, ``batch`` the sequences of a step over all ranks.

    ``gated`` has two matrices up (SwiGLU) in place of one with GELU, ``norm`` is ``"rms"`` or ``"layer"``.
    ``attention`` is ``"flash"``, or ``"unfused"`` for scores that are written to memory. ``bias`` adds biases and
    dropout as GPT has them; ``tied`` shares the embedding with the output. ``fused`` says that a compiler joined
    elementwise work; of an eager program ``own_kernels`` says that activation and loss are one kernel each and that
    products add to accumulated gradients themselves, as Megatron-Core does with Transformer Engine. ``head_copies`` is
    how often an eager program copies queries, keys and values whole around attention, forward and again backward.
    ``exchanges_heads`` says that ranks of context parallelism exchange tokens for heads around attention (and keep what
    attention gave before it is exchanged back), in place of gathering keys and values. ``overlaps_shards``: with
    sequence parallelism a rank multiplies its own rows while the others' are gathered, then those in front and those
    behind, and collectives of the backward run beside products that do not need them. ``overlaps_inputs``: without
    sequence parallelism the gradient of a product's input is summed over the ranks beside the product of its weight's.
    ``counts_lengths``: each block counts the lengths of its sequences anew, in six small kernels. ``loss_in_steps``:
    each step of the loss is written in float32 by a kernel of its own.
    ``gradient_bytes`` is the size of an accumulated gradient's element, ``spare_gradient_bytes`` that of another copy,
    ``optimizer_bytes`` what the optimizer keeps for a parameter, ``logit_bytes`` what the loss holds of a logit at once
    (logits, a float32 copy and one that is worked on; 6 where it is worked on in place). ``head_layers`` is how many
    layers the output counts as where layers are dealt to a pipeline's stages.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocabulary: int
    length: int
    batch: int
    kv_heads: int = 0
    gated: bool = True
    norm: str = "rms"
    attention: str = "flash"
    bias: bool = False
    rotary: bool = True
    tied: bool = False
    dtype: str = "bfloat16"
    fused: bool = True
    own_kernels: bool = False
    head_copies: float = 0.0
    exchanges_heads: bool = False
    overlaps_shards: bool = False
    counts_lengths: bool = False
    overlaps_inputs: bool = False
    loss_in_steps: bool = False
    gradient_bytes: int = 4
    spare_gradient_bytes: int = 0
    optimizer_bytes: int = 12
    logit_bytes: int = 10
    head_layers: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and field.default != 0 and value < 1:
                raise PredictError(f"transformer: {field.name}={value} must be at least 1.")
        if self.hidden % self.heads:
            nearest = _nearest(self.hidden, self.heads)
            raise PredictError(
                f"transformer: heads={self.heads} does not divide hidden={self.hidden}; the nearest that does is "
                f"{nearest}."
            )

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def kv(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def block_parameters(self) -> int:
        """Parameters of one block."""
        h, up = self.hidden, 2 if self.gated else 1
        attention = h * (h + 2 * self.kv * self.head) + h * h
        weights = attention + (up + 1) * h * self.ffn + (1 if self.norm == "rms" else 2) * 2 * h
        if self.bias:
            weights += h + 2 * self.kv * self.head + h + up * self.ffn + h
        return weights

    @property
    def parameters(self) -> int:
        """Parameters of all."""
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return self.layers * self.block_parameters + embeddings + self.hidden

    def step_flops(self, recomputation: str = "none") -> float:
        """FLOPs of a step's products, of all ranks: three times the forward's, and once more where it is done again."""
        tokens = self.length * self.batch
        weights = self.layers * (self.block_parameters - 2 * self.hidden) + self.vocabulary * self.hidden
        scores = 2 * self.layers * self.length * self.hidden * (0.5 if self.attention == "flash" else 1.0)
        forward = 2 * tokens * (weights + scores)
        return forward * (4 if recomputation == "full" else 3)


@dataclass(frozen=True)
class Piece:
    """One operator at its sizes.

    ``operator`` is the catalogue's name, ``"elementwise"`` with ``bytes``, or ``"collective.all_reduce"`` and the like
    of ``bytes`` over the ranks of ``group``. ``role`` is its place in the block, ``kernels`` what an eager program
    launches for it. ``beside`` is the product that a collective runs beside, which stands among the pieces itself;
    ``None`` where what comes next waits for it.
    """

    operator: str
    parameters: Mapping[str, int]
    direction: Direction = "forward"
    role: str = ""
    kernels: int = 1
    group: str = ""
    beside: Piece | None = None


@dataclass(frozen=True)
class Parts:
    """What a rank runs: forward and backward of a block, of the embedding and of the head, each for one microbatch."""

    block: tuple[Piece, ...]
    block_backward: tuple[Piece, ...]
    first: tuple[Piece, ...]
    first_backward: tuple[Piece, ...]
    last: tuple[Piece, ...]
    last_backward: tuple[Piece, ...]


_UNVECTORIZED: Mapping[tuple[str, Direction], float] = {
    ("head copies", "forward"): 1.8,
    ("head copies", "backward"): 1.5,
    ("context copy", "forward"): 2.1,
    ("context copy", "backward"): 2.1,
    ("split copy", "backward"): 2.1,
    ("activation", "forward"): 1.7,
    ("activation", "backward"): 1.3,
    ("loss", "forward"): 1.25,
    ("loss", "backward"): 1.3,
    ("accumulation", "backward"): 1.3,
    ("mask", "forward"): 1.25,
    ("mask", "backward"): 1.25,
}
"""How many times as long an eager program's kernels of a role take as additions that move as many bytes: torch reads
and writes strided tensors, halves of rows, broadcast factors and two dtypes one element at a time. Measured a kernel at
a time on an H100 (``docs/results/public_steps.md``)."""

_MOST_ACTIONS = 50_000
"""Microbatches of all stages of a pipeline: each is played."""


def check_layout(model: Transformer, layout: Layout, ranks_per_node: int | None = None) -> str | None:
    """Why a layout cannot be, with the nearest that can; ``None`` where it can."""
    if model.heads % layout.tp or model.kv % min(layout.tp, model.kv):
        return f"{model.heads} heads are not shared equally by tp={layout.tp}; {_nearest(model.heads, layout.tp)} does"
    if model.ffn % layout.tp:
        return f"{model.ffn} columns are not shared equally by tp={layout.tp}; {_nearest(model.ffn, layout.tp)} does"
    stages = layout.pp * layout.stages_per_rank
    if stages > model.layers:
        return f"{stages} stages for {model.layers} layers: pp={model.layers // layout.stages_per_rank} is the most"
    if model.length % (layout.cp * (layout.tp if layout.sequence_parallel else 1)):
        return f"{model.length} tokens are not shared equally by cp={layout.cp} and tp={layout.tp}"
    if model.batch % (layout.dp * layout.micro_batch):
        return (
            f"{model.batch} sequences are not shared by dp={layout.dp} in microbatches of {layout.micro_batch}; "
            f"dp={_nearest(model.batch // layout.micro_batch or 1, layout.dp)} does"
        )
    micro_batches = model.batch // (layout.dp * layout.micro_batch)
    if layout.pp > 1 and stages * micro_batches > _MOST_ACTIONS:
        return f"{micro_batches:,} microbatches in {stages} stages are more than {_MOST_ACTIONS:,} pieces of work"
    if layout.fsdp > 1 and layout.dp % layout.fsdp:
        return f"dp={layout.dp} is no multiple of fsdp={layout.fsdp}"
    if ranks_per_node is not None and layout.tp > ranks_per_node:
        return f"tp={layout.tp} spans nodes of {ranks_per_node} ranks; tp={ranks_per_node} is the most on one"
    return None


def parts_of(model: Transformer, layout: Layout) -> Parts:
    """The pieces of a layout's rank for one microbatch."""
    maker = _Maker(model, layout)
    return Parts(
        tuple(maker.block()),
        tuple(maker.block_backward()),
        tuple(maker.embedding("forward")),
        tuple(maker.embedding("backward")),
        tuple(maker.output("forward")),
        tuple(maker.output("backward")),
    )


class _Maker:
    def __init__(self, model: Transformer, layout: Layout) -> None:
        self.model, self.layout = model, layout
        self.size = int(ELEMENT_SIZES[model.dtype])
        self.tokens = layout.micro_batch * model.length // layout.cp
        self.is_sharded = layout.sequence_parallel and layout.tp > 1
        self.rows = self.tokens // layout.tp if self.is_sharded else self.tokens

    def norm(self, direction: Direction) -> Piece:
        name = "rms_norm" if self.model.norm == "rms" else "layer_norm"
        return Piece(name, {"rows": self.rows, "dim": self.model.hidden}, direction, "norm", 1)

    def linear(self, role: str, k: int, n: int, direction: Direction) -> Piece:
        kernels = 1 if direction == "forward" else 2
        return Piece("linear", {"m": self.tokens, "k": k, "n": n}, direction, role, kernels)

    def elementwise(self, bytes_moved: float, direction: Direction, role: str, kernels: int = 1) -> Piece:
        if not self.model.fused and not (self.model.own_kernels and role == "accumulation"):
            bytes_moved *= _UNVECTORIZED.get((role, direction), 1.0)
        return Piece("elementwise", {"bytes": max(1, int(bytes_moved))}, direction, role, kernels)

    def gather(self, direction: Direction, *, beside: Piece | None = None) -> list[Piece]:
        """Before a product split by columns: rows are gathered, or in the backward its input's gradient reduced, where
        rows are whole ``beside`` a product."""
        if self.layout.tp == 1:
            return []
        message = self.tokens * self.model.hidden * self.size
        if not self.is_sharded:
            return [] if direction == "forward" else [self.collective("all_reduce", message, "tp", beside)]
        if direction == "forward":
            return [self.collective("all_gather", message, "tp")]
        # The gathered rows are not kept: the weight's gradient gathers them again.
        return [self.collective("all_gather", message, "tp"), self.collective("reduce_scatter", message, "tp")]

    def reduce(self, direction: Direction) -> list[Piece]:
        """Behind a product split by rows: its parts are added up."""
        if self.layout.tp == 1:
            return []
        message = self.tokens * self.model.hidden * self.size
        if not self.is_sharded:
            return [self.collective("all_reduce", message, "tp")] if direction == "forward" else []
        return [self.collective("reduce_scatter" if direction == "forward" else "all_gather", message, "tp")]

    def collective(self, kind: str, nbytes: float, group: str, beside: Piece | None = None) -> Piece:
        return Piece(f"collective.{kind}", {"bytes": int(nbytes)}, "forward", group, 1, group, beside)

    def column(self, role: str, k: int, n: int, direction: Direction) -> list[Piece]:
        """A product whose columns the ranks of tensor parallelism share, with its collectives."""
        if not (self.is_sharded and self.model.overlaps_shards):
            weights = self.product(role, n, self.tokens, k) if self.model.overlaps_inputs else None
            return [*self.gather(direction, beside=weights), self.linear(role, k, n, direction)]
        message = self.tokens * self.model.hidden * self.size
        if direction == "forward":
            own, *others = self.by_shards(role, k, n)
            return [self.collective("all_gather", message, "tp", own), own, *others]
        inputs, weights = self.product(role, self.tokens, n, k), self.product(role, n, self.tokens, k)
        return [
            self.collective("all_gather", message, "tp", inputs),
            self.collective("reduce_scatter", message, "tp", weights),
            self.linear(role, k, n, direction),
        ]

    def row(self, role: str, k: int, n: int, direction: Direction) -> list[Piece]:
        """A product whose rows the ranks of tensor parallelism share, with its collectives."""
        if not (self.is_sharded and self.model.overlaps_shards) or direction == "forward":
            return [self.linear(role, k, n, direction), *self.reduce(direction)]
        message = self.tokens * self.model.hidden * self.size
        own, *others = self.by_shards(role, n, k)
        weights = self.product(role, n, self.tokens, k)
        return [self.collective("all_gather", message, "tp", own), own, *others, weights]

    def by_shards(self, role: str, k: int, n: int) -> list[Piece]:
        """A rank's own rows, and those in front and behind: of a rank in the middle, which the others wait for."""
        own, tp = self.rows, self.layout.tp
        others = (tp - 1,) if tp == 2 else (tp // 2, tp - 1 - tp // 2)
        return [self.product(role, own, k, n), *(self.product(role, count * own, k, n) for count in others)]

    def biases(self, columns: int, direction: Direction, *, is_added: bool = False) -> list[Piece]:
        """A bias that an eager program adds behind the product, where no kernel behind it does; its gradient is summed
        over the rows."""
        if self.model.fused or not self.model.bias or (direction == "forward" and not is_added):
            return []
        passes = 2 if direction == "forward" else 1
        return [self.elementwise(passes * self.tokens * columns * self.size, direction, "bias")]

    def product(self, role: str, m: int, k: int, n: int) -> Piece:
        """One product of m by k with k by n."""
        return Piece("linear", {"m": m, "k": k, "n": n}, "forward", role)

    def attention(self, direction: Direction) -> list[Piece]:
        model, tp, cp = self.model, self.layout.tp, self.layout.cp
        heads, kv = model.heads // tp, max(1, model.kv // tp)
        batch, own = self.layout.micro_batch, model.length // cp
        pieces: list[Piece] = []
        if cp > 1 and model.exchanges_heads:
            # Each rank is given all tokens of a share of the heads, and back.
            width = (model.heads + 2 * model.kv) // tp * model.head, heads * model.head
            pieces += [self.collective("all_to_all", self.tokens * each * self.size, "cp") for each in width]
            heads, kv, own, cp = max(1, heads // cp), max(1, kv // cp), model.length, 1
        elif cp > 1:
            message = 2 * batch * model.length * kv * model.head * self.size
            kind = "all_gather" if direction == "forward" else "reduce_scatter"
            pieces.append(self.collective(kind, message, "cp"))
        if model.attention == "flash":
            # Each of cp ranks has its share of a causal mask's work, of a square that is longer than wide.
            sizes = {"b": batch, "h": heads, "l": own, "d": model.head}
            if cp > 1:
                sizes |= {"h_kv": kv, "l_kv": (model.length + own) // 2, "causal": 0}
            else:
                sizes |= {"causal": 1, **({"h_kv": kv, "l_kv": own} if kv != heads else {})}
            return [*pieces, Piece("sdpa", sizes, direction, "attention", 1 if direction == "forward" else 3)]
        scores = batch * heads * own * model.length
        is_forward = direction == "forward"
        pieces += [
            Piece("bmm", {"b": batch * heads, "m": own, "k": model.head, "n": model.length}, direction, "scores",
                  1 if is_forward else 2),
            *self.mask(scores, direction),
            Piece("softmax", {"rows": batch * heads * own, "dim": model.length}, direction, "softmax"),
        ]  # fmt: skip
        if model.bias:
            pieces.append(self.elementwise(scores * (2 * self.size + 1), direction, "attention dropout"))
        pieces.append(
            Piece("bmm", {"b": batch * heads, "m": own, "k": model.length, "n": model.head}, direction, "context",
                  1 if is_forward else 2)
        )  # fmt: skip
        return pieces

    def mask(self, scores: int, direction: Direction) -> list[Piece]:
        """What an eager program does to scores before it exponentiates them, as Megatron's ``CoreAttention``.

        ``baddbmm`` copies the buffer that it is given. Kernels that mask as they exponentiate are of half precision;
        scores of float32 are masked in place, in a view: autograd then copies their gradient four times and clears it
        once.
        """
        if self.model.fused:
            return []
        size = scores * self.size
        copied = [self.elementwise(2 * size, direction, "score copies")] if direction == "forward" else []
        if self.size < 4:
            return copied
        if direction == "backward":
            copied.append(self.elementwise(9 * size, direction, "score copies", 5))
        return [*copied, self.elementwise(2 * size, direction, "mask")]

    def copies(self, direction: Direction) -> list[Piece]:
        """Rearranging heads before and behind attention, and rotary positions."""
        model, tp = self.model, self.layout.tp
        width = (model.hidden + 2 * model.kv * model.head) // tp
        pieces = []
        if model.rotary:
            share = (model.heads + model.kv) / (model.heads + 2 * model.kv)
            pieces.append(self.elementwise(2 * share * self.tokens * width * self.size, direction, "rotary", 2))
        if not model.fused and model.head_copies:
            moved = 2 * model.head_copies * self.tokens * width * self.size
            pieces.append(self.elementwise(moved, direction, "head copies", math.ceil(model.head_copies)))
        if model.counts_lengths and direction == "forward":
            pieces += [self.elementwise(1, direction, "lengths")] * 6
        if not model.fused and model.attention == "unfused":
            moved = 2 * self.tokens * (model.hidden // tp) * self.size
            pieces.append(self.elementwise(moved, direction, "context copy"))
            if direction == "backward":
                pieces.append(self.elementwise(2 * self.tokens * width * self.size, direction, "split copy"))
        return pieces

    def residual(self, direction: Direction) -> list[Piece]:
        model = self.model
        values = self.rows * model.hidden * self.size
        if model.bias:
            mask = self.rows * model.hidden
            moved = 3 * values + mask if direction == "forward" else 2 * values + mask
            return [self.elementwise(moved, direction, "dropout and residual")]
        if model.fused:
            # Joined with the norm behind it: only the residual itself is read and written beside it.
            return [self.elementwise(2 * values, direction, "residual")]
        return [self.elementwise(3 * values, direction, "residual")]

    def activation(self, direction: Direction) -> Piece:
        model, tp = self.model, self.layout.tp
        if model.gated and (model.fused or model.own_kernels):
            return Piece("swiglu", {"rows": self.tokens, "dim": model.ffn // tp}, direction, "activation")
        values = self.tokens * (model.ffn // tp) * self.size
        if model.gated and direction == "forward":
            return self.elementwise(5 * values, direction, "activation", 2)
        if model.gated:
            # Both factors' gradients and the gate's read two and write one each; then they are put beside each other.
            return self.elementwise(13 * values, direction, "activation", 4)
        return Piece("gelu", {"numel": self.tokens * model.ffn // tp}, direction, "activation")

    def half(self, direction: Direction) -> tuple[list[Piece], list[Piece]]:
        """Attention's half of the block and the feed-forward half."""
        model, tp = self.model, self.layout.tp
        qkv = (model.hidden + 2 * model.kv * model.head) // tp
        up = (2 if model.gated else 1) * model.ffn // tp
        attention = [
            self.norm(direction),
            *self.column("qkv", model.hidden, qkv, direction),
            *self.biases(qkv, direction, is_added=True),
            *self.copies(direction),
            *self.attention(direction),
            *self.row("out", model.hidden // tp, model.hidden, direction),
            *self.biases(model.hidden, direction),
            *self.residual(direction),
        ]
        feed = [
            self.norm(direction),
            *self.column("up", model.hidden, up, direction),
            *self.biases(up, direction),
            self.activation(direction),
            *self.row("down", model.ffn // tp, model.hidden, direction),
            *self.biases(model.hidden, direction),
            *self.residual(direction),
        ]
        return attention, feed

    def block(self) -> list[Piece]:
        attention, feed = self.half("forward")
        return [*attention, *feed]

    def block_backward(self) -> list[Piece]:
        attention, feed = self.half("backward")
        again: list[Piece] = []
        if self.layout.recomputation == "full":
            again = self.block()
        elif self.layout.recomputation == "attention":
            again = self.attention("forward")
        added = self.accumulation(self.model.block_parameters / self.layout.tp, 8)
        return [*again, *feed[::-1], *attention[::-1], added]

    def accumulation(self, weights: float, kernels: int, *, by_product: bool = True) -> Piece:
        """Each weight's gradient is added to what earlier microbatches left; a product that does so itself reads and
        writes the sum, and no gradient."""
        moved = 2 * self.model.gradient_bytes + (-self.size if self.model.own_kernels and by_product else self.size)
        return self.elementwise(weights * moved, "backward", "accumulation", kernels)

    def embedding(self, direction: Direction) -> list[Piece]:
        model = self.model
        sizes = {"tokens": self.tokens, "vocab": max(1, model.vocabulary // self.layout.tp), "dim": model.hidden}
        pieces = [Piece("embedding", sizes, direction, "embedding", 2)]
        if self.layout.tp > 1:
            kind = "all_reduce" if not self.is_sharded else "reduce_scatter" if direction == "forward" else "all_gather"
            if self.is_sharded or direction == "forward":
                pieces.append(self.collective(kind, self.tokens * model.hidden * self.size, "tp"))
        if direction == "backward":
            weights = model.vocabulary * model.hidden / self.layout.tp
            pieces.append(self.accumulation(weights, 1, by_product=False))
            if model.tied and self.layout.pp == 1:
                pieces.append(self.elementwise(3 * weights * self.size, direction, "tied gradients"))
        return pieces

    def loss(self, vocabulary: int, direction: Direction) -> Piece:
        """Cross entropy; programs that share the vocabulary write each of its steps in float32."""
        if not self.model.loss_in_steps:
            return Piece("cross_entropy", {"tokens": self.tokens, "vocab": vocabulary}, direction, "loss", 3)
        # Forward: cast, largest, subtract, exponential, sum, divide; backward: scale, cast.
        cast = self.size + 4 if self.size < 4 else 0
        moved = cast + 4 + 8 + 8 + 4 + 8 if direction == "forward" else 8 + cast
        return self.elementwise(moved * self.tokens * vocabulary, direction, "loss", 7)

    def output(self, direction: Direction) -> list[Piece]:
        model, tp = self.model, self.layout.tp
        vocabulary = max(1, model.vocabulary // tp)
        pieces = [
            self.norm(direction),
            *self.column("head", model.hidden, vocabulary, direction),
            self.loss(vocabulary, direction),
        ]
        if direction == "forward":
            return pieces
        if model.tied and self.layout.pp == 1:
            return pieces[::-1]
        return [*pieces[::-1], self.accumulation(vocabulary * model.hidden, 1)]


def _nearest(total: int, asked: int) -> int:
    """The divisor of ``total`` nearest to what was asked."""
    divisors = [n for n in range(1, min(total, 4 * asked) + 1) if total % n == 0]
    return min(divisors, key=lambda n: (abs(n - asked), n))
