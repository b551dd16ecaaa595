"""Layouts of a transformer: what must hold between them, on the shipped model of an H200."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from torchledger.errors import PredictError
from torchledger.nouns import Layout
from torchledger.planning.composing import Composer, Composition, name_of
from torchledger.planning.fabric import find_fabric
from torchledger.planning.layouts import find_layouts, price_layout, price_layouts
from torchledger.planning.prices import ModelPrices
from torchledger.planning.reductions import full_buckets, weights_of_block
from torchledger.planning.timeline import Sharing
from torchledger.planning.transformer import Transformer, check_layout, parts_of
from torchledger.planning.transformer_memory import memory_of_rank
from torchledger.predicting.devices import find_model

PRICES = ModelPrices(find_model("H200"))
FABRIC = find_fabric("h200+3200gb")
SMALL = Transformer(layers=4, hidden=1024, heads=8, kv_heads=4, ffn=4096, vocabulary=32000, length=2048, batch=16)
FREE = Sharing()


def price(layout: Layout, model: Transformer = SMALL) -> float:
    return price_layout(model, layout, PRICES, FABRIC, sharing=FREE).duration_us


def test_parameters_are_those_of_the_published_model() -> None:
    llama = Transformer(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocabulary=128256, length=8192, batch=1
    )
    assert llama.parameters == pytest.approx(8.03e9, rel=0.005)


def test_more_ranks_take_less_time_and_never_less_than_their_share() -> None:
    alone = price(Layout())
    for layout in (Layout(dp=4), Layout(tp=4), Layout(pp=4), Layout(dp=2, tp=2), Layout(dp=4, zero=3, fsdp=4)):
        assert alone / 4.5 < price(layout) < alone


def test_gradient_accumulation_adds_what_microbatches_take() -> None:
    few, many = price(Layout(), replace(SMALL, batch=4)), price(Layout(), replace(SMALL, batch=16))
    assert 2.5 * few < many < 4 * few


def test_recomputation_takes_longer_and_keeps_less() -> None:
    plain, again = Layout(micro_batch=4), Layout(micro_batch=4, recomputation="full")
    assert 1.15 * price(plain) < price(again) < 1.45 * price(plain)
    assert memory_of_rank(SMALL, again, 0) < memory_of_rank(SMALL, plain, 0)


def test_more_microbatches_make_a_smaller_bubble() -> None:
    def bubble(batch: int) -> float:
        step = price_layout(replace(SMALL, batch=batch, vocabulary=512), Layout(pp=4), PRICES, FABRIC, sharing=FREE)
        return step.bubble_us / step.duration_us

    assert bubble(32) < bubble(8) < 0.6


def test_sharding_saves_memory_and_costs_collectives() -> None:
    whole, sharded = Layout(dp=8), Layout(dp=8, zero=3, fsdp=8)
    assert memory_of_rank(SMALL, sharded, 0) < memory_of_rank(SMALL, whole, 0) / 2
    step = price_layout(SMALL, sharded, PRICES, FABRIC, sharing=FREE)
    assert step.communication_us > price_layout(SMALL, whole, PRICES, FABRIC, sharing=FREE).communication_us


def test_shards_of_a_block_add_up_to_the_whole() -> None:
    def flops(layout: Layout) -> int:
        return sum(
            2 * p.parameters["m"] * p.parameters["k"] * p.parameters["n"]
            for p in parts_of(SMALL, layout).block
            if p.operator == "linear"
        )

    assert 4 * flops(Layout(tp=4)) == flops(Layout())


def test_an_eager_program_takes_longer_than_one_with_kernels_of_its_own() -> None:
    eager = replace(SMALL, fused=False)
    own, copying = replace(eager, own_kernels=True), replace(eager, head_copies=2.0)
    assert price(Layout(), own) < price(Layout(), eager) < price(Layout(), copying)
    assert {p.operator for p in parts_of(own, Layout()).block} - {
        p.operator for p in parts_of(eager, Layout()).block
    } == {"swiglu"}
    longer = [replace(each, length=2 * each.length) for each in (own, eager)]
    grown = [
        memory_of_rank(b, Layout(), 0) - memory_of_rank(a, Layout(), 0)
        for a, b in zip((own, eager), longer, strict=True)
    ]
    assert grown[0] < grown[1]
    assert memory_of_rank(replace(own, logit_bytes=6), Layout(), 0) < memory_of_rank(own, Layout(), 0)


def test_kernels_of_its_own_hold_an_empty_gradient_of_each_shape_of_a_weight() -> None:
    own, more = (replace(SMALL, fused=False, own_kernels=True, layers=layers) for layers in (4, 8))
    fused = [replace(each, fused=True) for each in (own, more)]
    empty = [
        memory_of_rank(a, Layout(), 0) - memory_of_rank(b, Layout(), 0) for a, b in zip((own, more), fused, strict=True)
    ]
    h, kv = SMALL.hidden, SMALL.kv * SMALL.head
    weights = (h + 2 * kv) * h + h * h + 3 * SMALL.ffn * h + SMALL.vocabulary * h
    assert empty == [2 * weights] * 2


def test_collectives_beside_products_cost_less_and_no_product_is_lost() -> None:
    layout, eager = Layout(tp=4), replace(SMALL, fused=False)
    shares = replace(eager, overlaps_shards=True)
    assert price(layout, shares) < price(layout, eager)

    def work(model: Transformer, direction: str) -> int:
        return sum(
            (2 if piece.direction == "backward" else 1) * math.prod(piece.parameters.values())
            for piece in (parts_of(model, layout).block, parts_of(model, layout).block_backward)[
                direction == "backward"
            ]
            if piece.operator == "linear"
        )

    assert all(work(shares, each) == work(eager, each) for each in ("forward", "backward"))


def test_ranks_that_exchange_heads_keep_what_attention_gave() -> None:
    layout = Layout(cp=2)
    gathers, exchanges = (replace(SMALL, exchanges_heads=each) for each in (False, True))
    kinds = [{p.operator for p in parts_of(each, layout).block if p.group} for each in (gathers, exchanges)]
    assert kinds == [{"collective.all_gather"}, {"collective.all_to_all"}]
    more = memory_of_rank(exchanges, layout, 0) - memory_of_rank(gathers, layout, 0)
    assert more == SMALL.layers * SMALL.length // 2 * SMALL.hidden * 2


def test_messages_that_announce_tensors_and_whole_clipping_take_time() -> None:
    plain, announced = (Composition(announcements=each) for each in ((0, 0), (5, 2)))
    pipeline = Layout(pp=2)
    times = [
        price_layout(SMALL, pipeline, PRICES, FABRIC, composition=each, sharing=FREE).duration_us
        for each in (plain, announced)
    ]
    assert times[0] < times[1]
    sharded = Layout(dp=8, zero=1, fsdp=8)
    shares, whole = (
        price_layout(
            SMALL, sharded, PRICES, FABRIC, composition=Composition(clips_whole=each), sharing=FREE
        ).duration_us
        for each in (False, True)
    )
    assert shares < whole


def test_shares_of_a_sent_tensor_are_quicker_over_nodes_than_the_whole_of_it() -> None:
    layout = Layout(tp=8, pp=2, sequence_parallel=False)
    large = replace(SMALL, hidden=8192, heads=64, kv_heads=8, ffn=28672)

    def step_us(layout: Layout, shares_sends: bool) -> float:
        composition = Composition(shares_sends=shares_sends)
        return price_layout(large, layout, PRICES, FABRIC, composition=composition, sharing=FREE).duration_us

    assert step_us(layout, True) < step_us(layout, False)
    # One rank has no others to share with, and rows that are shares already are not shared again.
    for same in (replace(layout, tp=1), replace(layout, sequence_parallel=True)):
        assert step_us(same, True) == step_us(same, False)


def test_hosts_that_check_collectives_decide_small_steps_and_no_large_ones() -> None:
    def longer(model: Transformer, tp: int) -> float:
        plain, checked = (
            price_layout(
                model, Layout(tp=tp), PRICES, FABRIC, composition=Composition(check_us=each), sharing=FREE
            ).duration_us
            for each in ((0.0, 0.0), (1000.0, 500.0))
        )
        return checked - plain

    tiny = replace(SMALL, hidden=256, ffn=1024, heads=4, length=256, vocabulary=512)
    parts = parts_of(tiny, Layout(tp=4))
    asked = tiny.layers * sum(bool(piece.group) for piece in (*parts.block, *parts.block_backward))
    asked += sum(bool(p.group) for p in (*parts.first, *parts.first_backward, *parts.last, *parts.last_backward))
    assert longer(tiny, 4) == pytest.approx(tiny.batch * asked * 3000.0, rel=0.1)
    assert longer(tiny, 1) == 0.0
    large = replace(SMALL, hidden=8192, heads=64, ffn=28672, length=8192)
    assert longer(large, 2) < 0.1 * price(Layout(tp=2), large)


def test_a_host_whose_blocks_were_measured_decides_small_steps_and_no_large_ones() -> None:
    tiny = replace(SMALL, hidden=256, ffn=1024, heads=4, length=256, vocabulary=512)

    def longer(model: Transformer, layout: Layout) -> float:
        slow = Composition(block_host_us=(2000.0, 3000.0))
        with_host = price_layout(model, layout, PRICES, FABRIC, composition=slow, sharing=FREE).duration_us
        return with_host - price_layout(model, layout, PRICES, FABRIC, sharing=FREE).duration_us

    assert longer(tiny, Layout()) == pytest.approx(tiny.batch * tiny.layers * 5000.0, rel=0.1)
    assert longer(tiny, Layout(micro_batch=4)) == pytest.approx(tiny.batch / 4 * tiny.layers * 5000.0, rel=0.1)
    large = replace(SMALL, hidden=8192, heads=64, ffn=28672)
    assert longer(large, Layout()) < 0.01 * price(Layout(), large)


def test_gradients_of_embedding_and_output_are_accumulated_too() -> None:
    parts = parts_of(SMALL, Layout(tp=2))
    added = [p.parameters["bytes"] for p in (*parts.first_backward, *parts.last_backward) if p.role == "accumulation"]
    assert added == [10 * 32000 * 1024 // 2] * 2
    tied = parts_of(replace(SMALL, tied=True), Layout(tp=2))
    roles = [p.role for p in (*tied.first_backward, *tied.last_backward)]
    assert roles.count("accumulation") == roles.count("tied gradients") == 1


def test_reducing_all_gradients_takes_longer_than_their_shares() -> None:
    layout = Layout(dp=8, zero=1, fsdp=8)
    late = [Composition(overlaps_gradients=False, reduces_whole=whole) for whole in (False, True)]
    shares, whole = (
        price_layout(SMALL, layout, PRICES, FABRIC, composition=each, sharing=FREE).duration_us for each in late
    )
    assert shares < whole


def test_a_reduction_behind_the_pipeline_is_waited_for_once_and_not_by_each_stage() -> None:
    layout, late = Layout(dp=2, pp=4), Composition(overlaps_gradients=False)
    slower = replace(
        FABRIC,
        curves=tuple(
            replace(each, duration_us=tuple(10 * us for us in each.duration_us))
            if each.operation == "all_reduce"
            else each
            for each in FABRIC.curves
        ),
    )
    quick, slow = (
        price_layout(SMALL, layout, PRICES, fabric, composition=late, sharing=FREE).duration_us
        for fabric in (FABRIC, slower)
    )
    makers = [Composer(SMALL, layout, PRICES, fabric, late, FREE) for fabric in (FABRIC, slower)]
    reductions = [max(m.collective_us("all_reduce", m.gradient_bytes(k), "dp") for k in range(4)) for m in makers]
    # No stage ends before the first, which ends last; the reduction of the largest may begin before that.
    assert 0 < slow - quick <= reductions[1] - reductions[0] + 1e-6


def test_a_message_is_received_behind_what_its_rank_was_given_to_compute_before() -> None:
    for entries in Composer(SMALL, Layout(pp=4), PRICES, FABRIC, Composition(), FREE).ranks().values():
        for place, entry in enumerate(entries):
            computed = [k for k in range(place) if entries[k].stream == "compute"]
            if entry.label == "receive" and computed:
                assert entry.after == (computed[-1],)


GPT = replace(SMALL, gated=False, norm="layer", attention="unfused", bias=True, rotary=False, fused=False)


def moved(model: Transformer, role: str, direction: str) -> int:
    parts = parts_of(model, Layout())
    pieces = parts.block if direction == "forward" else parts.block_backward
    return sum(piece.parameters["bytes"] for piece in pieces if piece.role == role)


def test_scores_in_float32_are_masked_by_kernels_of_their_own() -> None:
    exact = replace(GPT, dtype="float32")
    scores = 4 * SMALL.heads * SMALL.length**2
    assert moved(exact, "score copies", "forward") == 2 * scores
    assert moved(exact, "score copies", "backward") == 9 * scores
    assert all(moved(exact, "mask", each) == 2.5 * scores for each in ("forward", "backward"))
    assert moved(GPT, "mask", "forward") == moved(GPT, "mask", "backward") == 0
    assert moved(GPT, "score copies", "forward") == scores and moved(GPT, "score copies", "backward") == 0
    compiled = replace(exact, fused=True)
    assert all(moved(compiled, role, "backward") == 0 for role in ("mask", "score copies", "bias"))


def test_an_eager_program_sums_the_gradient_of_each_bias() -> None:
    columns = SMALL.hidden + 2 * SMALL.kv * SMALL.head + SMALL.hidden + SMALL.ffn + SMALL.hidden
    assert moved(GPT, "bias", "backward") == 2 * SMALL.length * columns
    assert moved(GPT, "bias", "forward") == 2 * 2 * SMALL.length * (SMALL.hidden + 2 * SMALL.kv * SMALL.head)
    assert moved(replace(GPT, bias=False), "bias", "backward") == 0


def test_a_sum_of_gradients_beside_a_product_costs_less_and_is_no_other_sum() -> None:
    layout = Layout(tp=4, sequence_parallel=False)
    beside = replace(GPT, overlaps_inputs=True)
    assert price(layout, beside) < price(layout, GPT)
    kinds = [sorted(p.operator for p in parts_of(m, layout).block_backward if p.group) for m in (GPT, beside)]
    assert kinds[0] == kinds[1] == ["collective.all_reduce"] * 2
    shares = Layout(tp=4)
    assert parts_of(beside, shares) == parts_of(GPT, shares)


def test_a_loss_in_steps_takes_longer_than_one_kernel_and_casts_half_precision_alone() -> None:
    steps = replace(GPT, loss_in_steps=True)
    assert price(Layout(), steps) > price(Layout(), GPT)

    def loss_bytes(dtype: str) -> float:
        (piece,) = [p for p in parts_of(replace(steps, dtype=dtype), Layout()).last if p.role == "loss"]
        return piece.parameters["bytes"] / SMALL.length / SMALL.vocabulary

    assert loss_bytes("bfloat16") - loss_bytes("float32") == pytest.approx(6 * 1.25)


def test_passes_over_gradients_take_time() -> None:
    none, three = (
        price_layout(
            SMALL, Layout(), PRICES, FABRIC, composition=Composition(gradient_passes=each), sharing=FREE
        ).duration_us
        for each in (0, 3)
    )
    least_us = 3 * SMALL.gradient_bytes * SMALL.parameters / PRICES.model.machine.bytes_per_us
    assert 0.8 * least_us < three - none < 2 * least_us


def test_a_table_ranks_what_fits_and_says_what_the_rest_needs() -> None:
    layouts = find_layouts(SMALL, 8, micro_batches=(1, 2), recomputations=("none",), zeros=(0, 3))
    assert all(layout.world_size == 8 for layout in layouts)
    told: list[tuple[int, int, str]] = []
    table = price_layouts(
        SMALL, layouts, PRICES, FABRIC, memory_bytes=2 * 10**9, progress=lambda *said: told.append(said)
    )
    assert [done for done, _, _ in told] == list(range(len(layouts) + 1))
    assert {total for _, total, _ in told} == {len(layouts)}
    times = [each.step.duration_us for each in table if each.step is not None]
    assert times == sorted(times)
    left_out = [each for each in table if each.step is None]
    assert left_out and all("GB" in (each.reason or "") for each in left_out)
    assert len(times) + len(left_out) == len(layouts)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(tp=3), "tp=3; 2 does"),
        (Layout(pp=8), "pp=4 is the most"),
        (Layout(dp=3), "dp=2 does"),
        (Layout(dp=4, micro_batch=8), "dp=2 does"),
    ],
)
def test_a_layout_that_cannot_be_names_the_nearest_that_can(layout: Layout, words: str) -> None:
    assert words in (check_layout(SMALL, layout) or "")
    with pytest.raises(PredictError, match=r"does|most"):
        price(layout)


def test_a_world_that_no_layout_fills_says_why() -> None:
    with pytest.raises(PredictError, match="no layout of 7 ranks"):
        find_layouts(SMALL, 7)


def test_collectives_without_a_fabric_ask_for_one() -> None:
    with pytest.raises(PredictError, match="--fabric"):
        price_layout(SMALL, Layout(tp=2), PRICES, None)


def test_names_hold_what_differs_from_one_rank() -> None:
    assert name_of(Layout(dp=2, pp=2, zero=1, fsdp=2)) == "dp=2 pp=2 micro=1 zero=1 1F1B"


def _reductions(model: Transformer, layout: Layout, composition: Composition) -> list[float]:
    composer = Composer(model, layout, PRICES, FABRIC, composition, FREE)
    return [entry.duration_us for entry in composer.ranks()[0] if entry.label == "gradients"]


def test_gradients_are_reduced_in_buckets_as_the_backward_ends_with_weights() -> None:
    """torch's: closed by 25 MiB of parameters, the first one by 1 MiB; no weight is cut."""
    layout = Layout(dp=8)
    mib = 2.0**20
    weights = [each * 2 / mib for each in weights_of_block(SMALL, layout)]
    assert weights == [8.0, 16.0, 2.0, 4.0]
    parts = [[32000 * 1024.0], *[weights_of_block(SMALL, layout)] * 4, [32000 * 1024.0]]
    buckets = [[round(2 * each / mib, 1) for each in closed] for closed in full_buckets(parts, 2)]
    assert buckets == [[62.5], [26.0], [28.0], [30.0], [30.0], [68.5]]
    assert sum(map(sum, buckets)) == pytest.approx(2 * 62.5 + 4 * 30, abs=1)
    assert len(_reductions(SMALL, layout, Composition())) == 6


def test_a_table_that_input_and_output_share_is_reduced_last() -> None:
    shared = _reductions(replace(SMALL, tied=True), Layout(dp=8), Composition())
    apart = _reductions(SMALL, Layout(dp=8), Composition())
    assert len(shared) == len(apart) - 1
    assert max(shared) == shared[-1]


def test_a_stage_of_a_pipeline_reduces_its_own_gradients() -> None:
    composer = Composer(SMALL, Layout(dp=4, pp=2), PRICES, FABRIC, Composition(), FREE)
    first, last = (
        Composer(SMALL, Layout(dp=4, pp=2), PRICES, FABRIC, Composition(), FREE).backward_parts(stage)
        for stage in (0, 1)
    )
    table = (SMALL.vocabulary * SMALL.hidden,)
    assert [weights for _, weights in first].count(table) == [weights for _, weights in last].count(table) == 1
    assert first[-1][1] == last[0][1] == table
    whole = sum((cost for cost, _ in first[:-1]), first[-1][0])
    assert whole.device_us == pytest.approx(composer.stage_cost(0, "backward").device_us)
