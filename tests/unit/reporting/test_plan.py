"""A plan as its reader sees it."""

from __future__ import annotations

from dataclasses import replace

from torchledger.nouns import DryRun, PlannedStep
from torchledger.reporting.document import Facts
from torchledger.reporting.plan import plan_as_plain, plan_document

STEP = PlannedStep("step", "H200", None, 1, 17_000.0, 9_000.0, 25_000.0, 0.9, 15_700.0, 14_200.0)


def _decided_by(step: PlannedStep) -> str:
    (facts,) = (block for block in plan_document(step).sections[0].blocks if isinstance(block, Facts))
    return dict(facts.rows)["decided by"]


def test_a_step_that_is_longer_than_what_host_and_device_need_is_decided_by_both() -> None:
    assert _decided_by(replace(STEP, decided_by={"host": 0.6, "compute": 0.4})) == (
        "the host, which launches kernels (60 %) and the device's kernels (40 %); one waits for the other"
    )


def test_what_decides_nearly_all_is_named_alone() -> None:
    assert _decided_by(replace(STEP, decided_by={"compute": 0.95, "host": 0.05})) == "the device's kernels"


def test_a_host_that_computes_is_said_to() -> None:
    step = replace(STEP, decided_by={"host": 1.0}, host_work_us=9_000.0)
    assert _decided_by(step) == "the host, which computes and launches kernels"
    (facts,) = (block for block in plan_document(step).sections[0].blocks if isinstance(block, Facts))
    assert dict(facts.rows)["host"] == "14.2 ms, of which it computes for 9.00 ms"
    assert plan_as_plain(step)["step"]["host_work_us"] == 9_000.0
    assert _decided_by(replace(step, host_work_us=900.0)) == "the host, which launches kernels"


def test_kernels_are_told_apart_from_the_calls_that_launch_them() -> None:
    step = replace(STEP, launches=81, kernel_launches=114)
    (facts,) = (block for block in plan_document(step).sections[0].blocks if isinstance(block, Facts))
    assert dict(facts.rows)["device"] == (
        "15.7 ms in 114 launches of kernels, by 81 eager calls and launches of compiled graphs"
    )
    (facts,) = (
        block for block in plan_document(replace(step, world_size=8)).sections[0].blocks if isinstance(block, Facts)
    )
    assert dict(facts.rows)["device"].endswith("launches of compiled graphs of one rank's step")


def test_what_was_decided_in_the_devices_place_is_told_to_scripts_as_to_readers() -> None:
    dry_run = DryRun("H200", decisions={"nn.TransformerEncoder taken operator by operator": 2})
    told = {"decided": "nn.TransformerEncoder taken operator by operator", "count": 2}
    assert plan_as_plain(STEP, dry_run)["decisions"] == [told]
    assert plan_as_plain(STEP)["decisions"] == []
    (facts,) = plan_document(STEP, dry_run).sections[-1].blocks
    assert isinstance(facts, Facts) and facts.rows == ((told["decided"], "2 times"),)


def test_whether_a_step_fits_into_memory_is_true_false_or_unknown() -> None:
    told = [plan_as_plain(replace(STEP, fits=each))["memory"]["fits"] for each in (True, False, None)]
    assert told == [True, False, None]
