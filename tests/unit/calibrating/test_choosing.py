"""Which shapes a calibration measures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from torchledger.calibrating.choosing import EVALUATION, choose_points
from torchledger.predicting import find_model
from torchledger.sampling.points import Plan

SWEEP = """\
dtypes: [bf16]
seed: 1
sweeps:
- {operator: mul, group: train, draws: 400, parameters: {numel: {from: 256, to: 400000000, draw: log}}}
- {operator: mul, group: held_out, draws: 60, parameters: {numel: {from: 256, to: 400000000, draw: log}}}
- {operator: linear, group: train, draws: 100, parameters: {m: {from: 1, to: 512, draw: log}, k: [64], n: [64, 1024]}}
- {operator: linear, group: held_out, draws: 40, parameters: {m: {from: 1, to: 512, draw: log}, k: [64], n: [64]}}
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    file = tmp_path_factory.mktemp("sweep") / "sweep.yml"
    file.write_text(SWEEP)
    return choose_points(find_model("H200"), count=140, seed=3, sweep=file)


def test_one_shape_in_seven_is_for_judging_and_none_of_them_is_learned_from(plan: Plan) -> None:
    judged = {(p.operator, tuple(p.parameters.items())) for p in plan.points if p.group == EVALUATION}
    learned = {(p.operator, tuple(p.parameters.items())) for p in plan.points if p.group != EVALUATION}
    assert len(judged) == 20 and not judged & learned


def test_every_beginning_of_a_plan_is_as_balanced_as_the_whole(plan: Plan) -> None:
    whole, half = (Counter((p.operator, p.group) for p in points) for points in (plan.points, plan.points[:70]))
    assert all(abs(half[key] - count / 2) <= 1.5 for key, count in whole.items())


def test_shapes_of_which_the_model_is_less_sure_come_up_more_often(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yml"
    file.write_text(SWEEP)
    blind = choose_points(None, count=140, seed=3, sweep=file)
    assert {p.operator for p in plan.points} == {p.operator for p in blind.points}
    assert [p.parameters for p in plan.points] != [p.parameters for p in blind.points]
