"""The guide's YAML as it is."""

from __future__ import annotations

import csv
import re

import pytest

from torchledger.errors import SampleError
from torchledger.sampling.guide_sweep import check_targets, is_guide_file, load_guide_sweep
from torchledger.sampling.request import Request, sample_file
from torchledger.store.yaml_file import YamlError

FLASH = """\
{
  # Module and function to profile
  "module_name": "target_functions",
  "kernel_name": "flash_atten",
  "function_name": "flash_atten",
  "columns_name": ['mp', 'b', 'h', 'l', 'dim', 'F_dur(us)', 'B_dur(us)'],
  "targets": [
    ['built-in method apply of FunctionMeta object', 'FlashAttnFunc'],
    ['autograd::engine::evaluate_function: FlashAttnFuncBackward']
  ],
  "first_n_column": 5,
  "starts": [1, 1, 4, 16, 64],
  "steps": [2, 2, 4, 16, 64],
  "ends": [4, 2, 8, 48, 128],
  "operators": ['mul', 'mul', 'add', 'add', 'add'],
  "warmup_shapes": [1, 1, 4, 16, 64],
  "wait": 1,
  "warmup": 1,
  "active": 3,
  "shapes": [1, 2, 4, 16, 64],
  "run": "get_all"
}
"""


def write(tmp_path, text=FLASH):
    path = tmp_path / "flash_atten.yml"
    path.write_text(text)
    return path


def test_the_grid_is_the_products_of_its_axes_last_fastest(tmp_path):
    path = write(tmp_path)
    assert is_guide_file(path)
    sweep = load_guide_sweep(path)
    assert len(sweep.shapes) + sweep.skipped == 3 * 2 * 2 * 3 * 2
    assert sweep.shapes[:3] == ((1, 1, 4, 16, 64), (1, 1, 4, 16, 128), (1, 1, 4, 32, 64))
    assert sweep.plan("float16").warmup == 2


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "message"),
    [
        ('"wait": 1', '"wiat": 1', 17, "wiat", "unknown key"),
        ('"ends": [4, 2, 8, 48, 128]', '"ends": [4, 2, 8, 48]', 14, "ends", "has 4 entries, first_n_column says 5"),
        ('"ends": [4, 2, 8, 48, 128]', '"ends": [4, 2, 8, 8, 128]', 14, "ends.3", "8 is below the start 16"),
        ('"steps": [2, 2, 4, 16, 64]', '"steps": [2, 2, 0, 16, 64]', 13, "steps.2", "a step of 0 never reaches 8"),
        ('"steps": [2, 2,', '"steps": [1, 2,', 13, "steps.0", "multiplying by 1 never reaches 4"),
        ('"function_name": "flash_atten"', '"function_name": "flash_attn"', 5, "function_name", "did you mean"),
        ("'mul', 'mul', 'add'", "'mul', 'pow', 'add'", 15, "operators.1", "'mul' or 'add'"),
        ('"first_n_column": 5', '"first_n_column": 4', 11, "first_n_column", "has 5 parameters: mp, b, h, l, dim"),
        ("'B_dur(us)'", "'X'", 6, "columns_name", "F_dur(us), B_dur(us)"),
        ('"shapes": [1, 2, 4,', '"shapes": [3, 2, 4,', 20, "shapes", "mp=3 does not divide h=4"),
        ('"run": "get_all"', '"run": "get_some"', 21, "run", "'get_all', 'get_one', 'get_profiler' or 'run_function'"),
        ('"kernel_name": "flash_atten",\n', "", 1, "kernel_name", "is missing"),
    ],
)
def test_a_bad_guide_file_is_refused_with_line_and_key(tmp_path, old, new, line, key, message):
    path = write(tmp_path, FLASH.replace(old, new, 1))
    with pytest.raises(YamlError) as refused:
        load_guide_sweep(path)
    assert f"flash_atten.yml:{line}: {key}: " in str(refused.value)
    assert message in str(refused.value)


def test_targets_of_the_original_are_known_and_those_in_the_profile_are_found(tmp_path):
    check_targets(load_guide_sweep(write(tmp_path)), "float32", "cpu")
    text = FLASH.replace("FlashAttnFuncBackward", "TransposeBackward0")
    check_targets(load_guide_sweep(write(tmp_path, text)), "float32", "cpu")


def test_a_target_that_matches_nothing_shows_what_was_there(tmp_path):
    text = FLASH.replace("'FlashAttnFunc'", "'MyKernel'")
    with pytest.raises(SampleError, match=r"(?s)flash_atten\.yml:8: targets\.0: 'MyKernel' matches nothing.*aten::"):
        check_targets(load_guide_sweep(write(tmp_path, text)), "float32", "cpu")


def test_get_all_writes_the_guides_csv_and_log(tmp_path):
    outcome = sample_file(
        write(tmp_path), Request(output=tmp_path / "out", precisions=("fp32",), device="cpu", parts=2, part=1)
    )
    assert re.fullmatch(r"[^_ ]+_flash_atten_fp32_2_1\.csv", outcome.written.name)
    assert outcome.written.parent.name == "sampling_data"
    with outcome.written.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["mp", "b", "h", "l", "dim", "F_dur(us)", "B_dur(us)"]
    assert len(rows) == (len(load_guide_sweep(write(tmp_path)).shapes) + 1) // 2
    assert all(float(row["F_dur(us)"]) > 0 and float(row["B_dur(us)"]) > 0 for row in rows)
    log = next((tmp_path / "out" / "sampling_log").glob("*.txt"))
    assert log.stem == outcome.written.stem
    line = log.read_text().splitlines()[-1]
    pattern = (
        r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\]Kernel: flash_atten_fp32 \| Progress: (\d+)/\1=100\.00% \| "
        r"Speed: \d+\.\d\ds/sample \| Remaining: 0d0h0m0s"
    )
    assert re.fullmatch(pattern, line)


def test_get_one_and_get_profiler_do_one_shape(tmp_path):
    one = write(tmp_path, FLASH.replace("get_all", "get_one"))
    outcome = sample_file(one, Request(precisions=("fp32",), device="cpu"))
    assert {direction: len(times) for direction, times in outcome.times_us.items()} == {"forward": 3, "backward": 3}
    profiler = write(tmp_path, FLASH.replace("get_all", "get_profiler"))
    outcome = sample_file(profiler, Request(output=tmp_path / "t.json", precisions=("fp32",), device="cpu"))
    assert "traceEvents" in outcome.written.read_text()
