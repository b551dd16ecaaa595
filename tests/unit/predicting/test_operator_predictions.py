"""Asking a model, and its file."""

from __future__ import annotations

import hashlib
import io
import json
import math
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from factories import make_device
from times import make_linear_samples
from torchledger.cli import cli
from torchledger.errors import PredictError, StoreError
from torchledger.fitting import TimeModel, fit
from torchledger.fitting.time_model import Origin
from torchledger.operators import find_operator
from torchledger.predicting import find_model, load_model, predict, predict_table, save_model
from torchledger.predicting.operators import ROOFLINE, parse_parameters, range_of, tail_us
from torchledger.reporting.fits import predictions_as_plain, predictions_document
from torchledger.reporting.terminal import render

_SHAPE = {"m": 512, "k": 512, "n": 512}


@pytest.fixture(scope="module")
def model() -> TimeModel:
    return fit(make_linear_samples(120), jobs=1, record=make_device(name="TEST", total_memory_bytes=10**11))[0]


@pytest.fixture(scope="module")
def file(model: TimeModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "test.tlmodel"
    save_model(model, path)
    return path


def test_a_prediction_lies_inside_its_interval_and_names_device_and_entry(model: TimeModel) -> None:
    prediction = predict(model, "linear", _SHAPE)
    assert prediction.low_us < prediction.duration_us < prediction.high_us
    assert prediction.range == "inside" and prediction.device == "TEST" and not prediction.is_extrapolated
    assert prediction.model.startswith("linear/forward")
    assert prediction.duration_us == pytest.approx(4 + 2 * 512**3 / 5e8, rel=0.2)


def test_a_launch_takes_longer_in_the_mean_than_in_the_middle_by_how_wide_its_interval_is(model: TimeModel) -> None:
    found = replace(predict(model, "linear", _SHAPE), low_us=8.0, duration_us=10.0, high_us=12.5)
    # Nine of ten of a log-normal distribution lie within 1.645 standard deviations.
    spread = math.log(1.25) / 1.645
    assert tail_us(found) == pytest.approx(10.0 * (math.exp(spread**2 / 2) - 1))
    wider = [tail_us(replace(found, high_us=high)) for high in (10.0, 11.0, 15.0, 20.0, 1e6)]
    assert wider[0] == 0.0 and wider == sorted(wider)
    # Of a launch of which little is known the interval says that, and not what chance does.
    assert tail_us(replace(found, high_us=1e9)) == wider[-1] < 1.0


def test_what_stands_at_its_roofline_has_no_tail(model: TimeModel) -> None:
    assert tail_us(replace(predict(model, "linear", _SHAPE), model=ROOFLINE, high_us=1e3)) == 0.0


def test_a_file_answers_as_the_model_that_was_saved(model: TimeModel, file: Path) -> None:
    assert predict(load_model(file), "linear", _SHAPE) == predict(model, "linear", _SHAPE)


def test_equal_models_make_equal_files(model: TimeModel, file: Path, tmp_path: Path) -> None:
    save_model(load_model(file), tmp_path / "again.tlmodel")
    assert (tmp_path / "again.tlmodel").read_bytes() == file.read_bytes()


def test_a_table_answers_each_row_as_if_asked_alone(model: TimeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchledger.predicting.operators._ROWS_AT_ONCE", 3)
    sizes = np.array([64, 100, 512, 4000])
    table = predict_table(model, "linear", {"m": sizes, "k": 512, "n": 512}, direction="backward")
    alone = [predict(model, "linear", {**_SHAPE, "m": int(size)}, direction="backward") for size in sizes]
    np.testing.assert_allclose(table.duration_us, [prediction.duration_us for prediction in alone], rtol=1e-4)
    assert table.ranges == [prediction.range for prediction in alone]


def test_far_outside_the_measured_range_is_extrapolated_and_says_so(model: TimeModel) -> None:
    prediction = predict(model, "linear", {"m": 60_000, "k": 512, "n": 512})
    assert prediction.range == "extrapolated"
    assert "extrapolated" in str(prediction.note)
    assert [range_of(distance) for distance in (0.0, 0.1, 1.0)] == ["inside", "edge", "extrapolated"]


def test_a_dtype_that_was_not_measured_is_extrapolated(model: TimeModel) -> None:
    prediction = predict(model, "linear", _SHAPE, dtype="fp16")
    assert prediction.is_extrapolated and "float16 was not measured, only bfloat16" in str(prediction.note)
    said = render(predictions_document([prediction]), width=400)
    assert "float16 was not measured" in said and "inside what was measured, and are a guess beyond" in said


def test_a_table_of_a_dtype_that_was_not_measured_is_extrapolated_in_every_row(model: TimeModel) -> None:
    measured, other = (predict_table(model, "linear", {**_SHAPE, "m": [256, 512]}, dtype=d) for d in ("bf16", "fp16"))
    assert measured.doubt is None and measured.ranges == ["inside", "inside"]
    assert other.ranges == ["extrapolated", "extrapolated"] and "float16 was not measured" in str(other.doubt)


@pytest.mark.parametrize(
    ("operator", "shape", "options", "message"),
    [
        ("linaer", _SHAPE, {}, "did you mean linear"),
        ("softmax", {"rows": 4, "dim": 4}, {}, "knows no operator 'softmax'; "),
        ("linear", {**_SHAPE, "mm": 3}, {}, "no parameter 'mm'; nearest: m"),
        ("linear", {"m": 4, "k": 4}, {}, "linear needs n"),
        ("linear", {**_SHAPE, "m": 0}, {}, "m=0 must be at least 1"),
        ("linear", {**_SHAPE, "m": -3}, {}, "m=-3 must be at least 1"),
        ("linear", {**_SHAPE, "m": 2.5}, {}, "m=2.5 is no whole number"),
        ("linear", _SHAPE, {"direction": "sideways"}, "no direction 'sideways' in this model"),
        ("linear", _SHAPE, {"dtype": "bf17"}, "'bf17' is unknown; the nearest known are .*bf16.*bfloat16"),
        ("linear", {"m": 10**6, "k": 10**5, "n": 10**5}, {}, "needs 220.0 GB for its tensors; TEST has 100.0 GB"),
    ],
)
def test_questions_without_an_answer_are_refused_with_the_next_step(
    model: TimeModel, operator: str, shape: dict[str, int], options: dict[str, str], message: str
) -> None:
    with pytest.raises(PredictError, match=message.replace("(", r"\(")):
        predict(model, operator, shape, **options)  # type: ignore[arg-type]


def test_an_altered_entry_is_refused_in_one_line(file: Path, tmp_path: Path) -> None:
    altered = tmp_path / "altered.tlmodel"
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(altered, "w") as target:
        for name in source.namelist():
            content = bytearray(source.read(name))
            if name.endswith("linear/forward.npz"):
                content[len(content) // 2] ^= 1
            target.writestr(name, bytes(content))
    with pytest.raises(PredictError, match="was altered: entry linear/forward"):
        predict(load_model(altered), "linear", _SHAPE)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_refused_in_one_line(file: Path, tmp_path: Path, share: float) -> None:
    cut = tmp_path / "cut.tlmodel"
    content = file.read_bytes()
    cut.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(PredictError, match="is no model of times, or is cut off"):
        load_model(cut)


def test_another_schema_is_named(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tlmodel"
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(other, "w") as target:
        header = json.loads(source.read("header.json"))
        header["header"]["schema"] = 99
        target.writestr("header.json", json.dumps(header))
    with pytest.raises(PredictError, match="has schema 99; this version reads 1"):
        load_model(other)


def test_an_unknown_device_names_the_nearest_known_ones() -> None:
    with pytest.raises(PredictError, match=r"no device is called 'Z80'; the nearest known are .*calibrate"):
        find_model("Z80")


def test_an_existing_model_is_not_replaced_unasked(model: TimeModel, file: Path) -> None:
    with pytest.raises(StoreError, match="exists"):
        save_model(model, file)


def test_parameters_are_name_equals_number() -> None:
    assert parse_parameters(["b=4", "l=2048"]) == {"b": 4, "l": 2048}
    for bad in ("b", "=4", "b=x", "b=4.5"):
        with pytest.raises(PredictError, match="is not NAME=VALUE"):
            parse_parameters([bad])


def test_a_parameter_that_is_given_twice_is_refused() -> None:
    with pytest.raises(PredictError, match="n is given twice, as 1 and in 'n=2'"):
        parse_parameters(["m=4", "n=1", "n=2"])


def test_the_command_answers_both_directions_as_text_and_json(file: Path) -> None:
    arguments = ["predict", "linear", "m=512", "k=512", "n=512", "--device", str(file)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert "linear backward bfloat16 m=512 k=512 n=512" in result.output
    assert "Model: linear/forward (" in result.output and "; linear/backward (" in result.output
    rows = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)
    assert [row["range"] for row in rows] == ["inside", "inside"]


def test_a_time_below_the_roofline_is_said_with_why_it_can_be(model: TimeModel) -> None:
    found = replace(predict(model, "linear", _SHAPE), duration_us=9.0, roofline_us=10.0)
    inside, beyond = found, replace(found, subject="a call far away", range="extrapolated")
    text = render(predictions_document([inside, beyond]), width=400)
    assert f"Quicker than the roofline: {found.subject}. Some measured times are" in text
    assert "beyond what was measured: a call far away. No measured time bears that out." in text
    assert [each["is_below_roofline"] for each in predictions_as_plain([inside, beyond])] == [True, True]


def test_a_time_above_the_roofline_or_without_one_says_nothing_of_it(model: TimeModel) -> None:
    above = replace(predict(model, "linear", _SHAPE), duration_us=11.0, roofline_us=10.0)
    unknown = replace(above, roofline_us=None)
    assert "Quicker" not in render(predictions_document([above, unknown]), width=400)
    assert [each["is_below_roofline"] for each in predictions_as_plain([above, unknown])] == [False, None]


def test_predicting_loads_neither_torch_nor_scikit_learn(file: Path) -> None:
    code = (
        "import sys\nfrom torchledger.cli import cli\n"
        f"cli.main(['predict', 'linear', 'm=64', 'k=64', 'n=64', '--device', {str(file)!r}], standalone_mode=False)\n"
        "assert not {'torch', 'sklearn', 'scipy', 'pyarrow', 'pandas'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).returncode == 0


def test_general_defaults_may_be_left_out() -> None:
    assert find_operator("linear").resolve(_SHAPE)["bias"] == 0


def forge(file: Path, forged: Path, arrays: dict[str, bytes]) -> Path:
    """A model whose entry ``linear/forward`` holds other arrays, with checksums that match."""
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(forged, "w", zipfile.ZIP_DEFLATED) as target:
        with zipfile.ZipFile(io.BytesIO(source.read("entries/linear/forward.npz"))) as entry:
            members = {name: entry.read(name) for name in entry.namelist()} | arrays
        blob = io.BytesIO()
        with zipfile.ZipFile(blob, "w") as entry:
            for name, content in members.items():
                entry.writestr(name, content)
        header = json.loads(source.read("header.json"))["header"]
        header["entries"]["linear/forward"]["sha256"] = hashlib.sha256(blob.getvalue()).hexdigest()
        text = json.dumps(header, sort_keys=True).encode()
        target.writestr("header.json", json.dumps({"header": header, "sha256": hashlib.sha256(text).hexdigest()}))
        target.writestr("entries/linear/forward.npz", blob.getvalue())
    return forged


def as_npy(array: np.ndarray[Any, Any], shape: tuple[int, ...] | None = None) -> bytes:
    """An array as a file, which may claim another shape."""
    buffer = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape if shape is None else shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + array.tobytes()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("process.points", as_npy(np.zeros(4, np.float32), shape=(1 << 15, 1 << 15)), "does not fit its 16 bytes"),
        ("trees.left", as_npy(np.zeros((2, 3), np.int64)), "is int64 of 2 dimensions, not int16"),
        ("trees.left", as_npy(np.zeros((2, 3), np.int16)), "do not fit each other"),
        ("noise", as_npy(np.zeros(2)), "array noise"),
        ("noise", as_npy(np.array(np.nan)), "holds NaN"),
        ("columns", as_npy(np.array([99], np.int64)), "do not fit each other"),
        ("columns", b"no array", "magic string"),
    ],
)
def test_arrays_are_checked_before_memory_is_taken(
    file: Path, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    forged = forge(file, tmp_path / "forged.tlmodel", {f"{name}.npy": content})
    with pytest.raises(PredictError, match=f"entry linear/forward cannot be read .*{said}"):
        predict(load_model(forged), "linear", _SHAPE)


def test_a_tree_that_goes_round_is_refused(file: Path, model: TimeModel, tmp_path: Path) -> None:
    left = model.entries["linear/forward"].blend.trees.left.copy()
    left[0, 0] = 0
    forged = forge(file, tmp_path / "forged.tlmodel", {"trees.left.npy": as_npy(left)})
    with pytest.raises(PredictError, match="its trees are none"):
        predict(load_model(forged), "linear", _SHAPE)


def test_a_small_model_that_opens_up_to_gigabytes_is_refused(file: Path, tmp_path: Path) -> None:
    forged = forge(file, tmp_path / "forged.tlmodel", {"more.npy": bytes(64 << 20)})
    with pytest.raises(PredictError, match="claims 67,"):
        predict(load_model(forged), "linear", _SHAPE)


@pytest.mark.parametrize("scale", ["bytes_per_us", "floor_us"])
def test_a_rate_of_zero_is_refused_of_the_machines_that_entries_come_from_too(
    model: TimeModel, tmp_path: Path, scale: str
) -> None:
    origins = (Origin(replace(model.machine, **{scale: 0.0}), 0),)
    entries = {key: replace(entry, origins=origins) for key, entry in model.entries.items()}
    save_model(replace(model, entries=entries), tmp_path / "carried.tlmodel")
    with pytest.raises(PredictError, match=rf"field `origins\[0\]`: {scale} must be above zero, got 0.0"):
        load_model(tmp_path / "carried.tlmodel")


@pytest.mark.parametrize(("rate", "said"), [(5e-324, "5e-324"), (1e300, r"1e\+300")])
def test_a_rate_that_no_device_has_is_refused(model: TimeModel, tmp_path: Path, rate: float, said: str) -> None:
    rates = {**model.machine.flops_per_us, "float32": rate}
    save_model(replace(model, machine=replace(model.machine, flops_per_us=rates)), tmp_path / "odd.tlmodel")
    with pytest.raises(PredictError, match=f"no device has a float32 of {said}"):
        load_model(tmp_path / "odd.tlmodel")
