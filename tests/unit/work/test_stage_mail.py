"""What stages of a pipeline tell each other, and whether a rank was told what it took for granted."""

from __future__ import annotations

from pathlib import Path

from torchledger.work.stage_mail import StageReader, stage_reader


def test_what_a_rank_has_read_is_read_back(tmp_path: Path) -> None:
    reader = StageReader((0, 4), {1: [{"shape": [2, 8]}]})
    reader.write(tmp_path, 4)
    assert (stage_reader(tmp_path, 4), stage_reader(tmp_path, 0)) == (reader, None)


def test_a_rank_that_took_another_stages_shapes_is_current_until_the_stage_tells_others() -> None:
    narrow, wide = [{"shape": [2, 8]}], [{"shape": [2, 16]}]
    reader = StageReader((0, 4), {1: narrow})
    assert reader.took_for({0: narrow}) and reader.is_current({0: narrow})
    assert not reader.took_for({0: narrow, 1: wide}) and not reader.is_current({0: narrow, 1: wide})
    assert reader.is_current({0: narrow, 1: narrow})
