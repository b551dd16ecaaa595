"""What is said first of a predicted step."""

from __future__ import annotations

import pytest

from factories import make_launch, make_step, make_step_call
from torchledger.nouns import StepPrediction
from torchledger.predicting.devices import find_model
from torchledger.predicting.step import NO_STEP, predict_step
from torchledger.reporting.document import Facts, Sentence, Table
from torchledger.reporting.steps import step_as_plain, step_document
from torchledger.stepping.totals import total_step


@pytest.mark.parametrize("holds_record", [True, False])
def test_graphs_priced_once_are_not_called_a_step_and_that_is_said_first(holds_record: bool) -> None:
    notes = () if holds_record else (NO_STEP, "its profile saw several calls")
    step = StepPrediction(
        "a.ledger", "eager", 11.0, 9.0, 14.0, 0.9, "H200", 8.0, 1.0, 10.0, holds_record=holds_record, notes=notes
    )
    first, *rest = step_document(step, [], {}, []).sections[0].blocks
    if holds_record:
        assert isinstance(first, Facts) and first.rows[0][0] == "step"
        return
    assert isinstance(first, Sentence) and first.text.startswith("The ledger holds no step: each graph is counted once")
    facts, *notes_told = rest
    assert isinstance(facts, Facts) and facts.rows[0][0] == "graphs, once each"
    assert [each.text for each in notes_told if isinstance(each, Sentence)] == ["Its profile saw several calls."]


@pytest.mark.parametrize("was_seen", [True, False])
@pytest.mark.parametrize(("host", "told"), [(None, "by usual costs"), ("lab-7", "as measured on lab-7")])
def test_it_is_said_what_tells_how_long_the_host_takes(host: str | None, told: str, was_seen: bool) -> None:
    step = StepPrediction(
        "a.ledger",
        "eager",
        11.0,
        9.0,
        14.0,
        0.9,
        "H200",
        8.0,
        1.0,
        10.0,
        holds_record=True,
        host=host,
        host_was_seen=was_seen,
    )
    facts = step_document(step, [], {}, []).sections[0].blocks[0]
    assert isinstance(facts, Facts)
    text = dict(facts.rows)["host"]
    assert told in text and ("and what its plain steps took" in text) is was_seen


@pytest.mark.parametrize("is_compiled", [True, False])
def test_what_a_cpu_measured_is_not_compared_with_a_price_on_a_gpu(is_compiled: bool) -> None:
    launches = [make_launch(flops=2 * 64**3, device="cpu", category="cpp")] if is_compiled else []
    calls = [make_step_call(name="aten::add", phase="forward", bytes_moved=4096, flops=0)]
    graph_calls = {"forward_0": 1} if is_compiled else {}
    record = total_step(make_step(clock="cpu_profiler", graph_calls=graph_calls), calls, {})
    measured = {launch.launch_id: 40.0 for launch in launches}
    step, predictions = predict_step(
        find_model("H200"), launches, record=record, measured=measured, measured_us=9_000.0
    )
    facts = next(
        block
        for block in step_document(step, predictions, measured, launches).sections[0].blocks
        if isinstance(block, Facts)
    )
    assert dict(facts.rows)["measured step"] == "9.00 ms on the device of the record"
    plain = step_as_plain(step, predictions, measured, launches)
    assert [(each["measured_us"], each["error_pct"]) for each in plain["launches"]] == [(40.0, None)] * len(launches)


def test_launches_whose_errors_are_not_known_are_listed_heaviest_first() -> None:
    launches = [
        make_launch(order=order, call="extern_kernels.mm(a, b, out=c)", category="extern", flops=2 * size**3)
        for order, size in enumerate((64, 4096))
    ]
    step, predictions = predict_step(find_model("H200"), launches)
    light, heavy = sorted(predictions, key=lambda each: each.duration_us)
    measured = {light.subject: 9_000.0, heavy.subject: heavy.duration_us}
    plain = step_as_plain(step, predictions, measured, launches)
    assert all(each["error_pct"] is None for each in plain["launches"])
    blocks = step_document(step, predictions, measured, launches, sort_by="error").sections[1].blocks
    table = next(block for block in blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == [heavy.subject, light.subject]
