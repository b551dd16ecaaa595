"""Integers among an operator's arguments, by its schema: as a mode hears them, and as a profiler writes them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from torchledger._torch.composites import is_composite
from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.schemas import parameters_of_recorded
from torchledger.traces.recorded_calls import call_from_arguments
from torchledger.work.op_costs import op_cost
from torchledger.work.op_shapes import OpCall, Tensor
from torchledger.work.settings import Settings, settings_of


def heard(work: Callable[[], Any]) -> dict[str, Settings | None]:
    mode = EagerCalls(lambda: None)
    assert mode.start()
    try:
        work()
    finally:
        assert mode.stop()
    return {each.call.name: settings_of(each.call, each.parameters) for each in mode.calls}


BLOCK = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).view(2, 3, 8, 8)
FILTER = torch.ones(6, 3, 3, 3)
PLACES = torch.tensor([0, 1, 1])

CASES: list[tuple[Callable[[], Any], str, dict[str, tuple[int, ...]]]] = [
    (lambda: BLOCK.softmax(-3), "aten::_softmax", {"dim": (1,), "half_to_float": (0,)}),
    (lambda: BLOCK.sum((-1, 2)), "aten::sum", {"dim": (3, 2)}),
    (lambda: BLOCK.sum(), "aten::sum", {}),
    (lambda: BLOCK.sum(dim=None, keepdim=True), "aten::sum", {}),
    (lambda: BLOCK.cumsum(-2), "aten::cumsum", {"dim": (2,)}),
    (lambda: BLOCK.sort(1, descending=True), "aten::sort", {"dim": (1,), "descending": (1,)}),
    (lambda: BLOCK.topk(2, 1), "aten::topk", {"k": (2,), "dim": (1,)}),
    (lambda: BLOCK.std(0), "aten::std", {"dim": (0,)}),
    (lambda: torch.stack((BLOCK, BLOCK), -1), "aten::stack", {"dim": (4,)}),
    (lambda: torch.cat((BLOCK, BLOCK), -1), "aten::cat", {"dim": (3,)}),
    (
        lambda: functional.conv2d(BLOCK, FILTER, stride=2, padding=(0, 1)),
        "aten::convolution",
        {
            "stride": (2, 2),
            "padding": (0, 1),
            "dilation": (1, 1),
            "transposed": (0,),
            "output_padding": (0, 0),
            "groups": (1,),
        },
    ),
]


@pytest.mark.parametrize(("work", "name", "found"), CASES)
def test_what_an_operator_works_along_is_heard(
    work: Callable[[], Any], name: str, found: dict[str, tuple[int, ...]]
) -> None:
    assert dict(heard(work)[name] or ()) == found


def test_a_view_has_no_settings_since_it_does_no_work() -> None:
    assert heard(lambda: BLOCK.view(-1).expand(2, -1)) == {"aten::view": (), "aten::expand": ()}


def test_a_profilers_record_tells_the_same(tmp_path: Path) -> None:
    def work() -> None:
        for each, _, _ in CASES:
            each()
        rows = torch.ones(8, 4, requires_grad=True)
        functional.log_softmax(functional.layer_norm(rows, (4,)), 1).sum().backward()
        functional.interpolate(BLOCK, scale_factor=2), functional.max_pool2d(BLOCK, 2)

    by_mode = heard(work)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        work()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    compared: Counter[str] = Counter()
    recorded: dict[str, list[Settings | None]] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        call = call_from_arguments(event["name"], event["args"]) if "Input Dims" in event.get("args", {}) else None
        if call is not None and call.name in by_mode:
            recorded.setdefault(call.name, []).append(settings_of(call, parameters_of_recorded(call)))
    for name, settings in by_mode.items():
        if name in recorded:
            compared[name] += 1
            assert settings in recorded[name], name
    assert {"aten::_log_softmax", "aten::convolution", "aten::cumsum", "aten::topk", "aten::std"} <= compared.keys()


def test_where_overloads_differ_only_what_they_agree_on_is_taken() -> None:
    block = call_from_arguments("aten::var", {"Input Dims": [[4, 8], [], [], []], "Input type": ["float", "", "", ""]})
    assert block is not None
    known = parameters_of_recorded(block)
    assert known is not None and known[1] is not None and known[1].name == "dim" and known[2] is None


def test_a_range_without_a_namespace_is_no_operator() -> None:
    """As ``c10d`` writes one for messages between the stages of a pipeline, outside any of its operators."""
    message = Tensor((4, 8), "bfloat16")
    assert parameters_of_recorded(OpCall("record_param_comms", (message,))) is None
    assert is_composite("record_param_comms") is False


@pytest.mark.parametrize(
    ("work", "given"),
    [
        (lambda: BLOCK[PLACES], None),
        (lambda: BLOCK[:, PLACES], (1,)),
        (lambda: BLOCK[..., PLACES], (3,)),
        (lambda: BLOCK[:, PLACES, :, PLACES], (1, 3)),
    ],
)
def test_an_index_says_which_dimensions_it_is_given_unless_they_are_the_first(
    work: Callable[[], Any], given: tuple[int, ...] | None
) -> None:
    assert dict(heard(work)["aten::index"] or ()).get("indices") == given


@pytest.mark.parametrize("place", range(4))
def test_what_an_index_moves_is_by_the_dimension_that_it_works_along(place: int) -> None:
    mode = EagerCalls(lambda: None)
    assert mode.start()
    try:
        made = BLOCK[(slice(None),) * place + (PLACES,)]
    finally:
        assert mode.stop()
    (call,) = (each.call for each in mode.calls if each.call.name == "aten::index")
    read = min(made.numel(), BLOCK.numel())
    assert op_cost(call).bytes_moved == 4 * (made.numel() + read) + 8 * PLACES.numel()
