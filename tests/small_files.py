"""Small real files of each kind that a command reads."""

from __future__ import annotations

import atexit
import dataclasses
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from factories import make_activity, make_collective, make_run, make_step
from nsight_factory import report_of
from torchledger.calibrating.collecting import FUSED, OPERATORS
from torchledger.fitting.learning import constant_blend
from torchledger.fitting.time_model import Entry
from torchledger.fitting.transfer import transfer_model
from torchledger.nouns import (
    Ceilings,
    Device,
    Graph,
    Host,
    Kernel,
    Launch,
)
from torchledger.predicting.model_file import SHIPPED, load_model, save_model
from torchledger.store import LedgerWriter, open_ledger
from torchledger.store.codec import encode
from torchledger.store.job import write_head
from torchledger.store.seal import sealed_graph, sealed_kernel
from torchledger.traces.reading import read_trace

DATA = Path(__file__).parent / "data"
SAMPLES = "cpu_part_torchledger0.1.0.samples"


LEDGER = DATA / "old" / "mlp_torchledger0.1.0_torch2.13_cpu.ledger.sqlite"


PROFILED = DATA / "h200" / "gpt_block_torch2.11_cu130.ledger.sqlite"


CARD = Device(
    name="Card",
    kind="cuda",
    compute_capability=(9, 0),
    num_multiprocessors=66,
    ceilings=Ceilings(copy_gb_per_s=2000.0, tflops_per_s={"bfloat16": 400.0, "float16": 400.0, "float32": 30.0}),
)


def read_bytes(path: Path) -> Callable[[], bytes]:
    return path.read_bytes


def small_trace() -> bytes:
    with gzip.open(DATA / "h200" / "gpt_block_torch2.11_cu130.trace.json.gz") as file:
        plain = json.load(file)
    events = plain["traceEvents"]
    plain["traceEvents"] = [event for event in events if event.get("ph") != "X"][:40] + [
        event for event in events if event.get("ph") == "X"
    ][:300]
    return json.dumps(plain).encode()


def nsight_export() -> bytes:
    report = report_of(read_trace(DATA / "h200" / "gpt_block_torch2.11_cu130.trace.json.gz"))
    report.connection.commit()
    return report.connection.serialize()


def guide_csv() -> bytes:
    rows = [f"1,{b},{n},64,{b * n / 10},{b * n / 4}" for b in (1, 2, 8) for n in (16, 128, 1024)]
    return "\n".join(["mp,b,l,dim,F_dur(us),B_dur(us)", *rows, ""]).encode()


SWEEP = b"""dtypes: [fp32, bf16]
seed: 3
order: shuffle
budget: 10min
sweeps:
  - operator: linear
    group: train
    draws: 20
    parameters:
      m: {from: 16, to: 16384, draw: log, multiple_of: 8}
      k: {from: 64, to: 8192, factor: 2}
      n: [1024, 4096]
    where: ["m * k <= 2**26", "m divides k or m < 64"]
  - operator: gelu
    parameters: {numel: {from: 1024, to: 8192, step: 1024}}
"""


@cache
def sealed_path() -> Path:
    """A copy of the ledger with this user's seals, in a folder that goes with this process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TORCHLEDGER_CACHE"] = str(folder / "cache")
    key = folder / "cache" / "seal" / "key"
    key.parent.mkdir(parents=True, mode=0o700)
    key.touch(mode=0o600)
    key.write_bytes(bytes(range(32)))
    with open_ledger(LEDGER) as old, LedgerWriter(folder / "sealed.ledger") as new:
        launches = old.read(Launch)
        new.add(old.run())
        for kernel in old.read(Kernel):
            new.add(sealed_kernel(kernel))
        for graph in old.read(Graph):
            of_graph = [launch for launch in launches if launch.graph == graph.name]
            for launch in of_graph:
                new.add(launch)
            new.add(sealed_graph(graph, of_graph))
    return folder / "sealed.ledger"


@cache
def rank_ledger(rank: int) -> bytes:
    """One of two ranks that computed 2 ms and were in an all_reduce for 1 ms."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.ledger"
        with LedgerWriter(path) as writer:
            writer.add(make_run(rank=rank, world_size=2))
            writer.add(make_step())
            writer.add(make_activity((0, 2_000_000, "forward_0#0"), (1, 1_000_000, "all_reduce"), (2, 9_000, "waits")))
            writer.add(make_collective(issued_ns=2_000_000, ended_ns=3_000_000, group_size=2, ranks=(0, 1), sequence=1))
        return path.read_bytes()


def job_folder(folder: Path) -> None:
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.ledger").write_bytes(rank_ledger(rank))
    write_head(folder, {"argv": ["train.py"], "exit_code": 0, "ledgers": ["rank0.ledger", "rank1.ledger"]})


