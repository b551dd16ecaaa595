"""Programs with threads that run without their device. Nothing here compiles, so that Triton is not needed."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from torchledger.errors import PlanError
from torchledger.nouns import Device, Step
from torchledger.planning.dry_run import run_without_device
from torchledger.planning.program_threads import Ending, StepRecorded
from torchledger.store import open_ledger

pytestmark = pytest.mark.usefixtures("no_optimizer_stays")

GPU = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


def training(batches: Callable[[], torch.Tensor]) -> None:
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(batches()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_an_end_that_python_lets_nobody_hear_comes_at_the_programs_next_operator() -> None:
    ends: list[str] = []
    ending = Ending(lambda: ends.append("told"))

    def program() -> None:
        ending.check()
        with contextlib.suppress(StepRecorded):  # as what a hook of a fork raises
            ending.end()
        ends.append("went on")
        ending.check()
        ends.append("never")

    with pytest.raises(StepRecorded):
        ending.run(program, lambda: None)
    ending.check()
    assert ends == ["told", "went on"]


def test_a_step_in_which_loaders_begin_processes_is_planned_and_the_program_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchledger.planning.later_steps._MOST", 0)
    epochs: list[int] = []

    def program() -> None:
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(30):
            for batch in DataLoader(torch.ones(8, 8), batch_size=4, num_workers=1):
                model(batch.cuda()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for other in DataLoader(torch.ones(8, 8), batch_size=8, num_workers=1):
                        model(other.cuda())
            epochs.append(epoch)

    run_without_device(program, tmp_path / "loaders.ledger", GPU)
    with open_ledger(tmp_path / "loaders.ledger") as reader:
        (step,) = reader.read(Step)
    assert step.found_by == "optimizer" and len(epochs) < 29


def fed_by_a_pool() -> None:
    made: queue.Queue[torch.Tensor] = queue.Queue(2)
    stream = torch.cuda.Stream()

    def fill() -> None:
        while True:
            with torch.cuda.stream(stream):
                batch = torch.randn(16, 64).pin_memory().to("cuda", non_blocking=True)
            assert batch.is_cuda
            made.put(batch)

    with ThreadPoolExecutor(2) as pool:
        pool.submit(fill)
        pool.submit(fill)
        training(made.get)


def trained_by_a_thread() -> None:
    threading.Thread(target=training, args=(lambda: torch.randn(16, 64).cuda(),)).start()


def served_by_a_thread() -> None:
    requests: queue.Queue[torch.Tensor] = queue.Queue()
    answers: queue.Queue[torch.Tensor] = queue.Queue()
    model = nn.Linear(64, 64).cuda()

    def serve() -> None:
        with torch.inference_mode():
            while True:
                answers.put(model(requests.get().cuda()).cpu())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        while True:
            requests.put(torch.randn(16, 64))
            answers.get()
    finally:
        thread.join()  # it waits for a request that nobody makes any more


@pytest.mark.parametrize("program", [fed_by_a_pool, trained_by_a_thread, served_by_a_thread])
def test_a_step_is_recorded_whichever_thread_makes_it_or_its_batches(
    program: Callable[[], None], tmp_path: Path
) -> None:
    outcome = run_without_device(program, tmp_path / "threads.ledger", GPU)
    with open_ledger(outcome.path) as reader:
        (step,) = reader.read(Step)
    assert step.operators == step.operators_heard and step.operators


def evaluated_by_a_thread(before_training: Callable[[int], bool]) -> None:
    """One thread evaluates all along; the program's own trains once so many evaluations were made."""
    evaluations: list[int] = []
    has_trained = threading.Event()

    def evaluate() -> None:
        model = nn.Linear(64, 64).cuda()
        with torch.no_grad():
            while not has_trained.is_set():
                model(torch.randn(16, 64, device="cuda"))
                evaluations.append(1)

    threading.Thread(target=evaluate, daemon=True).start()
    try:
        while before_training(len(evaluations)):
            time.sleep(0.001)
        training(lambda: torch.randn(16, 64).cuda())
    finally:
        has_trained.set()


@pytest.mark.parametrize("n_evaluations", [2, 40])
def test_a_training_is_planned_though_another_thread_calls_a_model_before_it(
    n_evaluations: int, tmp_path: Path
) -> None:
    program = functools.partial(evaluated_by_a_thread, lambda made: made < n_evaluations)
    outcome = run_without_device(program, tmp_path / "evaluated.ledger", GPU)
    with open_ledger(outcome.path) as reader:
        (step,) = reader.read(Step)
    assert step.found_by == "optimizer" and step.optimizers
    assert not any("outside the recorded step" in note for note in step.notes)


def test_a_step_is_found_though_this_process_compiled_something_else_before(tmp_path: Path) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="eager")

    def program() -> None:
        model = nn.Linear(8, 8).cuda()
        with torch.inference_mode():
            for _ in range(2000):
                model(torch.ones(2, 8, device="cuda"))

    outcome = run_without_device(program, tmp_path / "beside.ledger", GPU)
    with open_ledger(outcome.path) as reader:
        assert reader.read(Step)[0].found_by == "period"
    assert callable(compiled)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_fails_ends_the_program_that_waits_for_it_and_is_named_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"

    def program() -> None:
        answers: queue.Queue[torch.Tensor] = queue.Queue()
        exec(compile(SCRIPT, str(script), "exec"), {"answers": answers})
        answers.get()

    with pytest.raises(PlanError, match=r"thread 'reader' failed .*fails\.py:3: RuntimeError: shape '\[3\]'"):
        run_without_device(program, tmp_path / "fails.ledger", GPU)
    # What it ends with is told of in this test, and not as the next one begins.
    for thread in threading.enumerate():
        if thread.name == "reader":
            thread.join(10)


SCRIPT = """import threading, torch
def work():
    answers.put(torch.ones(4, device="cuda").reshape(3))
threading.Thread(target=work, name="reader").start()
"""


def test_what_we_ask_for_is_told_as_it_is_though_a_compiler_of_a_thread_wraps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiles() -> None:
        try:
            raise PlanError("compiled programs are planned with Triton")
        except PlanError as error:
            raise RuntimeError("backend='inductor' raised:") from error

    def program() -> None:
        thread = threading.Thread(target=compiles)
        thread.start()
        thread.join()

    with pytest.raises(PlanError, match=r"^compiled programs are planned with Triton$"):
        run_without_device(program, tmp_path / "wrapped.ledger", GPU)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["InductorError", "UncapturedHigherOrderOpError", "Unsupported"])
def test_a_compiler_that_gives_up_is_named_with_what_can_be_left_out(name: str, tmp_path: Path) -> None:
    def program() -> None:
        raise type(name, (RuntimeError,), {})("KeyError: 'complex64'")

    with pytest.raises(PlanError, match=r"compiler gave up \(.*complex64.*torch\.compiler\.disable"):
        run_without_device(program, tmp_path / "failed.ledger", GPU)
