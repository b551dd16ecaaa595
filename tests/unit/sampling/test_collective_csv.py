"""Published tables of collectives as samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchledger.errors import SampleError
from torchledger.fitting import fit
from torchledger.predicting.operators import predict
from torchledger.sampling.guide_csv import read_guide_csv, read_guide_folder

GUIDE = "shape,nodes,GPUsPerNode,dur(us)\n1048576.0,1.0,4.0,120.5\n2097152.0,2.0,4.0,900.25\n"
NCCL_TESTS = """\
# who measured it, and how
device,nccl_version,op_name,nccl_dtype,num_gpus,elements,bytes,latency_ms
NVIDIA H200,2.27.3,alltoall,half,8,1024,2048,0.012
NVIDIA H200,2.27.3,all_reduce,int8,2,1024,1024,0.009
"""
MANY_NODES = """\
id,collective,nodes,gpus,bytes,time_us
a,all_reduce,2,16,4096,131.6
b,all_gather,4,32,4194304,
"""


def _written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_the_guides_collectives_are_within_a_node_or_across_nodes(tmp_path: Path) -> None:
    inside, across = read_guide_csv(_written(tmp_path, "NVIDIAA100_allgather_large_fp16.csv", GUIDE))
    assert (inside.operator, dict(inside.parameters)) == ("collective.all_gather", {"numel": 1048576, "world": 4})
    assert across.operator == "collective.across_nodes.all_gather"
    assert dict(across.parameters) == {"numel": 2097152, "nodes": 2, "gpus_per_node": 4}
    assert (across.device, across.dtype, across.times_us) == ("NVIDIAA100", "float16", (900.25,))
    assert across.bytes_moved == 2097152 * 2 * 7 / 8


def test_a_measurement_that_stands_in_a_part_and_in_the_sum_counts_once(tmp_path: Path) -> None:
    _written(tmp_path, "NVIDIAA100_allreduce_fp16.csv", GUIDE)
    _written(tmp_path, "NVIDIAA100_allreduce_fp16_1_4.csv", "\n".join(GUIDE.splitlines()[:2]))
    assert len(read_guide_folder(tmp_path)) == 2


def test_a_table_of_nccl_tests_names_device_type_and_version_by_row(tmp_path: Path) -> None:
    first, second = read_guide_csv(_written(tmp_path, "nccl.csv", NCCL_TESTS))
    assert (first.operator, first.dtype, first.times_us) == ("collective.all_to_all", "float16", (12.0,))
    assert (second.operator, second.dtype, second.versions) == ("collective.all_reduce", "int8", {"nccl": "2.27.3"})


def test_bytes_without_a_type_are_float32_and_rows_without_a_time_are_none(tmp_path: Path) -> None:
    (sample,) = read_guide_csv(_written(tmp_path, "h100_nodes.csv", MANY_NODES))
    assert (sample.device, sample.dtype) == ("h100_nodes", "float32")
    assert dict(sample.parameters) == {"numel": 1024, "nodes": 2, "gpus_per_node": 8}


def test_a_row_that_says_nothing_sensible_is_named(tmp_path: Path) -> None:
    path = _written(tmp_path, "nccl.csv", NCCL_TESTS + "NVIDIA H200,2.27.3,gossip,half,8,1024,2048,0.012\n")
    with pytest.raises(SampleError, match=r"nccl.csv: 'NVIDIA H200,2.27.3,gossip.* collective 'gossip' is unknown"):
        read_guide_csv(path)


def test_collectives_across_nodes_are_fitted_and_predicted_like_others(tmp_path: Path) -> None:
    rows = [
        f"{2**exponent},{nodes},4,{20 + nodes * 2**exponent * 2 / 2e4:.2f}"
        for exponent in range(16, 28)
        for nodes in (2, 4, 8)
    ]
    text = "shape,nodes,GPUsPerNode,dur(us)\n" + "\n".join(rows) + "\n"
    samples = read_guide_csv(_written(tmp_path, "NVIDIATEST_allreduce_fp16.csv", text))
    model, _ = fit(samples, jobs=1)
    asked = {"numel": 3 * 2**22, "nodes": 4, "gpus_per_node": 4}
    answer = predict(model, "across_nodes.all_reduce", asked, dtype="float16")
    assert answer.duration_us == pytest.approx(20 + 4 * 3 * 2**22 * 2 / 2e4, rel=0.25)
