"""Operators that are functions of the user's, in the sampling guide's way."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from factories import make_sample
from times import made_up_time_us
from torchledger.errors import SampleError
from torchledger.fitting import fit
from torchledger.operators import catalogue, find_operator, functions, load_operators
from torchledger.operators.functions import encoder_parameters
from torchledger.predicting.operators import predict
from torchledger.sampling.dataset import read_samples
from torchledger.sampling.guide_sweep import load_guide_sweep
from torchledger.sampling.points import load_plan
from torchledger.sampling.request import Request, sample_file
from torchledger.store.yaml_file import YamlError

RUN = """\
import torch

def squashed(shapes, precision, device_num):
    '''tanh of a matrix, and its gradient.'''
    mp, b, l, dim = shapes
    if dim % mp:
        raise ValueError("mp does not divide dim")
    x = torch.randn(b, l, dim // mp, requires_grad=True)
    torch.tanh(x).sum().backward()
"""
FEATURES = """\
def squashed(input):
    mp, b, l, dim = input
    return [b * l, dim / mp]
"""
ENCODER = """\
def squashed(input):
    mp, b, h, l, dim = input
    return [mp, b, l, 4 * dim]
"""
SWEEP = """\
{
  "module_name": "target_functions",
  "kernel_name": "squashed",
  "function_name": "squashed",
  "columns_name": ['mp', 'b', 'l', 'dim', 'F_dur(us)', 'B_dur(us)'],
  "targets": [['aten::tanh'], ['autograd::engine::evaluate_function: TanhBackward0', 'aten::tanh_backward']],
  "first_n_column": 4,
  "starts": [1, 1, 16, 64],
  "steps": [2, 2, 16, 64],
  "ends": [2, 1, 32, 64],
  "operators": ['mul', 'mul', 'add', 'add'],
  "warmup_shapes": [1, 1, 16, 64],
  "wait": 1, "warmup": 1, "active": 3,
  "shapes": [1, 1, 16, 64],
  "run": "get_all"
}
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The files of a user's, and a catalogue that forgets them after the test."""
    for module, name in (
        (catalogue, "_OPERATORS"),
        (catalogue, "_FILES"),
        (catalogue, "_LOADED"),
        (functions, "_TRANSFORMS"),
    ):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    texts = {
        "target_functions.py": RUN,
        "layer_input_to_predictor_input.py": FEATURES,
        "encoder_config_to_layer_input.py": ENCODER,
        "squashed.yml": SWEEP,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {Path(name).stem: tmp_path / name for name in texts}


def _operator_files(files: dict[str, Path]) -> tuple[Path, ...]:
    return tuple(path for path in files.values() if path.suffix == ".py")


def test_a_function_is_an_operator_whose_parameters_are_the_names_of_its_shapes(files: dict[str, Path]) -> None:
    assert load_operators(files["target_functions"]) == ["squashed"]
    operator = find_operator("squashed")
    assert operator.parameters == ("mp", "b", "l", "dim")
    assert load_operators(files["layer_input_to_predictor_input"]) == []
    assert operator.features({"mp": 2, "b": 3, "l": 5, "dim": 8}) == (15, 4)
    load_operators(files["encoder_config_to_layer_input"])
    encoder = {"mp": 2, "b": 3, "h": 4, "l": 5, "dim": 8}
    assert encoder_parameters(operator, encoder) == {"mp": 2, "b": 3, "l": 5, "dim": 32}


def test_a_guide_file_samples_a_function_in_its_worker_by_the_calls_that_its_targets_name(
    files: dict[str, Path], tmp_path: Path
) -> None:
    request = Request(
        output=tmp_path / "out", device="cpu", precisions=("fp32",), operator_files=_operator_files(files)
    )
    outcome = sample_file(files["squashed"], request)
    assert outcome.collection is not None and outcome.collection.statuses == {"ok": 8}
    samples = read_samples(outcome.collection.folder)
    assert {sample.direction for sample in samples} == {"forward", "backward"}
    assert all(len(sample.times_us) == 3 and min(sample.times_us) > 0 for sample in samples)
    assert {(sample.flops, sample.bytes_moved) for sample in samples} == {(None, None)}
    assert outcome.written is not None
    rows = list(csv.DictReader(outcome.written.open()))
    assert [(row["mp"], row["l"]) for row in rows] == [("1", "16"), ("1", "32"), ("2", "16"), ("2", "32")]


def test_plan_only_writes_the_plan_of_a_guide_file_and_measures_nothing(files: dict[str, Path], tmp_path: Path) -> None:
    request = Request(output=tmp_path / "out", device="cpu", operator_files=_operator_files(files), plan_only=True)
    outcome = sample_file(files["squashed"], request)
    assert outcome.collection is None and outcome.planned == 4 and outcome.written is not None
    assert [path.name for path in outcome.written.iterdir()] == ["plan.jsonl"]
    plan = load_plan(outcome.written)
    assert plan.operator_files == tuple(str(path.resolve()) for path in _operator_files(files))
    assert plan.targets["squashed"]["forward"] == ("aten::tanh",)
    assert not (tmp_path / "out" / "sampling_log").exists()


def test_a_target_of_a_function_that_matches_nothing_is_named_with_what_there_was(
    files: dict[str, Path], tmp_path: Path
) -> None:
    files["squashed"].write_text(SWEEP.replace("['aten::tanh']", "['aten::sinh']"))
    request = Request(output=tmp_path / "out", device="cpu", operator_files=_operator_files(files))
    with pytest.raises(SampleError, match=r"(?s)'aten::sinh' matches nothing.*aten::tanh"):
        sample_file(files["squashed"], request)


def test_a_function_needs_a_target_for_each_column_of_times(files: dict[str, Path]) -> None:
    load_operators(files["target_functions"])
    files["squashed"].write_text(SWEEP.replace("[['aten::tanh'], ", "["))
    with pytest.raises(YamlError, match=r"each of the time columns .* needs one target"):
        load_guide_sweep(files["squashed"])


def test_a_function_that_does_not_name_its_shapes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ops.py"
    path.write_text("def nameless(shapes, precision, device_num):\n    return shapes[0]\n")
    with pytest.raises(SampleError, match="nameless does not say what its shapes are"):
        load_operators(path)


@pytest.mark.parametrize("jobs", [1, 2])
def test_samples_of_a_function_are_fitted_and_predicted_in_any_number_of_processes(
    files: dict[str, Path], jobs: int
) -> None:
    for path in _operator_files(files):
        load_operators(path)
    samples = [
        make_sample(
            f"{mp}-{length}-{dim}",
            None,
            operator="squashed",
            parameters={"mp": mp, "b": 2, "l": length, "dim": dim},
            direction=direction,
            device="made up",
            times_us=(made_up_time_us(0, scale * 2 * length * dim // mp * 4, 64),),
        )
        for mp in (1, 2, 4)
        for length in (256, 512, 768, 1024)
        for dim in (512, 1024, 2048)
        for direction, scale in (("forward", 2), ("backward", 3))
    ]
    model, left_out = fit(samples, jobs=jobs)
    assert not left_out and sorted(model.entries) == ["squashed/backward", "squashed/forward"]
    answer = predict(model, "squashed", {"mp": 2, "b": 2, "l": 640, "dim": 1024}, dtype=samples[0].dtype)
    assert answer.roofline_us is None
    assert answer.duration_us == pytest.approx(made_up_time_us(0, 2 * 2 * 640 * 512 * 4, 64), rel=0.3)


def test_why_shapes_failed_is_said_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from torchledger.cli.sample import _report
    from torchledger.sampling.collection import Collection
    from torchledger.sampling.request import Outcome

    failures = {"swish failed: its targets match nothing": 12, "swish oom: out of memory": 1}
    collection = Collection(tmp_path, 7, 7, {"failed": 12, "oom": 1}, 2.0, failures=failures)
    _report(Outcome(collection=collection, written=tmp_path / "part.csv"))
    said = capsys.readouterr().err
    assert "12 x swish failed: its targets match nothing" in said and f"12 failed, 1 oom in {tmp_path}\n" in said
    assert f"wrote {tmp_path / 'part.csv'}" in said
