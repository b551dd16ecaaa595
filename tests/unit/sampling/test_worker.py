"""The worker: every operator runs, interruptions lose nothing, failures are recorded."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from torchledger.device.describe import describe_cpu
from torchledger.errors import SampleError
from torchledger.operators import find_operator, operator_names
from torchledger.sampling.cases import InputPool, make_case
from torchledger.sampling.dataset import compact, merge_samples, read_devices, read_samples, write_samples
from torchledger.sampling.engines import Job, run_engine
from torchledger.sampling.journal import Journal, read_journals
from torchledger.sampling.points import Plan, Point, save_plan, unique_points
from torchledger.sampling.supervisor import WorkerOptions, supervise
from torchledger.sampling.worker import describe_device, run_worker

SHAPE = {
    "mp": 2, "b": 2, "h": 4, "l": 32, "dim": 64, "experts": 4, "intermediate": 64, "top_k": 2, "encoders": 1,
    "m": 16, "k": 32, "n": 16, "rows": 30, "numel": 1000, "tokens": 50, "vocab": 100, "d": 16, "sequences": 3,
    "c_in": 16, "height": 12, "width": 10, "c_out": 8, "kernel": 3, "groups": 2,
}  # fmt: skip


def gelu_plan(count, **changes):
    plan = Plan(unique_points([Point("gelu", {"numel": n + 1}, "float32") for n in range(count)]), warmup=1, active=3)
    return dataclasses.replace(plan, **changes)


@pytest.mark.parametrize("name", [n for n in operator_names() if "float32" in find_operator(n).dtypes])
def test_every_operator_runs_and_gives_the_gradients_it_declares(name):
    operator = find_operator(name)
    p = operator.resolve({key: SHAPE[key] for key in operator.parameters})
    case = make_case(operator, p, "float32", InputPool("cpu"))
    assert list(case.runs) == list(operator.directions)
    for direction, run in case.runs.items():
        if direction in case.prepare:
            case.prepare[direction]()
        result = run()
        if direction == "backward":
            wanted = [tuple(spec.shape) for spec in operator.tensors(p).values() if spec.gradient]
            assert [tuple(gradient.shape) for gradient in result] == wanted


def test_a_second_run_measures_nothing_again(tmp_path):
    save_plan(gelu_plan(4), tmp_path)
    assert run_worker(tmp_path, device="cpu").measured == 4
    first = read_samples(tmp_path)
    assert run_worker(tmp_path, device="cpu").measured == 0
    assert compact(tmp_path) == 8
    assert read_samples(tmp_path) == first
    assert run_worker(tmp_path, device="cpu").measured == 0


def test_a_sample_says_what_it_is(tmp_path):
    save_plan(gelu_plan(1), tmp_path)
    run_worker(tmp_path, device="cpu")
    forward, backward = read_samples(tmp_path)
    assert (forward.direction, backward.direction) == ("forward", "backward")
    assert forward.point_id == backward.point_id
    assert len(forward.times_us) == 3
    assert forward.clock == "host"
    assert forward.bytes_moved == 8
    assert forward.versions["torch"]


def test_a_folder_holds_what_its_device_is_before_and_after_it_is_compacted(tmp_path):
    save_plan(gelu_plan(1), tmp_path)
    run_worker(tmp_path, device="cpu")
    cpu = describe_cpu()
    assert read_devices(tmp_path)[cpu.name].num_cores == cpu.num_cores
    compact(tmp_path)
    assert read_devices(tmp_path / "samples.parquet")[cpu.name].total_memory_bytes == cpu.total_memory_bytes


def test_a_torn_line_is_measured_again(tmp_path):
    save_plan(gelu_plan(3), tmp_path)
    run_worker(tmp_path, device="cpu")
    (journal,) = (tmp_path / "journal").glob("*.jsonl")
    content = journal.read_bytes()
    journal.write_bytes(content[:-20])
    assert len(read_samples(tmp_path)) == 4
    assert run_worker(tmp_path, device="cpu").measured == 1
    assert len(read_samples(tmp_path)) == 6
    assert read_journals(tmp_path).torn_lines == 1


def test_shapes_that_cannot_run_are_recorded(tmp_path):
    points = [
        Point("linear", {"m": 2**40, "k": 64, "n": 64}, "float32"),
        Point("sdpa", {"b": 1, "h": 4, "l": 8, "d": 8, "h_kv": 3}, "float32"),
        Point("linear_fp8", {"m": 16, "k": 20, "n": 16}, "float8_e4m3fn"),
        Point("gelu", {"numel": 4}, "float32"),
    ]
    save_plan(Plan(unique_points(points), 0, 1), tmp_path)
    summary = run_worker(tmp_path, device="cpu")
    assert (summary.measured, summary.failed) == (4, 3)
    statuses = {s.operator: s.status for s in read_samples(tmp_path)}
    assert statuses["linear"] == "out_of_memory"
    assert statuses["sdpa"] == "unsupported"
    assert statuses["linear_fp8"] == "unsupported"
    assert statuses["gelu"] == "ok"
    assert all(s.reason for s in read_samples(tmp_path) if s.status != "ok")
    assert run_worker(tmp_path, device="cpu").measured == 0


def test_another_device_or_version_is_refused(tmp_path):
    save_plan(gelu_plan(2), tmp_path)
    identity = describe_device("cpu")
    with Journal(tmp_path, {**identity, "device": "NVIDIA H200"}):
        pass
    with pytest.raises(SampleError, match=r"holds measurements of NVIDIA H200, this device is .* --allow-mixed"):
        run_worker(tmp_path, device="cpu")
    assert run_worker(tmp_path, device="cpu", allow_mixed=True).measured == 2


def test_another_torch_is_refused(tmp_path):
    save_plan(gelu_plan(2), tmp_path)
    with Journal(tmp_path, {**describe_device("cpu"), "versions": {"torch": "1.0"}}):
        pass
    with pytest.raises(SampleError, match=r"was measured with torch 1\.0, this is torch "):
        run_worker(tmp_path, device="cpu")


def test_merging_drops_duplicates_and_refuses_mixtures(tmp_path):
    save_plan(gelu_plan(3), tmp_path)
    run_worker(tmp_path, device="cpu")
    samples = read_samples(tmp_path)
    assert merge_samples({"a": samples, "b": samples[:2]}) == samples
    other = [dataclasses.replace(s, device="NVIDIA H200") for s in samples]
    with pytest.raises(SampleError, match="b has device NVIDIA H200"):
        merge_samples({"a": samples, "b": other})
    assert len(merge_samples({"a": samples, "b": other}, allow_mixed=True)) == 12


def test_samples_read_back_as_written(tmp_path):
    save_plan(gelu_plan(3), tmp_path)
    run_worker(tmp_path, device="cpu")
    samples = read_samples(tmp_path)
    write_samples(tmp_path / "copy.parquet", samples)
    assert read_samples(tmp_path / "copy.parquet") == samples


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(SampleError, match=r"x\.parquet is no Parquet file or is damaged"):
        read_samples(path)


def test_a_full_disk_is_told_and_keeps_what_was_written(tmp_path, monkeypatch):
    save_plan(gelu_plan(1), tmp_path)
    journal = Journal(tmp_path, {"device": "x", "versions": {}})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SampleError, match=r"No space left on device\. What was finished is kept; free space"):
        journal.attempt(["a"])


def test_no_gpu_is_told(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    save_plan(gelu_plan(1), tmp_path)
    with pytest.raises(SampleError, match=r"no CUDA device is visible\. Pass --device cpu"):
        run_worker(tmp_path, device="cuda:0")


DEADLY = '''
import os, signal
from torchledger.operators import Input, Operator, Work

class Deadly(Operator):
    """Kills its process at one shape, raises at another."""
    name = "NAME"
    parameters = ("numel",)
    directions = ("forward",)

    def tensors(self, p):
        return {"x": Input((p.numel,))}

    def forward(self, p, x):
        if p.numel == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        if p.numel == 5:
            raise RuntimeError("five is right out")
        return x + 1

    def work(self, p, direction, item_size):
        return (Work("pointwise", p.numel * item_size, p.numel * item_size),)
'''


@pytest.fixture
def deadly_plan(tmp_path):
    from torchledger.operators import load_operators

    path = tmp_path / "deadly.py"
    name = f"test_deadly_{tmp_path.name}"
    path.write_text(DEADLY.replace("NAME", name))
    load_operators(path)
    points = unique_points([Point(name, {"numel": n}, "float32") for n in range(1, 8)])
    folder = tmp_path / "out"
    save_plan(Plan(points, 0, 1, (str(path),)), folder)
    return folder


def test_a_shape_that_kills_its_worker_costs_one_shape(deadly_plan):
    assert supervise(deadly_plan, WorkerOptions("cpu")) == 2
    samples = {s.parameters["numel"]: s for s in read_samples(deadly_plan)}
    assert sorted(samples) == [1, 2, 3, 4, 5, 6, 7]
    assert [n for n, s in samples.items() if s.status != "ok"] and samples[3].status == "failed"
    assert "2 workers died" in samples[3].reason
    assert samples[5].status == "failed" and "five is right out" in samples[5].reason
    assert all(samples[n].status == "ok" for n in (1, 2, 4, 6, 7))


def test_kills_at_random_moments_lose_nothing_and_repeat_nothing(tmp_path):
    count = 300
    save_plan(gelu_plan(count), tmp_path)
    journals = tmp_path / "journal"
    for attempt in range(6):
        worker = _fork_worker(tmp_path)
        deadline = time.monotonic() + 60
        finished = _finished(journals)
        while time.monotonic() < deadline and _finished(journals) < finished + 20 + attempt:
            time.sleep(0.001)
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    assert 0 < _finished(journals) < count
    os.waitpid(_fork_worker(tmp_path), 0)
    finished_points = []
    for path in journals.glob("*.jsonl"):
        whole = [json.loads(line) for line in path.read_bytes().splitlines(True) if line.endswith(b"\n")]
        finished_points += [line["point"] for line in whole if line["kind"] == "point"]
    assert len(finished_points) == len(set(finished_points)) == count
    sizes = [s.parameters["numel"] for s in read_samples(tmp_path) if s.direction == "forward"]
    assert sorted(sizes) == list(range(1, count + 1))


def _fork_worker(folder):
    """A worker in a child that shares this process's imports, so that many starts cost little."""
    import torch

    child = os.fork()
    if child:
        return child
    try:
        torch.set_num_threads(1)
        run_worker(folder, device="cpu")
    finally:
        os._exit(0)


