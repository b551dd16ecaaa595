"""Times of a transformer's pieces: by a device's model of times, or by any other source of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torchledger.fitting.time_model import TimeModel
from torchledger.planning.transformer import Piece
from torchledger.predicting.operators import predict
from torchledger.predicting.overheads import is_product, overheads_of

_MOST_UPDATED = 2e9
"""Parameters of the largest step that is asked for at once: beyond it only more of the same follows."""


_MOST_MOVED = 4e9
"""Bytes of the largest elementwise kernel that is asked for at once."""


@dataclass(frozen=True)
class PiecePrice:
    """A piece's time on the device, and how far it may be off, in microseconds."""

    duration_us: float
    spread_us: float = 0.0


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


_CLIPPING_PASSES = 3
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
        time_us = found.duration_us * factor * (1 + overheads["sustained products"] * product)
        return PiecePrice(time_us + gaps_us, max(found.high_us - found.duration_us, 0.0) * factor)

    def optimizer(self, parameters: float, tensors: int) -> PiecePrice:
        """One step of AdamW over so many parameters, gradients' norm and clipping included."""
        if parameters > _MOST_UPDATED:
            largest, times = self.optimizer(_MOST_UPDATED, tensors), parameters / _MOST_UPDATED
            return PiecePrice(times * largest.duration_us, times * largest.spread_us)
        numel = max(1, int(parameters))
        found = predict(
            self.model, "adamw", {"numel": numel, "tensors": max(1, tensors)}, direction="step", dtype="float32"
        )
        clipping_us = _CLIPPING_PASSES * 4 * numel / self.model.machine.bytes_per_us
        time_us = (found.duration_us + clipping_us) * self.rates[1]
        return PiecePrice(time_us, (found.high_us - found.duration_us) * self.rates[1])


def total_price(prices: PiecePrices, pieces: Sequence[Piece]) -> tuple[float, float, int]:
    """Time and spread of the pieces that are no collectives, in microseconds, and how many kernels they launch."""
    found = [(piece, prices.price(piece)) for piece in pieces if not piece.group]
    # Pieces of one kind err alike.
    return (
        sum(price.duration_us for _, price in found),
        sum(price.spread_us**2 for _, price in found) ** 0.5,
        sum(piece.kernels for piece in pieces),
    )
