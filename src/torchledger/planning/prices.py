"""Times of a transformer's pieces: by a device's model of times, or by any other source of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torchledger.device.datasheets import ATTENTION_SHAPE
from torchledger.fitting.time_model import TimeModel
from torchledger.planning.transformer import Piece
from torchledger.predicting.operators import predict
from torchledger.predicting.overheads import overheads_of
from torchledger.predicting.power import StepWork, is_product, mean_clock, sustained_share
from torchledger.work.element_sizes import ELEMENT_SIZES

_MOST_UPDATED = 2e9
"""Parameters of the largest step that is asked for at once: beyond it only more of the same follows."""


_MOST_MOVED = 4e9
"""Bytes of the largest elementwise kernel that is asked for at once."""


@dataclass(frozen=True)
class PiecePrice:
    """A piece's time in a short run and how far it may be off, in microseconds, and what of it draws power."""

    duration_us: float
    spread_us: float = 0.0
    work: StepWork = field(default_factory=StepWork)


class PiecePrices(Protocol):
    """What prices pieces: a device's name, what its host needs for a launch, and a time for each piece."""

    @property
    def device(self) -> str:
        """The device's name."""
        ...

    @property
    def launch_host_us(self) -> float:
        """What the host needs to launch one kernel."""
        ...

    def price(self, piece: Piece) -> PiecePrice:
        """The time of a piece that is no collective."""
        ...

    def optimizer(self, parameters: float, tensors: int) -> PiecePrice:
        """One step of AdamW over so many parameters, gradients' norm and clipping included."""
        ...

    def sustained_us(self, part: StepWork, step: StepWork, duration_us: float) -> float:
        """What a part of steps takes longer in a run of them that lasts; a step of ``duration_us`` has the work of
        ``step``."""
        ...


CLIPPING_PASSES = 3
"""Times that a gradient is read or written for its norm and for being scaled by it."""


@dataclass
class ModelPrices:
    """Prices by a model of times; each distinct piece is asked for once.

    ``host_us`` overrides what the host needs for a launch. ``rates`` are factors on the times of products and of
    everything else, for a device of which only rates are known beside those of the model's.
    """

    model: TimeModel
    dtype: str = "bfloat16"
    host_us: float | None = None
    rates: tuple[float, float] = (1.0, 1.0)
    name: str | None = None
    known: dict[tuple[object, ...], PiecePrice] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """The device's name."""
        return self.name or self.model.device

    @property
    def launch_host_us(self) -> float:
        """What the host needs to launch one kernel."""
        return self.host_us if self.host_us is not None else overheads_of(self.model)["fused launch host us"]

    def price(self, piece: Piece) -> PiecePrice:
        """The time of a piece that is no collective. Raises ``PredictError`` for one that the model does not know."""
        key = (piece.operator, piece.direction, tuple(sorted(piece.parameters.items())))
        if key not in self.known:
            self.known[key] = self._price(piece)
        return self.known[key]

    def _price(self, piece: Piece) -> PiecePrice:
        overheads = overheads_of(self.model)
        gaps_us = overheads["gap us"] * piece.kernels
        if piece.operator == "elementwise":
            # As an addition that moves as many bytes: it reads two tensors and writes one.
            times = max(1.0, piece.parameters["bytes"] / _MOST_MOVED)
            numel = max(1, int(piece.parameters["bytes"] / times) // 6)
            found = predict(self.model, "add", {"numel": numel}, dtype="bfloat16")
            return PiecePrice(
                times * found.duration_us * self.rates[1] + gaps_us,
                times * (found.high_us - found.duration_us) * self.rates[1],
            )
        found = predict(self.model, piece.operator, piece.parameters, direction=piece.direction, dtype=self.dtype)
        product = is_product(found.model)
        factor = self.rates[0] if product else self.rates[1]
        spread_us = max(found.high_us - found.duration_us, 0.0) * factor
        if piece.operator == "sdpa" and (known := self._attention_factor(piece.direction)) is not None:
            return PiecePrice(found.duration_us * known + gaps_us, spread_us * known)
        time_us = found.duration_us * factor
        return PiecePrice(time_us + gaps_us, spread_us, self._work(piece, time_us) if product else StepWork())

    def _work(self, piece: Piece, time_us: float) -> StepWork:
        """Of a product or attention. FLOPs count in half precision only: of others it is not known what they draw."""
        if piece.operator == "sdpa":
            return StepWork(attention_us=time_us)
        sides = [piece.parameters.get(name, 1) for name in ("b", "m", "k", "n")]
        flops = 2.0 * math.prod(sides) * (1 if piece.direction == "forward" else 2)
        return StepWork(time_us, flops if ELEMENT_SIZES[self.dtype] == 2 else 0.0)

    def sustained_us(self, part: StepWork, step: StepWork, duration_us: float) -> float:
        """What a part of steps takes longer in a run of them that lasts: by the power limit, or what is usual."""
        machine = self.model.machine
        usual = overheads_of(self.model)["sustained products"]
        clock = mean_clock(step, duration_us, machine, is_lasting=True)
        products = StepWork(part.products_us, part.product_flops)
        attention = StepWork(attention_us=part.attention_us)
        return sum(each.total_us * max(usual, sustained_share(each, clock, machine)) for each in (products, attention))

    def _attention_factor(self, direction: str) -> float | None:
        """What was measured of attention over what the model says of it, at the shape that was measured."""
        reached = self.model.machine.published
        if reached is None or direction not in reached.attention_tflops:
            return None
        s = ATTENTION_SHAPE
        flops = {"forward": 4, "backward": 10}[direction] * s["b"] * s["h"] * s["l"] * s["l_kv"] * s["d"] / 2
        said_us = predict(self.model, "sdpa", s, direction=direction, dtype=self.dtype).duration_us
        return flops / (reached.attention_tflops[direction] * 1e6) / said_us

    def optimizer(self, parameters: float, tensors: int) -> PiecePrice:
        """One step of AdamW over so many parameters, gradients' norm and clipping included."""
        if parameters > _MOST_UPDATED:
            largest, times = self.optimizer(_MOST_UPDATED, tensors), parameters / _MOST_UPDATED
            return PiecePrice(times * largest.duration_us, times * largest.spread_us)
        numel = max(1, int(parameters))
        found = predict(
            self.model, "adamw", {"numel": numel, "tensors": max(1, tensors)}, direction="step", dtype="float32"
        )
        clipping_us = CLIPPING_PASSES * 4 * numel / self.model.machine.bytes_per_us
        time_us = (found.duration_us + clipping_us) * self.rates[1]
        return PiecePrice(time_us, (found.high_us - found.duration_us) * self.rates[1])


def total_price(prices: PiecePrices, pieces: Sequence[Piece]) -> tuple[PiecePrice, int]:
    """The price of the pieces that are no collectives together, and how many kernels all of them launch."""
    found = [prices.price(piece) for piece in pieces if not piece.group]
    # Pieces of one kind err alike.
    total = PiecePrice(
        sum(price.duration_us for price in found),
        sum(price.spread_us**2 for price in found) ** 0.5,
        sum((price.work for price in found), StepWork()),
    )
    return total, sum(piece.kernels for piece in pieces)
