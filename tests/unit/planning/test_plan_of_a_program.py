"""The price of one program's step: what is said of it beside its numbers."""

from __future__ import annotations

import torch
from torch import nn

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


def test_work_on_the_host_beside_the_device_is_no_launch_of_a_kernel() -> None:
    def program() -> None:
        layer = nn.Linear(256, 256).cuda()
        for _ in range(CALLS):
            layer(torch.zeros(64, 256).add(1).cuda())

    alone, beside = plan_program(lambda: steps_on("cuda")).step, plan_program(program).step
    assert not any("runs on the device" in note for note in (*alone.notes, *beside.notes))
    assert alone.kernel_launches == beside.kernel_launches == 2
