"""A layout's step as entries: what each rank computes, sends and waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torchledger.errors import PredictError
from torchledger.nouns import Fabric, Layout
from torchledger.planning.fabric import placement_of, price_collective
from torchledger.planning.prices import CLIPPING_PASSES, PiecePrices, total_price
from torchledger.planning.reductions import full_buckets, weights_of_block
from torchledger.planning.schedules import Action, schedule_actions
from torchledger.planning.sharing import PRODUCT
from torchledger.planning.timeline import COMPUTE_STREAM, Sharing, TimedEntry
from torchledger.planning.transformer import Piece, Transformer, parts_of
from torchledger.planning.transformer_memory import layers_by_stage, parameters_of_rank
from torchledger.predicting.power import StepWork
from torchledger.work.element_sizes import ELEMENT_SIZES

_MOST_TENSORS_OF_BLOCK = 12
_BUCKETS = 8
"""Into how many parts the gradients' reduction is cut that overlaps the last backward, where no reducer of torch's does
it: with ZeRO, and for several stages on a rank."""

_ANNOUNCEMENT_BYTES = 64
"""A tensor's shape, strides and dtype."""


@dataclass(frozen=True)
class Composition:
    """How a program does what a layout leaves open.

    ``overlaps_gradients``: gradients are reduced beside the last backward (DDP's buckets); else behind it.
    ``reduces_whole``: every rank is given all summed gradients, also where ZeRO-1 or 2 needs a share of them.
    ``gradient_passes``: how often every gradient is read or written beside all that: set to zero, scaled.
    ``clips_whole``: and takes the norm of all of them and scales them, not of its share alone.
    ``announcements`` are the small messages that go before a microbatch's tensors from stage to stage, forward and
    backward, each of which the host waits for.
    ``shares_sends``: each rank of tensor parallelism sends its share of a whole tensor to the next stage, whose ranks
    gather it among themselves.
    ``check_us``: before each collective that a block asks for, the hosts of its group make sure that all ask for the
    same (``TORCH_DISTRIBUTED_DEBUG=DETAIL``), for so long and so much more for each rank.
    ``overlap`` is the norm by which host and device time of a phase are added (6: nearly the longer of both).
    ``step_host_us`` is what the host does in a step beside launching the model. ``block_host_us`` is what its code
    needs for a block's forward and for its backward beside the launches of their kernels, where that was measured.
    """

    overlaps_gradients: bool = True
    reduces_whole: bool = False
    gradient_passes: int = 0
    clips_whole: bool = False
    announcements: tuple[int, int] = (0, 0)
    shares_sends: bool = False
    check_us: tuple[float, float] = (0.0, 0.0)
    overlap: float = 6.0
    step_host_us: float = 400.0
    block_host_us: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class _Cost:
    """A list of pieces priced: device, collectives and host, in microseconds, how far the device's may be off, and what
    of it draws power."""

    device_us: float = 0.0
    communication_us: float = 0.0
    host_us: float = 0.0
    spread_us: float = 0.0
    work: StepWork = field(default_factory=StepWork)

    def __add__(self, other: _Cost) -> _Cost:
        return _Cost(
            self.device_us + other.device_us,
            self.communication_us + other.communication_us,
            self.host_us + other.host_us,
            self.spread_us + other.spread_us,
            self.work + other.work,
        )

    def times(self, count: float) -> _Cost:
        """As often; calls of one kind err alike."""
        return _Cost(
            count * self.device_us,
            count * self.communication_us,
            count * self.host_us,
            count * self.spread_us,
            self.work.times(count),
        )

    @property
    def busy_us(self) -> float:
        """Kernels and collectives one after the other, or the host where it takes longer."""
        return max(self.device_us + self.communication_us, self.host_us)


