"""Collectives that compiled graphs call themselves."""

from __future__ import annotations

import pytest

from factories import make_launch
from torchledger.nouns import Buffer, Launch
from torchledger.predicting.devices import find_model
from torchledger.predicting.operators import predict
from torchledger.predicting.step import predict_step
from torchledger.work.graph_collectives import graph_collective, graph_collectives


def launch(operator: str, rows: int, made: int | None = None, order: int = 0, **kwargs: str) -> Launch:
    name = f"torch.ops._c10d_functional.{operator}.default"
    shapes = [rows, *([] if made is None else [made])]
    buffers = tuple(
        Buffer(f"b{n}", "output" if n else "input", "bfloat16", (count, 1024), (1024, 1), "cuda:0", 0, 2048 * count, 0)
        for n, count in enumerate(shapes)
    )
    return make_launch(kernel_name=name, call=name, category="extern", buffers=buffers, kwargs=kwargs, order=order)


ALL_REDUCE = launch("all_reduce_", 4096, reduce_op="sum", group_name="0")
GATHER = launch("all_gather_into_tensor", 512, 1024, order=1, group_size="2", group_name="7")
WAITS = launch("wait_tensor", 1024, order=2)


@pytest.mark.parametrize(
    ("asked", "name", "group", "size", "message"),
    [
        (ALL_REDUCE, "all_reduce", "0", None, 4096 * 2048),
        (GATHER, "all_gather_into_tensor", "7", 2, 1024 * 2048),
        (launch("all_gather_into_tensor", 512, group_size="2"), "all_gather_into_tensor", None, 2, 1024 * 2048),
        (WAITS, "wait_tensor", None, None, None),
    ],
)
def test_a_launch_says_what_it_calls(
    asked: Launch, name: str, group: str | None, size: int | None, message: int | None
) -> None:
    found = graph_collective(asked)
    assert found is not None
    assert (found.name, found.group, found.group_size) == (name, group, size)
    assert found.message_bytes(size) == message


def test_other_launches_are_no_collectives() -> None:
    fused = make_launch(kernel_name="triton_poi_fused_add_0", call="", order=3)
    product = make_launch(kernel_name="extern_kernels.mm", call="extern_kernels.mm", order=4)
    assert list(graph_collectives([fused, GATHER, product])) == [GATHER.launch_id]


def test_a_step_prices_them_by_their_groups_and_what_waits_by_nothing() -> None:
    model = find_model("H200")
    _, predictions = predict_step(model, [ALL_REDUCE, GATHER, WAITS], group_sizes={"0": 2})
    assert [each.subject for each in predictions] == [ALL_REDUCE.launch_id, GATHER.launch_id]
    expected = predict(model, "collective.all_reduce", {"numel": 4096 * 1024, "world": 2}, dtype="bfloat16")
    assert predictions[0].duration_us == pytest.approx(expected.duration_us)
    _, unknown = predict_step(model, [ALL_REDUCE])
    assert unknown[0].model == "roofline"


def test_a_collective_of_another_namespace_keeps_what_follows_back_itself() -> None:
    name = "torch.ops._dtensor.shard_dim_alltoall.default"
    asked = make_launch(kernel_name=name, call=f"{name}(buf0, 0, 1, '0')", buffers=ALL_REDUCE.buffers)
    found = graph_collective(asked)
    assert found is not None and found.waits_itself and not graph_collective(ALL_REDUCE).waits_itself
    assert (found.operator, found.group, found.message_bytes(8)) == ("_dtensor::shard_dim_alltoall", "0", 4096 * 2048)
