"""Other formats of a ledger: the layout that existing readers know, and tables."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from factories import make_buffer, make_device, make_graph, make_kernel, make_launch, make_run
from synthetic import write_ledger
from torchledger.errors import StoreError
from torchledger.nouns import Difference, Gap, Launch, Measurement, ValueStats
from torchledger.store import LedgerWriter, open_ledger
from torchledger.store.inductor_json import export_inductor_json
from torchledger.store.parquet import _arrow_type, export_parquet
from torchledger.store.schema import TABLES

_V100 = make_device(
    name="Tesla V100-PCIE-32GB",
    kind="cuda",
    compute_capability=(7, 0),
    total_memory_bytes=34_089_926_656,
    clock_rate_mhz=1380.0,
    memory_clock_rate_mhz=877.0,
    num_multiprocessors=80,
    max_threads_per_block=1024,
    max_threads_per_multiprocessor=2048,
    warp_size=32,
    l2_cache_bytes=6291456,
    max_shared_memory_per_multiprocessor_bytes=98304,
    memory_bus_width_bits=4096,
)
_CONVOLUTION = make_launch(
    order=0,
    kernel="conv",
    kernel_name="extern_kernels.convolution",
    category="extern",
    call="extern_kernels.convolution(arg0, arg1)",
    flops=1_254_400,
    aten_ops=("aten.convolution.default",),
    kwargs={
        "stride": "(1, 1)",
        "padding": "[2, 2]",
        "transposed": "False",
        "groups": "1",
        "bias": "None",
        "layout": "torch.strided",
    },
    buffers=(
        make_buffer(name="arg0", role="input", shape=(1, 1, 28, 28), stride=(784, 784, 28, 1)),
        make_buffer(name="arg1", role="input", shape=(32, 1, 5, 5), stride=(25, 25, 5, 1)),
        make_buffer(name="buf0", role="output", shape=(1, 32, 28, 28), stride=(25088, 784, 28, 1)),
    ),
)
_BIAS = make_launch(
    order=1,
    kernel="bias",
    kernel_name="triton_poi_fused_convolution_0",
    category="pointwise",
    call="triton_poi_fused_convolution_0.run(buf0, arg2)",
    flops=0,
    aten_ops=("aten.convolution.default",),
    kwargs={"xnumel": "25088"},
    buffers=(
        make_buffer(name="buf0", role="inout", shape=(1, 32, 28, 28), stride=(25088, 784, 28, 1)),
        make_buffer(name="arg2", role="input", shape=(32,), stride=(1,)),
    ),
)


@pytest.fixture
def convolution(tmp_path: Path) -> Any:
    """The convolution with bias that the data-collection notes show."""
    with LedgerWriter(tmp_path / "conv.ledger") as writer:
        writer.add(
            make_run(devices=(make_device(), _V100)),
            make_graph(devices=("cuda:0",)),
            make_kernel(key="bias", name="triton_poi_fused_convolution_0", path="/cache/ra/crax.py"),
            _CONVOLUTION,
            _BIAS,
            make_launch(order=2, category="nop"),
        )
    with open_ledger(tmp_path / "conv.ledger") as reader:
        yield reader


def test_inductor_json_has_the_layout_of_the_notes(convolution: Any, tmp_path: Path) -> None:
    (path,) = export_inductor_json(convolution, tmp_path / "out")
    assert path.name == "Data_forward_0.json"
    data = json.loads(path.read_text())
    assert list(data) == ["nodes", "gpu_info"]
    library_call, fused = data["nodes"]
    assert library_call == {
        "flops": 1254400.0,
        "ops": ["aten.convolution"],
        "inputs": [
            {"dtype": "torch.float32", "size": ["1", "1", "28", "28"], "stride": ["784", "784", "28", "1"]},
            {"dtype": "torch.float32", "size": ["32", "1", "5", "5"], "stride": ["25", "25", "5", "1"]},
        ],
        "kwargs": [
            {
                "stride": [1, 1],
                "padding": [2, 2],
                "transposed": False,
                "groups": 1,
                "bias": None,
                "layout": "torch.strided",
            }
        ],
        "triton": {"kernel_name": "aten.convolution", "kernel_path": ""},
    }
    assert fused == {
        "flops": 0.0,
        "ops": ["aten.convolution"],
        "inputs": [{"dtype": "torch.float32", "size": ["1", "32", "28", "28"], "stride": ["25088", "784", "28", "1"]}],
        "kwargs": [],
        "triton": {"kernel_name": "triton_poi_fused_convolution_0", "kernel_path": "/cache/ra/crax.py"},
    }


def test_gpu_info_has_every_field_in_the_units_of_the_notes(convolution: Any, tmp_path: Path) -> None:
    (path,) = export_inductor_json(convolution, tmp_path)
    assert json.loads(path.read_text())["gpu_info"] == {
        "name": "Tesla V100-PCIE-32GB",
        "compute_capability": [7, 0],
        "total_memory": 32510.6875,
        "clock_rate": 1380.0,
        "memory_clock_rate": 877.0,
        "num_multiprocessors": 80,
        "max_threads_per_block": 1024,
        "max_threads_per_multiprocessor": 2048,
        "warp_size": 32,
        "l2_cache_size": 6291456,
        "max_shared_memory_per_multiprocessor": 98304,
        "global_memory_bus_width": 4096,
    }


def test_every_graph_is_one_file_with_one_node_per_launch(tmp_path: Path) -> None:
    with open_ledger(write_ledger(tmp_path / "x", launches=31)) as reader:
        paths = export_inductor_json(reader, tmp_path / "out")
    assert [path.name for path in paths] == ["Data_forward_0.json", "Data_backward_0.json"]
    assert sum(len(json.loads(path.read_text())["nodes"]) for path in paths) == 31


def test_a_json_file_by_name_holds_the_nodes_of_all_graphs_in_their_order(tmp_path: Path) -> None:
    with open_ledger(write_ledger(tmp_path / "x", launches=31)) as reader:
        (path,) = export_inductor_json(reader, tmp_path / "Data_mine.json")
    nodes = json.loads(path.read_text())["nodes"]
    assert (path.name, len(nodes)) == ("Data_mine.json", 31)
    assert list(dict.fromkeys(node["graph"] for node in nodes)) == ["forward_0", "backward_0"]


def test_a_json_file_by_name_of_one_graph_is_that_graph_in_the_layout_of_the_notes(
    convolution: Any, tmp_path: Path
) -> None:
    (one,) = export_inductor_json(convolution, tmp_path / "Data_mine.json")
    (in_folder,) = export_inductor_json(convolution, tmp_path)
    assert one.read_bytes() == in_folder.read_bytes()
    with pytest.raises(StoreError, match="--force"):
        export_inductor_json(convolution, tmp_path / "Data_mine.json")


def test_a_library_call_bears_its_own_name_whatever_it_was_lowered_from(tmp_path: Path) -> None:
    call = make_launch(
        category="extern",
        kernel_name="aten.scatter_reduce_.two",
        call="aten.scatter_reduce_.two",
        aten_ops=("aten.full", "aten.scatter_add"),
    )
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run(), make_graph(), call)
    with open_ledger(tmp_path / "a.ledger") as reader:
        (path,) = export_inductor_json(reader, tmp_path / "Data_a.json")
    (node,) = json.loads(path.read_text())["nodes"]
    assert node["triton"]["kernel_name"] == "aten.scatter_reduce"


def test_a_ledger_without_graphs_has_nothing_to_export(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run())
    with open_ledger(tmp_path / "x") as reader, pytest.raises(StoreError, match="no compiled graph"):
        export_inductor_json(reader, tmp_path / "out")


@pytest.mark.parametrize("export", [export_inductor_json, export_parquet])
def test_existing_files_are_kept_unless_forced(convolution: Any, tmp_path: Path, export: Any) -> None:
    first = export(convolution, tmp_path / "out")
    first[-1].write_text("mine")
    with pytest.raises(StoreError, match="--force"):
        export(convolution, tmp_path / "out")
    assert first[-1].read_text() == "mine"
    assert export(convolution, tmp_path / "out", force=True) == first
    assert first[-1].read_bytes() != b"mine"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in first)


@pytest.mark.parametrize("export", [export_inductor_json, export_parquet])
def test_a_folder_that_cannot_be_made_is_one_clear_line(convolution: Any, tmp_path: Path, export: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write into"):
        export(convolution, tmp_path / "file" / "out")


def test_parquet_holds_every_record_and_its_nested_buffers(convolution: Any, tmp_path: Path) -> None:
    paths = {path.stem: path for path in export_parquet(convolution, tmp_path)}
    assert set(paths) == {"runs", "graphs", "kernels", "launches"}
    rows = pq.read_table(paths["launches"]).to_pylist()
    assert [row["launch_id"] for row in rows] == ["forward_0#0", "forward_0#1", "forward_0#2"]
    assert rows[0]["flops"] == 1_254_400
    assert rows[0]["buffers"][1]["shape"] == [32, 1, 5, 5]
    assert dict(rows[0]["kwargs"])["groups"] == "1"
    assert [row["bytes_written"] for row in rows] == [launch.bytes_written for launch in convolution.read(Launch)]


def test_parquet_keeps_unknown_apart_from_zero(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(), make_launch(order=0, flops=None), make_launch(order=1, flops=0))
    with open_ledger(tmp_path / "x") as reader:
        export_parquet(reader, tmp_path)
    assert pq.read_table(tmp_path / "launches.parquet")["flops"].to_pylist() == [None, 0]


def test_parquet_adds_up_to_what_the_ledger_adds_up_to(tmp_path: Path) -> None:
    with open_ledger(write_ledger(tmp_path / "x", launches=4_001)) as reader:
        export_parquet(reader, tmp_path)
        expected = sum(flops for (flops,) in reader.columns(Launch, "flops"))
    table = pq.read_table(tmp_path / "launches.parquet")
    assert table.num_rows == 4_001
    assert sum(table["flops"].to_pylist()) == expected


@pytest.mark.parametrize("record_type", list(TABLES))
def test_every_kind_of_record_has_a_table_layout(record_type: type) -> None:
    for hint in typing.get_type_hints(record_type).values():
        _arrow_type(hint)


def test_other_tables_are_exported_when_they_hold_something(tmp_path: Path) -> None:
    records = (
        Gap("flops", "forward_0", "reason"),
        Difference("flops", "forward_0", "padding", 12),
        Measurement("forward_0#0", "profile", "cupti", (1.0, 2.0)),
        ValueStats("forward_0#0", 0, "buf0", "after", "float32", (2, 3), mean=float("nan")),
    )
    with LedgerWriter(tmp_path / "x") as writer:
        writer.add(make_run(), *records)
    with open_ledger(tmp_path / "x") as reader:
        names = {path.stem for path in export_parquet(reader, tmp_path)}
    assert names == {"runs", "gaps", "differences", "measurements", "value_stats"}
    assert pq.read_table(tmp_path / "measurements.parquet").to_pylist()[0]["samples_us"] == [1.0, 2.0]


def test_a_recorded_profile_becomes_tables_whole(tmp_path: Path) -> None:
    recorded = Path(__file__).parents[2] / "data" / "h200" / "gpt_block_torch2.11_cu130.ledger.sqlite"
    with open_ledger(recorded) as reader:
        held = {table.name: reader.count(record_type) for record_type, table in TABLES.items()}
        paths = export_parquet(reader, tmp_path)
    assert {path.stem: pq.read_metadata(path).num_rows for path in paths} == {n: c for n, c in held.items() if c}
    rows = pq.read_table(tmp_path / "breakdowns.parquet").to_pylist()[0]["kernels"]
    assert all(isinstance(value, str) for row in rows for _, value in row["detail"])
