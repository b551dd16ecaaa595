"""Ways to spread a transformer over a world of ranks: each with its step's time and memory, ranked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from torchledger.errors import PredictError
from torchledger.nouns import Fabric, Layout, PlannedRank, PlannedStep, PricedLayout
from torchledger.planning.composing import Composer, Composition, name_of
from torchledger.planning.device_memory import fits, with_fit
from torchledger.planning.prices import PiecePrices
from torchledger.planning.sharing import find_sharing
from torchledger.planning.timeline import PlayedStep, Sharing, play
from torchledger.planning.transformer import Transformer, check_layout
from torchledger.planning.transformer_memory import memory_of_rank

Progress = Callable[[int, int, str], None]
"""How many layouts are priced, of how many, and the next one."""

COVERAGE = 0.9


def find_layouts(
    model: Transformer,
    world: int,
    *,
    ranks_per_node: int = 8,
    schedules: Sequence[str] = ("1F1B",),
    micro_batches: Sequence[int] = (1, 2, 4, 8),
    recomputations: Sequence[str] = ("none", "full"),
    zeros: Sequence[int] = (0, 1, 3),
    with_cp: bool = False,
) -> list[Layout]:
    """Every layout that the model and the world allow. Raises ``PredictError`` if there is none."""
    found = []
    for tp, pp, cp in _products(world, with_cp):
        dp = world // (tp * pp * cp)
        for micro_batch, recomputation, zero in (
            (m, r, z) for m in micro_batches for r in recomputations for z in zeros
        ):
            if (zero and dp == 1) or (zero == 3 and pp > 1):
                continue
            for schedule in schedules if pp > 1 else ("1F1B",):
                layout = Layout(
                    dp=dp, tp=tp, pp=pp, cp=cp, fsdp=dp if zero else 1, zero=zero, schedule=schedule,
                    micro_batch=micro_batch, recomputation=recomputation,
                )  # fmt: skip
                if check_layout(model, layout, ranks_per_node) is None:
                    found.append(layout)
    if not found:
        example = Layout(dp=world, micro_batch=micro_batches[0])
        reason = check_layout(model, example, ranks_per_node) or "no microbatch divides the batch"
        raise PredictError(f"no layout of {world} ranks fits this model: {reason}.")
    return found


def price_layouts(
    model: Transformer,
    layouts: Iterable[Layout],
    prices: PiecePrices,
    fabric: Fabric | None,
    *,
    memory_bytes: int | None = None,
    composition: Composition | None = None,
    progress: Progress = lambda done, total, what: None,
) -> list[PricedLayout]:
    """The layouts that fit into ``memory_bytes``, the quickest first; then those that do not, with what they need.

    ``progress`` is called with how many are done, how many there are, and the name of the one that is next.
    """
    fitting, others = [], []
    asked = list(layouts)
    for place, layout in enumerate(asked):
        progress(place, len(asked), name_of(layout))
        peak = max(memory_of_rank(model, layout, stage) for stage in {0, layout.pp - 1})
        if memory_bytes is not None and not fits(peak, memory_bytes):
            reason = f"needs {peak / 1e9:,.1f} GB of {memory_bytes / 1e9:,.1f} GB"
            others.append(PricedLayout(layout, peak, None, reason))
            continue
        step = price_layout(model, layout, prices, fabric, composition=composition)
        fitting.append(PricedLayout(layout, peak, with_fit(replace(step, peak_allocated_bytes=peak), memory_bytes)))
    progress(len(asked), len(asked), "")
    fitting.sort(key=lambda each: each.step.duration_us if each.step else math.inf)
    others.sort(key=lambda each: each.peak_allocated_bytes)
    return [*fitting, *others]


def price_layout(
    model: Transformer,
    layout: Layout,
    prices: PiecePrices,
    fabric: Fabric | None,
    *,
    composition: Composition | None = None,
    sharing: Sharing | None = None,
) -> PlannedStep:
    """The step of one layout: one rank of each pipeline stage, played with its collectives.

    Raises ``PredictError`` for a layout that the model does not allow, and for collectives without a fabric.
    """
    if (reason := check_layout(model, layout)) is not None:
        raise PredictError(f"{name_of(layout)}: {reason}.")
    sharing = find_sharing(prices.device) if sharing is None else sharing
    maker = Composer(model, layout, prices, fabric, composition or Composition(), sharing)
    played = play(maker.ranks(), sharing=sharing)
    return _as_step(maker, played)


def _as_step(maker: Composer, played: PlayedStep) -> PlannedStep:
    duration = played.duration_us
    ranks = []
    for rank, line in played.ranks.items():
        idle = max(0.0, duration - line.compute_us - line.exposed_us - line.bubble_us)
        ranks.append(
            PlannedRank(
                rank, line.compute_us, line.communication_us, line.exposed_us, idle, line.host_us, line.bubble_us,
                maker.layout.world_size // len(played.ranks), memory_of_rank(maker.model, maker.layout, rank),
            )
        )  # fmt: skip
    slowest = max(ranks, key=lambda each: each.compute_us + each.exposed_us)
    half = 0.1 * duration + maker.spread_us + 0.2 * slowest.exposed_us
    total = sum(played.decided_by.values())
    return PlannedStep(
        subject=name_of(maker.layout),
        device=maker.prices.device,
        fabric=None if maker.fabric is None else maker.fabric.name,
        world_size=maker.layout.world_size,
        duration_us=duration,
        low_us=max(0.0, duration - half),
        high_us=duration + half,
        coverage=COVERAGE,
        device_us=slowest.compute_us + slowest.exposed_us,
        host_us=slowest.host_us,
        decided_by={kind: us / total for kind, us in played.decided_by.items()} if total else {},
        communication_us=slowest.communication_us,
        exposed_us=slowest.exposed_us,
        bubble_us=sum(each.bubble_us for each in ranks) / len(ranks),
        peak_allocated_bytes=max(each.peak_allocated_bytes or 0 for each in ranks),
        ranks=tuple(ranks),
    )


def _products(world: int, with_cp: bool) -> Iterator[tuple[int, int, int]]:
    for tp in _divisors(world):
        for pp in _divisors(world // tp):
            for cp in _divisors(world // (tp * pp)) if with_cp else (1,):
                yield tp, pp, cp


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
