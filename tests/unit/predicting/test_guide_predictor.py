"""The guide's own call."""

from __future__ import annotations

from pathlib import Path

import pytest

from times import made_up_time_us
from torchledger.errors import PredictError
from torchledger.operators import find_operator
from torchledger.predicting.guide import Predictor


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    operator = find_operator("linear3", prefer_guide=True)
    lines = ["mp,b,l,dim,F_dur(us),B_dur(us)"]
    for mp in (1, 2, 4):
        for length in (512, 1024, 1536, 2048):
            for dim in (1024, 1536, 2048, 2560):
                p = operator.resolve([mp, 4, length, dim])
                times = [
                    sum(
                        made_up_time_us(int(work.flops), int(work.bytes_moved), 64)
                        for work in operator.work(p, direction, 2)
                    )
                    for direction in ("forward", "backward")
                ]
                lines.append(f"{mp},4,{length},{dim},{times[0]:.1f},{times[1]:.1f}")
    (data / "NVIDIATEST_linear3_fp16.csv").write_text("\n".join(lines) + "\n")
    return data


def _ask(predictor: Predictor, folder: Path, **changes: object) -> float:
    question: dict[str, object] = {
        "gpu_name": "NVIDIATEST",
        "function": "linear3",
        "precision": "fp16",
        "propagation": "fwd",
        "shape": [2, 4, 1280, 1792],
        "model_dict": predictor.operator_dict,
        "data_folder": folder,
    }
    return predictor.predict_operator(**(question | changes))  # type: ignore[arg-type]


def test_the_first_call_trains_and_later_ones_read_the_cache(folder: Path, tmp_path: Path) -> None:
    predictor = Predictor()
    first = _ask(predictor, folder)
    assert first == pytest.approx(4 + 2 * 4 * 1280 * 1792 * 4 * 1792 / 2 / 5e8, rel=0.1)
    assert len(list((tmp_path / "cache").glob("*.tlmodel"))) == 1
    again = Predictor()
    assert _ask(again, folder) == first
    assert list(again.operator_dict) == ["NVIDIATEST_linear3_fp16"]
    assert _ask(again, folder, propagation="bwd") > first


def test_an_unwritable_cache_is_no_obstacle(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path / "file" / "below"))
    assert _ask(Predictor(), folder) > 0


def test_an_optimizer_answers_in_the_direction_that_the_guide_names_and_in_the_published_one(folder: Path) -> None:
    lines = ["mp,dim,encoders,dur(us)"]
    for mp in (1, 2, 4):
        for dim in (1024, 1536, 2048, 2560):
            lines += [f"{mp},{dim},{encoders},{20 + encoders * dim * dim / mp / 1e5:.2f}" for encoders in (4, 6, 8, 10)]
    (folder / "NVIDIATEST_middleStage_optimizer_fp16.csv").write_text("\n".join(lines) + "\n")
    question = {"function": "middleStage_optimizer", "shape": [2, 1792, 7]}
    predictor = Predictor()
    forward = _ask(predictor, folder, propagation="fwd", **question)
    assert forward == _ask(predictor, folder, propagation="dur", **question)
    assert forward == pytest.approx(20 + 7 * 1792 * 1792 / 2 / 1e5, rel=0.2)
    with pytest.raises(PredictError, match="has no direction 'backward'"):
        _ask(predictor, folder, propagation="bwd", **question)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": [1, 2]}, "linear3 takes 4 numbers"),
        ({"propagation": "sideways"}, "propagation 'sideways' is unknown"),
        ({"function": "linear1"}, "holds no NVIDIATEST_linear1_fp16.csv; it holds NVIDIATEST_linear3_fp16.csv"),
        ({"data_folder": None}, "data_folder is needed"),
        ({"config_folder": "config"}, "config_folder 'config' would choose .* Pass config_folder=None"),
    ],
)
def test_wrong_questions_are_refused(folder: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(PredictError, match=message):
        _ask(Predictor(), folder, **changes)
