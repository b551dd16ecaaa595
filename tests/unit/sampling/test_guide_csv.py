"""The guide's CSV files."""

from __future__ import annotations

import pytest

from torchledger.errors import SampleError
from torchledger.sampling.guide_csv import guide_file_stem, read_guide_csv, write_guide_csv

TEXT = "mp,b,h,l,dim,F_dur(us),B_dur(us)\n1,4,16,1536,3072,390.25,88.3448\n1.0,4,16,2560,2048,595.695,77.279\n"


def test_a_row_becomes_a_sample_per_direction(tmp_path):
    path = tmp_path / "NVIDIAGH200120GB_flash_atten_fp16.csv"
    path.write_text(TEXT)
    samples = read_guide_csv(path)
    assert [(s.direction, s.times_us) for s in samples[:2]] == [("forward", (390.25,)), ("backward", (88.3448,))]
    assert samples[0].operator == "guide.flash_atten"
    assert samples[0].flops == 4 * 4 * 16 * 1536 * 1536 * 192
    assert samples[2].parameters == {"mp": 1, "b": 4, "h": 16, "l": 2560, "dim": 2048}
    assert [s.point_id == samples[0].point_id for s in samples] == [True, True, False, False]


def test_what_is_written_reads_back(tmp_path):
    path = tmp_path / "NVIDIAGH200120GB_flash_atten_fp16.csv"
    path.write_text(TEXT)
    samples = read_guide_csv(path)
    again = tmp_path / "NVIDIAGH200120GB_flash_atten_fp16_4_1.csv"
    assert write_guide_csv(again, TEXT.splitlines()[0].split(","), samples) == 2
    assert read_guide_csv(again) == samples


def test_a_device_whose_name_no_file_may_have_is_not_taken_for_a_part_of_the_operator(tmp_path):
    stem = guide_file_stem("Intel(R) Xeon(R) CPU @ 2.80GHz", "res_add", "float16", 0, 0)
    path = tmp_path / f"{stem}.csv"
    path.write_text("b,l,dim,F_dur(us),B_dur(us)\n1,1024,4096,10.5,20.25\n")
    assert {sample.operator for sample in read_guide_csv(path)} == {"guide.res_add"}


def test_a_bad_row_is_named_by_file_and_line(tmp_path):
    path = tmp_path / "X_flash_atten_fp16.csv"
    path.write_text(TEXT + "1,4,16,x,2048,1,2\n")
    with pytest.raises(SampleError, match=r"X_flash_atten_fp16\.csv line 4"):
        read_guide_csv(path)
