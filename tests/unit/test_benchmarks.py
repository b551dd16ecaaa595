"""``make bench``: which scripts are benchmarks, what each needs, and what a machine without it is told."""

from __future__ import annotations

import importlib
import itertools
import re
from pathlib import Path
from types import ModuleType

import pytest

from benchmark_scripts import load_benchmark

ROOT = Path(__file__).parents[2]
NO_BENCHMARKS = {
    "attention_errors": "judges measurements that are given to it",
    "cuda_models": "models for others",
    "devices_data": "turns measurements into data",
    "drawn_calls": "calls for others to time",
    "drawn_launches": "is imported by others",
    "device_marks": "is imported by others",
    "planned_jobs": "is imported by others",
    "eager_calls_along": "is imported by others",
    "drawn_layers": "is imported by others",
    "eager_calls_drawn": "is imported by others",
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
    "limited": "is imported by others",
    "marked": "is imported by others",
    "memory_programs": "programs for others to run",
    "plan_compare": "compares recordings that are given to it",
    "plan_programs": "programs for others to run",
    "eager_calls_common": "is imported by others",
    "eager_calls_libraries": "is imported by others",
    "eager_calls_recurrent": "is imported by others",
    "eager_calls_sharded": "is imported by others",
    "eager_calls_further": "is imported by others",
    "eager_calls_rare": "is imported by others",
    "eager_calls_meeting": "is imported by others",
    "eager_calls_models": "is imported by others",
    "eager_calls_uneven": "is imported by others",
    "eager_calls_seldom": "is imported by others",
    "eager_calls_various": "is imported by others",
    "eager_calls_factors": "is imported by others",
    "eager_calls_solvers": "is imported by others",
    "eager_calls_decoding": "is imported by others",
    "power_steps": "turns measurements into data",
    "public_records": "plans scripts of a copy of a repository that is given to it",
    "public_rows": "is imported by others",
    "public_texts": "is imported by others",
    "report_screenshots": "takes the docs' pictures, of ledgers that are given to it",
    "run_all": "runs them",
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
    return load_benchmark("run_all")


def test_every_script_is_a_benchmark_or_says_what_else_it_is(run_all: ModuleType) -> None:
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    untold = scripts - {each.name for each in run_all.find_benchmarks()} - set(NO_BENCHMARKS)
    assert not untold, "give them NEEDS and RUNS, as benchmarks/run_all.py says, or enter them in NO_BENCHMARKS"


def test_whatever_is_needed_can_be_probed_and_options_are_the_scripts_own(run_all: ModuleType) -> None:
    for each in run_all.find_benchmarks():
        assert set(each.needs) <= set(run_all.PROBES), each.name
        text = (ROOT / "benchmarks" / f"{each.name}.py").read_text()
        for option in (word for words in (*each.runs, *each.quick) for word in words if word.startswith("-")):
            assert re.search(rf'{option}[ \]|"]', re.sub(r"^(?:RUNS|QUICK).*?^\)?$", "", text, flags=re.S | re.M)), (
                each.name
            )


def test_a_list_says_of_each_whether_it_runs_here(
    run_all: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_all, "PROBES", dict.fromkeys(run_all.PROBES, lambda: False) | {"timm": lambda: True})
    assert run_all.main(["--list", "show_large", "model_steps"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "model_steps cannot run here: needs cuda, transformers",
        "show_large runs",
    ]


def test_of_a_page_only_the_part_between_the_marks_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    write = importlib.import_module("marked").write_between_marks
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


def test_the_first_run_that_fails_ends_a_benchmark(
    run_all: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "x.py").write_text("import pathlib, sys\npathlib.Path(sys.argv[1]).touch()\nsys.exit(3)")
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    monkeypatch.setattr(run_all, "OUT", tmp_path / "out")
    assert not run_all.run(run_all.Benchmark("x", (), (("{out}/a",), ("{out}/b",))))
    assert [path.name for path in (tmp_path / "out" / "x").iterdir()] == ["a"]


def test_a_quick_run_takes_the_smallest_case_writes_nowhere_else_and_ends_in_time(
    run_all: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in run_all.find_benchmarks():
        assert not [word for words in each.quick for word in words if word.startswith("docs/")], each.name
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "x.py").write_text("import sys, time\ntime.sleep(float(sys.argv[1]))")
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    monkeypatch.setattr(run_all, "OUT", tmp_path / "out")
    slow = run_all.Benchmark("x", (), (("60",),), (("0",),))
    assert run_all.run(slow, quick=True, limit_s=30)
    assert not run_all.run(slow, limit_s=0.2) and "x took longer than 0 s" in capsys.readouterr().out


def test_drawn_layers_can_all_be_run_and_are_the_same_for_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    layers = importlib.import_module("drawn_layers")
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


def test_kernels_of_convolutions_are_told_by_what_computes_and_not_by_what_prepares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    kind_of = importlib.import_module("teach_convolutions").kind_of
    tile = "sm80_xmma_fprop_implicit_gemm_{0}{0}_{0}f32_f32_nhwckrsc_nhwc_tilesize64x64x64_stage4_warpsize1x4x1_g1"
    changed = "void cudnn::engines_precompiled::nchwToNhwcKernel<{0}, {0}, float, false, true>"
    bfloat16, float16 = (f"{changed} + {tile}".format(dtype) for dtype in ("bf16", "f16"))
    assert kind_of(bfloat16) == kind_of(float16) == "sm80_xmma_fprop_implicit_gemm tilesize64x64x64"
    native = "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<1, c10::BFloat16, int>(float)"
    assert kind_of(native) == "conv_depthwise2d_forward_kernel"
    assert kind_of("convolve_common_engine_float_NHWC<bf16> x8") == "convolve_common_engine_float_NHWC*"
    assert kind_of("Memset") == "helpers"
    assert kind_of(" + ".join(["Memset"] * 40)) == "helpers*"
