"""How far a set of samples is, and what it cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import make_sample
from torchledger.errors import SampleError
from torchledger.sampling.journal import Journal
from torchledger.sampling.points import Plan, Point, point_id, save_plan
from torchledger.sampling.progress import progress_of, set_progress


def test_what_passed_between_two_groups_is_shared_by_the_points_of_the_second() -> None:
    progress = progress_of([make_sample("a", 10.0), make_sample("b", 14.0), make_sample("c", 14.0, "add")])
    assert progress.wall_s == 4.0
    assert {row.operator: row.wall_s for row in progress.operators} == {"gelu": 2.0, "add": 2.0}
    assert progress.points_per_s == 0.5  # the first group's beginning is not known, so that it does not count
    assert progress.device_within_s == pytest.approx(progress.device_s * 2 / 3)


def test_a_pause_is_no_cost_and_is_counted() -> None:
    progress = progress_of([make_sample("a", 0.0), make_sample("b", 1.0), make_sample("c", 5000.0)])
    assert (progress.wall_s, progress.pauses) == (1.0, 1)
    assert progress.curve == ((0.0, 1), (1.0, 2), (1.0, 3))


def test_both_directions_of_a_shape_are_one_point_and_two_labels() -> None:
    progress = progress_of([make_sample("a", 1.0), make_sample("a", 1.0, direction="backward")])
    assert (progress.finished, progress.labels) == (1, 2)


def test_what_is_planned_and_not_begun_is_in_the_table() -> None:
    planned = {("gelu", "float32"): 3, ("add", "float32"): 5}
    progress = progress_of([make_sample("a", 0.0), make_sample("b", 2.0)], planned)
    assert (progress.planned, progress.finished) == (8, 2)
    assert {row.operator: (row.finished, row.planned) for row in progress.operators} == {"gelu": (2, 3), "add": (0, 5)}
    assert progress.remaining_s == 6 / 0.5


def test_without_times_of_day_nothing_is_said_of_cost() -> None:
    progress = progress_of([make_sample("a", None)])
    assert progress.wall_s is progress.points_per_s is progress.remaining_s is None
    assert progress.operators[0].wall_s is None
    assert progress.device_s == pytest.approx(10e-6)


def test_failed_labels_are_counted_with_their_reasons() -> None:
    bad = make_sample("b", 2.0, status="out_of_memory", times_us=(), reason="needs 300 GB")
    progress = progress_of([make_sample("a", 1.0), bad])
    assert progress.statuses == {"ok": 1, "out_of_memory": 1}
    assert progress.failures == {"gelu out_of_memory: needs 300 GB": 1}


def test_a_folder_that_was_interrupted_tells_how_far_it_came(tmp_path: Path) -> None:
    points = tuple(Point("gelu", {"numel": size}, "float32") for size in (64, 128, 256))
    plan = Plan(points)
    save_plan(plan, tmp_path)
    name = point_id("gelu", points[0].parameters, "float32", "H200", plan.protocol)
    with Journal(tmp_path, {"device": "H200", "versions": {"torch": "2.11"}}) as journal:
        journal.finish((name, [make_sample(name, 5.0)]))
        journal.attempt([point_id("gelu", points[1].parameters, "float32", "H200", plan.protocol)])
    progress = set_progress(tmp_path)
    assert (progress.finished, progress.planned, progress.devices) == (1, 3, ("H200",))


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="no folder of samples"):
        set_progress(tmp_path)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1e4), st.sampled_from(["gelu", "add"])), max_size=40))
def test_costs_of_operators_add_up_to_the_whole(rows: list[tuple[int, float, str]]) -> None:
    samples = [make_sample(f"{operator}{point}", utc, operator) for point, utc, operator in rows]
    progress = progress_of(samples)
    costs = [row.wall_s or 0.0 for row in progress.operators]
    assert sum(costs) == pytest.approx(progress.wall_s or 0.0)
    moments = sorted({sample.measured_utc or 0.0 for sample in samples})
    assert (progress.wall_s or 0.0) <= (moments[-1] - moments[0] if moments else 0.0) + 1e-6
    assert [count for _, count in progress.curve] == sorted(count for _, count in progress.curve)
    assert sum(row.finished for row in progress.operators) == progress.finished
