"""``make bench``: which scripts are benchmarks, what each needs, and what a machine without it is told."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ROOT / "benchmarks" / "shared"
ROOMS = sorted(path.parent for path in (ROOT / "benchmarks").glob("*/__init__.py") if path.parent != SHARED)
NO_BENCHMARKS = {
    "attention_errors": "judges measurements that are given to it",
    "devices_data": "turns measurements into data",
    "drawn_calls": "calls for others to time",
    "drawn_launches": "is imported by others",
    "device_marks": "is imported by others",
    "planned_jobs": "is imported by others",
    "drawn_layers": "is imported by others",
    "eager_redrawn": "writes settings into the data of calls that were recorded before they were",
    "drawn_programs": "programs for others to run",
    "fit_eager": "makes a shipped model of data",
    "fit_corrections": "makes a shipped model of data",
    "fit_library": "makes a shipped model of data",
    "fit_loops": "makes constants of data",
    "fit_strangers": "makes a shipped model of data",
    "gpu_programs": "programs for others to run",
    "host_pieces": "judges measurements that are given to it",
    "job_programs": "programs for others to run",
    "h200_sweep": "writes a sweep",
    "lent_models": "writes shipped models again",
    "memory_programs": "programs for others to run",
    "plan_compare": "compares recordings that are given to it",
    "plan_programs": "programs for others to run",
    "power_steps": "turns measurements into data",
    "public_records": "plans scripts of a copy of a repository that is given to it",
    "public_rows": "is imported by others",
    "public_texts": "is imported by others",
    "report_screenshots": "takes the docs' pictures, of ledgers that are given to it",
    "fit_host_steps": "makes constants of data",
    "strangers_data": "turns measurements into data",
    "strangers_errors": "judges measurements that are given to it",
    "small_training": "a program for others to run",
    "synthetic_trace": "writes a trace",
    "teach_convolutions": "is imported by others",
    "teach_networks": "is imported by others",
}


@pytest.fixture(scope="module")
def run_all() -> ModuleType:
    return importlib.import_module("benchmarks.run_all")


def test_every_script_is_a_benchmark_or_says_what_else_it_is(run_all: ModuleType) -> None:
    scripts = [path.stem for room in ROOMS for path in room.glob("*.py") if path.stem != "__init__"]
    assert len(scripts) == len(set(scripts)), "a benchmark is run by its name, whatever its room"
    untold = set(scripts) - {each.name for each in run_all.find_benchmarks()} - set(NO_BENCHMARKS)
    assert not untold, "give them NEEDS and RUNS, as benchmarks/run_all.py says, or enter them in NO_BENCHMARKS"


def test_every_script_is_in_a_room_that_says_what_it_asks_and_stands_in_the_list_of_rooms() -> None:
    assert {path.name for path in (ROOT / "benchmarks").glob("*.py")} == {"__init__.py", "run_all.py"}
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)\) \| (.+) \|$", (ROOT / "benchmarks" / "README.md").read_text(), re.M)
    assert {name for name, folder, _ in listed if name == folder} == {room.name for room in (*ROOMS, SHARED)}
    for room in ROOMS:
        asked = ast.get_docstring(ast.parse((room / "__init__.py").read_text()))
        assert asked is not None and "?" in asked, room.name


def names_of(path: Path) -> set[str]:
    """What a module defines or imports at its top, and what lies in its folder if it is a package."""
    found = {each.stem if each.is_file() else each.name for each in path.parent.iterdir() if path.stem == "__init__"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_what_a_benchmark_takes_of_another_is_there() -> None:
    asked = [
        (path, node.module, alias.name)
        for room in (*ROOMS, SHARED)
        for path in room.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks")
        for alias in node.names
    ]
    lacking = []
    for path, module, name in asked:
        place = ROOT / module.replace(".", "/")
        place = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not place.exists() or name not in names_of(place):
            lacking.append(f"{path.stem}: {module}.{name}")
    assert len(asked) > 100 and not lacking


def test_a_benchmark_that_is_named_is_there() -> None:
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")]
    pages += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    for page in pages:
        text = page.read_text()
        named = re.findall(r"\bbenchmarks/((?:\w+/)*[a-z0-9_]+\.(?:py|yml))\b", text)
        modules = re.findall(r'-m(?:\s+|", ")benchmarks\.([a-z0-9_.]*[a-z0-9_])', text)
        named += [f"{module.replace('.', '/')}.py" for module in modules]
        assert not [name for name in named if not (ROOT / "benchmarks" / name).exists()], page


def test_whatever_is_needed_can_be_probed_and_options_are_the_scripts_own(run_all: ModuleType) -> None:
    for each in run_all.find_benchmarks():
        assert set(each.needs) <= set(run_all.PROBES), each.name
        text = (ROOT / "benchmarks" / each.room / f"{each.name}.py").read_text()
        for option in (word for words in (*each.runs, *each.quick) for word in words if word.startswith("-")):
            assert re.search(rf'{option}[ \]|"]', re.sub(r"^(?:RUNS|QUICK).*?^\)?$", "", text, flags=re.S | re.M)), (
                each.name
            )


def test_a_list_says_of_each_whether_it_runs_here(
    run_all: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all, "PROBES", dict.fromkeys(run_all.PROBES, lambda: False) | {"timm": lambda: True})
    assert run_all.main(["--list", "show_large", "launches"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [" ".join(line.split()) for line in lines]
    assert {line.split()[0] for line in said} == {"launches", "reporting"}
    assert "launches model_steps cannot run here: needs cuda, transformers" in said
    assert said[-1] == "reporting show_large runs"


def test_of_a_page_only_the_part_between_the_marks_is_written(tmp_path: Path) -> None:
    write = importlib.import_module("benchmarks.shared.marked").write_between_marks
    page = tmp_path / "page.md"
    page.write_text("By hand.\n\n<!-- table -->\nold\n<!-- /table -->\n\nBy hand, too.\n")
    write(page, "table", "new\n")
    write(page, "other", "added")
    assert page.read_text() == (
        "By hand.\n\n<!-- table -->\nnew\n<!-- /table -->\n\nBy hand, too.\n<!-- other -->\nadded\n<!-- /other -->\n"
    )
    write(tmp_path / "none.md", "table", "first")
    assert (tmp_path / "none.md").read_text() == "<!-- table -->\nfirst\n<!-- /table -->\n"
    page.write_text("<!-- table -->\nold\nBy hand.\n")
    with pytest.raises(ValueError, match="no <!-- /table --> behind it"):
        write(page, "table", "new")
    assert page.read_text().endswith("By hand.\n")


def make_benchmark(folder: Path, text: str) -> None:
    """A repository whose one benchmark is ``room.x``."""
    room = folder / "benchmarks" / "room"
    room.mkdir(parents=True)
    (folder / "benchmarks" / "__init__.py").touch()
    (room / "x.py").write_text(text)


def test_the_first_run_that_fails_ends_a_benchmark(
    run_all: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_benchmark(tmp_path, "import pathlib, sys\npathlib.Path(sys.argv[1]).touch()\nsys.exit(3)")
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    monkeypatch.setattr(run_all, "OUT", tmp_path / "out")
    assert not run_all.run(run_all.Benchmark("x", "room", (), (("{out}/a",), ("{out}/b",))))
    assert [path.name for path in (tmp_path / "out" / "x").iterdir()] == ["a"]


def test_a_quick_run_takes_the_smallest_case_writes_nowhere_else_and_ends_in_time(
    run_all: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in run_all.find_benchmarks():
        assert not [word for words in each.quick for word in words if word.startswith("docs/")], each.name
    make_benchmark(tmp_path, "import sys, time\ntime.sleep(float(sys.argv[1]))")
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    monkeypatch.setattr(run_all, "OUT", tmp_path / "out")
    slow = run_all.Benchmark("x", "room", (), (("60",),), (("0",),))
    assert run_all.run(slow, quick=True, limit_s=30)
    assert not run_all.run(slow, limit_s=0.2) and "x took longer than 0 s" in capsys.readouterr().out


def test_drawn_layers_can_all_be_run_and_are_the_same_for_a_seed() -> None:
    layers = importlib.import_module("benchmarks.operators.drawn_layers")
    usual = list(itertools.islice(layers.draw_layers(3), 600))
    assert usual == list(itertools.islice(layers.draw_layers(3), 600))
    assert {case.kind for case in usual} == {kind for kind, (weight, _) in layers.KINDS.items() if weight}
    every = list(itertools.islice(layers.draw_layers(3, dict.fromkeys(layers.KINDS, 1)), 200))
    assert {case.kind for case in every} == set(layers.KINDS)
    assert any(case.taps[0] != case.taps[1] for case in every)
    for case in (*usual, *every):
        assert min(case.shapes[2]) > 0
        assert case.c_in % case.groups == case.c_out % case.groups == 0
    only = itertools.islice(layers.draw_layers(3, dict.fromkeys(layers.KINDS, 0) | {"stem": 1}), 20)
    assert {case.kind for case in only} == {"stem"}


def test_kernels_of_convolutions_are_told_by_what_computes_and_not_by_what_prepares() -> None:
    kind_of = importlib.import_module("benchmarks.models.teach_convolutions").kind_of
    tile = "sm80_xmma_fprop_implicit_gemm_{0}{0}_{0}f32_f32_nhwckrsc_nhwc_tilesize64x64x64_stage4_warpsize1x4x1_g1"
    changed = "void cudnn::engines_precompiled::nchwToNhwcKernel<{0}, {0}, float, false, true>"
    bfloat16, float16 = (f"{changed} + {tile}".format(dtype) for dtype in ("bf16", "f16"))
    assert kind_of(bfloat16) == kind_of(float16) == "sm80_xmma_fprop_implicit_gemm tilesize64x64x64"
    native = "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<1, c10::BFloat16, int>(float)"
    assert kind_of(native) == "conv_depthwise2d_forward_kernel"
    assert kind_of("convolve_common_engine_float_NHWC<bf16> x8") == "convolve_common_engine_float_NHWC*"
    assert kind_of("Memset") == "helpers"
    assert kind_of(" + ".join(["Memset"] * 40)) == "helpers*"
