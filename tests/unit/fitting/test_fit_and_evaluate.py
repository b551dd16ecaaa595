"""From samples to a model and its error."""

from __future__ import annotations

import dataclasses
import operator
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from factories import make_device, make_machine
from times import make_linear_samples
from torchledger.errors import FitError
from torchledger.expecting.operator_features import operator_features
from torchledger.expecting.rounding import alignment
from torchledger.fitting import fit
from torchledger.fitting.evaluate import (
    errors_of,
    evaluate_table,
    extrapolation_split,
    grouped_split,
)
from torchledger.fitting.fit import in_processes
from torchledger.fitting.tables import build_tables, machine_of_tables, pool_tables, shape_groups
from torchledger.operators import find_operator, operator_names
from torchledger.predicting import predict
from torchledger.predicting.model_file import load_model, save_model
from torchledger.sampling.dataset import read_samples


def test_samples_without_a_usable_time_are_named_and_left_out() -> None:
    samples = make_linear_samples(3)
    bad = [
        dataclasses.replace(samples[0], times_us=(float("nan"),)),
        dataclasses.replace(samples[1], times_us=(-1.0,)),
        dataclasses.replace(samples[2], status="quarantined", reason="implies 7,000 TFLOP/s"),
    ]
    tables, left_out = build_tables([*bad, *samples[3:]])
    assert sum(len(table) for table in tables.values()) == 3
    assert [item.reason for item in left_out] == [
        "its time is nan us",
        "its time is -1.0 us",
        "implies 7,000 TFLOP/s",
    ]
    assert "linear forward bfloat16 m=" in left_out[0].subject


def test_an_operator_with_too_few_shapes_is_refused_and_the_rest_goes_on() -> None:
    many = [sample for sample in make_linear_samples(40) if sample.direction == "forward"]
    few = [sample for sample in make_linear_samples(4) if sample.direction == "backward"]
    model, left_out = fit([*many, *few], jobs=1)
    assert list(model.entries) == ["linear/forward"]
    assert left_out[0].subject == "linear/backward"
    assert "too few" in left_out[0].reason


def test_samples_of_two_devices_need_one_to_be_named() -> None:
    samples = [*make_linear_samples(20), *make_linear_samples(20, device="OTHER")]
    with pytest.raises(FitError, match="OTHER, TEST; a model is of one device"):
        fit(samples)


def test_no_shape_stands_on_both_sides_of_the_grouped_split() -> None:
    samples = make_linear_samples(30)
    tables, _ = build_tables([*samples, *samples])
    table = tables["linear/forward"]
    groups = shape_groups(table.features(make_machine("TEST", 100)))
    train = grouped_split(groups)
    assert not set(groups[train]) & set(groups[~train])
    assert groups[0] == 0 and groups.max() == 29


def test_the_extrapolation_split_holds_out_the_largest() -> None:
    tables, _ = build_tables(make_linear_samples(50))
    table = tables["linear/forward"]
    train = extrapolation_split(table)
    sizes = next(column for column in table.parameters.values() if column[train].max() < column[~train].min())
    assert 0.7 <= train.mean() <= 0.9 and sizes.size == 50


def test_a_fit_learns_the_made_up_device_and_beats_its_baselines() -> None:
    tables, _ = build_tables(make_linear_samples(250))
    table = tables["linear/forward"]
    evaluation = evaluate_table(table, machine_of_tables(make_device(name="TEST"), [table]), "grouped")
    assert evaluation.model.mape < 4
    assert evaluation.model.mape < evaluation.baselines["random forest on shapes"].mape / 2
    assert evaluation.model.mape < evaluation.baselines["roofline"].mape / 2


def test_errors_have_the_signs_and_quantiles_they_should() -> None:
    measured = np.array([100.0, 100.0, 100.0, 100.0])
    errors = errors_of(np.array([110.0, 90.0, 100.0, 120.0]), measured, low_us=measured - 5, high_us=measured + 5)
    assert errors.mape == pytest.approx(10) and errors.bias == pytest.approx(5)
    assert errors.coverage == pytest.approx(100)


def test_alignment_is_the_power_of_two_that_divides() -> None:
    assert alignment(np.array([1, 2, 12, 96, 256, 4096])).tolist() == [0, 1, 2, 5, 8, 8]


