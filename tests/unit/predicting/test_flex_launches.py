"""Launches of flex_attention are priced by their mask, and by half of it where it depends on data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import make_buffer, make_launch
from torchledger.nouns import Launch
from torchledger.predicting.devices import find_model
from torchledger.predicting.flex_launches import flex_prediction
from torchledger.predicting.launches import predict_launches


def flex(backward: bool = False, **kwargs: str) -> Launch:
    return make_launch(
        category="template",
        device="cuda:0",
        kernel_name="triton_tem_fused_flex_attention",
        aten_ops=("aten.permute", "flex_attention_backward" if backward else "flex_attention"),
        flops=(10 if backward else 4) * 4 * 16 * 4096**2 * 64,
        kwargs=kwargs,
        buffers=(
            make_buffer(role="input", dtype="bfloat16", shape=(16384, 3072), stride=(3072, 1)),
            make_buffer(role="input", dtype="int32", shape=(1, 1, 32, 32), stride=(1024, 1024, 32, 1)),
            make_buffer(dtype="bfloat16", shape=(4, 16, 4096, 64), stride=(4194304, 64, 1024, 1)),
        ),
    )


@pytest.mark.parametrize(("backward", "measured_us"), [(False, 199.5), (True, 516.0)])
def test_a_sliding_window_takes_what_it_took_on_an_h100(backward: bool, measured_us: float) -> None:
    """A program that taught nothing: 512 places before each, slopes for each head."""
    launch = flex(backward, visited_blocks="0.146484", partial_blocks="0.0585938", simple_score_operations="4")
    (found,) = predict_launches(find_model("H100"), [launch])
    assert found.low_us <= measured_us <= found.high_us and found.model == "launch:attention/flex"
    assert found.duration_us == pytest.approx(measured_us, rel=0.1)


def test_a_mask_that_depends_on_data_is_known_the_less() -> None:
    model = find_model("H100")
    unknown, known = (flex_prediction(model, each) for each in (flex(), flex(visited_blocks="0.5")))
    assert unknown is not None and known is not None
    assert unknown.high_us / unknown.low_us > 2 * known.high_us / known.low_us
    assert unknown.is_extrapolated and unknown.note is not None and not known.is_extrapolated


def test_of_a_mask_that_depends_on_data_no_more_is_taken_than_its_rest_leaves() -> None:
    model = find_model("H100")
    window, half, wide = (
        flex_prediction(model, each)
        for each in (flex(most_visited_blocks="0.05"), flex(), flex(most_visited_blocks="0.9"))
    )
    assert window is not None and half is not None and wide is not None
    assert window.duration_us < half.duration_us / 3 and half.duration_us == wide.duration_us
    assert window.note is not None and "5% of the blocks" in window.note


def test_other_launches_are_none_of_these() -> None:
    model = find_model("H100")
    assert flex_prediction(model, replace(flex(), category="extern")) is None
    assert flex_prediction(model, replace(flex(), flops=0)) is None
