"""What a collective beside them costs products: rounds of blocks, against drawn products on two H200s."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import make_buffer, make_launch, make_step_call

from torchledger.expecting.product_times import count_tiles
from torchledger.nouns import TensorArgument
from torchledger.planning.sharing import ATTENTION, OTHER, PRODUCT, find_sharing, rounds_beside, sharing_of
from torchledger.planning.tiles import tiles_of_calls, tiles_of_launches
from torchledger.predicting.devices import find_model

MEASURED = Path(__file__).parents[3] / "data" / "h200" / "beside_torch2.11.json"


@given(st.integers(1, 20_000), st.integers(2, 200), st.data())
def test_a_collective_never_saves_rounds_and_one_that_holds_nothing_costs_none(
    tiles: int, multiprocessors: int, data: st.DataObject
) -> None:
    taken = data.draw(st.integers(1, multiprocessors - 1))
    rounds = rounds_beside(tiles, multiprocessors, taken)
    assert rounds.alone <= rounds.beside
    assert rounds_beside(tiles, multiprocessors, 0).slowdown == 1
    assert rounds_beside(tiles + 1, multiprocessors, taken).beside >= rounds.beside


def test_drawn_products_take_as_much_longer_as_their_rounds_say() -> None:
    measured = json.loads(MEASURED.read_text())
    rows = [row for row in measured["rows"] if row["kind"] == "mm"]
    machine = find_model("H200").machine
    m, n, k = np.array([row["shape"] for row in rows], dtype=float).T
    ones = np.ones(len(rows))
    tiles = count_tiles((ones, m, n, k), 16 * ones, 2 * ones, machine.peak("bfloat16") * ones, machine)
    taken = find_sharing("NVIDIA H200").multiprocessors
    assert taken == max(measured["collective_blocks"].values())
    errors = [
        rounds_beside(int(count), machine.num_multiprocessors, taken).slowdown * row["alone_us"] / row["beside_us"] - 1
        for count, row in zip(tiles, rows, strict=True)
    ]
    assert statistics.mean(abs(error) for error in errors) < 0.04


def test_a_product_has_the_same_tiles_as_a_launch_and_as_an_eager_call() -> None:
    machine = find_model("H200").machine
    shapes = {"left": (4096, 2048), "right": (2048, 8192), "out": (4096, 8192)}
    buffers = [
        make_buffer(name=name, role="output" if name == "out" else "input", dtype="bfloat16", shape=shape)
        for name, shape in shapes.items()
    ]
    launch = make_launch(
        category="extern", call="extern_kernels.mm", kernel_name="extern_kernels.mm", aten_ops=("aten.mm",),
        buffers=tuple(buffers),
    )  # fmt: skip
    arguments = tuple(TensorArgument(shapes[name], "bfloat16", (shapes[name][1], 1)) for name in ("left", "right"))
    call = make_step_call(order=3, name="aten::mm", kernels=1, arguments=arguments)
    (of_launch,) = tiles_of_launches([launch], machine).values()
    assert tiles_of_calls([call], machine) == {3: of_launch}
    assert of_launch >= 4096 * 8192 / (320 * 256)
    assert tiles_of_calls([make_step_call(name="aten::add")], machine) == {}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", PRODUCT),
        ("aten::_scaled_mm", PRODUCT),
        ("aten::cudnn_convolution", PRODUCT),
        ("aten::_scaled_dot_product_flash_attention", ATTENTION),
        ("aten::_thnn_fused_lstm_cell", OTHER),
        ("aten::sort", OTHER),
    ],
)
def test_what_a_call_is_to_a_collective_follows_from_the_one_table(name: str, kind: str) -> None:
    assert sharing_of(make_step_call(name=name)) == kind
    called = name.replace("aten::", "aten.")
    launch = make_launch(category="extern", kernel_name=called, call=f"torch.ops.{called}.default", aten_ops=(called,))
    assert sharing_of(launch) == kind


def test_a_template_is_what_is_fused_into_it() -> None:
    assert sharing_of(make_launch(category="template", aten_ops=("aten.mm", "aten.relu"))) == PRODUCT
    assert sharing_of(make_launch(category="template", aten_ops=())) == PRODUCT
    assert sharing_of(make_launch(category="pointwise", aten_ops=("aten.mm",))) == OTHER