@pytest.mark.parametrize("name", operator_names())
def test_every_operator_of_the_catalogue_has_finite_features(name: str) -> None:
    operator = find_operator(name)
    sizes = {"mp": 2, "h": 4, "kernel": 3, "groups": 2, "top_k": 2, "experts": 4, "d": 64, "l": 128, "vocab": 512}
    parameters = {key: np.array([sizes.get(key, 256), sizes.get(key, 512)]) for key in operator.parameters}
    machine = make_machine("TEST", 132, {"bfloat16": 8e8}, 3e6, 2.0)
    for direction in operator.directions:
        features = operator_features(operator, parameters, direction, np.array(["bfloat16"] * 2), machine)
        assert features.values.shape == (2, len(features.names))
        assert np.isfinite(features.values).all() and np.isfinite(features.log_baseline).all()
        assert len(set(features.names)) == len(features.names)


def test_rows_of_several_units_are_told_apart_and_an_unknown_unit_gets_their_middle(tmp_path: Path) -> None:
    slow = [
        dataclasses.replace(s, times_us=(s.times_us[0] * 1.2,), telemetry={"unit": "b"})
        for s in make_linear_samples(120)
    ]
    quick = [dataclasses.replace(s, telemetry={"unit": "a"}) for s in make_linear_samples(120, seed=1)]
    model, _ = fit([s for s in (*slow, *quick) if s.direction == "forward"], jobs=1)
    entry = model.entries["linear/forward"]
    assert entry.units == ("a", "b")
    tables, _ = build_tables(make_linear_samples(40, seed=2))
    values = tables["linear/forward"].features(model.machine).values
    of_a, of_b, unknown = (np.mean(entry.predict(values, unit)[0]) for unit in ("a", "b", None))
    assert of_b - of_a == pytest.approx(np.log(1.2), abs=0.06)
    assert unknown == pytest.approx((of_a + of_b) / 2, abs=0.01)
    save_model(model, tmp_path / "units.tlmodel")
    read = load_model(tmp_path / "units.tlmodel").entries["linear/forward"]
    assert np.mean(read.predict(values, "a")[0]) == pytest.approx(of_a)


def test_a_row_has_the_same_features_whatever_stands_beside_it() -> None:
    machine = make_machine("TEST", 132, {"bfloat16": 8e8}, 3e6, 2.0)
    operator, sides = find_operator("linear"), {"m": 640, "k": 320, "n": 96}
    alone = {name: np.array([size]) for name, size in sides.items()} | {"bias": np.array([0])}
    beside = {name: np.array([size, size]) for name, size in sides.items()} | {"bias": np.array([0, 1])}
    for direction in ("forward", "backward"):
        one = operator_features(operator, alone, direction, np.array(["bfloat16"]), machine)
        two = operator_features(operator, beside, direction, np.array(["bfloat16"] * 2), machine)
        np.testing.assert_allclose(one.values[0], two.values[0])
        assert one.log_baseline[0] == pytest.approx(two.log_baseline[0])


def test_guide_rows_of_the_same_kernels_join_the_general_operator() -> None:
    guide = find_operator("linear3", prefer_guide=True)
    samples = make_linear_samples(80)
    shapes = [{"mp": 2, "b": 4, "l": 128 * size, "dim": 512} for size in (1, 2, 3)]
    samples += [
        dataclasses.replace(samples[0], operator=guide.key, parameters=shape, direction="forward") for shape in shapes
    ]
    tables, moved = pool_tables(build_tables(samples)[0])
    assert moved == {"guide.linear3/forward": "linear/forward"}
    joined = tables["linear/forward"]
    assert len(joined) == 83
    assert [int(joined.parameters[name][-1]) for name in ("m", "k", "n", "bias")] == [1536, 512, 1024, 0]


def test_a_collective_is_fitted_and_predicted_between_its_sizes() -> None:
    recorded = Path(__file__).parents[3] / "data" / "h200" / "collectives_torch2.11.parquet"
    samples = [sample for sample in read_samples(recorded) if sample.operator == "collective.broadcast"]
    model, left_out = fit(samples, jobs=1)
    assert left_out == []
    sizes = [3 * 2**power for power in range(20, 28)]
    times = [predict(model, "broadcast", {"numel": size, "world": 4}).duration_us for size in sizes]
    assert times == sorted(times)
    measured = {(s.parameters["numel"], s.dtype): np.median(s.times_us) for s in samples if s.parameters["world"] == 4}
    for size, us in zip(sizes, times, strict=True):
        assert measured[size * 2 // 3, "bfloat16"] < us < measured[size * 4 // 3, "bfloat16"]


def test_a_process_that_fits_has_one_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for libraries in in_processes(operator.call, [threadpool_info] * 2, 2):
        assert libraries and {library["num_threads"] for library in libraries} == {1}
