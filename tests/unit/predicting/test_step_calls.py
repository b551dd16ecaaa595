"""A recorded step on another device: calls counted, eager entries and the optimizer priced from the record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from factories import make_launch, make_run, make_step, make_step_call
from launch_times import make_launch_set, pointwise, product
from torchledger.cli import cli
from torchledger.device.datasheets import device_of_name
from torchledger.errors import PredictError
from torchledger.fitting.catalogue_calls import beside_catalogue
from torchledger.fitting.fit_data import fit_launches
from torchledger.fitting.launches import machine_of_launches
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Device, Launch, OptimizerFacts, Prediction, Profile, StepCall, TensorArgument
from torchledger.predicting.bus_copies import COPIES
from torchledger.predicting.devices import find_model
from torchledger.predicting.eager_launches import launch_of
from torchledger.predicting.host_steps import STEP_COSTS
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.model_file import save_model
from torchledger.predicting.operators import predict
from torchledger.predicting.questions import question_of
from torchledger.predicting.step import predict_ledger, predict_step
from torchledger.predicting.step_calls import is_of_catalogue, price_calls
from torchledger.predicting.step_notes import note_on_pools
from torchledger.stepping.totals import StepTotals, total_step
from torchledger.store import LedgerWriter


@pytest.fixture(scope="module")
def model() -> TimeModel:
    """A made-up GPU that has learned launches alone."""
    train = make_launch_set(40)
    bare = TimeModel("TEST", machine_of_launches(device_of_name("TEST"), train.launches), {})
    bare = replace(bare, machine=replace(bare.machine, device=Device(name="TEST", kind="cuda")))
    return replace(bare, entries=fit_launches(train.launches, bare)[0])


@pytest.fixture(scope="module")
def h200() -> TimeModel:
    return find_model("H200")


def tensors(*shapes: tuple[int, ...], dtype: str = "bfloat16") -> tuple[TensorArgument, ...]:
    return tuple(TensorArgument(shape, dtype) for shape in shapes)


def on_gpu(name: str, *shapes: tuple[int, ...], **changes: Any) -> StepCall:
    return make_step_call(name=name, arguments=tensors(*shapes), **({"kernels": 1} | changes))


def recorded(calls: list[StepCall], graph_calls: dict[str, int], **changes: Any) -> StepTotals:
    return total_step(make_step(clock="cupti", graph_calls=graph_calls, **changes), calls, {})


def layers(count: int, graph: str = "forward_0") -> list[Launch]:
    one = [product(512, 512, 1024, graph=graph), pointwise(512, 1024, 3, graph=graph)]
    return [replace(launch, order=place) for place, launch in enumerate(one * count)]


def test_a_graph_that_is_called_twelve_times_costs_what_twelve_layers_in_one_graph_do(model: TimeModel) -> None:
    calls = [make_step_call(kind="graph", name="forward_0", order=n, call=n, phase="forward") for n in range(12)]
    looped, _ = predict_step(model, layers(1), record=recorded(calls, {"forward_0": 12}))
    whole, _ = predict_step(model, layers(12), record=recorded(calls[:1], {"forward_0": 1}))
    assert looped.launches == whole.launches == 24
    assert looped.kernels_us == pytest.approx(whole.kernels_us, rel=0.1)
    assert looped.gaps_us == whole.gaps_us
    assert looped.host_us > whole.host_us, "eleven more calls of a graph cost the host something"


def test_a_step_whose_host_waits_for_the_device_is_longer_and_says_so(model: TimeModel) -> None:
    graph = make_step_call(kind="graph", name="forward_0", order=0, phase="forward")
    norm = on_gpu("aten::sum", (4096, 4096), order=1, phase="optimizer")
    wait = make_step_call(kind="synchronization", name="cudaStreamSynchronize", order=2, phase="optimizer")
    # The same wait for the whole device is how a loop is timed.
    timed = replace(wait, name="cudaDeviceSynchronize")
    free, waiting = (
        predict_step(model, layers(12), record=recorded([graph, norm, each], {"forward_0": 1}))[0]
        for each in (timed, wait)
    )
    assert (free.device_us, free.host_us) == (waiting.device_us, waiting.host_us)
    assert waiting.duration_us > free.duration_us and waiting.high_us > free.high_us
    assert any("the host waits for the device once inside the step" in note for note in waiting.notes)
    assert not any("waits" in note for note in free.notes)


def test_ways_that_were_not_taken_and_turns_of_loops_are_said_beside_the_price(model: TimeModel) -> None:
    call = make_step_call(kind="graph", name="forward_0", phase="forward", not_taken=3, repeated=40)
    step, _ = predict_step(model, layers(1), record=recorded([call], {"forward_0": 1}))
    assert any("3 launches in ways of conditionals" in note for note in step.notes)
    assert any("40 launches that loops in compiled graphs made again" in note for note in step.notes)


def test_the_way_that_was_taken_is_priced_as_often_as_it_was(model: TimeModel) -> None:
    wide, narrow = product(4096, 4096, 4096, graph="forward_0"), product(512, 512, 512, graph="forward_0")
    ways = [replace(wide, order=0), replace(narrow, order=1)]
    calls = [
        make_step_call(
            kind="graph", name="forward_0", phase="forward", order=place, call=place, not_taken=1, times=times
        )
        for place, times in enumerate([((0, 0),), ((0, 0), (1, 2))])
    ]
    step, predictions = predict_step(model, ways, record=recorded(calls, {"forward_0": 2}))
    alone, _ = predict_step(model, ways[1:], record=recorded([], {"forward_0": 3}))
    assert [found.subject for found in predictions] == ["forward_0#1"]
    assert (step.launches, step.kernels_us) == (3, pytest.approx(alone.kernels_us))
    assert not any("conditionals" in note or "loops" in note for note in step.notes)


def test_operators_of_the_program_s_own_without_flops_are_named(model: TimeModel) -> None:
    own = Launch("forward_0", 2, "k", "torch.ops.mine.gram.default", "extern", "cuda:0")
    eager = on_gpu("mine::roll", (8, 8), bytes_moved=512)
    known = on_gpu("aten::polygamma", (8, 8), bytes_moved=512)
    step, _ = predict_step(model, [*layers(1), own], record=recorded([eager, known], {"forward_0": 1}))
    (note,) = [each for each in step.notes if "is not known" in each]
    assert note.startswith("what mine::gram, mine::roll computes is not known: it is priced by its bytes alone")


def test_a_graph_that_the_step_does_not_call_is_named_and_costs_nothing(model: TimeModel) -> None:
    stale = [replace(launch, graph="forward_1") for launch in layers(1)]
    step, predictions = predict_step(model, [*layers(1), *stale], record=recorded([], {"forward_0": 1}))
    alone, _ = predict_step(model, layers(1), record=recorded([], {"forward_0": 1}))
    assert step.duration_us == alone.duration_us
    assert {item.subject.split("#")[0] for item in predictions} == {"forward_0"}
    assert any("not called in the step" in note and "forward_1" in note for note in step.notes)


def test_parts_of_a_recorded_step_add_up_to_its_device_time(model: TimeModel) -> None:
    calls = [
        on_gpu("aten::sum", (4096, 4096), bytes_moved=2 * 4096**2, flops=0, order=1),
        on_gpu("aten::_fused_adamw_", (4096, 4096), phase="optimizer", bytes_moved=14 * 4096**2, order=2),
        on_gpu("c10d::allreduce_", (4096, 4096), kind="collective", phase="communication", bytes_moved=8, order=3),
        on_gpu("aten::view", (4096, 4096), kernels=0, order=4),
        make_step_call(kind="copy", name="Memcpy HtoD", kernels=1, bytes_moved=64, order=5),
        make_step_call(kind="synchronization", name="cudaStreamSynchronize", order=6),
    ]
    step, _ = predict_step(model, layers(1), record=recorded(calls, {"forward_0": 2}))
    assert step.eager_us > 0 and step.optimizer_us > 0 and step.collectives_us > 0
    parts = step.kernels_us + step.eager_us + step.optimizer_us + step.collectives_us
    assert step.device_us == pytest.approx(parts + step.gaps_us + step.tails_us + step.sustained_us)
    assert sum(each.total_us for each in step.eager) == pytest.approx(parts - step.kernels_us)
    copied_us = sum(each.total_us for each in step.eager if each.prediction.model == COPIES)
    assert copied_us == 10.0, "what was recorded of a copy is what the host's bus needs for it"
    assert step.eager_calls == 4 and step.unlearned == 3
    assert step.unlearned_us == pytest.approx(parts - step.kernels_us - copied_us)
    assert any("copies between host and device (1, 64 bytes) take 10 us, as recorded" in note for note in step.notes)


def test_rows_of_calls_of_one_name_and_size_add_to_what_each_of_them_takes(h200: TimeModel) -> None:
    copies = [on_gpu("aten::clone", (1 << 28,), bytes_moved=each << 28, order=each) for each in (3, 5, 5, 10)]
    step, _ = predict_step(h200, [], record=recorded(copies, {}))
    alone = [prediction.duration_us for _, prediction in price_calls(h200, copies, ran_on_cpu=False)]
    assert len(set(alone)) == 3 and len({each.prediction.subject for each in step.eager}) == 1
    assert sum(each.total_us for each in step.eager) == pytest.approx(sum(alone)) == pytest.approx(step.eager_us)
    assert [each.calls for each in step.eager if each.prediction.duration_us == alone[1]] == [2]


def test_copies_on_a_stream_of_their_own_run_beside_other_work(model: TimeModel) -> None:
    def copy(stream: str, order: int) -> StepCall:
        moved = {"kind": "copy", "bytes_moved": 55_000_000, "samples_us": (), "settings": (("non_blocking", (1,)),)}
        return on_gpu("aten::_to_copy", (1,), order=order, streams=(stream,), **moved)

    work = [on_gpu("aten::relu", (8, 8), bytes_moved=512, flops=0, order=at, streams=("0/7",)) for at in range(3)]
    steps = [predict_step(model, [], record=recorded([*work, copy(stream, 3)], {}))[0] for stream in ("0/7", "0/20")]
    inline, beside = steps
    assert inline.device_us - beside.device_us > 900
    assert any("on streams of their own (1, 55,000,000 bytes) run beside other work" in note for note in beside.notes)


@pytest.mark.parametrize(
    ("call", "operator", "parameters", "direction"),
    [
        (on_gpu("aten::mm", (64, 128), (128, 32)), "linear", {"m": 64, "k": 128, "n": 32}, "forward"),
        (on_gpu("aten::addmm", (32,), (64, 128), (128, 32)), "linear", {"m": 64, "k": 128, "n": 32, "bias": 1}, None),
        (on_gpu("aten::bmm", (4, 64, 128), (4, 128, 32)), "bmm", {"b": 4, "m": 64, "k": 128, "n": 32}, "forward"),
        (on_gpu("aten::_log_softmax", (8, 64, 500)), "softmax", {"rows": 512, "dim": 500}, "forward"),
        (on_gpu("aten::_softmax_backward_data", (64, 500), (64, 500)), "softmax", {"rows": 64, "dim": 500}, "backward"),
        (on_gpu("aten::native_layer_norm", (8, 64), (64,), (64,)), "layer_norm", {"rows": 8, "dim": 64}, "forward"),
        (on_gpu("aten::embedding", (500, 64), (4, 16)), "embedding", {"tokens": 64, "vocab": 500, "dim": 64}, None),
        (on_gpu("aten::add_.Tensor", (64, 64), (64, 64)), "add", {"numel": 4096}, "forward"),
        (
            on_gpu("aten::_scaled_dot_product_flash_attention", *[(2, 8, 128, 64)] * 3, flops_quality="upper_bound"),
            "sdpa",
            {"b": 2, "h": 8, "l": 128, "d": 64, "causal": 1},
            "forward",
        ),
        (
            on_gpu("aten::_fused_adamw_", (64, 64), tensors=2, elements=8192, phase="optimizer"),
            "adamw",
            {"numel": 8192, "tensors": 2},
            "step",
        ),
        (
            on_gpu("c10d::allreduce_", (4096,), kind="collective", group_size=8, message_bytes=2 * 4096),
            "collective.all_reduce",
            {"numel": 4096, "world": 8},
            "forward",
        ),
        (
            on_gpu("c10d::_allgather_base_", (8192,), kind="collective", group_size=8, message_bytes=2 * 8192),
            "collective.all_gather",
            {"numel": 8192, "world": 8},
            "forward",
        ),
    ],
)
def test_an_eager_operator_that_was_learned_is_asked_for_at_its_own_sizes(
    h200: TimeModel, call: StepCall, operator: str, parameters: dict[str, int], direction: str | None
) -> None:
    question = question_of(call)
    assert question is not None
    assert (question.operator, question.parameters, question.dtype) == (operator, parameters, "bfloat16")
    assert question.direction == (direction or "forward")
    ((_, priced),) = price_calls(h200, [call], ran_on_cpu=False)
    asked = predict(h200, operator, parameters, direction=question.direction, dtype="bfloat16")
    beside = beside_catalogue(call.name, h200.extras) if is_of_catalogue(call) else None
    expected_us = asked.duration_us if beside is None else beside.duration_us(asked.duration_us)
    assert priced.duration_us == pytest.approx(expected_us) and priced.model == asked.model


@pytest.mark.parametrize(
    "call",
    [
        on_gpu("aten::mm", (64, 64), bytes_moved=1000, flops=0),
        on_gpu("aten::logcumsumexp", (64, 64), bytes_moved=1000, flops=0),
        on_gpu("mylib::operator", (64, 64), bytes_moved=1000, flops=0),
        on_gpu("c10d::allreduce_", (64, 64), kind="collective", bytes_moved=1000, flops=0),
    ],
)
def test_what_was_not_learned_takes_its_bytes_and_a_launch_and_says_so(h200: TimeModel, call: StepCall) -> None:
    ((_, priced),) = price_calls(h200, [call], ran_on_cpu=False)
    assert priced.model == "roofline" and priced.is_extrapolated and "the model has learned no" in str(priced.note)
    assert priced.duration_us == pytest.approx(1000 / h200.machine.bytes_per_us + h200.machine.floor_us)


def eager_product(rows: int, inner: int, columns: int, *, bias: bool = False, dtype: str = "float32") -> StepCall:
    factors = [TensorArgument((rows, inner), dtype, (inner, 1)), TensorArgument((inner, columns), dtype, (1, inner))]
    added = [TensorArgument((columns,), dtype, (1,))] if bias else []
    call = on_gpu("aten::addmm" if bias else "aten::mm", (1,), bytes_moved=4 * rows * columns, flops=1)
    return replace(call, arguments=(*added, *factors), flops=2 * rows * inner * columns)


def test_an_eager_product_is_priced_as_the_launch_that_a_graph_makes_of_it(h200: TimeModel) -> None:
    for call in (
        eager_product(4096, 1024, 4096),
        eager_product(256, 768, 3072, bias=True),
        eager_product(64, 2048, 1000, bias=True),
    ):
        ((_, priced),) = price_calls(h200, [call], ran_on_cpu=False)
        launch = launch_of(call, "cuda:0")
        assert launch is not None
        (asked,) = predict_launches(h200, [launch])
        assert (priced.duration_us, priced.low_us, priced.model) == (asked.duration_us, asked.low_us, asked.model)


def test_an_eager_product_of_float32_is_rounded_where_the_run_allows_it(h200: TimeModel) -> None:
    call = eager_product(8192, 8192, 8192)
    exact, rounded = (
        price_calls(h200, [call], ran_on_cpu=False, allow_tf32=allowed)[0][1].duration_us for allowed in (False, True)
    )
    assert 3 * rounded < exact


def test_a_gradient_that_is_added_up_is_read_from_memory_and_no_other_sum_is(h200: TimeModel) -> None:
    tensor = TensorArgument((3072, 768), "float32", (768, 1))
    call = replace(on_gpu("aten::add_", (1,), bytes_moved=3 * 4 * 3072 * 768, flops=0), arguments=(tensor, tensor))
    backward, other = (
        price_calls(h200, [replace(call, phase=phase)], ran_on_cpu=False)[0][1] for phase in ("backward", "forward")
    )
    assert backward.duration_us == pytest.approx(3 * 4 * 3072 * 768 / h200.machine.bytes_per_us + h200.machine.floor_us)
    assert other.duration_us < backward.duration_us and "a pass ago" in str(backward.note)
    assert backward.low_us <= backward.duration_us <= backward.high_us


def test_an_elementwise_call_that_nobody_measured_is_like_others_of_its_layout_and_says_so(h200: TimeModel) -> None:
    def took(*strides: tuple[int, ...]) -> Prediction:
        tensors = tuple(TensorArgument((4096, 4096), "bfloat16", stride) for stride in strides)
        call = replace(on_gpu("aten::polygamma", (4096, 4096), bytes_moved=2**26, flops=0), arguments=tensors)
        return price_calls(h200, [call], ran_on_cpu=False)[0][1]

    dense, padded, across = took((4096, 1)), took((8192, 1)), took((4096, 1), (1, 4096))
    assert all("element-wise calls of its layout" in str(each.note) for each in (dense, padded, across))
    assert 1.5 * dense.duration_us < padded.duration_us < 0.7 * across.duration_us


def test_one_number_that_is_put_where_a_mask_says_is_filled_in_and_places_are_not_looked_for(h200: TimeModel) -> None:
    rows, mask, number = (
        TensorArgument((4096, 1024), "float32"),
        TensorArgument((4096, 1024), "bool"),
        TensorArgument(()),
    )
    filled = replace(on_gpu("aten::masked_fill_", bytes_moved=20 << 20), arguments=(rows, mask))
    put = replace(filled, name="aten::index_put_", arguments=(rows, mask, number))
    each = replace(put, arguments=(rows, mask, TensorArgument((9000,), "float32")))
    prices = price_calls(h200, [filled, put, each], ran_on_cpu=False)
    as_filled, as_put, as_places = (said.duration_us for _, said in prices)
    assert as_filled == as_put != as_places


def test_elements_that_a_mask_takes_are_looked_for_and_taken_as_places_are(h200: TimeModel) -> None:
    table, mask = TensorArgument((64, 512, 4096), "bfloat16", (512 * 4096, 4096, 1)), TensorArgument((64, 512), "bool")
    place = TensorArgument((4916,), "int64", (1,))
    moved = 2 * 4916 * 4096 * 2 + 2 * 4916 * 8
    by_mask = replace(
        on_gpu("aten::index", bytes_moved=64 * 512 + 2 * 4916 * 8 + moved),
        arguments=(table, mask),
        settings=(("taken", (4916,)),),
    )
    searched = replace(on_gpu("aten::nonzero", bytes_moved=64 * 512 + 2 * 4916 * 8), arguments=(mask,), settings=())
    by_places = replace(on_gpu("aten::index", bytes_moved=moved), arguments=(table, place, place), settings=())
    prices = [said.duration_us for _, said in price_calls(h200, [by_mask, searched, by_places], ran_on_cpu=False)]
    assert prices[0] == pytest.approx(prices[1] + prices[2])


def test_unknown_bytes_are_said_and_not_taken_for_none(h200: TimeModel) -> None:
    ((_, priced),) = price_calls(h200, [on_gpu("mylib::operator", (64, 64))], ran_on_cpu=False)
    assert priced.roofline_us is None and "its bytes are unknown" in str(priced.note)
    assert priced.duration_us == h200.machine.floor_us


def test_operators_over_lists_take_longer_the_more_they_move(h200: TimeModel) -> None:
    def foreach(elements: int) -> StepCall:
        moved = 3 * 4 * elements
        shapes = [TensorArgument((elements // 8,), "float32")] * 8
        return make_step_call(
            name="aten::_foreach_addcdiv_",
            phase="optimizer",
            arguments=tuple(shapes),
            tensors=8,
            elements=elements,
            bytes_moved=moved,
            kernels=1,
        )

    times = [price_calls(h200, [foreach(n)], ran_on_cpu=False)[0][1] for n in (10**6, 10**7, 10**8)]
    assert times[0].duration_us < times[1].duration_us < times[2].duration_us
    assert times[2].duration_us > 3 * 4 * 10**8 / 4.9e6, "no quicker than the memory can be"
    assert "as calls in other steps took" in str(times[2].note)


def test_on_a_cpu_an_operator_counts_when_it_moves_something(h200: TimeModel) -> None:
    calls = [
        make_step_call(name="aten::view", bytes_moved=0, flops=0),
        make_step_call(name="aten::add", bytes_moved=100, flops=0),
    ]
    assert [call.name for call, _ in price_calls(h200, calls, ran_on_cpu=True)] == ["aten::add"]


def test_kernels_for_a_cpu_are_never_inside_what_a_gpu_was_measured_at(model: TimeModel) -> None:
    launches = [replace(launch, device="cpu", category="cpp") for launch in layers(2)]
    assert all(item.is_extrapolated for item in predict_launches(model, launches))
    assert not any(item.is_extrapolated for item in predict_launches(model, layers(2)))
    step, _ = predict_step(model, launches)
    assert step.extrapolated == 4 and step.foreign_us == pytest.approx(step.kernels_us)
    assert any("4 of 4 launches are kernels for cpu, which TEST does not run" in note for note in step.notes)


def test_an_optimizer_by_hand_beside_a_recorded_one_is_refused(model: TimeModel) -> None:
    adamw = OptimizerFacts("AdamW", 2, 4096, ("float32",))
    with pytest.raises(PredictError, match=r"holds an optimizer \(AdamW\).*leave out --optimizer"):
        predict_step(model, layers(1), record=recorded([], {"forward_0": 1}, optimizers=(adamw,)), optimizer="adamw:9")
    step, _ = predict_step(model, layers(1), record=recorded([], {"forward_0": 1}, optimizers=(adamw,)))
    without, _ = predict_step(model, layers(1), record=recorded([], {"forward_0": 1}))
    assert step.host_us == pytest.approx(without.host_us), "no eager optimizer ran in this step"


@pytest.mark.parametrize("optimizer", ["adamw", "adamw:"])
def test_an_optimizer_without_its_size_is_told_how_to_count_it(model: TimeModel, optimizer: str) -> None:
    with pytest.raises(PredictError, match=r"nothing of its size: write adamw:NUMEL .*model\.parameters\(\)"):
        predict_step(model, layers(1), optimizer=optimizer)
    with pytest.raises(PredictError, match=r"optimizer 'sgd:9' is unknown"):
        predict_step(model, layers(1), optimizer="sgd:9")


def test_an_optimizer_over_lists_costs_the_host_each_tensor_and_one_over_single_tensors_its_operators(
    model: TimeModel,
) -> None:
    def host_us(name: str, count: int) -> float:
        facts = OptimizerFacts("AdamW", 100, 4096, ("float32",))
        calls = [on_gpu(name, (64,), phase="optimizer", bytes_moved=64, order=n) for n in range(count)]
        return predict_step(model, [], record=recorded(calls, {}, optimizers=(facts,)))[0].host_us

    single = host_us("aten::mul_", 2) - host_us("aten::mul_", 1)
    assert single == pytest.approx(STEP_COSTS["launching_calls"])
    listed = host_us("aten::_foreach_mul_", 1) - host_us("aten::view", 0)
    assert listed == pytest.approx(STEP_COSTS["optimizers"] + 100 * STEP_COSTS["foreach_tensors"])
    scaled = host_us("aten::_amp_update_scale_", 1) - host_us("aten::mul_", 1)
    assert scaled > 15 * single, "a gradient scaler goes through the parameters in Python"


def test_a_list_of_a_models_tensors_is_priced_as_such_lists_in_other_steps_were(h200: TimeModel) -> None:
    def update(tensors: int, kernels: int) -> StepCall:
        return on_gpu(
            "aten::_fused_adamw_", (64, 64), tensors=tensors, elements=10**6, bytes_moved=28 * 10**6, kernels=kernels,
            phase="optimizer",
        )  # fmt: skip

    (_, one), (_, four) = (price_calls(h200, [update(*sizes)], ran_on_cpu=False)[0] for sizes in ((20, 1), (120, 4)))
    assert "as calls in other steps took" in str(one.note)
    assert four.duration_us > 2 * one.duration_us, "each kernel waits for the one block that has a full chunk"


def test_a_planned_list_is_priced_by_the_kernels_that_follow_from_it(h200: TimeModel) -> None:
    ran = on_gpu(
        "aten::_foreach_mul_", (64, 64), tensors=8, elements=10**6, bytes_moved=8 * 10**6, kernels=1, phase="optimizer",
        samples_us=(16.0,),
    )  # fmt: skip
    (_, of_ran), (_, of_planned) = (
        price_calls(h200, [call], ran_on_cpu=False)[0] for call in (ran, replace(ran, samples_us=()))
    )
    assert of_planned.duration_us == of_ran.duration_us


def test_a_list_divided_by_numbers_in_tensors_is_worked_on_one_by_one(h200: TimeModel) -> None:
    def divided(*shapes: tuple[int, ...], kernels: int) -> float:
        call = on_gpu(
            "aten::_foreach_div_", *shapes, tensors=6, elements=300_000, bytes_moved=2_400_000, kernels=kernels
        )
        return price_calls(h200, [call], ran_on_cpu=False)[0][1].duration_us

    by_numbers, by_tensors = divided((512, 36), (), kernels=6), divided((512, 36), (512, 36), kernels=1)
    assert 4 < by_numbers < 12, "six small kernels"
    assert by_tensors != by_numbers


def test_a_list_that_nothing_is_known_of_is_priced_as_another_of_its_bytes(h200: TimeModel) -> None:
    sizes: dict[str, Any] = {"tensors": 68, "elements": 160_000_000, "bytes_moved": 640_000_000, "kernels": 8}
    clamped, scaled = (
        price_calls(h200, [on_gpu(name, (4096, 1024), **sizes)], ran_on_cpu=False)[0][1]
        for name in ("aten::_foreach_clamp_min_", "aten::_foreach_mul_")
    )
    assert clamped.duration_us == scaled.duration_us and "_foreach_clamp_min_" in clamped.subject


def test_random_numbers_by_their_sizes_alone_take_what_those_like_another_tensor_do(h200: TimeModel) -> None:
    alone = make_step_call(name="aten::randn", arguments=(), kernels=1, bytes_moved=4_000_000)
    alike = on_gpu("aten::randn_like", kernels=1, bytes_moved=4_000_000)
    alike = replace(alike, arguments=(TensorArgument((1_000_000,), "float32", (1,)),))
    (_, first), (_, second) = (price_calls(h200, [call], ran_on_cpu=False)[0] for call in (alone, alike))
    assert first.duration_us == second.duration_us and "randn_like" not in first.subject
    assert "learned no" not in str(first.note)


def test_a_step_without_compiled_graphs_is_priced_from_its_operators(model: TimeModel) -> None:
    step, predictions = predict_step(model, [], record=recorded([on_gpu("aten::sum", (9, 9), bytes_moved=9)], {}))
    assert predictions == [] and step.launches == 0 and step.eager_us > 0


def test_a_ledger_without_a_step_says_so_and_names_the_graphs_that_ran_several_times(
    model: TimeModel, tmp_path: Path
) -> None:
    with LedgerWriter(tmp_path / "old.ledger") as writer:
        writer.add(make_run(), *layers(1), Profile("cupti", 3, graph_calls={"forward_0": 36, "backward_0": 3}))
    step, *_ = predict_ledger(model, tmp_path / "old.ledger")
    assert not step.holds_record
    assert any("each graph is counted once" in note for note in step.notes)
    assert any("forward_0 12 times" in note and "backward_0" not in note for note in step.notes)


def test_the_command_prints_calls_graphs_eager_work_optimizer_and_host(model: TimeModel, tmp_path: Path) -> None:
    save_model(model, tmp_path / "m.tlmodel")
    eager = on_gpu("aten::sum", (4096, 4096), bytes_moved=2 * 4096**2, flops=0, order=1)
    update = on_gpu("aten::_fused_adamw_", (4096, 4096), phase="optimizer", bytes_moved=14 * 4096**2, order=2)
    with LedgerWriter(tmp_path / "loop.ledger") as writer:
        writer.add(make_run(), *layers(1), make_launch(graph="forward_1"))
        writer.add(make_step(clock="cupti", graph_calls={"forward_0": 12}), eager, update)
    words = ["predict-step", str(tmp_path / "loop.ledger"), "--device", str(tmp_path / "m.tlmodel")]
    plain = CliRunner().invoke(cli, words)
    assert plain.exit_code == 0, plain.output
    for word in ("24 launches in 12 calls", "eager operators", "optimizer", "host", "forward_1", "aten::sum"):
        assert word in plain.output
    said = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert said["step"]["graph_calls"] == {"forward_0": 12} and said["step"]["holds_record"]
    assert {row["calls"] for row in said["launches"]} == {12}
    assert {row["prediction"]["subject"] for row in said["step"]["eager"]} == {
        "aten::sum (4096, 4096)",
        "aten::_fused_adamw_ (4096, 4096)",
    }
    refused = CliRunner().invoke(cli, [*words, "--optimizer", "adamw:9"])
    assert isinstance(refused.exception, PredictError) and "holds an optimizer" in str(refused.exception)


def test_rows_of_a_norm_that_do_not_lie_behind_one_another_are_copied_first(h200: TimeModel) -> None:
    def norm(stride: tuple[int, ...], *, name: str = "aten::native_layer_norm") -> float:
        rows = TensorArgument((8, 1500, 384), "float32", stride)
        grad = TensorArgument((8, 1500, 384), "float32", (576000, 384, 1))
        weight = TensorArgument((384,), "float32", (1,))
        given = (rows, weight, weight) if name.endswith("norm") else (grad, rows, weight)
        call = make_step_call(name=name, kernels=2, arguments=given, bytes_moved=36_864_000, flops=0)
        ((_, said),) = price_calls(h200, [call], ran_on_cpu=False)
        assert said.low_us <= said.duration_us <= said.high_us
        return said.duration_us

    for name in ("aten::native_layer_norm", "aten::native_layer_norm_backward"):
        behind, turned = norm((576000, 384, 1), name=name), norm((576000, 1, 1500), name=name)
        assert turned > behind + 2 * 4 * 8 * 1500 * 384 / h200.machine.bytes_per_us


def test_time_steps_of_a_recurrent_layer_are_in_its_price(h200: TimeModel) -> None:
    settings = tuple((name, (value,)) for name, value in (("mode", 2), ("hidden_size", 128), ("num_layers", 2)))
    calls = [
        on_gpu("aten::_cudnn_rnn", (length, 16, 64), settings=settings, bytes_moved=10**6, flops=10**6)
        for length in (50, 500)
    ]
    short, long = (each for _, each in price_calls(h200, calls, ran_on_cpu=False))
    assert long.duration_us > 5 * short.duration_us and "algorithm" in (long.note or "")


def test_cudnns_loss_of_alignments_takes_what_atens_own_takes_forth_and_back(h200: TimeModel) -> None:
    scores, targets = (120, 8, 30), (160,)
    calls = [
        on_gpu(f"aten::{name}", *shapes, settings=(("BLANK", (0,)),), bytes_moved=10**6)
        for name, shapes in (
            ("_ctc_loss", (scores, targets)),
            ("_ctc_loss_backward", ((8,), scores, targets)),
            ("_cudnn_ctc_loss", (scores, targets)),
        )
    ]
    forth, back, both = (each for _, each in price_calls(h200, calls, ran_on_cpu=False))
    assert both.duration_us == pytest.approx(forth.duration_us + back.duration_us)
    assert "not measured itself" in (both.note or "")


def test_numbers_of_eight_bytes_are_not_priced_as_those_of_four(h200: TimeModel) -> None:
    calls = []
    for dtype, size in (("float32", 4), ("float64", 8), ("complex64", 8)):
        call = on_gpu("aten::mul", bytes_moved=3 * size * 2**24)
        calls.append(replace(call, arguments=tensors((4096, 4096), dtype=dtype)))
    single, double, pairs = (each.duration_us for _, each in price_calls(h200, calls, ran_on_cpu=False))
    assert double > 1.6 * single and pairs > 1.6 * single


def test_a_sparse_product_is_priced_by_the_bytes_that_it_holds(h200: TimeModel) -> None:
    sparse, dense = TensorArgument((50000, 50000), "float32"), TensorArgument((50000, 64), "float32", (64, 1))
    call = on_gpu("aten::mm", flops=2 * 50000**2 * 64, bytes_moved=10**6)
    ((_, priced),) = price_calls(h200, [replace(call, arguments=(sparse, dense))], ran_on_cpu=False)
    assert priced.duration_us < 100 and "sparse" in (priced.note or "")


def test_what_is_added_to_a_table_is_priced_by_what_it_holds_whatever_the_table_is(h200: TimeModel) -> None:
    found = []
    for rows in (10**5, 10**8):
        arguments = (
            TensorArgument((rows, 32), "float32", (32, 1)),
            TensorArgument((rows, 32), "float32", None, 4_456_448),
        )
        call = replace(on_gpu("aten::add_", bytes_moved=12_845_056), arguments=arguments)
        ((_, priced),) = price_calls(h200, [call], ran_on_cpu=False)
        assert priced.model == "roofline" and "what sparse tensors hold" in (priced.note or "")
        found.append(priced.duration_us)
    assert found[0] == found[1] < 10


def test_peak_memory_of_replayed_graphs_says_what_it_lacks() -> None:
    assert note_on_pools(None).endswith("which nothing counts")
    assert note_on_pools(4_920_000_000).endswith("the allocator had 4,920,000,000 bytes reserved where it ran")
