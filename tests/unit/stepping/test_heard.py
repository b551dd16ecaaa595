"""Steps of which only the operators were heard: how many kernels they are taken to launch, and by which name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchledger._torch.eager_calls import EagerCall
from torchledger.nouns import StepCall
from torchledger.stepping.heard import record_heard_step
from torchledger.stepping.record import Ledgered, StepFacts
from torchledger.work.op_shapes import OpCall, Tensor
from torchledger.work.settings import Parameter


def heard(call: OpCall) -> StepCall:
    eager = EagerCall(call, "default", 7, device="cuda:0")
    return record_heard_step([0], [eager], StepFacts("period"), Ledgered({}, {})).calls[0]


def tensors(*strides: tuple[int, ...], dtype: str = "bfloat16") -> tuple[Tensor, ...]:
    return tuple(Tensor((16, 8), dtype, each) for each in strides)


ROWS, COLUMNS, SPARED = (8, 1), (1, 16), (16, 1)


@pytest.mark.parametrize(
    ("moments", "gradients", "kernels"),
    [
        (tensors(ROWS, COLUMNS), tensors(ROWS, COLUMNS), 1),
        (tensors(ROWS, ROWS), tensors(ROWS, COLUMNS), 2),
        (tensors(ROWS, SPARED), tensors(ROWS, SPARED), 2),
        (tensors(ROWS, ROWS), tensors(ROWS, ROWS, dtype="float32"), 2),
    ],
)
def test_lists_whose_tensors_do_not_lie_alike_are_worked_on_tensor_by_tensor(
    moments: tuple[Tensor, ...], gradients: tuple[Tensor, ...], kernels: int
) -> None:
    assert heard(OpCall("aten::_foreach_lerp_", (moments, gradients, None), ("", "", "0.1"))).kernels == kernels


def test_a_copy_over_lists_may_change_the_dtype() -> None:
    call = OpCall("aten::_foreach_copy_", (tensors(ROWS, ROWS), tensors(ROWS, ROWS, dtype="float32"), None))
    assert heard(call).kernels == 1


def test_copies_of_fsdp_are_those_that_a_recording_holds() -> None:
    shards = tuple(Tensor((numel,), "float32", (1,)) for numel in (96, 32))
    gathered = Tensor((256,), "bfloat16", (1,))
    call = heard(
        OpCall("fsdp::all_gather_copy_in", (shards, gathered, None, None, None), ("", "", "[96, 32]", "128", "1"))
    )
    assert call.name == "aten::_foreach_copy_" and (call.tensors, call.elements) == (2, 128)
    assert call.bytes_moved == 128 * (4 + 2)
    assert heard(OpCall("fsdp::chunk_cat", (tensors(ROWS), None, None), ("", "0", "2"))).name == "aten::_chunk_cat"


def test_what_a_call_works_along_is_in_its_record() -> None:
    call = OpCall("aten::cumsum", (Tensor((16, 8), "float32"), None, None), ("", "-2", ""))
    parameters = (None, Parameter("dim"), None)
    eager = EagerCall(call, "default", 7, device="cuda:0", parameters=parameters)
    assert record_heard_step([0], [eager], StepFacts("period"), Ledgered({}, {})).calls[0].settings == (("dim", (0,)),)
    assert heard(call).settings is None


def test_what_a_data_loader_computes_on_the_host_is_marked() -> None:
    loads = ("torch/utils/data/dataloader.py:__next__", "torch/utils/data/_utils/fetch.py:fetch")
    call = OpCall("aten::add", tensors(ROWS, ROWS))
    marked = {
        device: record_heard_step(
            [0], [EagerCall(call, "Tensor", 7, device=device, library=library)], StepFacts("period"), Ledgered({}, {})
        )
        .calls[0]
        .settings
        for device, library in (("cpu", loads), ("cuda:0", loads), ("cpu:0", loads[:1]))
    }
    assert marked == {"cpu": (("loaded", (1,)),), "cuda:0": None, "cpu:0": None}


def test_an_operator_that_stands_for_another_has_none_of_its_settings() -> None:
    shards = tuple(Tensor((numel,), "float32", (1,)) for numel in (96, 32))
    call = OpCall("fsdp::all_gather_copy_in", (shards, None, None, None, None), ("", "", "[96, 32]", "128", "1"))
    parameters = (None, None, Parameter("split_sizes"), Parameter("numel"), Parameter("rank"))
    eager = EagerCall(call, "default", 7, device="cuda:0", parameters=parameters)
    assert record_heard_step([0], [eager], StepFacts("period"), Ledgered({}, {})).calls[0].settings is None


def notes_on_reads(tmp_path: Path, text: str, *, count: int = 4, dtype: str = "bool", **facts: Any) -> list[str]:
    """Of a program whose line that ends with ``# reads`` reads a value so often in a step."""
    script = tmp_path / "program.py"
    script.write_text(text)
    line = 1 + next(number for number, each in enumerate(text.splitlines()) if each.endswith("# reads"))
    call = OpCall("aten::_local_scalar_dense", (Tensor((), dtype),))
    read = EagerCall(call, "default", 7, device="cuda:0", sources=(f"{script}:{line}",), **facts)
    step = record_heard_step(list(range(count)), [read] * count, StepFacts("period"), Ledgered({}, {})).step
    return [note.replace(f"{script}:", "program.py:") for note in step.notes]