def rank_traces(folder: Path) -> None:
    folder.mkdir()
    (folder / "trace_1.json").write_bytes(rank_trace(1))


def rank_trace(rank: int) -> bytes:
    plain = json.loads(small_trace())
    return json.dumps(plain | {"distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"}}).encode()


def journal_file() -> Path:
    return next((DATA / "old" / SAMPLES / "journal").glob("*.jsonl"))


LAYOUTS = b"""model: {layers: 4, hidden: 1024, heads: 8, ffn: 4096, vocabulary: 32000, length: 2048, batch: 16}
micro_batches: [1, 2]
recomputations: [none, full]
zeros: [0, 1]
schedules: [1F1B, GPipe]
"""


GIVEN_LAYOUTS = b"""model:
  layers: 4
  hidden: 1024
  heads: 8
  ffn: 4096
  vocabulary: 32000
  length: 2048
  batch: 16
  norm: layer
  attention: unfused
  gated: no
  bias: yes
  dtype: float16
  head_layers: 0.5
layouts:
- {dp: 2, tp: 2, micro_batch: 2, fsdp: 2, zero: 1}
- {pp: 4, schedule: GPipe}
- {pp: 2, cp: 2, schedule: Interleaved1F1B, stages_per_rank: 2, recomputation: attention, sequence_parallel: no}
"""


DATA_SHEET = b"""names: [NVIDIA H300 SXM, H300]
num_multiprocessors: 160
compute_capability: [9, 0]
copy_gb_per_s: 6000.0
tflops: {float64: 80, float32: 80, tensorfloat32: 600, float16: 1200.0, bfloat16: 1200.0}
total_memory_bytes: 206158430208
l2_cache_bytes: 67108864
clock_rate_mhz: 1980.0
memory_clock_rate_mhz: 3201.0
memory_bus_width_bits: 6144
power_limit_w: 800.0
source: a vendor's page
"""


def host_file() -> bytes:
    costs = {field.name: 3.5 for field in dataclasses.fields(Host) if field.name.endswith("_us")}
    return encode(Host("a host", "NVIDIA H200", 64, **costs, measured_utc="2026-11-21T00:00:00Z", method="by hand"))


def nccl_log(nodes: int) -> bytes:
    ranks = [f"#  Rank {n} Group  0 Pid {300 + n} on node{n % nodes} device {n} [01:00] NVIDIA H200" for n in range(4)]
    columns = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong"
    rows = [
        f"{2**n}  {2**n // 4}  float  sum  -1  {5 + 2**n / 1e5}  1.0  1.5  0  6.5  1.0  1.5  0" for n in (10, 16, 28)
    ]
    return "\n".join(["# nccl-tests all_reduce_perf", "# Using devices", *ranks, columns, *rows, ""]).encode()


def collective_csv() -> bytes:
    sizes, groups = [2**n for n in range(12, 28, 5)], ((2, 1), (4, 1), (8, 2))
    rows = [
        f"{kind},{gpus},{nodes},{size},float,{10 + size / 1e5}"
        for kind in ("all_reduce", "all_gather")
        for gpus, nodes in groups
        for size in sizes
    ]
    return "\n".join(["collective,gpus,nodes,bytes,nccl_dtype,time_us", *rows, ""]).encode()


@cache
def calibrated_model() -> bytes:
    """A model as `calibrate` leaves it: beside a shipped one, its operators carried from there and corrected."""
    model = transfer_model(load_model(SHIPPED / "NVIDIA_H200.tlmodel"), CARD)
    rows, target = np.full((4, 40), 2.0), np.array([0.1, 0.2, 0.15, 0.1])

    def corrected(entry: Entry) -> Entry:
        found = constant_blend(rows[:, : len(entry.feature_names) + 1], target, 0.1, n_shape=1, coverage=0.9)
        return dataclasses.replace(entry, corrections=(found,))

    entries = {key: corrected(entry) if key.startswith("linear") else entry for key, entry in model.entries.items()}
    with tempfile.TemporaryDirectory() as folder:
        save_model(dataclasses.replace(model, entries=entries), Path(folder) / "m.tlmodel", beside="NVIDIA_H200")
        return (Path(folder) / "m.tlmodel").read_bytes()


def kept_file(folder: Path) -> None:
    """What a calibration left: samples in a journal beside their plan, and launches of compiled programs."""
    shutil.copytree(DATA / "old" / SAMPLES, folder / OPERATORS, dirs_exist_ok=True)
    (folder / FUSED).mkdir(exist_ok=True)
    shutil.copy(DATA / "old" / "h200_torchledger0.1.0.launches", folder / FUSED / "part-0-0.launches")


def samples_around(folder: Path) -> None:
    shutil.copytree(DATA / "old" / SAMPLES, folder)
