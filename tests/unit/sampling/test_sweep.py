"""Sweep files: what they expand to, and how bad ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchledger.sampling.constraints import compile_constraint, compile_expression
from torchledger.sampling.points import Plan, Point, load_plan, save_plan, unique_points
from torchledger.sampling.sweep import Steps, duration_s, load_sweep
from torchledger.store.yaml_file import YamlError, read_yaml

GOOD = """\
dtypes: [bf16, fp16]
sweeps:
  - operator: linear
    group: train
    draws: 20
    parameters:
      m: {from: 16, to: 16384, draw: log, multiple_of: 8}
      k: {from: 64, to: 8192, factor: 2}
      n: [1024, 4096]
    where: ["m * k <= 2**24"]
  - operator: sdpa
    dtypes: [fp32]
    parameters: {b: 2, h: [4, 6], l: {from: 128, to: 1024, step: 128}, d: 64}
    where: ["h divides l"]
  - operator: conv2d
    parameters: {n: 2, c_in: [16, 32], height: 8, kernel: [1, 3], c_out: 8}
    derived: {width: height, padding: kernel // 2}
"""


def write(tmp_path, text):
    path = tmp_path / "sweep.yml"
    path.write_text(text)
    return path


def test_a_sweep_expands_to_its_combinations_and_draws(tmp_path):
    plan = load_sweep(write(tmp_path, GOOD))
    linear = [p for p in plan.points if p.operator == "linear"]
    assert len(linear) == 40
    assert {p.dtype for p in linear} == {"bfloat16", "float16"}
    assert all(p.parameters["m"] * p.parameters["k"] <= 2**24 for p in linear)
    assert all(p.parameters["m"] % 8 == 0 for p in linear)
    assert all(p.parameters["k"] in {64 * 2**i for i in range(8)} for p in linear)
    sdpa = [p.parameters for p in plan.points if p.operator == "sdpa"]
    assert sorted((p["h"], p["l"]) for p in sdpa) == [(4, 128 * i) for i in range(1, 9)] + [(6, 384), (6, 768)]
    conv = [p.parameters for p in plan.points if p.operator == "conv2d"]
    assert all(p["width"] == 8 and p["padding"] == p["kernel"] // 2 for p in conv)


def test_the_same_file_gives_the_same_plan(tmp_path):
    path = write(tmp_path, GOOD + "order: shuffle\nseed: 3\n")
    assert load_sweep(path) == load_sweep(path)


@pytest.mark.parametrize(
    ("line", "old", "new", "message"),
    [
        (4, "group: train", "grop: train", "sweep.yml:4: sweeps.0.grop: unknown key"),
        (3, "linear", "linaer", "did you mean linear"),
        (3, "linear", "all_reduce", "all_reduce needs several ranks: name it under `collectives:`"),
        (7, "from: 16, to: 16384", "from: 16, to: 8", "to (8) is below from (16)"),
        (8, "factor: 2", "factor: 1", "multiplying 64 by 1.0 never reaches 8192"),
        (13, "step: 128", "step: 0", "step 0 never reaches 1024"),
        (9, "n: [1024, 4096]", "n: [1024, x]", "valid integer"),
        (9, "n: [1024, 4096]", "p: [1024, 4096]", "linear has no parameter 'p'"),
        (10, "m * k <= 2**24", "m * q <= 2**24", "names 'q'"),
        (10, "m * k <= 2**24", "m.__class__", "may hold parameters, numbers"),
        (10, "m * k <= 2**24", "m < 0", "no shape meets these conditions"),
        (1, "fp16", "fp17", "dtype 'fp17' is unknown"),
        (5, "draws: 20", "draws: 0", "greater than or equal to 1"),
        (7, "draws: 20", "", "is drawn, so the sweep needs draws"),
    ],
)
def test_a_bad_file_is_refused_with_line_and_key(tmp_path, line, old, new, message):
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(YamlError) as refused:
        load_sweep(path)
    assert message in str(refused.value)
    if new:
        assert f"sweep.yml:{line}: " in str(refused.value)
    assert refused.value.exit_code == 2


def test_all_faults_are_told_at_once(tmp_path):
    text = GOOD.replace("group: train", "grop: train").replace("factor: 2", "factor: 1")
    with pytest.raises(YamlError) as refused:
        load_sweep(write(tmp_path, text))
    assert len(str(refused.value).splitlines()) == 2


def test_a_file_that_is_no_yaml_is_refused_with_its_line(tmp_path):
    with pytest.raises(YamlError, match=r"sweep\.yml:3: expected the node content"):
        load_sweep(write(tmp_path, "sweeps:\n  - {operator: [\n"))


@given(
    start=st.integers(1, 1000),
    length=st.integers(0, 100_000),
    multiple=st.integers(1, 64),
    share=st.floats(0, 1, exclude_max=True),
    law=st.sampled_from(["log", "uniform"]),
)
def test_a_drawn_value_stays_in_its_range(start, length, multiple, share, law):
    steps = Steps.model_validate({"from": start, "to": start + length, "draw": law, "multiple_of": multiple})
    assert start <= steps.at(share) <= start + length


@given(a=st.integers(1, 50), b=st.integers(1, 50))
def test_conditions_mean_what_they_say(a, b):
    p = {"a": a, "b": b}
    assert compile_constraint("a divides b", {"a", "b"})(p) == (b % a == 0)
    assert compile_constraint("1 < a <= b or not a * 2 > b", {"a", "b"})(p) == (1 < a <= b or not a * 2 > b)
    assert compile_expression("(a + b) // 2", {"a", "b"})(p) == (a + b) // 2


@pytest.mark.parametrize("text", ["__import__('os')", "a if b else a", "[a]", "a == 'x'", "lambda: 1", "a &"])
def test_conditions_hold_nothing_but_arithmetic(text):
    with pytest.raises(ValueError, match=r"may hold|no number|cannot be read|operator that"):
        compile_constraint(text, {"a", "b"})


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10min", 600), ("1.5h", 5400)])
def test_durations_are_read(text, seconds):
    assert duration_s(text) == seconds


def points(count):
    return unique_points([Point("gelu", {"numel": n + 1}, "float32") for n in range(count)])


@given(count=st.integers(0, 40), parts=st.integers(1, 7))
def test_parts_share_a_plan_without_loss_or_overlap(count, parts):
    plan = Plan(points(count))
    shards = [plan.shard(part, parts) for part in range(1, parts + 1)]
    assert sorted(p.parameters["numel"] for shard in shards for p in shard) == list(range(1, count + 1))


@given(part=st.integers(1, 4), parts=st.integers(1, 4), count=st.integers(1, 5))
def test_an_engine_shares_its_part_without_loss_or_overlap(part, parts, count):
    from pathlib import Path

    from torchledger.sampling.engines import Job
    from torchledger.sampling.supervisor import WorkerOptions

    part = min(part, parts)
    plan = Plan(points(37))
    job = Job(Path("."), WorkerOptions("cpu"), part, parts)
    shared = [p for index in range(count) for p in plan.shard(*job.share(index, count))]
    assert sorted(p.parameters["numel"] for p in shared) == sorted(
        p.parameters["numel"] for p in plan.shard(part, parts)
    )


def test_a_plan_reads_back_as_written(tmp_path):
    plan = Plan(points(5), 1, 3, ("ops.py",), {"sweep": "x"})
    save_plan(plan, tmp_path)
    assert load_plan(tmp_path) == plan


_BOMBS = {
    "aliases of aliases": "a0: &a0 [1]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
    "merges of merges": "a0: &a0 {k: 1}\n"
    + "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
    "an alias of itself": "a: &a [*a]\n",
    "nested without end": "a: " + "[" * 5_000 + "]" * 5_000,
    "a number without end": "a: " + "9" * 5_000,
    "a key that is a list": "? [a, b]\n: 1\n",
    "a day that is none": "a: 2026-99-99\n",
    "large": "a: 1\n" * 100_000,
}


@pytest.mark.parametrize("text", _BOMBS.values(), ids=_BOMBS)
def test_a_yaml_file_is_opened_no_further_than_an_honest_one_goes(tmp_path, text):
    path = tmp_path / "bomb.yml"
    path.write_text(text)
    with pytest.raises(YamlError, match=r"bomb\.yml"):
        read_yaml(path)


@pytest.mark.parametrize("steps", ["step: 1", "factor: 1.0000000001"])
def test_a_range_of_a_million_million_steps_is_refused_unlisted(tmp_path, steps):
    path = tmp_path / "long.yml"
    path.write_text(
        f"sweeps:\n  - operator: gelu\n    parameters:\n      numel: {{from: 1, to: 1000000000000, {steps}}}\n"
    )
    with pytest.raises(YamlError, match=r"long\.yml:4: .*more than 100,000: take larger steps"):
        load_sweep(path)
