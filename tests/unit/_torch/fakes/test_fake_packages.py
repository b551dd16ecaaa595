"""Packages of AOTInductor in a plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torchledger._torch.fakes.device import FakeDevice
from torchledger.errors import PlanError
from torchledger.nouns import Device

HOPPER = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as device:
        yield device


def test_a_package_is_made_without_a_file_and_loaded_in_the_program_that_made_it(
    fake: FakeDevice, tmp_path: Path
) -> None:
    program = torch.export.export(torch.nn.Linear(8, 8).cuda(), (torch.zeros(2, 8, device="cuda"),))
    path = str(tmp_path / "model.pt2")
    assert torch._inductor.aoti_compile_and_package(program, package_path=path) == path
    model = torch._inductor.aoti_load_package(path)
    assert callable(model) and model.get_metadata() == {}
    assert list(fake.decisions) == ["a package of AOTInductor: as torch.compile makes it of the exported program"]
    assert not list(tmp_path.iterdir())


def test_a_package_that_was_made_elsewhere_is_refused_with_the_line(fake: FakeDevice) -> None:
    with pytest.raises(PlanError, match=rf"loads there.pt2 at {__file__}:\d+, .* Plan a script that exports the model"):
        torch._inductor.aoti_load_package("there.pt2")


def test_a_library_without_a_package_is_refused_with_what_to_do(fake: FakeDevice) -> None:
    layer, inputs = torch.nn.Linear(8, 8).cuda(), (torch.zeros(2, 8, device="cuda"),)
    with pytest.raises(PlanError, match=r"compiles a library ahead of time .* Plan it with aoti_compile_and_package"):
        torch._export.aot_compile(layer, inputs)