ASSIGNED = "while {test}:\n    x = step(x)\n    done = bool((x < 1).all())  # reads\n"


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("not done", "it is priced as if it ended as early as it can"),
        ("goes_on(done)", "each truth there is taken for false"),
    ],
)
def test_of_a_loop_that_a_truth_ends_it_is_said_what_was_assumed(tmp_path: Path, test: str, told: str) -> None:
    assert notes_on_reads(tmp_path, ASSIGNED.format(test=test), count=1) == [
        "how often a loop goes round that ends by what program.py:3 reads (1 time in the step) is not known without "
        f"values: {told}. Plan it with a fixed number of rounds"
    ]


def test_of_a_loop_that_goes_on_until_the_programs_own_limit_that_is_said(tmp_path: Path) -> None:
    assert notes_on_reads(tmp_path, ASSIGNED.format(test="goes_on(done)"), is_limited=True) == [
        "a loop that ends by what program.py:3 reads (4 times in the step) goes round until the program's own limit: "
        "values may end it sooner"
    ]
    assert not notes_on_reads(tmp_path, ASSIGNED.format(test="goes_on(done)"), count=1, is_limited=True)


@pytest.mark.parametrize(("file", "solves"), [("lbfgs", True), ("_adafactor", False), ("asgd", False)])
def test_an_optimizer_that_reads_a_value_of_each_parameter_goes_round_as_often_as_ever(
    tmp_path: Path, file: str, solves: bool
) -> None:
    library = (f"torch/optim/{file}.py:step",)
    notes = notes_on_reads(tmp_path, "optimizer.step()  # reads\n", dtype="float32", library=library)
    assert [("decide how often a loop goes round" in note) for note in notes] == [True] * solves


@pytest.mark.parametrize(("file", "decides"), [("distribution", False), ("von_mises", True)])
def test_checks_of_a_distributions_values_decide_over_no_loop(tmp_path: Path, file: str, decides: bool) -> None:
    library = (f"torch/distributions/{file}.py:__init__",)
    assert bool(notes_on_reads(tmp_path, ASSIGNED.format(test="goes_on(done)"), library=library)) == decides


@pytest.mark.parametrize(("elements", "kinds"), [(0, ["operator"]), (3, ["copy", "synchronization"])])
def test_a_copy_of_no_elements_moves_nothing_and_the_host_does_not_wait_for_it(elements: int, kinds: list[str]) -> None:
    moved = Tensor((elements,), "float32", (1,))
    call = OpCall("aten::_to_copy", (moved, None, None, None), ("", "", "", "cpu"))
    eager = EagerCall(call, "default", 7, device="cuda:0")
    calls = record_heard_step([0], [eager], StepFacts("period"), Ledgered({}, {})).calls
    assert [(each.kind, each.kernels) for each in calls] == [(kind, 0) for kind in kinds]