def _finished(journals):
    return sum(path.read_bytes().count(b'"kind":"point"') for path in journals.glob("*.jsonl"))


@pytest.mark.parametrize(("engine", "options"), [("local", {}), ("slurm", {"cluster": "local"})])
def test_engines_share_the_work_between_workers(tmp_path, engine, options):
    if engine == "slurm":
        pytest.importorskip("submitit")
    save_plan(gelu_plan(20), tmp_path)
    run_engine(engine, Job(tmp_path, WorkerOptions("cpu"), workers=2, options=options))
    samples = read_samples(tmp_path)
    assert sorted(s.parameters["numel"] for s in samples if s.direction == "forward") == list(range(1, 21))
    state = read_journals(tmp_path)
    assert len(state.headers) == 2


@pytest.mark.slow
def test_a_worker_that_ray_placed_is_killed_and_the_sweep_resumes(deadly_plan):
    pytest.importorskip("ray")
    run_engine("ray", Job(deadly_plan, WorkerOptions("cpu"), workers=2, options={"num_gpus": "2"}))
    samples = {s.parameters["numel"]: s.status for s in read_samples(deadly_plan)}
    assert len(read_journals(deadly_plan).headers) >= 2
    assert samples == {1: "ok", 2: "ok", 3: "failed", 4: "ok", 5: "failed", 6: "ok", 7: "ok"}


def test_the_env_engine_takes_its_share_from_torchrun(tmp_path, monkeypatch):
    save_plan(gelu_plan(6), tmp_path)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        run_engine("env", Job(tmp_path, WorkerOptions("cpu")))
        assert len(read_samples(tmp_path)) == 6 * (int(rank) + 1)


def test_the_env_engine_outside_a_launcher_says_so(tmp_path, monkeypatch):
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SampleError, match="under torchrun or srun"):
        run_engine("env", Job(tmp_path, WorkerOptions("cpu")))


def test_an_unknown_engine_and_a_part_out_of_range_are_refused(tmp_path):
    with pytest.raises(SampleError, match="no engine 'pbs'; there are local, slurm, ray, env"):
        run_engine("pbs", Job(tmp_path, WorkerOptions("cpu")))
    with pytest.raises(SampleError, match="--part 5 of --parts 4 does not exist"):
        run_engine("local", Job(tmp_path, WorkerOptions("cpu"), part=5, parts=4))


def test_the_worker_needs_neither_pydantic_nor_orjson_nor_yaml():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('pydantic', 'orjson', 'yaml', 'click', 'rich'))); "
        "import torchledger.sampling.worker, torchledger.sampling.engines, torchledger.sampling.collectives"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
