"""Attention that drops weights is recorded as such: its rate is a fraction, which settings do not hold."""

from __future__ import annotations

import pytest
import torch

from torchledger._torch.eager_calls import EagerCall
from torchledger.nouns import StepCall
from torchledger.stepping.dropped_weights import _PLACES, drops_weights
from torchledger.stepping.heard import record_heard_step
from torchledger.stepping.record import Ledgered, StepFacts
from torchledger.work.op_shapes import OpCall, Tensor
from torchledger.work.settings import Parameter

FLASH = "_scaled_dot_product_flash_attention"


def attention(rate: str, name: str = FLASH) -> OpCall:
    matrices = (Tensor((2, 4, 64, 32), "bfloat16"),) * 3
    place = _PLACES.get(name, 3)
    constants = ["", "", "", *["False"] * (place - 3), rate, "True"]
    return OpCall(f"aten::{name}", (*matrices, *[None] * (place - 1)), tuple(constants))


@pytest.mark.parametrize("name", _PLACES)
def test_the_rate_stands_where_the_operators_schema_has_it(name: str) -> None:
    arguments = [each.name for each in getattr(torch.ops.aten, name).default._schema.arguments]
    assert arguments[_PLACES[name]] == "dropout_p"


@pytest.mark.parametrize("name", _PLACES)
@pytest.mark.parametrize(("rate", "drops"), [("0.1", True), ("0.0", False), ("", False), ("rate", False)])
def test_a_rate_above_zero_drops_weights(name: str, rate: str, drops: bool) -> None:
    assert drops_weights(attention(rate, name)) is drops


def test_other_operators_drop_no_weights_of_attention() -> None:
    assert not drops_weights(attention("0.1", "native_dropout"))


def recorded(rate: str, *, has_schema: bool = True) -> StepCall:
    parameters = (None, None, None, None, Parameter("is_causal", (0,)))
    eager = EagerCall(attention(rate), "default", 7, device="cuda:0", parameters=parameters if has_schema else None)
    return record_heard_step([0], [eager], StepFacts("period"), Ledgered({}, {})).calls[0]


def test_the_record_of_attention_says_that_it_drops_weights() -> None:
    assert recorded("0.1").settings == (("is_causal", (1,)), ("dropout", (1,)))
    assert recorded("0.0").settings == (("is_causal", (1,)),)


def test_settings_that_are_unknown_stay_unknown() -> None:
    assert recorded("0.1", has_schema=False).settings is None
