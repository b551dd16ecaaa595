"""A transformer described by its sizes: the operators and shapes that it runs, each priced by a model of times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields

from torchledger.errors import PredictError
from torchledger.fitting import TimeModel
from torchledger.nouns import Prediction
from torchledger.operators import find_operator
from torchledger.operators.functions import ENCODER_PARAMETERS, encoder_parameters, mapped_operators
from torchledger.predicting.operators import predict_directions
from torchledger.printable import ended


@dataclass(frozen=True)
class Encoder:
    """Layers of a transformer, their sizes, and over how many GPUs each tensor is split (``mp``).

    ``length`` is tokens of a sequence, ``batch`` sequences.
    """

    layers: int
    hidden: int
    heads: int
    length: int
    batch: int
    mp: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise PredictError(f"encoder: {field.name}={getattr(self, field.name)} must be at least 1.")
        if self.hidden % self.heads:
            raise PredictError(f"encoder: heads={self.heads} does not divide hidden={self.hidden}.")


LAYER = (
    ("layernorm", 2),
    ("linear1", 1),
    ("RoPE", 1),
    ("flash_atten", 1),
    ("linear2", 1),
    ("res_add", 2),
    ("linear3", 1),
    ("gelu", 1),
    ("linear4", 1),
)
"""What a layer runs, and how often: operators of the sampling guide."""

AROUND = (("embedding", 1), ("layernorm", 1), ("linear_final", 1), ("parallel_cross_entropy_128", 1))
"""What stands before and behind the layers."""


@dataclass(frozen=True)
class EncoderCall:
    """An operator at the shape that an encoder runs it at; ``calls`` is how often a step does."""

    operator: str
    parameters: dict[str, int]
    calls: int


@dataclass(frozen=True)
class PricedCalls:
    """Predicted times of an encoder's call, in each direction that the model knows."""

    call: EncoderCall
    predictions: tuple[Prediction, ...]

    @property
    def total_us(self) -> float:
        """All calls of a step in all directions, in microseconds."""
        return self.call.calls * sum(each.duration_us for each in self.predictions)


def encoder_calls(encoder: Encoder, *, operators: tuple[str, ...] = ()) -> list[EncoderCall]:
    """The operators that a training step of the encoder runs, in order, with their shapes.

    ``operators`` are run once a layer beside the usual ones. Raises ``PredictError`` for sizes that an operator cannot
    have. Collectives between the ``mp`` GPUs, and the optimizer, are not among them.
    """
    calls: list[EncoderCall] = []
    for name, calls_of_step in (
        *((name, count * encoder.layers) for name, count in LAYER),
        *((name, encoder.layers) for name in operators),
        *AROUND,
    ):
        operator = find_operator(name, prefer_guide=True)
        parameters = encoder_parameters(operator, _sizes(encoder))
        if reason := operator.check(parameters):
            raise PredictError(f"encoder: {operator.name}: {ended(reason)}")
        known = next((call for call in calls if call.operator == operator.key), None)
        if known is not None and known.parameters == dict(parameters):
            calls[calls.index(known)] = EncoderCall(known.operator, known.parameters, known.calls + calls_of_step)
        else:
            calls.append(EncoderCall(operator.key, dict(parameters), calls_of_step))
    return calls


def price_encoder(model: TimeModel, encoder: Encoder, *, dtype: str = "bfloat16") -> list[PricedCalls]:
    """Each call of the encoder with its predicted times.

    Operators that the user has loaded as functions, with a map from an encoder, are priced too. Raises ``PredictError``
    if the model does not know one of them.
    """
    return [
        PricedCalls(call, tuple(predict_directions(model, call.operator, call.parameters, dtype=dtype)))
        for call in encoder_calls(encoder, operators=mapped_operators())
    ]


def parse_encoder(parameters: Mapping[str, int]) -> Encoder:
    """``{"layers": 2, "hidden": 64, ...}`` as an encoder. Raises ``PredictError`` for what is missing or unknown."""
    known = {field.name: field.default is MISSING for field in fields(Encoder)}
    unknown = [name for name in parameters if name not in known]
    missing = [name for name, is_needed in known.items() if is_needed and name not in parameters]
    if unknown or missing:
        wrong = f"has no {unknown[0]!r}" if unknown else f"needs {', '.join(missing)}"
        raise PredictError(f"an encoder {wrong}; its sizes are {', '.join(known)}.")
    return Encoder(**parameters)


def _sizes(encoder: Encoder) -> dict[str, int]:
    sizes = (encoder.mp, encoder.batch, encoder.heads, encoder.length, encoder.hidden)
    return dict(zip(ENCODER_PARAMETERS, sizes, strict=True))
