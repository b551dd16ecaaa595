"""Products that Inductor's templates do, and the library's launch that stands for each."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from factories import make_buffer, make_launch
from torchledger.expecting.template_products import template_product
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Buffer, Launch
from torchledger.predicting.devices import find_model
from torchledger.predicting.launches import predict_launches
from torchledger.store.launch_file import read_launches

RECORDED = Path(__file__).resolve().parents[3] / "data" / "h200" / "templates_torch2.11.launches"


@pytest.fixture(scope="module")
def h200() -> TimeModel:
    return find_model("H200")


def _buffer(name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Buffer:
    size = 2 * math.prod(shape)
    dense = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    is_written = name == "out"
    return make_buffer(
        name=name, role="output" if is_written else "input", dtype="bfloat16", shape=shape, stride=strides or dense,
        device="cuda:0", bytes_read=0 if is_written else size, bytes_written=size if is_written else 0,
    )  # fmt: skip


def _template(*buffers: Buffer, flops: int, operator: str = "mm", **changes: str) -> Launch:
    kind = {"category": "template", "kernel_name": "triton_tem_fused_mm_0", "device": "cuda:0"} | changes
    return make_launch(aten_ops=("aten.relu", f"aten.{operator}"), flops=flops, buffers=buffers, **kind)


def test_sizes_follow_from_what_is_computed_and_written_and_are_asked_aligned() -> None:
    launch = _template(
        _buffer("x", (4, 30, 96)), _buffer("w", (50, 96)), _buffer("out", (120, 50)), flops=2 * 120 * 96 * 50
    )
    found = template_product(launch)
    assert found is not None and found.further_bytes == 0
    left, right, out = found.launch.buffers
    assert (left.shape, left.stride) == ((120, 96), (96, 1))
    assert (right.shape, right.stride) == ((96, 56), (1, 96)), "a weight is stored by columns, and rows are aligned"
    assert out.shape == (120, 56) and found.launch.kernel_name == "extern_kernels.mm"


def test_a_gradient_of_a_weight_reads_its_factors_by_columns() -> None:
    launch = _template(
        _buffer("gradient", (2048, 640)), _buffer("x", (2048, 320)), _buffer("out", (640, 320)),
        flops=2 * 640 * 2048 * 320,
    )  # fmt: skip
    found = template_product(launch)
    assert found is not None
    assert [buffer.stride for buffer in found.launch.buffers] == [(1, 640), (320, 1), (320, 1)]


def test_batches_stay_apart_and_what_is_fused_counts_beside() -> None:
    residual = _buffer("residual", (12, 128, 64))
    launch = _template(
        _buffer("a", (12, 128, 256)), _buffer("b", (12, 256, 64)), residual, _buffer("out", (12, 128, 64)),
        flops=2 * 12 * 128 * 256 * 64, operator="bmm",
    )  # fmt: skip
    found = template_product(launch)
    assert found is not None and found.further_bytes == residual.bytes_read
    assert [buffer.shape for buffer in found.launch.buffers] == [(12, 128, 256), (12, 256, 64), (12, 128, 64)]
    assert found.launch.kernel_name == "extern_kernels.bmm"


@pytest.mark.parametrize(
    "changes", [{"category": "extern"}, {"device": "cpu"}, {"operator": "convolution"}, {"flops": 0}]
)
def test_other_launches_stand_for_themselves(changes: dict[str, object]) -> None:
    given = {"flops": 2 * 64 * 64 * 64} | changes
    launch = _template(_buffer("a", (64, 64)), _buffer("b", (64, 64)), _buffer("out", (64, 64)), **given)  # type: ignore[arg-type]
    assert template_product(launch) is None


def test_templates_of_a_recording_are_priced_near_what_they_took(h200: TimeModel) -> None:
    rows = [item for item in read_launches(RECORDED).launches if item.launch.category == "template"]
    said = predict_launches(h200, [item.launch for item in rows])
    off = np.array(
        [each.duration_us / item.duration_us for each, item in zip(said, rows, strict=True) if item.duration_us]
    )
    assert len(off) > 200 and np.mean(np.abs(off - 1)) < 0.25
    assert all("templates" in str(each.note) for each in said)
    assert all(each.low_us < each.duration_us < each.high_us for each in said)
