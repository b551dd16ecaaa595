"""Kernel launches: their features, their families, and what is learned of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from factories import make_buffer, make_h200, make_launch, make_machine
from launch_times import make_launch_set, pointwise, product
from torchledger.device.datasheets import device_of_name
from torchledger.errors import FitError
from torchledger.expecting.launch_families import family_of
from torchledger.expecting.launch_features import features_of_launches
from torchledger.fitting.fit_data import fit_launches
from torchledger.fitting.launches import (
    align_columns,
    build_launch_tables,
    evaluate_on_programs,
    join_launch_tables,
    machine_of_launches,
)
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Access, LoopNest
from torchledger.store.launch_file import MeasuredLaunch

_MACHINE = make_machine("TEST", 132, {"bfloat16": 5e8}, 3e6, 1.5)


@pytest.mark.parametrize(
    ("category", "name", "family"),
    [
        ("extern", "extern_kernels.mm", "launch:gemm/any"),
        ("extern", "extern_kernels.addmm", "launch:gemm/any"),
        ("extern", "extern_kernels.bmm", "launch:gemm/any"),
        ("extern", "extern_kernels.convolution", "launch:convolution/forward"),
        ("extern", "torch.ops.aten.convolution_backward.default", "launch:convolution/backward"),
        ("extern", "torch.ops.aten._scaled_dot_product_flash_attention.default", "launch:attention/forward"),
        ("extern", "torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default", "launch:attention/backward"),
        ("extern", "torch.ops.aten.cumsum.default", "launch:library/other"),
        ("pointwise", "triton_poi_fused_add_0", "launch:fused/pointwise"),
        ("nop", "", None),
    ],
)
def test_launches_find_their_family_by_category_and_name(category: str, name: str, family: str | None) -> None:
    assert family_of(make_launch(category=category, kernel_name=name)) == family


def test_a_loop_that_reduces_makes_a_reduction() -> None:
    launch = make_launch(category="reduction", loops=(LoopNest(extents=(8,), reduction_extents=(16,)),))
    assert family_of(launch) == "launch:fused/reduction"


def test_a_launch_of_unknown_bytes_has_no_features() -> None:
    launch = pointwise(64, 64, 1)
    unknown = replace(launch, buffers=(make_buffer(bytes_read=None),))
    assert features_of_launches([unknown], _MACHINE) == [None]


def test_a_product_of_wide_elements_is_not_priced_with_half_precision_tiles() -> None:
    machine = make_h200(floor_us=1.06)

    def baseline_us(dtype: str) -> float:
        launch = product(2048, 2048, 2048)
        buffers = tuple(replace(buffer, dtype=dtype) for buffer in launch.buffers)
        (features,) = features_of_launches([replace(launch, buffers=buffers)], machine)
        assert features is not None
        return features.baseline_us

    assert baseline_us("float64") >= baseline_us("float32") > 5 * baseline_us("bfloat16")


def test_a_product_of_integers_has_the_roofline_of_elements_as_large() -> None:
    machine = make_h200(floor_us=1.06)

    def roofline_us(dtype: str) -> float:
        launch = product(4096, 4096, 4096)
        buffers = tuple(replace(buffer, dtype=dtype) for buffer in launch.buffers)
        (features,) = features_of_launches([replace(launch, buffers=buffers)], machine)
        assert features is not None
        return features.roofline_us

    assert roofline_us("int8") == roofline_us("float8_e4m3fn") <= roofline_us("bfloat16") < roofline_us("float32")


def test_a_launch_of_elements_of_unknown_size_has_no_features() -> None:
    access = Access("x", "load", "p", (1,), "float7")
    fused = replace(pointwise(64, 64, 1), loops=(LoopNest((64,), accesses=(access,)),))
    library = product(64, 64, 64)
    library = replace(library, buffers=tuple(replace(buffer, dtype="float7") for buffer in library.buffers))
    assert features_of_launches([fused, library], _MACHINE) == [None, None]


def test_what_two_nests_of_one_pass_both_compute_counts_once() -> None:
    def vector_time(category: str, *nests: LoopNest) -> float:
        (found,) = features_of_launches([make_launch(category=category, loops=nests)], _MACHINE)
        assert found is not None
        return found.values["log vector time"]

    sums = LoopNest((4096,), (1024,), {"exp": 2, "sum": 1}, (), "sum")
    stores = LoopNest((4096, 1024), ops={"exp": 2, "mul": 1})
    added = LoopNest((4096, 1024), ops={"mul": 1})
    together = vector_time("persistent_reduction", sums, stores)
    assert together == pytest.approx(vector_time("persistent_reduction", sums, added))
    assert vector_time("reduction", sums, stores) > together


def test_a_buffer_just_written_is_warm_and_one_long_ago_is_cold() -> None:
    def reading(name: str, megabytes: int, order: int) -> object:
        buffer = make_buffer(name=name, role="input", dtype="bfloat16", bytes_read=megabytes * 10**6, bytes_written=0)
        return replace(pointwise(64, 64, 1, order=order), buffers=(buffer,))

    launches = [reading("x", 4, 0), reading("x", 4, 1), reading("other", 500, 2), reading("x", 4, 3)]
    warm = [f.values["warm share"] for f in features_of_launches(launches, _MACHINE) if f]  # type: ignore[arg-type]
    assert warm == [0.0, 1.0, 0.0, 0.0]


def test_another_graph_begins_with_nothing_in_the_cache() -> None:
    first, second = pointwise(64, 64, 1, graph="forward_0"), pointwise(64, 64, 1, graph="backward_0")
    features = features_of_launches([first, second], _MACHINE)
    assert features[0] == features[1]


def test_accesses_are_told_apart_by_the_loop_that_threads_walk_along() -> None:
    def access(strides: tuple[int, ...], **changes: object) -> Access:
        return Access("x", "load", "p", strides, "bfloat16", **changes)  # type: ignore[arg-type]

    accesses = (access((64, 1)), access((64, 1)), access((0, 0)), access((1, 64)), access((64, 1), is_indirect=True))
    launch = replace(pointwise(64, 64, 1), loops=(LoopNest((64, 64), accesses=accesses),))
    (features,) = features_of_launches([launch], _MACHINE)
    assert features is not None
    shares = [features.values[f"{kind} share"] for kind in ("contiguous", "broadcast", "strided", "indirect")]
    assert shares == pytest.approx([0.4, 0.2, 0.2, 0.2])


def test_a_product_is_described_by_its_sides_and_layout() -> None:
    (features,) = features_of_launches([product(256, 512, 128)], _MACHINE)
    assert features is not None and features.family == "launch:gemm/any"
    assert [round(math.exp(features.values[f"log {side}"])) for side in "mnk"] == [256, 128, 512]
    assert features.values["left by columns"] == 0


def test_a_table_joined_with_another_keeps_both_and_fills_what_one_lacks_with_zeros() -> None:
    items = [MeasuredLaunch(product(64, 64, size), (3.0,), f"program-{size}") for size in (32, 64, 96)]
    (one,), (other,) = (build_launch_tables(some, _MACHINE)[0].values() for some in (items[:1], items[1:]))
    lacks = replace(other, names=other.names[:-1], values=other.values[:, :-1])
    both = join_launch_tables(lacks, one)
    assert list(both.programs) == ["program-64", "program-96", "program-32"] and len(both.times_us) == 3
    assert set(both.names) == set(one.names) and both.n_range == one.n_range
    assert (align_columns(both.values, both.names, one.names)[:2, -1] == 0).all()
    assert (align_columns(both.values, both.names, one.names)[2] == one.values[0]).all()


def test_the_fit_learns_the_made_up_device_and_sums_come_out() -> None:
    train, test = make_launch_set(80), make_launch_set(20, seed=1)
    model = TimeModel("TEST", machine_of_launches(device_of_name("TEST"), train.launches), {})
    entries, refused = fit_launches(train.launches, model)
    assert not refused and set(entries) == {"launch:fused/pointwise", "launch:gemm/any"}
    tables, _ = build_launch_tables(test.launches, model.machine)
    learned, _ = build_launch_tables(train.launches, model.machine)
    evaluations, programs = evaluate_on_programs(entries, tables, train=learned)
    for evaluation in evaluations:
        assert evaluation.model.mape < 12
        assert evaluation.model.mape < evaluation.baselines["roofline"].mape
    assert len(programs) == 40
    assert abs(sum(item.sum_error_pct for item in programs)) / len(programs) < 5
    measured = sum(item.duration_us or 0.0 for item in test.launches)
    assert sum(item.measured_us for item in programs) == pytest.approx(measured)
    assert all(item.forest is not None and item.forest.mape > item.errors.mape / 2 for item in programs)


def test_a_family_of_few_programs_is_refused_and_the_others_go_on() -> None:
    train = make_launch_set(30)
    few = {f"program-0-{number}" for number in range(5)}
    kept = [item for item in train.launches if item.launch.category == "pointwise" or item.program in few]
    model = TimeModel("TEST", machine_of_launches(device_of_name("TEST"), kept), {})
    entries, refused = fit_launches(kept, model)
    assert list(entries) == ["launch:fused/pointwise"]
    assert [item.subject for item in refused] == ["launch:gemm/any"]


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(FitError, match="no launch was measured"):
        machine_of_launches(
            device_of_name("TEST"), [replace(item, times_us=()) for item in make_launch_set(2).launches]
        )
