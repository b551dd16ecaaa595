"""Collectives, for real on gloo under torchrun, and how links are read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from torchledger._torch.device_trace import Piece
from torchledger.errors import SampleError
from torchledger.operators.collectives import COLLECTIVE_OPERATORS, COLLECTIVES
from torchledger.sampling.collectives import CollectivePoint, collect_collectives, parse_topology
from torchledger.sampling.dataset import read_samples
from torchledger.sampling.gates import doubt_samples
from torchledger.sampling.sweep import load_collectives
from torchledger.store.yaml_file import YamlError

SWEEP = """\
dtypes: [fp32]
collectives:
  - {collective: all_reduce, bytes: {from: 1024, to: 65536, factor: 8}}
  - {collective: all_gather, bytes: [4096]}
  - {collective: reduce_scatter, bytes: [4096]}
  - {collective: all_to_all, bytes: [4096]}
  - {collective: broadcast, bytes: [4096]}
  - {collective: p2p, bytes: [4096], groups: [2]}
  - {collective: broadcast, bytes: [4096], beside: [products, copies]}
"""


@pytest.mark.slow
def test_all_collectives_are_measured_under_torchrun_and_resumed(tmp_path):
    sweep = tmp_path / "collectives.yml"
    sweep.write_text(SWEEP)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "torchledger", "sample", str(sweep), "--device", "cpu", "-o", str(tmp_path / "out")]
    for expected in ("10 of 10", "0 of 10"):
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        assert f"{expected} points measured" in ran.stderr
        assert ran.stderr.count("points measured") == 1
    samples = read_samples(tmp_path / "out")
    beside = {"beside_products.broadcast", "beside_copies.broadcast"}
    assert {s.operator.removeprefix("collective.") for s in samples} == set(COLLECTIVES) | beside
    assert all(s.status == "ok" and len(s.times_us) == 10 and s.parameters["world"] == 2 for s in samples)
    reduced = next(s for s in samples if s.operator == "collective.all_reduce" and s.parameters["numel"] == 256)
    assert reduced.bytes_moved == 1024
    assert doubt_samples(samples, None) == {}


def test_collectives_outside_torchrun_say_how_to_start_them(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SampleError, match="start this command with torchrun"):
        collect_collectives([CollectivePoint("all_reduce", 8, "float32", 2)], tmp_path, device="cpu")


def test_messages_are_rounded_up_to_equal_shares(tmp_path):
    path = tmp_path / "c.yml"
    path.write_text("collectives: [{collective: all_gather, bytes: [10], groups: [3]}]")
    assert load_collectives(path, world=4) == [CollectivePoint("all_gather", 6, "bfloat16", 3)]


def test_a_collective_beside_other_work_is_a_point_of_its_own(tmp_path):
    path = tmp_path / "c.yml"
    path.write_text("collectives: [{collective: p2p, bytes: [8], beside: [nothing, copies]}]")
    points = load_collectives(path, world=2)
    assert points is not None
    assert [point.operator for point in points] == ["collective.p2p", "collective.beside_copies.p2p"]
    assert all(point.operator in COLLECTIVE_OPERATORS for point in points)


def test_the_work_beside_a_collective_is_left_out_of_its_time():
    piece = Piece(
        ("ncclDevKernel_AllReduce", "gemm", "ncclDevKernel_AllReduce"), ((0, 3000), (1000, 9000), (4000, 5000))
    )
    assert piece.named("nccl").busy_us == 4.0
    assert piece.busy_us == 9.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("collectives: [{collective: p2p, bytes: 8, beside: lunch}]", "beside"),
        ("collectives: [{collective: all_redcue, bytes: 8}]", "c.yml:1: collectives.0.collective"),
        ("collectives: [{collective: p2p, bytes: 8, groups: [1]}]", "1 is no group"),
        ("collectives: [{collective: p2p, bytes: 0}]", "needs positive sizes"),
        ("collectives: []", "needs sweeps or collectives"),
    ],
)
def test_bad_collectives_are_refused(tmp_path, text, message):
    path = tmp_path / "c.yml"
    path.write_text(text)
    with pytest.raises(YamlError) as refused:
        load_collectives(path, world=2)
    assert message in str(refused.value)


def test_links_are_read_from_the_drivers_matrix():
    text = (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\x1b[0m\n"
        "GPU0\t X \tNV18\tSYS\t0-31\nGPU1\tNV18\t X \tPIX\t0-31\nGPU2\tSYS\tPIX\t X \t0-31\n\nLegend:\n  X = Self\n"
    )
    assert parse_topology(text) == {"0-1": "NV18", "0-2": "SYS", "1-2": "PIX"}


def test_bus_bytes_follow_the_usual_convention():
    assert COLLECTIVES["all_reduce"].bus_bytes(1000, 4, 2) == 3000
    assert COLLECTIVES["all_gather"].bus_bytes(1000, 4, 2) == 1500
    assert COLLECTIVES["p2p"].bus_bytes(1000, 2, 2) == 2000
    assert COLLECTIVES["all_to_all"].check(9, 2) == "9 elements are not equal shares for 2 ranks"
