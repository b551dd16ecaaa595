"""An encoder's sizes as the operators and shapes that it runs."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from torchledger.cli import cli
from torchledger.errors import PredictError
from torchledger.operators import find_operator
from torchledger.predicting.encoder import Encoder, encoder_calls, parse_encoder

WORDS = ["predict", "encoder", "layers=12", "hidden=1024", "heads=16", "length=512", "batch=8", "mp=2"]


def test_the_operators_of_an_encoder_do_the_flops_of_its_formula() -> None:
    encoder = Encoder(layers=3, hidden=256, heads=4, length=128, batch=2, mp=2)
    calls = encoder_calls(encoder)
    products = sum(
        call.calls * find_operator(call.operator, prefer_guide=True).flops(call.parameters, "forward")
        for call in calls
        if call.operator.startswith("guide.linear") and call.operator != "guide.linear_final"
    )
    tokens = encoder.batch * encoder.length
    assert products == 3 * 2 * tokens * 12 * encoder.hidden**2 / encoder.mp
    assert {call.operator: call.calls for call in calls}["guide.layernorm"] == 2 * 3 + 1


def test_an_encoder_is_priced_as_a_table_that_adds_up() -> None:
    shown = json.loads(CliRunner().invoke(cli, [*WORDS, "--json"]).stdout)
    flash = next(each for each in shown if each["call"]["operator"] == "guide.flash_atten")
    assert flash["call"] == {
        "operator": "guide.flash_atten",
        "parameters": {"mp": 2, "b": 8, "h": 16, "l": 512, "dim": 1024},
        "calls": 12,
    }
    assert all(each["predictions"] for each in shown)
    text = CliRunner().invoke(cli, WORDS).stdout
    assert "An encoder's step on NVIDIA H200" in text and "flash_atten" in text


def test_an_encoder_of_a_dtype_that_was_not_measured_says_of_which_operators() -> None:
    text = " ".join(CliRunner().invoke(cli, [*WORDS, "--dtype", "int8"]).stdout.split())
    assert "RoPE, flash_atten" in text and "int8 was not measured, only bfloat16, float16" in text


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"layers": 1}, "needs hidden, heads, length, batch; its sizes are layers"),
        ({"layers": 1, "width": 3}, "has no 'width'"),
        ({"layers": 1, "hidden": 10, "heads": 4, "length": 8, "batch": 1}, "heads=4 does not divide hidden=10"),
        ({"layers": 0, "hidden": 8, "heads": 4, "length": 8, "batch": 1}, "layers=0 must be at least 1"),
    ],
)
def test_an_encoder_that_cannot_be_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(PredictError, match=message):
        parse_encoder(sizes)


def test_an_operator_that_cannot_be_split_so_is_named() -> None:
    with pytest.raises(PredictError, match="mp=3 does not divide"):
        encoder_calls(Encoder(layers=1, hidden=64, heads=4, length=8, batch=1, mp=3))
