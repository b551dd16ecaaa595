"""Whole steps of ordinary scripts: what the ledger holds of a step is what a step does when nothing is compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from torchledger.cli import cli
from warm import WarmProcess

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "tests" / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))
STEPS = {"generation": "52", "two_threads": "3000"}
FOUND_BY = {"generation": "period", "two_threads": "period", "compiled_optimizer": "period"}
GRAPH_CALLS = {"layer_loop": 24, "accumulation": 8, "gan": 8, "generation": 1, "eager": 0}
"""Calls of compiled graphs in one step, by how the scripts are written."""
LONG = ("trainer", "gan", "compiled_optimizer")
"""The scripts that take longest, left to the slow tests; others are found by their period and call graphs often."""
OWN_PROCESS = "layer_loop"
"""The script that a Python of its own runs, as a user's would; the others run in forks of one that is warm.

These build their C++ kernels in the slow tests alone: nothing that is asked here depends on what a kernel computes."""
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | ENVIRONMENT | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="session")
def eager_flops() -> dict[str, dict[str, int]]:
    """FLOPs of one eager step of each script, by operator, counted by torch."""
    # torch's counter hears the main thread alone.
    scripts = [str(PROGRAMS / f"{name}.py") for name in NAMES if name != "two_threads"]
    found = json.loads(run(str(ROOT / "tests" / "eager_flops.py"), *scripts).splitlines()[-1])
    return {Path(script).stem: flops for script, flops in found.items()}


@pytest.fixture(
    scope="session",
    params=[
        *(pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in NAMES),
        *(pytest.param(f"{name} built", marks=pytest.mark.slow) for name in NAMES),
    ],
)
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, warm: WarmProcess
) -> tuple[str, dict[str, Any]]:
    """The name of a script and what ``show --json`` says of its ledger."""
    name, _, built = request.param.partition(" ")
    ledger = tmp_path_factory.mktemp(name) / "step.ledger"
    options = ["run", "--profile", "--count-eager", "--force", "-o", str(ledger)]
    # How two threads take turns is the system's: a step between two turns is heard in part, and its books say so.
    for _ in range(3 if name == "two_threads" else 1):
        command = [*options, str(PROGRAMS / f"{name}.py"), STEPS.get(name, "30")]
        if name == OWN_PROCESS:
            run("-m", "torchledger", *command)
        else:
            code, _, told = warm.run(ledger.parent, *command, builds=bool(built))
            assert code == 0, told[-2000:]
        shown = json.loads(CliRunner().invoke(cli, ["show", str(ledger), "--json"]).stdout)
        if shown["balance"].get("step_operators", {}).get("is_balanced"):
            break
    return name, shown


def test_a_step_holds_the_flops_of_a_whole_eager_step(
    recorded: tuple[str, dict[str, Any]], eager_flops: dict[str, dict[str, int]]
) -> None:
    name, shown = recorded
    expected = 2 * 2 * 8 * 32 * 64 if name == "two_threads" else sum(eager_flops[name].values())
    assert shown["step"]["flops"] == expected


def test_the_scripts_own_step_run_eagerly_balances_its_flops(recorded: tuple[str, dict[str, Any]]) -> None:
    account = recorded[1]["balance"]["step_flops"]
    assert account["is_balanced"] and account["reference"] == account["ledger"], account


def test_a_step_is_found_by_its_optimizer_else_by_its_period(recorded: tuple[str, dict[str, Any]]) -> None:
    name, shown = recorded
    assert shown["step"]["found_by"] == FOUND_BY.get(name, "optimizer")


def test_a_graph_counts_as_often_as_a_step_calls_it(recorded: tuple[str, dict[str, Any]]) -> None:
    name, shown = recorded
    calls = sum(shown["step"]["graph_calls"].values())
    assert calls >= (name != "eager")
    assert calls == GRAPH_CALLS.get(name, calls)


def test_every_operator_that_a_mode_hears_in_a_step_is_an_entry(recorded: tuple[str, dict[str, Any]]) -> None:
    account = recorded[1]["balance"]["step_operators"]
    assert account["reference"] is not None
    assert account["is_balanced"], account


def test_all_device_time_of_a_step_belongs_to_its_calls(recorded: tuple[str, dict[str, Any]]) -> None:
    step = recorded[1]["step"]
    assert step["covered_share"] == pytest.approx(1.0)
    assert sum(phase["share"] for phase in step["phases"].values()) == pytest.approx(1.0)


def test_the_launches_of_a_step_are_those_that_were_seen_to_run(recorded: tuple[str, dict[str, Any]]) -> None:
    name, shown = recorded
    account = shown["balance"].get("step_launches")
    assert name == "eager" if account is None else account["is_balanced"], account


def test_the_peak_of_a_step_s_storages_is_what_was_counted_or_the_difference_has_a_name(
    recorded: tuple[str, dict[str, Any]],
) -> None:
    name, shown = recorded
    if name == "two_threads":
        return  # the other thread's tensors are alive too, and no profile of this thread counts them
    account = shown["balance"]["memory"]
    assert account["reference"] == shown["memory"]["measured_peak_bytes"] is not None
    assert account["is_balanced"], account
    assert sum(shown["memory"]["by_category"].values()) == shown["memory"]["peak_allocated_bytes"]


def test_the_page_and_the_first_lines_speak_of_the_step(recorded: tuple[str, dict[str, Any]]) -> None:
    first, second, third = recorded[1]["verdict"]
    assert first.startswith("A step takes") and second.startswith("It goes to") and third.startswith("Look first at")
