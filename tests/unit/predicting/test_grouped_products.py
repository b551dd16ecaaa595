"""Products whose operands are more than two matrices: groups of rows, and scales beside elements of one byte."""

from __future__ import annotations

import math

import pytest

from factories import make_buffer, make_launch
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, StepCall, TensorArgument
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.operators import predict
from torchledger.predicting.power import is_product, work_of
from torchledger.predicting.questions import question_of

Given = tuple[tuple[int, ...], str]


@pytest.fixture(scope="module", params=["H200", "A100"])
def model(request: pytest.FixtureRequest) -> TimeModel:
    return find_model(request.param)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def library_product(name: str, inputs: list[Given], output: Given, flops: int) -> Launch:
    sizes = {"bfloat16": 2, "float8_e4m3fn": 1, "int32": 4, "float32": 4}
    buffers = [
        make_buffer(
            name=f"b{place}",
            role="output" if place == len(inputs) else "input",
            dtype=dtype,
            shape=shape,
            stride=_strides(shape),
            bytes_read=0 if place == len(inputs) else sizes[dtype] * math.prod(shape),
            bytes_written=sizes[dtype] * math.prod(shape) if place == len(inputs) else 0,
        )
        for place, (shape, dtype) in enumerate([*inputs, output])
    ]
    return make_launch(
        order=0,
        kernel=name,
        kernel_name=f"extern_kernels.{name}",
        category="extern",
        device="cuda:0",
        flops=flops,
        aten_ops=(f"aten.{name}",),
        buffers=tuple(buffers),
    )


def duration_us(model: TimeModel, launch: Launch) -> float:
    (found,) = predict_launches(model, [launch])
    return found.duration_us


def bf16(*shape: int) -> Given:
    return shape, "bfloat16"


@pytest.mark.parametrize(
    ("groups", "m", "k", "n"), [(8, 512, 1024, 2048), (16, 1024, 1024, 2816), (64, 256, 2048, 768)]
)
def test_groups_of_rows_cost_about_what_as_many_products_of_equal_size_do(
    model: TimeModel, groups: int, m: int, k: int, n: int
) -> None:
    rows, flops, ends = groups * m, 2 * groups * m * k * n, ((groups,), "int32")
    batched = library_product("bmm", [bf16(groups, m, k), bf16(groups, k, n)], bf16(groups, m, n), flops)
    expected_us = duration_us(model, batched)
    ways = {
        "rows": ([bf16(rows, k), bf16(groups, k, n), ends], bf16(rows, n)),
        "columns": ([bf16(groups, n, k), bf16(k, rows), ends], bf16(n, rows)),
        "inner length": ([bf16(n, rows), bf16(rows, k), ends], bf16(groups, n, k)),
        "all": ([bf16(groups, m, k), bf16(groups, k, n)], bf16(groups, m, n)),
    }
    for way, (inputs, output) in ways.items():
        found_us = duration_us(model, library_product("_grouped_mm", inputs, output, flops))
        assert 0.6 < found_us / expected_us < 1.7, way


def test_products_of_one_byte_are_as_quick_in_a_graph_as_the_operator_that_was_measured() -> None:
    model = find_model("H200")
    m, k, n = 2048, 4096, 4096
    narrow = [((m, k), "float8_e4m3fn"), ((k, n), "float8_e4m3fn")]
    launch = library_product("_scaled_mm", [*narrow, *[((1,), "float32")] * 2], bf16(m, n), 2 * m * k * n)
    (found,) = predict_launches(model, [launch])
    asked = predict(model, "linear_fp8", {"m": m, "k": k, "n": n}, direction="forward", dtype="float8_e4m3fn")
    assert (found.duration_us, found.subject, found.note) == (asked.duration_us, launch.launch_id, asked.note)


def test_groups_of_rows_draw_the_power_of_products() -> None:
    groups, m, k, n = 16, 1024, 1024, 2816
    flops = 2 * groups * m * k * n
    inputs = [bf16(groups * m, k), bf16(groups, k, n), ((groups,), "int32")]
    launch = library_product("_grouped_mm", inputs, bf16(groups * m, n), flops)
    (found,) = predict_launches(find_model("H200"), [launch])
    assert is_product(found.model) and work_of(launch, found).product_flops == flops


def test_scales_beside_elements_of_one_byte_are_not_taken_for_factors() -> None:
    model = find_model("H200")
    m, k, n = 8192, 4096, 8192
    flops = 2 * m * k * n
    wide_us = duration_us(model, library_product("mm", [bf16(m, k), bf16(k, n)], bf16(m, n), flops))
    narrow = [((m, k), "float8_e4m3fn"), ((k, n), "float8_e4m3fn")]
    for scales in ([((1,), "float32")] * 2, [((m, 1), "float32"), ((1, n), "float32")]):
        assert duration_us(model, library_product("_scaled_mm", [*narrow, *scales], bf16(m, n), flops)) < wide_us


@pytest.mark.parametrize(
    ("shapes", "operator", "parameters"),
    [
        (((4096, 64), (8, 64, 32), (8,)), "grouped_gemm", {"groups": 8, "m": 512, "k": 64, "n": 32}),
        (((64, 4096), (4096, 32), (8,)), "bmm", {"b": 8, "m": 64, "k": 512, "n": 32}),
        (((8, 64, 32), (32, 4096), (8,)), None, None),
    ],
)
def test_an_eager_product_of_groups_is_asked_for_as_groups_alike(
    shapes: tuple[tuple[int, ...], ...], operator: str | None, parameters: dict[str, int] | None
) -> None:
    arguments = tuple(TensorArgument(shape, "bfloat16") for shape in shapes)
    question = question_of(StepCall("step_0", 0, "operator", "aten::_grouped_mm", "forward", arguments=arguments))
    if operator is None:
        assert question is None
        return
    assert question is not None and (question.operator, question.parameters) == (operator, parameters)
    assert question.note == "as if all groups were as large"
