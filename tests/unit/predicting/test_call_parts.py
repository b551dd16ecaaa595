"""Launches of a library by the parts of their algorithm, and operators that a program brings along."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from factories import make_buffer, make_launch
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, StepCall, TensorArgument
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.operators import ROOFLINE
from torchledger.predicting.step_calls import price_calls


@pytest.fixture(scope="module")
def h200() -> TimeModel:
    return find_model("H200")


def transform(rows: int, length: int, *, name: str = "torch.ops.aten._fft_r2c") -> Launch:
    """A transform of rows of real numbers, as a graph calls it."""
    made = length // 2 + 1
    given = make_buffer(role="input", dtype="float32", shape=(rows, length), stride=(length, 1))
    result = make_buffer(role="output", dtype="complex64", shape=(rows, made), stride=(made, 1))
    return make_launch(
        kernel_name=f"{name}.default",
        category="extern",
        device="cuda:0",
        flops=0,
        kwargs={"dim": "[1]", "normalization": "0", "onesided": "True"},
        buffers=(
            replace(given, bytes_read=4 * rows * length, bytes_written=0),
            replace(result, bytes_read=0, bytes_written=8 * rows * made),
        ),
    )


def test_a_long_transform_in_a_graph_takes_what_it_takes_outside(h200: TimeModel) -> None:
    launch = transform(2048, 65536)
    eager = StepCall(
        *("", 0, "operator", "aten::_fft_r2c", "forward"),
        arguments=(TensorArgument((2048, 65536), "float32", (65536, 1)),),
        settings=(("dim", (1,)), ("normalization", (0,)), ("onesided", (1,))),
        bytes_moved=launch.bytes_moved,
        kernels=1,
    )
    (inside,), ((_, outside),) = predict_launches(h200, [launch]), price_calls(h200, [eager], ran_on_cpu=False)
    assert inside.duration_us == pytest.approx(outside.duration_us)
    assert inside.subject == launch.launch_id and inside.high_us < 3 * inside.duration_us


def test_what_launches_taught_more_surely_stays_theirs(h200: TimeModel) -> None:
    (short,) = predict_launches(h200, [transform(27962, 300)])
    assert short.model == "launch:library/other"


def test_an_operator_of_the_program_s_own_is_priced_by_its_bytes_alone(h200: TimeModel) -> None:
    launch = replace(transform(2048, 32768, name="torch.ops.engine.write_pages"), flops=None)
    (found,) = predict_launches(h200, [launch])
    assert found.model == ROOFLINE and "is not known" in (found.note or "")
    assert found.duration_us == pytest.approx(
        (launch.bytes_moved or 0) / h200.machine.bytes_per_us + h200.machine.floor_us
    )
    assert math.isclose(found.high_us, 2 * found.duration_us)
