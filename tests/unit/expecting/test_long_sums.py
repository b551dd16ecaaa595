"""Products over long sums: which kernel walks them, and how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import make_buffer, make_launch
from torchledger.expecting.constants import SumCosts
from torchledger.expecting.long_sums import LongSums, costs_of_sums, long_sums_of, sums_us
from torchledger.expecting.machine import Machine
from torchledger.nouns import Launch
from torchledger.predicting.devices import find_model


@pytest.fixture(scope="module")
def machine() -> Machine:
    return find_model("H200").machine


def product(
    batch: int, rows: int, depth: int, columns: int, layout: str = "nn", dtype: str = "float32", name: str = "bmm"
) -> Launch:
    def lying(first: int, second: int, how: str) -> tuple[int, ...]:
        return (first * second, *((second, 1) if how == "n" else (1, first)))

    shapes = ((batch, rows, depth), (batch, depth, columns), (batch, rows, columns))
    strides = (lying(rows, depth, layout[0]), lying(depth, columns, layout[1]), (rows * columns, columns, 1))
    lead = 0 if "bmm" in name else 1
    buffers = tuple(
        make_buffer(name=f"buf{place}", dtype=dtype, shape=shape[lead:], stride=stride[lead:], role=role)
        for place, (shape, stride, role) in enumerate(zip(shapes, strides, ("input", "input", "output"), strict=True))
    )
    return make_launch(
        category="extern", kernel_name=f"extern_kernels.{name}", buffers=buffers,
        flops=2 * batch * rows * depth * columns, device="cuda:0",
    )  # fmt: skip


def kind_of(launch: Launch, *, allow_tf32: bool = True) -> str | None:
    sums = long_sums_of(launch, 132, allow_tf32=allow_tf32)
    return None if sums is None else sums.kind


@pytest.mark.parametrize(
    ("launch", "kind"),
    [
        (product(4, 8, 148_703, 4), "rounded/few rows across"),
        (product(11, 128, 4348, 24, "tn"), "rounded/tn"),
        (product(16, 4, 229_951, 4, "nt"), "rounded/four rows"),
        (product(42, 8, 4957, 8, "nt"), "rounded/sixteen rows"),
        (product(5, 24, 193_669, 16), "rounded/odd"),
        (product(8, 64, 28_168, 64, "tt"), "rounded/tt"),
        (product(140, 64, 4096, 64, "tn"), "rounded/tn in waves"),
        (product(1, 64, 28_168, 64, "tn", name="mm"), "rounded/split"),
        (product(1, 64, 28_167, 64, "nn", name="mm"), "rounded/split odd"),
    ],
)
def test_layout_alignment_and_rows_say_which_kernel_walks(launch: Launch, kind: str) -> None:
    assert kind_of(launch) == kind


@pytest.mark.parametrize(
    ("launch", "kind"),
    [
        (product(3, 3, 62_001, 2, "tn"), "exact/4"),
        (product(2, 64, 20_000, 64), "exact/wide"),
        (product(36, 1, 108_214, 1), "exact/vector"),
        (product(2, 2, 86_835, 16, dtype="bfloat16"), "bfloat16/odd"),
        (product(34, 9, 39_904, 4, dtype="float16"), "float16/even"),
        (product(54, 16, 77_672, 32, dtype="float16"), "half/aligned"),
    ],
)
def test_other_precisions_say_what_sums_take_at_least(launch: Launch, kind: str) -> None:
    sums = long_sums_of(launch, 132, allow_tf32=False)
    assert sums is not None and sums.kind == kind and sums.is_least


@pytest.mark.parametrize(
    "launch",
    [
        product(8, 64, 512, 32),
        product(8, 512, 20_000, 512),
        product(400, 64, 20_000, 64),
        product(8, 64, 20_000, 32, dtype="float64"),
        product(1, 64, 20_000, 32, name="addmm"),
        replace(product(8, 64, 20_000, 32), category="template"),
    ],
)
def test_of_short_sums_many_tiles_and_other_kernels_nothing_is_said(launch: Launch) -> None:
    assert kind_of(launch) is None


def test_products_narrower_than_the_named_kernels_are_bounded_alone() -> None:
    narrow, wide = (long_sums_of(product(8, rows, 20_000, 32), 132, allow_tf32=True) for rows in (3, 32))
    assert narrow is not None and wide is not None and narrow.is_least and not wide.is_least


def test_a_walk_goes_on_in_rounds_or_by_shares_of_a_wave(machine: Machine) -> None:
    one, more = (LongSums("", batch, 64, 64, 10_000, 0, is_least=False) for batch in (132, 198))
    rounds = SumCosts(launch=0.0, step=10.0)
    shares = replace(rounds, in_rounds=False)
    assert sums_us(one, rounds, machine) == pytest.approx(100.0) == sums_us(one, shares, machine)
    assert sums_us(more, rounds, machine) == pytest.approx(200.0)
    assert sums_us(more, shares, machine) == pytest.approx(150.0)


def test_bytes_decide_where_they_take_longer_and_less_so_out_of_the_cache(machine: Machine) -> None:
    sums = LongSums("", 8, 64, 64, 1000, 10**9, is_least=False)
    costs = SumCosts(launch=0.0, step=1.0, bytes_per_us=machine.constants.reference.bytes_per_us)
    far, near = (sums_us(sums, costs, machine, near_share=share) for share in (0.0, 1.0))
    assert far == pytest.approx(1e9 / machine.bytes_per_us, rel=1e-3)
    assert near == pytest.approx(far / machine.constants.kernels.l2_speed, rel=1e-3)


def test_every_kernel_that_is_told_has_constants(machine: Machine) -> None:
    named = {f"rounded/{each}" for each in ("nn", "nt", "tn", "tt", "odd", "split", "split odd", "nt narrow")}
    named |= {f"exact/{each}" for each in ("4", "16", "wide", "vector")} | {"half/vector", "half/aligned"}
    assert named <= set(costs_of_sums(machine))


def test_a_generation_without_constants_says_nothing() -> None:
    assert costs_of_sums(find_model("A100").machine) == {}
