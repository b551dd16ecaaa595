"""What a program computes on the host inside its step is in a plan's price."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from torchledger.nouns import PlannedStep
from torchledger.planning.plan import Script, plan_program, plan_world
from torchledger.planning.rank_host import slowness_of_ranks

pytestmark = pytest.mark.usefixtures("no_optimizer_stays")

STEPS = 6
BATCH = (16, 3, 160, 160)


def trained(batches: Callable[[], torch.Tensor]) -> PlannedStep:
    """The planned step of a small training on batches that are made on the host."""

    def program() -> None:
        model = nn.Sequential(nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 39 * 39, 10)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(batches().cuda(non_blocking=True)).pow(2).mean().backward()
            optimizer.step()

    return plan_program(program).step


def note_of(step: PlannedStep) -> str:
    return next((note for note in step.notes if "computes on the host" in note), "")


@pytest.fixture(scope="module")
def without() -> PlannedStep:
    """The same training with nothing to compute on the host."""
    kept = torch.zeros(BATCH)
    return trained(lambda: kept)


def test_a_step_without_such_work_says_nothing_of_it(without: PlannedStep) -> None:
    assert without.host_work_us == 0 and note_of(without) == ""


def test_random_numbers_of_the_host_are_in_the_price_with_their_line(without: PlannedStep) -> None:
    step = trained(lambda: torch.rand(BATCH))
    assert 4_000 < step.host_work_us < 20_000
    assert step.host_us - step.host_work_us == pytest.approx(without.host_us)
    assert step.device_us == pytest.approx(without.device_us)
    assert step.duration_us > without.duration_us + 0.5 * step.host_work_us
    assert step.decides == "host"
    assert re.search(r": 1.2 million random numbers in 1 call \(test_host_work_of_plans.py:\d+\)", note_of(step))


def test_data_of_the_program_have_their_values_in_the_recorded_step_too() -> None:
    kinds: list[type] = []

    def batch() -> torch.Tensor:
        made = torch.rand(BATCH)
        kinds.append(type(made))
        return made

    trained(batch)
    assert set(kinds) == {torch.Tensor}


def test_a_generator_that_fills_pinned_memory_takes_as_long_as_one_that_is_not_given() -> None:
    generator = torch.Generator()
    buffers: list[torch.Tensor] = []

    def filled() -> torch.Tensor:
        if not buffers:
            buffers.append(torch.empty(BATCH, pin_memory=True))
        noise = torch.empty(BATCH).normal_(generator=generator)
        torch.rand(BATCH, out=buffers[0], generator=generator)
        return buffers[0].add_(noise)

    assert ": 2.5 million random numbers and 14.7 MB read or written in 3 calls" in note_of(trained(filled))


def test_pixels_that_are_made_numbers_on_the_host_are_counted_by_their_bytes() -> None:
    pixels = torch.zeros(BATCH, dtype=torch.uint8)
    step = trained(lambda: (pixels.float() / 255 - 0.5) / 0.25)
    assert re.search(r": 3\d\.\d MB read or written in 4 calls", note_of(step))


class _Pictures(Dataset[torch.Tensor]):
    def __init__(self, picture: Callable[[], torch.Tensor]) -> None:
        self.picture = picture

    def __len__(self) -> int:
        return BATCH[0] * (STEPS + 1)

    def __getitem__(self, place: int) -> torch.Tensor:
        return self.picture()


def _by_python() -> torch.Tensor:
    begin = time.thread_time()
    while time.thread_time() < begin + 0.003:
        sum(range(100))
    return torch.zeros(BATCH[1:])


def _of_large_numbers() -> torch.Tensor:
    return torch.rand(3, 800, 800)[:, :160, :160].contiguous()


@pytest.mark.parametrize("picture", [lambda: torch.rand(BATCH[1:]), _by_python, _of_large_numbers])
def test_what_a_loader_computes_is_told_as_loading_alone(
    picture: Callable[[], torch.Tensor], without: PlannedStep
) -> None:
    batches = iter(DataLoader(_Pictures(picture), batch_size=BATCH[0]))
    step = trained(lambda: next(batches))
    assert step.host_work_us == 0
    assert step.duration_us == pytest.approx(without.duration_us)
    assert any("batches are loaded on the thread that launches" in note for note in step.notes)


def test_what_another_thread_computes_runs_beside_the_step() -> None:
    def beside() -> torch.Tensor:
        made: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: made.append(torch.rand(BATCH)))
        thread.start()
        thread.join()
        return made[0]

    assert trained(beside).host_work_us == 0


def test_a_model_that_is_made_on_the_host_before_its_steps_is_no_part_of_them() -> None:
    def program() -> None:
        model = nn.Linear(2048, 2048).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.zeros(8, 2048, device="cuda")).sum().backward()
            optimizer.step()

    assert plan_program(program).step.host_work_us == 0


def test_an_optimizer_that_is_left_to_the_host_has_the_price_of_its_bytes() -> None:
    def program() -> None:
        model = nn.Linear(2048, 2048).cuda()
        kept = [each.detach().cpu().requires_grad_() for each in model.parameters()]
        optimizer = torch.optim.AdamW(kept, fused=True)
        for _ in range(STEPS):
            model(torch.zeros(8, 2048, device="cuda")).sum().backward()
            for each, there in zip(kept, model.parameters(), strict=True):
                assert there.grad is not None
                each.grad, there.grad = there.grad.cpu(), None
            optimizer.step()
            with torch.no_grad():
                for each, there in zip(kept, model.parameters(), strict=True):
                    there.copy_(each)

    step = plan_program(program).step
    assert step.host_work_us > 4_000
    assert "MB read or written in 1 call" in note_of(step)


def test_a_number_of_the_host_beside_a_tensor_of_the_device_is_work_of_the_device() -> None:
    def program() -> None:
        half, layer = torch.tensor(0.5), nn.Linear(256, 256).cuda()
        for _ in range(100):
            half * layer(torch.zeros(4096, 256, device="cuda"))

    step = plan_program(program).step
    assert step.host_work_us == 0
    assert step.kernel_launches == 3


SCRIPT = f"""
import torch
from torch import nn

torch.distributed.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range({STEPS}):
    optimizer.zero_grad()
    model(torch.rand(8192, 64).cuda()).sum().backward()
    optimizer.step()
"""


def test_each_rank_of_a_world_has_its_own_work_of_the_host_in_the_price(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    step = plan_world(Script(str(script)), 2).step
    assert step.host_work_us == pytest.approx(slowness_of_ranks(8192 * 64 * 4.37e-3, 2), rel=0.01)
    assert step.host_us > step.host_work_us and step.duration_us > step.host_work_us
    assert step.decides == "host"
    assert ": 524,288 random numbers in 1 call (train.py:10)" in note_of(step)


def test_what_a_program_computes_beside_torch_is_in_the_price_with_its_line(without: PlannedStep) -> None:
    kept = torch.zeros(BATCH)

    def batch() -> torch.Tensor:
        begin = time.thread_time()
        while time.thread_time() < begin + 0.05:
            sum(range(100))
        return kept

    step = trained(batch)
    assert 20_000 < step.host_work_us < 100_000
    assert step.duration_us > without.duration_us + 0.5 * step.host_work_us
    note = next(each for each in step.notes if "beside torch" in each)
    assert re.search(r"\(test_host_work_of_plans.py:\d+\): \S+ ms on the machine that plans", note)
