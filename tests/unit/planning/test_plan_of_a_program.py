"""The price of one program's step: what is said of it beside its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from torchledger.nouns import PlannedStep
from torchledger.planning.device_memory import with_fit
from torchledger.planning.plan import plan_program

CALLS = 100
"""So many that they are steps even where an optimizer of another test, which lives on, is waited for."""


def steps_on(place: str) -> None:
    layer = nn.Linear(256, 256).to(place)
    for _ in range(CALLS):
        layer(torch.zeros(64, 256, device=place))


def test_a_program_that_stays_on_the_host_is_told_so_first_and_launches_no_kernel() -> None:
    step = plan_program(lambda: steps_on("cpu")).step
    assert step.notes[0].startswith("nothing of this step runs on the device: its ")
    assert step.kernel_launches == step.launches == step.device_us == 0


@pytest.mark.slow
def test_a_compiled_program_that_stays_on_the_host_is_told_so_first() -> None:
    def program(place: str) -> None:
        layer = nn.Linear(64, 64).to(place)
        optimizer, compiled = torch.optim.SGD(layer.parameters()), torch.compile(layer)
        for _ in range(6):
            compiled(torch.ones(8, 64, device=place)).sum().backward()
            optimizer.step()

    here, there = (plan_program(lambda place=place: program(place)).step for place in ("cpu", "cuda"))
    assert here.notes[0].startswith(
        "nothing of this step runs on the device: its compiled graphs are for the CPU, priced as if the device ran them"
    )
    assert not any("runs on the device" in note for note in there.notes)


def test_work_on_the_host_beside_the_device_is_no_launch_of_a_kernel() -> None:
    def program() -> None:
        layer = nn.Linear(256, 256).cuda()
        for _ in range(CALLS):
            layer(torch.zeros(64, 256).add(1).cuda())

    alone, beside = plan_program(lambda: steps_on("cuda")).step, plan_program(program).step
    assert not any("runs on the device" in note for note in (*alone.notes, *beside.notes))
    assert alone.kernel_launches == beside.kernel_launches == 2


def trained(width: int, layers: int) -> None:
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        model(torch.randn(64, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_step_that_its_device_has_no_memory_for_says_so_first() -> None:
    large, small = plan_program(lambda: trained(32768, 12)).step, plan_program(lambda: trained(256, 2)).step
    assert large.fits is False and small.fits is True
    assert large.notes[0].startswith("the step does not fit into the device's memory: its tensors take 257.8 GB")
    assert "of which 8% are not for tensors; try a smaller batch, recomputation" in large.notes[0]
    assert not any("does not fit" in note for note in small.notes)


def test_whether_a_step_fits_is_unknown_where_its_peak_or_its_devices_memory_is() -> None:
    step = PlannedStep("step", "H200", None, 1, 3.0, 2.0, 4.0, 0.9, 3.0, 1.0)
    assert with_fit(step, 80 << 30).fits is None
    assert with_fit(replace(step, peak_allocated_bytes=1 << 30), None).fits is None
    assert with_fit(replace(step, peak_allocated_bytes=75 << 30), 80 << 30).fits is False
