"""Costs of eager calls: found again from calls that obey them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from torchledger.errors import FitError
from torchledger.fitting.call_costs import (
    CallCost,
    bytes_of_call,
    cost_keys,
    cost_of,
    elements_of,
    fit_call_costs,
    fit_rooflines,
    known_name,
    read_calls,
    roofline_keys,
    steps_along,
)
from torchledger.nouns import TensorArgument
from torchledger.work.settings import Settings

_BYTES_PER_US = 4e6


def _row(cost: CallCost, kernels: int, bytes_moved: int, **changes: Any) -> dict[str, Any]:
    us = cost.duration_us(kernels, bytes_moved, _BYTES_PER_US)
    fields = {"name": "aten::sort", "kernels": kernels, "bytes_moved": bytes_moved, "us": us, "arguments": []}
    return fields | changes


def test_costs_are_found_again_from_calls_that_obey_them() -> None:
    true = CallCost(3.0, 5.0, 0.0)
    rows = [_row(true, 1 + place % 4, 2 ** (10 + place)) for place in range(18)]
    found = cost_of(cost_keys("aten::sort"), fit_call_costs(rows, _BYTES_PER_US))
    assert found is not None
    assert found.kernel_us == pytest.approx(3.0, rel=0.15) and found.slowness == pytest.approx(5.0, rel=0.15)


def test_too_few_calls_and_unknown_bytes_teach_nothing() -> None:
    true = CallCost(3.0, 5.0, 0.0)
    assert not fit_call_costs([_row(true, 1, 4096)] * 3, _BYTES_PER_US)
    assert not fit_call_costs([_row(true, 1, 4096) | {"bytes_moved": None}] * 9, _BYTES_PER_US)


def test_a_large_call_is_not_priced_by_what_small_ones_took() -> None:
    small, large = ((64,), "int64", (1,)), ((64, 128), "float32", (128, 1))
    rows = [_row(CallCost(1.0, 60.0, 0.0), 1, 2**place, arguments=[small]) for place in range(6, 14)]
    rows += [_row(CallCost(1.0, 1.0, 0.0), 1, 2**place, arguments=[large]) for place in range(14, 28)]
    costs = fit_call_costs(rows, _BYTES_PER_US)
    keys = cost_keys("aten::sort", [TensorArgument(*small)])
    near, far = (cost_of(keys, costs, bytes_moved) for bytes_moved in (2**13, 2**26))
    assert near == cost_of(keys, costs) and far == cost_of(("aten::sort",), costs) and near != far
    assert cost_of(keys[:1], costs, 2**26) == near, "what is known of small ones is nearer than nothing"


def test_a_call_is_known_by_its_dtype_and_layout_first() -> None:
    dense, across = ((64, 128), "float16", (128, 1)), ((64, 128), "float16", (1, 64))
    rows = [_row(CallCost(2.0, 1.0, 0.0), 1, 2**place, arguments=[dense]) for place in range(12, 24)]
    rows += [_row(CallCost(2.0, 9.0, 0.0), 1, 2**place, arguments=[across]) for place in range(12, 24)]
    costs = fit_call_costs(rows, _BYTES_PER_US)
    slowness = [cost_of(cost_keys("aten::sort", [TensorArgument(*first)]), costs) for first in (dense, across)]
    assert all(slowness) and slowness[1].slowness > 4 * slowness[0].slowness  # type: ignore[union-attr]
    other = cost_of(cost_keys("aten::sort", [TensorArgument((64, 128), "float64", (128, 1))]), costs)
    assert other == cost_of(cost_keys("aten::sort"), costs)


def test_a_softmax_is_known_by_the_length_of_its_rows_and_a_loss_by_how_many_it_has() -> None:
    short, long = ([TensorArgument((512, columns), "float32", (columns, 1))] for columns in (1000, 50257))
    assert cost_keys("aten::_log_softmax", short)[0] != cost_keys("aten::_log_softmax", long)[0]
    assert cost_keys("aten::_log_softmax", short)[1:] == cost_keys("aten::_log_softmax", long)[1:]
    few, many = (
        cost_keys("aten::nll_loss_forward", [TensorArgument((rows, 10), "float32", (10, 1))])[0] for rows in (64, 4096)
    )
    assert few != many
    nothing = TensorArgument((), "float32", ())
    assert cost_keys("aten::_log_softmax", [nothing]) == ("aten::_log_softmax float32", "aten::_log_softmax")


def test_rows_that_do_not_follow_one_another_and_an_optimizer_beside_a_scaler_are_known_apart() -> None:
    dense, padded = (
        cost_keys(name, [TensorArgument((8, 30522), "bfloat16", (row, 1))])
        for name in ("aten::_to_copy",)
        for row in (30522, 30528)
    )
    assert not set(dense) & set(padded)
    named = [known_name(name, beside_scaler=True) for name in ("aten::_fused_adamw_", "aten::_foreach_mul_")]
    assert named == ["aten::_fused_adamw_ scaled", "aten::_foreach_mul_"]
    assert known_name("aten::_fused_adamw_", beside_scaler=False) == "aten::_fused_adamw_"


def test_nothing_is_quicker_than_the_memory() -> None:
    cost = CallCost(1.0, 0.5, 0.1)
    assert cost.duration_us(1, 2**30, _BYTES_PER_US) > 0.8 * 2**30 / _BYTES_PER_US


def test_lines_that_are_joined_are_as_other_tensors_and_not_as_what_else_goes_through_lines() -> None:
    line = [TensorArgument((4096,), "bfloat16", (1,))] * 2
    keys = cost_keys("aten::cat", line, (("dim", (0,)),))
    assert keys == ("aten::cat whole bfloat16", "aten::cat whole", "aten::cat bfloat16", "aten::cat")
    flipped = cost_keys("aten::flip", line[:1], (("dims", (0,)),))
    placed = cost_keys("aten::gather", [*line[:1], TensorArgument((8,), "int64", (1,))], (("dim", (0,)),))
    assert "along dimensions: move whole" in flipped and "along dimensions: place whole" in placed


def test_a_copy_into_channels_last_is_known_apart_from_one_in_its_own_layout() -> None:
    picture = [TensorArgument((8, 64, 56, 56), "float16", (200_704, 3136, 56, 1))]
    plain = cost_keys("aten::clone", picture, ())
    turned = cost_keys("aten::clone", picture, (("memory_format", (2,)),))
    assert plain[0] == "aten::clone float16"
    assert turned[0] == "aten::clone across float16"


def test_a_cast_that_training_does_not_make_is_priced_by_the_wider_number() -> None:
    given = [TensorArgument((1024, 1024), "float32", (1024, 1))]
    usual = cost_keys("aten::_to_copy", given, (("dtype", (15,)),))
    doubled = cost_keys("aten::_to_copy", given, (("dtype", (7,)),))
    assert usual == cost_keys("aten::_to_copy", given, ())
    assert doubled[0] == "aten::_to_copy to float64 float32"
    assert "element-wise, 8 bytes" in doubled


@pytest.mark.parametrize(
    ("dtype", "settings", "expected"),
    [("float32", (("dtype", (7,)),), 12), ("float32", (), 6), ("bfloat16", (), 6), ("int64", (), 16)],
)
def test_a_cast_moves_what_it_reads_and_what_it_makes(dtype: str, settings: Settings, expected: int) -> None:
    given = [TensorArgument((10,), dtype, (1,))]
    assert bytes_of_call("aten::_to_copy", given, settings, 160) == 10 * expected
    assert bytes_of_call("aten::clone", given, settings, 160) == 160


def test_calls_in_steps_of_programs_are_believed_before_those_of_batteries() -> None:
    in_steps = [_row(CallCost(20.0, 1.0, 0.0), 1, 2**place, program="sealed-1") for place in range(10, 20)]
    of_batteries = [_row(CallCost(2.0, 1.0, 0.0), 1, 2**place, program="battery-1") for place in range(10, 24)]
    found = [
        cost_of(cost_keys("aten::sort"), fit_call_costs(rows, _BYTES_PER_US))
        for rows in (in_steps + of_batteries, in_steps[:3] + of_batteries)
    ]
    assert found[0] is not None and found[0].kernel_us == pytest.approx(20.0, rel=0.15)
    assert found[1] is not None and found[1].kernel_us == pytest.approx(2.0, rel=0.15)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "calls.json.gz"
    path.write_bytes(b"x")
    with pytest.raises(FitError, match=r"calls\.json\.gz is no file of eager calls"):
        read_calls(path)
    path.write_bytes(gzip.compress(json.dumps([{"name": "aten::add", "us": 1.0}]).encode()))
    assert read_calls(path)[0]["name"] == "aten::add"


def test_how_many_kernels_an_operator_launches_is_learned_for_calls_that_no_device_ran() -> None:
    rows = [_row(CallCost(3.0, 1.0, 0.0), 5, 2 ** (10 + place)) for place in range(9)]
    found = cost_of(cost_keys("aten::sort"), fit_call_costs(rows, _BYTES_PER_US))
    assert found is not None and found.kernels == 5
    single = [_row(CallCost(3.0, 1.0, 0.0), 1, 2 ** (10 + place)) for place in range(9)]
    costs = fit_call_costs(single, _BYTES_PER_US)
    assert not any(name.endswith(" kernels") for name in costs)


def _matrix(rows: int, columns: int, stride: tuple[int, int], dtype: str = "bfloat16") -> TensorArgument:
    return TensorArgument((rows, columns), dtype, stride)


def test_an_elementwise_call_that_was_not_learned_costs_what_others_of_its_layout_do() -> None:
    size = 512
    wide, true = [2 * size, 1], CallCost(2.0, 0.1, 0.0, element_us=3.0)
    rows = []
    for place in range(12):
        count = 2 ** (8 + place)
        us = true.duration_us(1, 4 * size * count, _BYTES_PER_US, elements=size * count)
        tensors = [((count, size), "bfloat16", wide), ((count, size), "bfloat16", [size, 1])]
        rows.append(_row(true, 1, 4 * size * count, name="aten::mul", arguments=tensors, us=us))
    costs = fit_call_costs(rows, _BYTES_PER_US)
    padded, dense = _matrix(4096, size, (2 * size, 1)), _matrix(4096, size, (size, 1))
    found = cost_of(cost_keys("aten::silu_backward", [dense, padded]), costs)
    assert found is not None and found.element_us == pytest.approx(3.0, rel=0.25)
    assert cost_of(cost_keys("aten::silu_backward", [dense, dense]), costs) is None
    assert cost_of(cost_keys("aten::sort", [padded]), costs) is None


def test_a_call_of_more_elements_is_never_said_to_be_quicker() -> None:
    cost = CallCost(2.0, 1.0, 0.1, element_us=5.0)
    times = [cost.duration_us(1, 2**24, _BYTES_PER_US, elements=count) for count in (0, 10**5, 10**7, 10**9)]
    assert times == sorted(times) and times[-1] > 1000 * times[0] / 2


def test_what_one_block_goes_through_counts_by_the_channel_and_by_the_row() -> None:
    few, many = (
        elements_of("aten::native_batch_norm", [TensorArgument((8, channels, 16, 16), "float32", None)])
        for channels in (4, 64)
    )
    assert few == many > 0
    rows = [TensorArgument((), "float32", ()), TensorArgument((4096, 10), "float32", (10, 1))]
    assert elements_of("aten::nll_loss_backward", rows) == elements_of("aten::nll_loss_forward", rows[1:]) > 4096
    assert elements_of("aten::mm", rows[1:]) == 0 == elements_of("aten::mul", [])
    assert elements_of("aten::cat", [rows[1], rows[1]]) == 2 * 40960


def test_products_by_their_rooflines_are_learned_by_dtype_and_by_name() -> None:
    rows, rooflines = [], []
    for place in range(16):
        roofline_us = 2.0 ** (place / 2)
        tensors = [((2, 4, 8, 8, 8), "float16", None)]
        rows.append(
            {"name": "aten::convolution", "kernels": 2, "us": 2 * 3.0 + 4.0 * roofline_us, "arguments": tensors}
        )
        rooflines.append(roofline_us)
    costs = fit_rooflines(rows, rooflines)
    block = TensorArgument((1, 4, 4, 4, 4), "float16", None)
    found = cost_of(roofline_keys("aten::convolution", [block]), costs)
    assert found is not None and found.slowness == pytest.approx(4.0, rel=0.15)
    other = cost_of(roofline_keys("aten::convolution", [TensorArgument((1,), "float32")]), costs)
    assert other is not None and cost_of(roofline_keys("aten::mm", [block]), costs) is None
    assert not fit_rooflines(rows[:3], rooflines[:3])


def _along(rows: int, columns: int, dim: int, us: float) -> dict[str, Any]:
    return {
        "name": "aten::cumsum",
        "kernels": 1,
        "tensors": None,
        "elements": None,
        "bytes_moved": 8 * rows * columns,
        "flops": 0,
        "arguments": [[[rows, columns], "float32", [columns, 1]]],
        "us": us,
        "settings": {"dim": [dim]},
    }


def test_a_scan_down_columns_costs_by_its_rows_and_one_along_rows_by_its_bytes() -> None:
    down = [_along(rows, 64, 0, 2.0 + 0.3 * rows) for rows in (100, 300, 1000, 5000, 20_000, 90_000)]
    along = [_along(rows, 64, 1, 2.0 + 512 * rows / 3e6) for rows in (100, 300, 1000, 5000, 20_000, 90_000)]
    costs = fit_call_costs([*down, *along], _BYTES_PER_US)
    tensor = [TensorArgument((50_000, 64), "float32", (64, 1))]
    for dim, expected in ((0, 15_000.0), (1, 10.5)):
        settings = (("dim", (dim,)),)
        cost = cost_of(cost_keys("aten::cumsum", tensor, settings), costs)
        assert cost is not None
        steps = steps_along("aten::cumsum", tensor, settings)
        said = cost.duration_us(1, 8 * 50_000 * 64, _BYTES_PER_US, steps=steps)
        assert said == pytest.approx(expected, rel=0.4)


def test_integers_that_go_a_way_which_only_other_numbers_taught_are_as_these() -> None:
    down = [_along(rows, 64, 0, 2.0 + 0.3 * rows) for rows in (100, 300, 1000, 5000, 20_000, 90_000)]
    along = [
        {**_along(rows, 64, 1, 50.0 * rows), "arguments": [[[rows, 64], "int64", [64, 1]]]}
        for rows in range(100, 900, 100)
    ]
    costs = fit_call_costs([*down, *along], _BYTES_PER_US)
    tensor, settings = [TensorArgument((50_000, 64), "int64", (64, 1))], (("dim", (0,)),)
    cost = cost_of(cost_keys("aten::cumsum", tensor, settings), costs)
    assert cost is not None and cost.step_us == pytest.approx(0.3, rel=0.3)


def test_a_call_that_was_not_learned_is_like_others_of_its_family_that_go_its_way() -> None:
    down = [_along(rows, 64, 0, 2.0 + 0.3 * rows) for rows in (100, 300, 1000, 5000, 20_000, 90_000)]
    costs = fit_call_costs(down, _BYTES_PER_US)
    tensor = [TensorArgument((50_000, 64), "float32", (64, 1))]
    assert cost_of(cost_keys("aten::cumprod", tensor, (("dim", (0,)),)), costs) is not None
    assert cost_of(cost_keys("aten::cumprod", tensor, (("dim", (1,)),)), costs) is None
    assert cost_of(cost_keys("aten::cumprod", tensor), costs) is None


def test_complex_numbers_are_no_integers_to_a_sum() -> None:
    settings = (("dim", (0,)),)
    of_dtype = {
        dtype: cost_keys("aten::sum", [TensorArgument((8, 512), dtype, (512, 1))], settings)
        for dtype in ("float32", "complex64", "int64")
    }
    assert "aten::sum outer of integers" in of_dtype["int64"]
    assert not any("integers" in key for dtype in ("float32", "complex64") for key in of_dtype[dtype])
    assert "aten::sum outer" in of_dtype["complex64"]


def test_the_largest_of_one_row_are_found_as_those_of_several() -> None:
    settings: Settings = (("k", (4,)), ("dim", (1,)))
    one, several = (
        cost_keys("aten::topk", [TensorArgument((rows, 50_000), "float32", (50_000, 1))], settings) for rows in (1, 8)
    )
    assert one == several and "aten::topk inner" in one
    assert steps_along("aten::topk", [TensorArgument((1, 2**27), "float32", (2**27, 1))], settings) == 0
    assert steps_along("aten::topk", [TensorArgument((30, 4000), "float32", (4000, 1))], settings) > 0


def test_calls_on_sparse_tensors_teach_nothing_of_those_on_others() -> None:
    true = CallCost(3.0, 5.0, 0.0)
    rows = [_row(true, 1, 2 ** (10 + place), name="aten::add_") for place in range(18)]
    of_sparse = [
        _row(CallCost(300.0, 500.0, 0.0), 1, 10**6, name="aten::add_", arguments=[[[64, 8], "float32", None, 4000]])
        for _ in range(18)
    ]
    assert fit_call_costs([*rows, *of_sparse], _BYTES_PER_US) == fit_call_costs(rows, _BYTES_PER_US)