class Composer:
    """Entries of one rank of each stage."""

    def __init__(
        self,
        model: Transformer,
        layout: Layout,
        prices: PiecePrices,
        fabric: Fabric | None,
        composition: Composition,
        sharing: Sharing,
    ) -> None:
        self.model, self.layout, self.prices, self.fabric = model, layout, prices, fabric
        self.composition, self.sharing = composition, sharing
        self.size = int(ELEMENT_SIZES[model.dtype])
        self.micro_batches = model.batch // (layout.dp * layout.micro_batch)
        self.parts = parts_of(model, layout)
        costs = {name: self.cost(getattr(self.parts, name)) for name in vars(self.parts)}
        for name, host_us in zip(("block", "block_backward"), composition.block_host_us, strict=True):
            costs[name] = replace(costs[name], host_us=costs[name].host_us + host_us)
        block = costs["block"] + costs["block_backward"]
        drawn = replace(block.work, others_us=block.device_us - block.work.total_us)
        self.costs = {
            name: replace(cost, device_us=cost.device_us + prices.sustained_us(cost.work, drawn, block.busy_us))
            for name, cost in costs.items()
        }
        self.launches = 0
        self.spread_us = 0.0

    # Ranks are numbered as Megatron and nanotron do: tp fastest, then cp, dp and pp.
    def placement(self, group: str, size: int | None = None) -> tuple[int, ...]:
        layout = self.layout
        strides = {"tp": 1, "cp": layout.tp, "dp": layout.tp, "pp": layout.tp * layout.cp * layout.dp}
        # Gradients and shares of weights belong to all ranks that hold the same weights: those of cp and dp.
        sizes = {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp * layout.cp, "pp": layout.pp}
        return tuple(strides[group] * place for place in range(size or sizes[group]))

    def collective_us(self, kind: str, nbytes: float, group: str, size: int | None = None) -> float:
        ranks = self.placement(group, size)
        if len(ranks) < 2:
            return 0.0
        if self.fabric is None:
            raise PredictError(f"{name_of(self.layout)} has collectives, and no fabric prices them: give --fabric.")
        return price_collective(self.fabric, kind, nbytes, placement_of(ranks, self.fabric.ranks_per_node)).duration_us

    def cost(self, pieces: Sequence[Piece]) -> _Cost:
        price, kernels = total_price(self.prices, pieces)
        communication_us = sum(self.exposed_us(piece) for piece in pieces if piece.group)
        host_us = kernels * self.prices.launch_host_us
        host_us += sum(self.check_us(piece.group) for piece in pieces if piece.group)
        return _Cost(price.duration_us, communication_us, host_us, price.spread_us, price.work)

    def check_us(self, group: str) -> float:
        """What the hosts of a group wait for each other before a collective, where they check it."""
        fixed_us, rank_us = self.composition.check_us
        return fixed_us + rank_us * len(self.placement(group))

    def exposed_us(self, piece: Piece) -> float:
        """What a collective adds to the pieces: all of it, or what it outlasts and slows the product beside it."""
        kind = piece.operator.removeprefix("collective.")
        collective_us = self.collective_us(kind, piece.parameters["bytes"], piece.group)
        if piece.beside is None:
            return collective_us
        product_us = self.prices.price(piece.beside).duration_us
        slower = self.sharing.kernels.get(PRODUCT, 1.0)
        ends_us = collective_us * self.sharing.collective_factor(PRODUCT, collective_us)
        if ends_us < product_us * slower:
            return ends_us - ends_us / slower
        return collective_us * (1 - product_us * slower / ends_us) + product_us * (slower - 1)

    def stage_cost(self, stage: int, direction: str) -> _Cost:
        stages = self.layout.pp * self.layout.stages_per_rank
        layers = layers_by_stage(self.model.layers, stages, self.model.head_layers)[stage]
        suffix = "_backward" if direction == "backward" else ""
        cost = self.costs[f"block{suffix}"].times(layers)
        if stage == 0:
            cost += self.costs[f"first{suffix}"]
        if stage == stages - 1:
            cost += self.costs[f"last{suffix}"]
        return cost

    def phase(self, label: str, cost: _Cost, *, after: tuple[int, ...] = ()) -> list[TimedEntry]:
        """A stage's forward or backward: kernels, the collectives between them, and what the host is too slow for."""
        busy_us = cost.device_us + cost.communication_us
        longer = max(busy_us, cost.host_us, 1e-9)
        power = self.composition.overlap
        whole_us = longer * ((busy_us / longer) ** power + (cost.host_us / longer) ** power) ** (1 / power)
        entries = [TimedEntry(label, "compute", cost.device_us, after=after, sharing=PRODUCT)]
        if cost.communication_us:
            entries.append(TimedEntry(f"{label} collectives", "communication", cost.communication_us, "compute"))
        entries.append(TimedEntry(f"{label} host", "host", whole_us - busy_us, "compute"))
        return entries

    def ranks(self) -> dict[int, list[TimedEntry]]:
        layout = self.layout
        if layout.pp == 1:
            return {0: self.without_pipeline()}
        actions = schedule_actions(
            layout.schedule, layout.pp, self.micro_batches, stages_per_rank=layout.stages_per_rank
        )
        return {rank: self.with_pipeline(rank, own) for rank, own in enumerate(actions)}

    def without_pipeline(self) -> list[TimedEntry]:
        """All but the last microbatch are alike: they are one entry each way; in the last, gradients are reduced."""
        forward, backward = self.stage_cost(0, "forward"), self.stage_cost(0, "backward")
        self.spread_us = (forward.spread_us + backward.spread_us) * self.micro_batches
        entries: list[TimedEntry] = []
        if self.layout.zero == 3:
            self.sharded_micro_batches(entries)
        else:
            before = self.micro_batches - 1
            if before:
                entries += self.phase(f"{before} microbatches", (forward + backward).times(before))
            entries += self.phase("forward", forward)
            self.last_backward(entries, backward, 0)
        self.end(entries, 0)
        return entries

    def with_pipeline(self, rank: int, actions: Sequence[Action]) -> list[TimedEntry]:
        layout, model = self.layout, self.model
        stages = layout.pp * layout.stages_per_rank
        message = layout.micro_batch * model.length // layout.cp * model.hidden * self.size
        gather_us = 0.0
        if layout.sequence_parallel or self.composition.shares_sends:
            if not layout.sequence_parallel:
                gather_us = self.collective_us("all_gather", message, "tp")
            message //= layout.tp
        tensor_us, announcing_us = (self.move_us(nbytes) for nbytes in (message, _ANNOUNCEMENT_BYTES))
        tensor_us += gather_us
        announcing_us += self.prices.launch_host_us
        moves_us = [tensor_us + count * announcing_us for count in self.composition.announcements]
        costs = {
            (stage, kind): self.stage_cost(stage, kind)
            for stage in {action.stage for action in actions}
            for kind in ("forward", "backward")
        }
        self.spread_us = max(self.spread_us, sum(cost.spread_us for cost in costs.values()) * self.micro_batches)
        entries: list[TimedEntry] = []
        last_backward = max(place for place, action in enumerate(actions) if action.kind == "backward")
        for place, action in enumerate(actions):
            is_forward = action.kind == "forward"
            move_us = moves_us[0 if is_forward else 1]
            source = action.stage - 1 if is_forward else action.stage + 1
            target = action.stage + 1 if is_forward else action.stage - 1
            after: tuple[int, ...] = ()
            if 0 <= source < stages:
                # NCCL's streams wait for what the stream of the calling thread was given before a message.
                computed = _last_computed(entries)
                after = (len(entries),)
                entries.append(self.transfer("receive", move_us, source, action.stage, action, computed))
            cost = costs[action.stage, action.kind]
            if place == last_backward:
                entries.append(TimedEntry("ready", "host", 0.0, "compute", after=after))
                self.last_backward(entries, cost, rank)
            else:
                entries += self.phase(action.kind, cost, after=after)
            if 0 <= target < stages:
                entries.append(self.transfer("send", move_us, action.stage, target, action, _last_computed(entries)))
        self.end(entries, rank)
        return entries

    def move_us(self, nbytes: float) -> float:
        """What a message takes from one stage to the next."""
        if self.fabric is None:
            raise PredictError(f"{name_of(self.layout)} sends between stages, and no fabric prices it: give --fabric.")
        placement = placement_of(self.placement("pp", 2), self.fabric.ranks_per_node)
        return price_collective(self.fabric, "p2p", nbytes, placement).duration_us

    def transfer(
        self, what: str, move_us: float, source: int, target: int, action: Action, after: tuple[int, ...]
    ) -> TimedEntry:
        key = ("pair", source, target, action.kind, action.micro_batch)
        stream = f"{what} {action.kind} {source if what == 'receive' else target}"
        return TimedEntry(what, "communication", move_us, stream, after=after, meets=key, is_message=True)

    def gradient_bytes(self, stage: int) -> float:
        weights = parameters_of_rank(self.model, self.layout, is_first=stage == 0, is_last=stage == self.layout.pp - 1)
        return weights * self.model.gradient_bytes

    @property
    def has_replicas(self) -> bool:
        """Whether other ranks hold the same weights, with gradients of their own."""
        return self.layout.dp * self.layout.cp > 1

    @property
    def reduction_kind(self) -> str:
        """The collective that gradients are summed by."""
        return "reduce_scatter" if self.layout.zero and not self.composition.reduces_whole else "all_reduce"

    def last_backward(self, entries: list[TimedEntry], cost: _Cost, stage: int) -> None:
        """The last backward, and gradients that are reduced in buckets beside it; those that are not are left to the
        end, behind what the stage sends."""
        if not (self.has_replicas and self.composition.overlaps_gradients):
            entries += self.phase("backward", cost)
            return
        kind = self.reduction_kind
        if self.layout.zero or self.layout.stages_per_rank > 1:
            bucket_us = self.collective_us(kind, self.gradient_bytes(stage) / _BUCKETS, "dp")
            for _ in range(_BUCKETS):
                entries += self.phase("backward", cost.times(1 / _BUCKETS))
                entries.append(self.reduction(bucket_us, len(entries) - 1))
            return
        parts = self.backward_parts(stage)
        buckets = full_buckets([weights for _, weights in parts], self.size)
        for (own, _), closed in zip(parts, buckets, strict=True):
            entries += self.phase("backward", own)
            done = len(entries) - 1
            for parameters in closed:
                reduce_us = self.collective_us(kind, parameters * self.model.gradient_bytes, "dp")
                entries.append(self.reduction(reduce_us, done))

    def backward_parts(self, stage: int) -> list[tuple[_Cost, tuple[float, ...]]]:
        """A stage's backward from its end: what each part takes, and the weights whose gradients are done behind it.

        A table that input and output share has its gradient when the input's is there.
        """
        model, layout = self.model, self.layout
        is_first, is_last = stage == 0, stage == layout.pp - 1
        table = (model.vocabulary * model.hidden / layout.tp,)
        block = (self.costs["block_backward"], weights_of_block(model, layout))
        parts = [block] * layers_by_stage(model.layers, layout.pp, model.head_layers)[stage]
        if is_last:
            parts = [(self.costs["last_backward"], () if model.tied and is_first else table), *parts]
        if is_first:
            parts = [*parts, (self.costs["first_backward"], table)]
        return parts

    def reduction(self, reduce_us: float, done: int) -> TimedEntry:
        """A bucket's gradients on their way, once the entry ``done`` has made them."""
        return TimedEntry("gradients", "communication", reduce_us, "gradients", after=(done,))

    def sharded_micro_batches(self, entries: list[TimedEntry]) -> None:
        """FSDP2: each block's weights gathered one block ahead, both ways; its gradients scattered behind it."""
        model, layout = self.model, self.layout
        weights = model.block_parameters / layout.tp
        gather_us = self.collective_us("all_gather", weights * self.size, "dp")
        scatter_us = self.collective_us("reduce_scatter", weights * model.gradient_bytes, "dp")
        computed: list[int] = []

        def gather() -> int:
            # Two blocks' weights are there at once: the next is gathered when the one before this has been used.
            limit = (computed[-2],) if len(computed) > 1 else ()
            entries.append(TimedEntry("weights", "communication", gather_us, "gathers", after=limit))
            return len(entries) - 1

        # Microbatches are alike: two are played, and the second counts as often as there are more.
        played = min(2, self.micro_batches)
        for micro_batch in range(played):
            times = 1 if micro_batch == 0 else self.micro_batches - 1
            repeated = range(model.layers)
            for kind in ("forward", "backward"):
                cost = self.costs["block" if kind == "forward" else "block_backward"].times(times)
                ends = self.costs["first" if kind == "forward" else "first_backward"]
                ends += self.costs["last" if kind == "forward" else "last_backward"]
                if kind == "backward":
                    entries += self.phase("output", ends.times(times))
                for _ in repeated:
                    here = gather()
                    if times > 1:
                        entries[here] = replace(entries[here], duration_us=gather_us * times)
                    entries += self.phase(kind, cost, after=(here,))
                    computed.append(len(entries) - 1)
                    if kind == "backward":
                        entries.append(
                            TimedEntry("gradients", "communication", scatter_us * times, "gradients",
                                       after=(computed[-1],))
                        )  # fmt: skip
                if kind == "forward":
                    entries += self.phase("input", ends.times(times))

    def end(self, entries: list[TimedEntry], stage: int) -> None:
        """What is left behind the last backward: gradients that are still moving, the optimizer, gathered weights."""
        model, layout = self.model, self.layout
        if self.has_replicas and layout.zero < 3 and not self.composition.overlaps_gradients:
            reduce_us = self.collective_us(self.reduction_kind, self.gradient_bytes(stage), "dp")
            entries.append(TimedEntry("gradients", "communication", reduce_us, "compute"))
        moving = tuple(place for place, entry in enumerate(entries) if entry.stream == "gradients")[-1:]
        weights = parameters_of_rank(model, layout, is_first=stage == 0, is_last=stage == layout.pp - 1)
        if layout.pp > 1 and model.tied and stage in (0, layout.pp - 1):
            nbytes = model.vocabulary * model.hidden / layout.tp * model.gradient_bytes
            tie_us = self.collective_us("all_reduce", nbytes, "pp", 2)
            entries.append(
                TimedEntry("tied weights", "communication", tie_us, "compute", after=moving,
                           meets=("all_reduce", (0, layout.pp - 1), "tied"))
            )  # fmt: skip
        own = weights / (max(1, layout.fsdp) * layout.cp if layout.zero else 1)
        layers = layers_by_stage(model.layers, layout.pp, model.head_layers)[stage]
        update = self.prices.optimizer(own, layers * _MOST_TENSORS_OF_BLOCK)
        update_us = update.duration_us + self.beside_update_us(weights, own)
        entries.append(TimedEntry("optimizer", "compute", update_us, after=moving))
        if layout.zero in (1, 2):
            gather_us = self.collective_us("all_gather", weights * self.size, "dp")
            entries.append(TimedEntry("weights", "communication", gather_us, "compute"))
        entries.append(TimedEntry("step", "host", self.composition.step_host_us, "compute"))

    def beside_update_us(self, weights: float, own: float) -> float:
        """What is done beside the update of float32 weights: they are cast, all float32 gradients are set to zero,
        gradients are passed over as the program does, and those that no rank needs are clipped."""
        moved = 0.0
        if self.model.gradient_bytes > self.size:
            moved = (4 + self.size) * own + self.model.gradient_bytes * weights
        moved += self.composition.gradient_passes * self.model.gradient_bytes * weights
        if self.composition.clips_whole:
            moved += CLIPPING_PASSES * self.model.gradient_bytes * (weights - own)
        if not moved:
            return 0.0
        return self.prices.price(Piece("elementwise", {"bytes": int(moved)}, "step", "update")).duration_us


def name_of(layout: Layout) -> str:
    """``"dp=2 tp=4 pp=2 micro=1 zero=1"``.

    >>> name_of(Layout(dp=2, tp=4, micro_batch=2))
    'dp=2 tp=4 micro=2'
    """
    words = [f"{axis}={getattr(layout, axis)}" for axis in ("dp", "tp", "pp", "cp") if getattr(layout, axis) > 1]
    words.append(f"micro={layout.micro_batch}")
    if layout.zero:
        words.append(f"zero={layout.zero}")
    if layout.pp > 1:
        words.append(layout.schedule + (f" x{layout.stages_per_rank}" if layout.stages_per_rank > 1 else ""))
    if layout.recomputation != "none":
        words.append(f"recompute={layout.recomputation}")
    return " ".join(words)


def _last_computed(entries: Sequence[TimedEntry]) -> tuple[int, ...]:
    """The place of what the compute stream was given last, if anything."""
    return next(((place,) for place in reversed(range(len(entries))) if entries[place].stream == COMPUTE_STREAM), ())
