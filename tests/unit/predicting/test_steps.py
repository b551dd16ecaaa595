"""Steps: the sum of launches, what lies between them, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from factories import make_run
from launch_times import make_launch_set, pointwise, product, time_of
from torchledger.cli import cli
from torchledger.device.datasheets import device_of_name
from torchledger.device.host import store_host
from torchledger.errors import PredictError
from torchledger.expecting.constants import constants_of_package
from torchledger.expecting.rounded_products import as_bfloat16
from torchledger.fitting.fit_data import fit_launches
from torchledger.fitting.launches import machine_of_launches
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Host, Launch, Measurement
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.model_file import save_model
from torchledger.predicting.overheads import (
    StepObservation,
    StepShape,
    fit_overheads,
    host_us,
    overheads_of,
    step_us,
)
from torchledger.predicting.step import predict_step
from torchledger.store import LedgerWriter

USUAL = constants_of_package("hopper").steps


@pytest.fixture(scope="module")
def model() -> TimeModel:
    train = make_launch_set(60)
    bare = TimeModel("TEST", machine_of_launches(device_of_name("TEST"), train.launches), {})
    return replace(bare, entries=fit_launches(train.launches, bare)[0])


def _launches(count: int = 12, size: int = 2048) -> list[Launch]:
    return [
        product(size, 512, 1024, order=order) if order % 3 == 1 else pointwise(size, 1024, 3, order=order)
        for order in range(count)
    ]


def test_a_step_is_the_sum_of_its_launches_and_what_lies_between(model: TimeModel) -> None:
    launches = _launches(200)
    step, predictions = predict_step(model, launches)
    assert step.kernels_us == pytest.approx(sum(item.duration_us for item in predictions))
    products = sum(item.duration_us for item in predictions if item.model == "launch:gemm/any")
    assert step.sustained_us == pytest.approx(USUAL["sustained products"] * products) and products > 0
    assert step.device_us == pytest.approx(step.kernels_us + step.tails_us + step.sustained_us + 200 * USUAL["gap us"])
    assert max(step.device_us, step.host_us) <= step.duration_us < step.device_us + step.host_us
    assert step.low_us < step.duration_us < step.high_us
    assert step.kernels_us == pytest.approx(sum(time_of(launch) for launch in launches), rel=0.1)


def test_a_step_on_a_device_that_taught_no_launch_says_whose_times_these_are(model: TimeModel) -> None:
    unmeasured = {key: replace(entry, n_rows=0) for key, entry in model.entries.items()}
    launches = _launches()
    step, _ = predict_step(replace(model, entries=unmeasured, source="transferred from a card"), launches)
    assert any("no launch of" in note and "transferred from a card" in note for note in step.notes)
    step, _ = predict_step(replace(model, source="transferred from a card"), launches)
    assert not any("no launch of" in note for note in step.notes)


def test_small_launches_are_limited_by_the_host_and_graphs_help(model: TimeModel) -> None:
    launches = _launches(300, size=64)
    eager, _ = predict_step(model, launches)
    graphs, _ = predict_step(model, launches, mode="graphs")
    assert eager.is_host_bound and graphs.duration_us < eager.duration_us


def test_a_measured_host_takes_the_place_of_the_usual_one(model: TimeModel) -> None:
    launches = _launches(200, 64)
    usual, _ = predict_step(model, launches)
    slow = Host("slow", "TEST", graph_call_us=120.0, fused_launch_us=50.0, library_launch_us=60.0)
    step, _ = predict_step(model, launches, host=slow)
    assert step.is_host_bound and step.host == "slow" and usual.host is None
    assert step.host_us > usual.host_us and step.duration_us > usual.duration_us
    assert step.device_us == usual.device_us
    unmeasured, _ = predict_step(model, launches, host=Host("unmeasured", "TEST"))
    assert unmeasured.host_us == usual.host_us


def test_however_fast_the_host_is_a_step_takes_what_its_device_needs(model: TimeModel) -> None:
    launches = _launches(40, 2048)
    quick = Host("quick", "TEST", graph_call_us=1.0, fused_launch_us=0.1, library_launch_us=0.1)
    spreads = {"fused_launch_us": 19.0, "library_launch_us": 19.0}
    slow = Host("slow", "TEST", fused_launch_us=20.0, library_launch_us=20.0, spreads=spreads)
    (by_device, _), (by_host, _) = (predict_step(model, launches, host=host) for host in (quick, slow))
    assert by_host.is_host_bound and not by_device.is_host_bound
    assert by_host.low_us >= 0.95 * by_device.low_us > 0


def test_a_library_call_of_many_kernels_costs_the_host_as_many(model: TimeModel) -> None:
    one = replace(
        product(64, 64, 64), kernel_name="torch.ops.aten.cumsum.default", call="torch.ops.aten.cumsum.default"
    )
    name = "torch.ops.aten.randperm.default"
    many = replace(one, kernel_name=name, call=name)
    host = Host("here", "TEST", library_launch_us=10.0, operator_us=8.0)
    (few, _), (more, _) = (predict_step(model, [launch] * 50, host=host) for launch in (one, many))
    assert more.host_us > few.host_us
    assert more.gaps_us > few.gaps_us


def test_every_launch_has_a_prediction_even_of_an_unlearned_kind(model: TimeModel) -> None:
    strange = replace(product(64, 64, 64), kernel_name="torch.ops.aten.cumsum.default", order=7)
    blind = replace(pointwise(64, 64, 1, order=8), buffers=(replace(_launches(1)[0].buffers[0], bytes_read=None),))
    nothing = replace(pointwise(64, 64, 1, order=9), category="nop")
    found = predict_launches(model, [*_launches(3), strange, blind, nothing])
    assert len(found) == 5
    assert [item.model == "roofline" for item in found] == [False, False, False, True, True]
    assert "has not learned launch:library/other" in str(found[3].note)
    assert "bytes are unknown" in str(found[4].note)


def test_an_empty_ledger_and_an_unknown_optimizer_are_refused(model: TimeModel) -> None:
    with pytest.raises(PredictError, match="holds no launches"):
        predict_step(model, [])
    with pytest.raises(PredictError, match="optimizer 'sgd:3' is unknown"):
        predict_step(model, _launches(), optimizer="sgd:3")


def test_a_step_costs_what_its_model_learned_else_what_the_constants_of_its_device_say(model: TimeModel) -> None:
    own = replace(constants_of_package("hopper"), steps={**USUAL, "gap us": 9.0})
    with_own = replace(model, machine=replace(model.machine, own_constants=own))
    assert overheads_of(model) == USUAL
    assert overheads_of(with_own)["gap us"] == 9.0
    assert overheads_of(replace(with_own, extras={"gap us": 3.0})) == {**USUAL, "gap us": 3.0}


def test_overheads_are_found_again_from_steps_that_obey_them() -> None:
    truth = {**USUAL, "gap us": 2.0, "fused launch host us": 9.0, "graphs gap us": 0.5, "sustained products": 0.06}
    observations = []
    for number in range(24):
        shape = StepShape(fused=50 + 40 * number, library=30 + 7 * (number * 5 % 11), graphs=2)
        for mode in ("eager", "graphs"):
            kernels = 900.0 * (1 + number * 7 % 13)
            item = StepObservation("m", mode, shape, kernels, 0.0, 0.1 * (number % 7) * kernels)  # type: ignore[arg-type]
            step = step_us(item.device_us(truth), host_us(shape, item.mode, truth), truth)
            observations.append(replace(item, step_us=step))
    found = fit_overheads(observations, USUAL)
    errors = []
    for item in observations:
        predicted = step_us(item.device_us(found), host_us(item.shape, item.mode, found), found)
        errors.append(abs(predicted / item.step_us - 1))
    assert sum(errors) / len(errors) < 0.03


def test_the_command_puts_predictions_beside_measurements(model: TimeModel, tmp_path: Path) -> None:
    save_model(model, tmp_path / "m.tlmodel")
    launches = _launches(12)
    with LedgerWriter(tmp_path / "gpt.ledger") as writer:
        writer.add(make_run(), *launches)
        writer.add(*(Measurement(x.launch_id, "profile", "cupti", (time_of(x),)) for x in launches[:6]))
    arguments = ["predict-step", str(tmp_path / "gpt.ledger"), "--device", str(tmp_path / "m.tlmodel")]
    result = CliRunner().invoke(cli, [*arguments, "--sort", "error"])
    assert result.exit_code == 0, result.output
    assert "gpt.ledger on TEST, launched one by one" in result.output and "measured kernels" in result.output
    plain = json.loads(CliRunner().invoke(cli, [*arguments, "--json", "--graphs"]).stdout)
    assert plain["step"]["mode"] == "graphs" and len(plain["launches"]) == 12
    assert sum(item["measured_us"] is not None for item in plain["launches"]) == 6


def test_whose_host_it_is_can_be_said(model: TimeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path))
    path = tmp_path / "m.tlmodel"
    save_model(model, path)
    own = Host("own", "TEST", graph_call_us=500.0, fused_launch_us=90.0, library_launch_us=90.0)
    store_host(Host("other", "TEST", graph_call_us=900.0, fused_launch_us=190.0, library_launch_us=190.0))
    with LedgerWriter(tmp_path / "gpt.ledger") as writer:
        writer.add(make_run(host=own), *_launches(60, 64))

    def step(*host: str) -> dict[str, Any]:
        arguments = ["predict-step", str(tmp_path / "gpt.ledger"), "--device", str(path), "--json", *host]
        found: dict[str, Any] = json.loads(CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout)["step"]
        return found

    assert step()["host"] == step("--host", "ledger")["host"] == "own"
    assert step("--host", "usual")["host"] is None
    assert step("--host", "other")["host_us"] > step()["host_us"] > step("--host", "usual")["host_us"]


def test_products_under_tf32_are_quicker_and_other_launches_the_same(model: TimeModel) -> None:
    launches = [product(2048, 2048, 2048), pointwise(2048, 1024, 3, order=1)]
    narrow = replace(launches[0], buffers=tuple(replace(each, dtype="float32") for each in launches[0].buffers))
    assert as_bfloat16(launches[1]) is launches[1] and as_bfloat16(launches[0]) is launches[0]
    stands_for_it = as_bfloat16(narrow)
    assert stands_for_it.flops == 2 * (narrow.flops or 0)
    assert [each.bytes_read for each in stands_for_it.buffers] == [each.bytes_read for each in narrow.buffers]
    full, rounded = (predict_launches(model, [narrow], allow_tf32=allowed)[0] for allowed in (False, True))
    assert full.duration_us != rounded.duration_us and rounded.low_us < rounded.duration_us < rounded.high_us
