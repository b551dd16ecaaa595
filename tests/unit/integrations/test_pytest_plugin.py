"""The ``ledger`` fixture and its snapshots, in a pytest of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchledger
from factories import make_graph, make_launch
from torchledger.integrations import pytest_plugin

TESTS = """\
import torch

def scaled(x):
    return (x * FACTOR).tanh()

compiled = torch.compile(scaled)

def test_counts(ledger):
    assert ledger.launches == 0
    compiled(torch.ones(8))
    assert (ledger.launches, ledger.graphs, ledger.flops, ledger.bytes_moved) == (1, 1, 0, 64)
    assert ledger.load().launches[0].category == "pointwise"
    ledger.check_snapshot()

def test_what_another_test_compiled_is_seen_again(ledger):
    compiled(torch.ones(8))
    assert ledger.launches == 1
"""


THREE_RUNS = """\
import contextlib, io, json, pathlib
import pytest

def run(*options):
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        code = pytest.main(["-q", "-p", "PLUGIN", "-p", "no:cacheprovider", *options])
    return int(code), told.getvalue()

absent = run("-k", "counts")
written = run("--ledger-update")
path = pathlib.Path("__ledgers__/test_model.test_counts.json")
kept = json.loads(path.read_text())
more = "extern: aten.mm: 2 FLOPs, 12 bytes"
path.write_text(json.dumps({graph: [*lines, more] for graph, lines in kept.items()}))
print(json.dumps({"absent": absent, "written": written, "kept": kept, "differs": run("-k", "counts")}))
""".replace("PLUGIN", pytest_plugin.__name__)


def test_a_snapshot_is_written_on_request_kept_and_compared(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text(TESTS.replace("FACTOR", "2.0"))
    (tmp_path / "three_runs.py").write_text(THREE_RUNS)
    source = str(Path(torchledger.__file__).parents[1])
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": source}
    command = [sys.executable, "three_runs.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    code, told = found["absent"]
    assert code == 1 and "run pytest --ledger-update once" in told
    code, told = found["written"]
    assert code == 0, told
    (lines,) = found["kept"].values()
    assert re.fullmatch(r"pointwise: aten\.mul, aten\.tanh: 0 FLOPs, 64 bytes", lines[0])
    code, told = found["differs"]
    assert code == 1
    assert "2 launches -> 1" in told and "extern: aten.mm" in told


def test_unknown_work_is_none_and_told_as_such() -> None:
    assert pytest_plugin._sum([1, None]) is None and pytest_plugin._sum([1, 2]) == 3
    assert pytest_plugin._told(None) == "unknown"


def test_the_plugin_is_found_by_its_entry_point_and_imports_no_torch() -> None:
    probe = f"import sys, {pytest_plugin.__name__}\nprint('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True).stdout.strip() == "False"
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'[project.entry-points.pytest11]\ntorchledger = "{pytest_plugin.__name__}"' in project


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({"g": ["a"]}, {"g": ["a"]}, []),
        ({"g": ["a", "b"]}, {"g": ["a"]}, ["g: 2 launches -> 1", "- g: b"]),
        ({"g": ["a"]}, {"g": ["c"]}, ["- g: a", "+ g: c"]),
        ({}, {"g": ["a"]}, ["g: 0 launches -> 1", "+ g: a"]),
    ],
)
def test_snapshots_differ_line_by_line(
    before: dict[str, list[str]], now: dict[str, list[str]], told: list[str]
) -> None:
    assert pytest_plugin._differences(before, now) == told


def test_names_of_kernels_play_no_part_in_a_snapshot(tmp_path: Path) -> None:
    from factories import make_kernel, make_run
    from torchledger.store import LedgerWriter

    plain = []
    for name in ("cpp_fused_0", "triton_poi_7"):
        path = tmp_path / f"{name}.ledger"
        with LedgerWriter(path) as writer:
            writer.add(make_run(), make_graph(), make_kernel(), make_launch(kernel_name=name))
        plain.append(pytest_plugin._plain(torchledger.load(path)))
    assert plain[0] == plain[1]
