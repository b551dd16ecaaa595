"""Attention by its library's schedule: blocks, waves, splits, and what each costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import make_launch
from torchledger.expecting.attention_times import (
    NAMES,
    AttentionCall,
    attention_us,
    columns_of,
    rescaled,
    schedule_columns,
    splits_of_keys,
)
from torchledger.expecting.constants import Reference
from torchledger.expecting.launch_attention import attention_call, has_dropout
from torchledger.expecting.launch_features import features_of_launches
from torchledger.expecting.machine import Machine
from torchledger.expecting.tile_columns import EXPECTED
from torchledger.nouns import Buffer, Launch
from torchledger.predicting.devices import find_model

MULTIPROCESSORS = 132

CALLS = st.builds(
    AttentionCall,
    library=st.sampled_from(["flash", "cudnn", "efficient"]),
    is_backward=st.booleans(),
    is_single=st.booleans(),
    batch=st.integers(1, 64),
    heads=st.sampled_from([1, 4, 12, 40]),
    heads_kv=st.just(1),
    length=st.integers(1, 5000),
    length_kv=st.integers(1, 5000),
    d=st.sampled_from([8, 48, 64, 80, 128, 160, 256, 320]),
    is_causal=st.booleans(),
    has_bias=st.booleans(),
    is_strided=st.booleans(),
    has_dropout=st.booleans(),
    is_bias_odd=st.booleans(),
)


def call(library: str = "cudnn", **changes: Any) -> AttentionCall:
    sizes = {"batch": 4, "heads": 8, "heads_kv": 8, "length": 1024, "length_kv": 1024, "d": 64}
    return AttentionCall(library, **({"is_backward": False, "is_single": False, "is_causal": False} | sizes | changes))


@pytest.fixture(scope="module")
def machine() -> Machine:
    return find_model("H200").machine


@given(CALLS)
def test_every_call_has_counts_that_are_finite_and_not_below_zero(each: AttentionCall) -> None:
    columns = columns_of(each, MULTIPROCESSORS)
    assert len(columns) == len(NAMES)
    assert all(np.isfinite(count) and count >= 0 for count in columns)
    assert columns[NAMES.index("wave")] >= 1 and sum(columns[1:3]) > 0


@given(CALLS)
def test_every_call_has_a_time_and_features(each: AttentionCall) -> None:
    machine = find_model("H200").machine
    time_us = attention_us(each, machine)
    assert time_us is None or time_us >= machine.floor_us
    assert all(np.isfinite(value) for value in schedule_columns(each, machine).values())


@given(CALLS, st.integers(2, 4))
def test_more_of_the_same_never_takes_less(each: AttentionCall, times: int) -> None:
    # Where few blocks fill no device, FlashAttention splits them, and more of them are not split any more. CUTLASS's
    # blocks are fitted up to a fifth dearer alone on a multiprocessor than beside others.
    least = 0.75 if each.library == "efficient" else 0.999
    unsplit = replace(each, library="cudnn" if each.library == "flash" else each.library)
    machine = find_model("H200").machine
    one, more = (attention_us(item, machine) for item in (unsplit, replace(unsplit, batch=times * unsplit.batch)))
    assert one is None or more is None or more >= one * least


@pytest.mark.parametrize(
    ("sizes", "splits"),
    # What the names of the kernels said on an H200: whether a call of such sizes was split.
    [
        ({"batch": 3, "heads": 1, "length": 3392, "length_kv": 3392, "d": 48}, True),
        ({"batch": 5, "heads": 1, "length": 3430, "length_kv": 3430, "d": 64}, False),
        ({"batch": 12, "heads": 16, "length": 1248, "length_kv": 1248, "d": 80}, False),
    ],
)
def test_keys_are_split_where_blocks_do_not_fill_the_device(sizes: dict[str, int], splits: bool) -> None:
    assert (splits_of_keys(call("flash", **sizes), MULTIPROCESSORS) > 1) is splits
    assert splits_of_keys(call("cudnn", **sizes), MULTIPROCESSORS) == 1


def test_a_library_without_costs_and_a_machine_of_unknown_multiprocessors_have_no_time(machine: Machine) -> None:
    assert attention_us(call(), machine) is not None
    without = replace(machine, own_constants=replace(machine.constants, attention=None))
    assert attention_us(call(), without) is None
    unknown = replace(machine, device=replace(machine.device, num_multiprocessors=None))
    assert attention_us(call(), unknown) is None


def test_half_as_many_multiprocessors_take_longer(machine: Machine) -> None:
    device = replace(machine.device, num_multiprocessors=MULTIPROCESSORS // 2)
    rates = {dtype: rate / 2 for dtype, rate in machine.flops_per_us.items()}
    half = replace(machine, device=device, flops_per_us=rates)
    long = call(batch=16, heads=16, length=4096, length_kv=4096)
    assert attention_us(long, half) > 1.8 * attention_us(long, machine)  # type: ignore[operator]


def test_costs_counted_on_another_device_say_there_what_the_first_devices_said(machine: Machine) -> None:
    rates = {dtype: rate / 2 for dtype, rate in machine.flops_per_us.items()}
    slow = replace(machine, flops_per_us=rates, bytes_per_us=machine.bytes_per_us / 3)
    shipped = machine.constants
    of = shipped.reference
    slower = of.half_flops_per_us / slow.peak("bfloat16")
    attention = {
        kind: rescaled(costs, slower, of.bytes_per_us / slow.bytes_per_us)
        for kind, costs in (shipped.attention or {}).items()
    }
    reference = Reference(machine.device, slow.peak("bfloat16"), slow.peak("float32"), slow.bytes_per_us)
    own = replace(slow, own_constants=replace(shipped, reference=reference, attention=attention))
    assert attention_us(call(), own) == pytest.approx(attention_us(call(), slow))


def attention_launch(stride: tuple[int, ...] = (4096, 0, 64, 1), **kwargs: str) -> Launch:
    def buffer(name: str, shape: tuple[int, ...], strides: tuple[int, ...], role: str = "input") -> Buffer:
        size = 2 * int(np.prod(shape))
        read, written = (0, size) if role == "output" else (size, 0)
        return Buffer(name, role, "bfloat16", shape, strides, "cuda:0", 0, read, written)  # type: ignore[arg-type]

    packed = (64 * 4 * 32, 32, 4 * 32, 1)
    buffers = [buffer(name, (2, 4, 64, 32), packed) for name in ("q", "k", "v")]
    buffers += [buffer("bias", (2, 4, 64, 64), stride), buffer("out", (2, 4, 64, 32), packed, "output")]
    name = "torch.ops.aten._scaled_dot_product_cudnn_attention.default"
    return make_launch(
        kernel_name=name, call=name, category="extern", aten_ops=("aten._scaled_dot_product_cudnn_attention",),
        buffers=tuple(buffers), kwargs=kwargs, flops=4 * 2 * 4 * 64 * 64 * 32,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kwargs", "drops"),
    [
        ({"scale": "0.125", "arg0": "True", "arg1": "0.1", "arg2": "0.125"}, True),
        ({"scale": "0.125", "arg0": "False", "arg1": "0.125"}, False),
        ({"arg0": "True", "arg1": "0.0"}, False),
        ({"dropout_p": "0.2"}, True),
        ({"dropout_p": "rate"}, False),
        ({}, False),
    ],
)
def test_dropout_is_told_from_the_scale(kwargs: dict[str, str], drops: bool) -> None:
    assert has_dropout(attention_launch(**kwargs)) is drops


def test_a_launch_is_read_as_its_library_sees_it() -> None:
    read = attention_call(attention_launch(arg0="True", arg1="0.1", arg2="True"))
    assert read == call(
        batch=2, heads=4, heads_kv=4, length=64, length_kv=64, d=32, is_causal=True, has_bias=True, has_dropout=True,
        bias_elements=2 * 64 * 64,
    )  # fmt: skip
    odd = attention_call(attention_launch((63 * 64, 0, 63, 1)))
    assert odd is not None and odd.is_bias_odd
    plain = make_launch(kernel_name="mm", call="extern_kernels.mm", category="extern", aten_ops=("aten.mm",))
    assert attention_call(plain) is None


def _of_library(library: str, length: int, *, heads_kv: int = 4, causal: str = "False", dropout: str = "0.0") -> Launch:
    """So many queries of four heads against 64 keys."""
    launch = attention_launch()
    key = replace(launch.buffers[1], shape=(2, heads_kv, 64, 32), stride=(heads_kv * 2048, 2048, 32, 1))
    query, out = (
        replace(launch.buffers[place], shape=(2, 4, length, 32), stride=(128 * length, 32 * length, 32, 1))
        for place in (0, 4)
    )
    name = f"torch.ops.aten._scaled_dot_product_{library}_attention.default"
    flags = (
        {"arg0": dropout, "arg1": causal} if library == "flash" else {"arg0": "True", "arg1": dropout, "arg2": causal}
    )
    buffers = (query, replace(key, name="k"), replace(key, name="v"), out)
    return replace(launch, kernel_name=name, call=name, aten_ops=(name[10:-8],), buffers=buffers, kwargs=flags)


@pytest.mark.parametrize(("library", "seen"), [("cudnn", 5), ("efficient", 5), ("flash", 64)])
def test_a_mask_from_the_first_key_on_hides_those_behind_the_last_query(library: str, seen: int) -> None:
    masked = attention_call(_of_library(library, 5, causal="True"))
    plain = attention_call(_of_library(library, 5))
    assert masked is not None and masked.is_causal and masked.length_kv == seen
    assert plain is not None and plain.length_kv == 64


def test_one_query_of_heads_that_share_keys_is_as_several_of_one_head_to_flash() -> None:
    joined = attention_call(_of_library("flash", 1, heads_kv=2, causal="True"))
    assert joined is not None and not joined.is_causal
    assert (joined.length, joined.heads, joined.heads_kv) == (2, 2, 2)
    dropped = attention_call(_of_library("flash", 1, heads_kv=2, dropout="0.1"))
    longer = attention_call(_of_library("flash", 2, heads_kv=2))
    assert dropped is not None and dropped.length == 1 and dropped.heads == 4
    assert longer is not None and longer.length == 2 and longer.heads == 4


def test_cudnn_has_kernels_of_their_own_for_one_query() -> None:
    few, many, more = (call("cudnn", length=length, length_kv=keys) for length, keys in ((1, 128), (1, 129), (2, 129)))
    assert [each.kind for each in (few, many, more)] == ["cudnn/one at once", "cudnn/one", "cudnn/forward"]
    assert call("cudnn", length=1, is_backward=True).kind == "cudnn/backward"
    assert call("efficient", length=1).kind == "efficient/forward"


@given(batch=st.integers(1, 200), keys=st.integers(1, 20000))
def test_keys_of_one_query_are_split_where_they_are_many_and_heads_do_not_fill_the_device(
    batch: int, keys: int
) -> None:
    splits = splits_of_keys(call("cudnn", batch=batch, heads=8, heads_kv=2, length=1, length_kv=keys), 132)
    assert (splits > 1) is (keys > 512 and 4 * batch <= 132)
    assert splits * 2 * batch <= max(132, 2 * batch) and (splits == 1 or (splits - 1) * 128 < keys)


@pytest.mark.parametrize("shape", [(64, 64), (1, 64), (1, 64, 64), (2, 1, 64)])
def test_cudnns_masks_have_as_many_dimensions_as_the_program_gave_them(shape: tuple[int, ...]) -> None:
    launch = attention_launch()
    mask = replace(launch.buffers[3], shape=shape, stride=(64 * 64, 64, 1)[-len(shape) :])
    read = attention_call(replace(launch, buffers=(*launch.buffers[:3], mask, launch.buffers[4])))
    assert read is not None and read.has_bias and not read.is_bias_odd and read.bias_elements == np.prod(shape)


def test_sums_of_rows_are_no_mask() -> None:
    launch = attention_launch()
    name = "aten._scaled_dot_product_efficient_attention_backward"
    sums = replace(launch.buffers[0], shape=(2, 4, 64), stride=(256, 64, 1), dtype="float32")
    buffers = (launch.buffers[0], *launch.buffers[:3], sums, launch.buffers[4])
    read = attention_call(replace(launch, kernel_name=name, call=name, aten_ops=(name,), buffers=buffers))
    assert read is not None and read.is_backward and not read.has_bias


def test_a_regressor_of_before_is_asked_beside_the_roofline(machine: Machine) -> None:
    (features,) = features_of_launches([attention_launch()], machine)
    assert features is not None and EXPECTED in features.values
    assert features.log_baseline_of(("log moved", "log flops")) == pytest.approx(np.log(features.baseline_us))
    assert features.log_baseline_of(("log moved", EXPECTED)) == features.values[EXPECTED]
