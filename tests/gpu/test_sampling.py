"""Sampling on a real CUDA device."""

from __future__ import annotations

import statistics

import pytest

torch = pytest.importorskip("torch")

from torchledger.operators import find_operator, operator_names  # noqa: E402
from torchledger.sampling.cases import InputPool  # noqa: E402
from torchledger.sampling.independent import PointReplay, gap_between_kernels_us, without_gaps  # noqa: E402
from torchledger.sampling.points import Plan, Point, save_plan, unique_points  # noqa: E402
from torchledger.sampling.timing import CuptiTimer, make_timer  # noqa: E402
from torchledger.sampling.worker import run_worker  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

SHAPE = {
    "mp": 2, "b": 2, "h": 8, "l": 256, "dim": 512, "experts": 4, "intermediate": 512, "top_k": 2, "encoders": 1,
    "m": 256, "k": 256, "n": 256, "rows": 300, "numel": 100_000, "tokens": 500, "vocab": 1000, "d": 64, "sequences": 3,
    "c_in": 16, "height": 32, "width": 32, "c_out": 32, "kernel": 3, "groups": 2,
}  # fmt: skip


def point(name: str, dtype: str) -> Point:
    operator = find_operator(name)
    return Point(operator.key, operator.resolve({key: SHAPE[key] for key in operator.parameters}), dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e4m3fn"])
def test_every_operator_is_timed_by_cupti(dtype):
    points = [point(name, dtype) for name in operator_names() if dtype in find_operator(name).dtypes]
    timer = make_timer("cuda:0")
    assert isinstance(timer, CuptiTimer)
    results = list(timer.measure(points, warmup=2, active=5))
    assert {r.point.operator: r.reason for r in results if r.status != "ok"} == {}
    for result in results:
        for times in result.directions.values():
            assert len(times.times_us) == 5
            assert all(0 < us <= span * 1.001 for us, span in zip(times.times_us, times.spans_us, strict=True))


def test_a_long_kernel_agrees_with_its_replay_as_a_cuda_graph():
    large = Point("linear", {"m": 4096, "k": 4096, "n": 4096, "bias": 0}, "bfloat16")
    timer = make_timer("cuda:0")
    (tiny, result) = timer.measure([Point("add", {"numel": 1}, "float32"), large], warmup=2, active=10)
    gap = gap_between_kernels_us(kernel_us=statistics.median(tiny.directions["forward"].times_us))
    kernels = {name: len(times.kernels) for name, times in result.directions.items()}
    replayed = without_gaps(PointReplay(large, InputPool("cuda:0")).times_us(), kernels, gap)
    for direction, times in result.directions.items():
        assert statistics.median(times.times_us) == pytest.approx(replayed[direction], rel=0.1)


def test_a_shape_that_does_not_fit_is_recorded_and_the_next_is_measured(tmp_path):
    points = [Point("gelu", {"numel": 2**36}, "float32"), Point("gelu", {"numel": 2**20}, "float32")]
    save_plan(Plan(unique_points(points), 1, 3), tmp_path)
    summary = run_worker(tmp_path, device="cuda:0")
    assert (summary.measured, summary.failed) == (2, 1)
