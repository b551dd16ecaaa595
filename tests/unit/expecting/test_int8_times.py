"""Products of eight-bit integers: rules that their times keep, and the route of a launch to them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchledger.expecting.int8_times import (
    CONTIGUOUS_COLUMNS,
    CONTIGUOUS_ROWS,
    PACKED_WEIGHTS,
    Int8Costs,
    int8_us,
    packed_us,
)
from torchledger.nouns import Buffer, Launch, StepCall, TensorArgument
from torchledger.predicting.devices import find_model
from torchledger.predicting.int8_launches import INT8
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.step_calls import price_calls

SIDES = st.integers(8, 20_000)


@given(SIDES, SIDES, SIDES, st.sampled_from([CONTIGUOUS_COLUMNS, CONTIGUOUS_ROWS]))
def test_a_product_takes_no_less_time_for_more_of_any_side(
    rows: int, depth: int, columns: int, costs: Int8Costs
) -> None:
    least = int8_us(rows, depth, columns, costs, multiprocessors=132)
    assert least > 0
    for more in ((rows + 64, depth, columns), (rows, depth + 64, columns), (rows, depth, columns + 64)):
        assert int8_us(*more, costs, multiprocessors=132) >= least


@given(st.integers(1, 4000), SIDES, SIDES)
def test_weights_of_eight_bits_take_no_less_time_for_more_of_any_side(rows: int, depth: int, columns: int) -> None:
    least = packed_us(rows, depth, columns, PACKED_WEIGHTS, multiprocessors=132)
    assert least > 0
    for more in ((rows + 1, depth, columns), (rows, depth + 1, columns), (rows, depth, columns + 1)):
        assert packed_us(*more, PACKED_WEIGHTS, multiprocessors=132) >= least


def test_half_precision_by_weights_of_eight_bits_is_no_product_of_tensor_cores() -> None:
    moved = {"bytes_read": 1, "bytes_written": 1}
    buffers = (
        Buffer("x", "input", "bfloat16", (16, 4096), (4096, 1), "cuda:0", **moved),
        Buffer("w", "input", "int8", (11008, 4096), (4096, 1), "cuda:0", **moved),
        Buffer("s", "input", "bfloat16", (11008,), (1,), "cuda:0", **moved),
        Buffer("y", "output", "bfloat16", (16, 11008), (11008, 1), "cuda:0", **moved),
    )
    name = "torch.ops.aten._weight_int8pack_mm.default"
    launch = Launch(
        "forward_0", 0, "k", name, "extern", "cuda:0", buffers=buffers, call=name, flops=2 * 16 * 4096 * 11008
    )
    (found,) = predict_launches(find_model("H200"), [launch])
    assert found.model == INT8
    assert found.duration_us > 50 * found.roofline_us
    assert found.low_us < found.duration_us < found.high_us


def product(stride: tuple[int, int]) -> Launch:
    moved = {"bytes_read": 1, "bytes_written": 1}
    left = Buffer("a", "input", "int8", (4096, 2048), (2048, 1), "cuda:0", **moved)
    right = Buffer("b", "input", "int8", (2048, 8192), stride, "cuda:0", **moved)
    made = Buffer("c", "output", "int32", (4096, 8192), (8192, 1), "cuda:0", **moved)
    buffers = (left, right, made)
    return Launch("forward_0", 0, "k", "extern_kernels._int_mm", "extern", "cuda:0", buffers=buffers, flops=2**37)


def test_a_weight_whose_columns_are_contiguous_is_multiplied_by_the_tensor_cores() -> None:
    fast, slow = (predict_launches(find_model("H200"), [product(stride)])[0] for stride in ((1, 2048), (8192, 1)))
    assert fast.model == slow.model == INT8
    assert 5 < slow.duration_us / fast.duration_us < 10


def test_a_device_of_another_generation_has_no_such_price() -> None:
    (found,) = predict_launches(find_model("A100"), [product((1, 2048))])
    assert found.model != INT8


def test_an_eager_product_costs_what_it_costs_in_a_graph() -> None:
    arguments = (TensorArgument((4096, 2048), "int8", (2048, 1)), TensorArgument((2048, 8192), "int8", (1, 2048)))
    call = StepCall("a", 0, "operator", "aten::_int_mm", "forward", kernels=1, arguments=arguments, flops=2**37)
    ((_, eager),) = price_calls(find_model("H200"), [call], ran_on_cpu=False)
    (compiled,) = predict_launches(find_model("H200"), [product((1, 2048))])
    assert abs(eager.duration_us / compiled.duration_us - 1) < 1e-9
