"""What a program sets of torch, and what it leaves of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo.config
import torch._inductor.config
from torch import distributed as dist

from torchledger._torch.fakes.device import FakeDevice
from torchledger._torch.patching import Patches
from torchledger._torch.program_settings import keep_settings
from torchledger.nouns import Device

MADE_UP = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    patches = Patches()
    keep_settings(patches)
    yield
    patches.undo()


@pytest.mark.parametrize(
    ("read", "put"),
    [
        (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
        (torch.get_default_device, lambda: torch.set_default_device("cuda")),
        (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.bfloat16)),
        (lambda: torch.is_autocast_enabled("cuda"), lambda: torch.set_autocast_enabled("cuda", True)),
        (lambda: torch.get_autocast_dtype("cuda"), lambda: torch.set_autocast_dtype("cuda", torch.bfloat16)),
        (torch.get_float32_matmul_precision, lambda: torch.set_float32_matmul_precision("high")),
        (lambda: torch.backends.cuda.matmul.allow_tf32, lambda: _tf32()),
        (lambda: torch.backends.cudnn.benchmark, lambda: setattr(torch.backends.cudnn, "benchmark", True)),
        (torch.backends.cuda.flash_sdp_enabled, lambda: torch.backends.cuda.enable_flash_sdp(False)),
        (torch.is_anomaly_enabled, lambda: torch.autograd.set_detect_anomaly(True)),
        (torch.are_deterministic_algorithms_enabled, lambda: torch.use_deterministic_algorithms(True)),
        (
            lambda: torch._inductor.config.max_autotune,
            lambda: setattr(torch._inductor.config, "max_autotune", True),
        ),
        (
            lambda: torch._dynamo.config.recompile_limit,
            lambda: setattr(torch._dynamo.config, "recompile_limit", 77),
        ),
    ],
)
def test_what_a_program_sets_ends_with_its_device(read: Callable[[], object], put: Callable[[], object]) -> None:
    former = read()
    with FakeDevice(MADE_UP):
        put()
        assert read() != former
    assert read() == former


def _tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def test_what_was_set_before_is_the_programs() -> None:
    torch.set_default_dtype(torch.float64)
    with FakeDevice(MADE_UP):
        assert torch.zeros(2, device="cuda").dtype == torch.float64
        torch.set_default_dtype(torch.float16)
    assert torch.get_default_dtype() == torch.float64


@pytest.mark.parametrize("put", [lambda: torch.set_grad_enabled(False), lambda: torch.set_default_device("cuda")])
def test_a_device_is_made_whatever_the_process_has_set(put: Callable[[], object]) -> None:
    put()
    with FakeDevice(MADE_UP), torch.enable_grad():
        layer = torch.nn.Linear(8, 8).cuda()
        layer(torch.zeros(4, 8, device="cuda")).sum().backward()
        assert layer.weight.grad is not None


def test_precisions_by_their_newer_names_are_put_back() -> None:
    former = torch.backends.cuda.matmul.fp32_precision
    with FakeDevice(MADE_UP):
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == former
    assert torch.get_float32_matmul_precision() == "highest"


def test_groups_that_a_program_makes_on_the_host_are_left_behind_it() -> None:
    for _ in range(2):
        with FakeDevice(MADE_UP):
            dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        assert not dist.is_initialized()
