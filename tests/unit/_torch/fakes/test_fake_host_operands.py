"""Operators of a device that is not there take tensors of the host where they take them on a device, and copy these."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)

Program = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


def _rows() -> torch.Tensor:
    return torch.rand(64, 32, device="cuda", requires_grad=True)


def _heard(program: Program) -> tuple[EagerCalls, torch.Tensor, torch.Tensor]:
    """What is heard of a program on rows of the device and of its backward, with its result and the gradient."""
    rows = _rows()
    heard = EagerCalls(lambda: None)
    assert heard.start()
    made = program(rows)
    made.sum().backward()
    assert heard.stop() and not heard.faults
    assert rows.grad is not None
    return heard, made, rows.grad


def _copies(heard: EagerCalls, *, in_backward: bool) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of what was copied from the host to the device."""
    return [
        (call.call.tensors[0].shape, call.call.tensors[0].dtype)
        for call in heard.calls
        if call.call.name == "aten::_to_copy" and call.device == "cpu" and call.call.constant(3) == "cuda:0"
        if (call.node is not None) is in_backward
    ]


def _put(rows: torch.Tensor, indices: torch.Tensor, values: float | torch.Tensor) -> torch.Tensor:
    written = rows * 1
    written[indices] = values
    return written


def _every_other() -> torch.Tensor:
    return torch.arange(64) % 2 == 0


EIGHT = ((8,), "int64")
NUMBER = ((), "float32")

INDEXED: dict[str, tuple[Program, tuple[int, ...], list[tuple[tuple[int, ...], str]]]] = {
    "one": (lambda rows: rows[torch.arange(8)], (8, 32), [EIGHT]),
    "two": (lambda rows: rows[torch.arange(8), torch.arange(8)], (8,), [EIGHT, EIGHT]),
    "one of each place": (lambda rows: rows[torch.arange(8).cuda(), torch.arange(8)], (8,), [EIGHT]),
    "spread first": (
        lambda rows: rows[torch.arange(8)[:, None], torch.arange(4)],
        (8, 4),
        [((8, 4), "int64"), ((8, 4), "int64")],
    ),
    "of other dimensions": (lambda rows: rows[:, torch.arange(8).int()], (64, 8), [((8,), "int32")]),
    "a mask": (lambda rows: rows[_every_other()], (32, 32), [((32,), "int64")]),
    "an old mask": (lambda rows: rows[_every_other().to(torch.uint8)], (32, 32), [((32,), "int64")]),
    "a mask of all": (
        lambda rows: rows[_every_other()[:, None].expand(64, 32)],
        (1024,),
        [((1024,), "int64"), ((1024,), "int64")],
    ),
    "without checks": (lambda rows: torch.ops.aten._unsafe_index(rows, [torch.arange(8)]), (8, 32), [EIGHT]),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indices_of_the_host_are_copied_to_the_device_before_each_use(fake: FakeDevice, name: str) -> None:
    program, shape, copied = INDEXED[name]
    heard, made, gradient = _heard(program)
    assert made.shape == shape and made.device.type == gradient.device.type == "cuda"
    is_there_first = name == "one of each place"  # moved by the program itself
    assert _copies(heard, in_backward=False) == [*[EIGHT] * is_there_first, *copied]
    assert _copies(heard, in_backward=True) == copied


WRITTEN: dict[str, tuple[Program, list[tuple[tuple[int, ...], str]]]] = {
    "a number": (lambda rows: _put(rows, torch.arange(8), 0.5), [NUMBER, EIGHT]),
    "a number at places of the device": (lambda rows: _put(rows, torch.zeros_like(rows[:8, 0]).long(), 0.5), [NUMBER]),
    "a number by a mask of the device": (lambda rows: _put(rows, rows.detach() > 0.5, 0.5), []),
    "a number by a mask": (lambda rows: _put(rows, _every_other(), 0.5), [NUMBER, ((32,), "int64")]),
    "values": (lambda rows: _put(rows, torch.arange(8), rows[8:16]), [EIGHT]),
    "values by a mask": (lambda rows: _put(rows, _every_other(), rows[:32]), [((32,), "int64")]),
    "sums": (lambda rows: rows.index_put((torch.arange(8),), rows[:8], accumulate=True), [EIGHT]),
    "sums in place": (lambda rows: (rows * 1).index_put_((torch.arange(8),), rows[:8], accumulate=True), [EIGHT]),
    "sums of a number": (
        lambda rows: (rows * 1).index_put_((_every_other(),), torch.tensor(1.0), accumulate=True),
        [NUMBER, ((32,), "int64")],
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_places_of_the_host_and_numbers_written_there_are_copied(fake: FakeDevice, name: str) -> None:
    program, copied = WRITTEN[name]
    heard, made, gradient = _heard(program)
    assert made.shape == gradient.shape == (64, 32)
    assert _copies(heard, in_backward=False) == copied


CHOSEN: dict[str, tuple[Program, list[tuple[tuple[int, ...], str]]]] = {
    "where": (lambda rows: torch.where(rows > 0.5, rows, torch.tensor(0.0)), [NUMBER]),
    "where by one truth": (lambda rows: torch.where(torch.tensor(True), rows, rows), [((), "bool")]),
    "bernoulli": (lambda rows: rows * torch.empty_like(rows).bernoulli_(torch.full((32,), 0.5)), [((32,), "float32")]),
    "a sum": (lambda rows: rows + torch.tensor(2.0), []),
    "a clamp": (lambda rows: rows.clamp(torch.tensor(0.1), torch.tensor(0.6)), []),
    "filled": (lambda rows: rows.masked_fill(rows > 0.5, torch.tensor(0.0)), []),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_single_numbers_are_copied_by_what_does_not_read_them(fake: FakeDevice, name: str) -> None:
    program, copied = CHOSEN[name]
    heard, _, _ = _heard(program)
    assert _copies(heard, in_backward=False) == copied


@pytest.mark.parametrize("name", INDEXED)
def test_indices_of_the_host_are_taken_where_nobody_listens(fake: FakeDevice, name: str) -> None:
    program, shape, _ = INDEXED[name]
    rows = _rows()
    made = program(rows)
    made.sum().backward()
    assert made.shape == shape and rows.grad is not None


@pytest.mark.parametrize("is_to_device", [True, False])
def test_lists_are_copied_tensor_by_tensor_between_host_and_device(fake: FakeDevice, is_to_device: bool) -> None:
    there = [torch.zeros(64, 32, device="cuda"), torch.zeros(8, device="cuda")]
    here = [torch.rand(64, 32), torch.rand(8)]
    heard = EagerCalls(lambda: None)
    assert heard.start()
    torch._foreach_copy_(*((there, here) if is_to_device else (here, there)), non_blocking=True)
    torch._foreach_copy_(there, [each + 1 for each in there])
    assert heard.stop() and not heard.faults
    copies = [call for call in heard.calls if call.call.name == "aten::copy_"]
    places = ("cuda:0", "cpu") if is_to_device else ("cpu", "cuda:0")
    assert [(call.device, call.source_device) for call in copies] == [places, places]
    assert all(call.call.constant(2) == "True" for call in copies)
    assert heard.calls[-1].call.name == "aten::_foreach_copy_"


@pytest.mark.parametrize("name", ["_foreach_addcmul_", "_foreach_addcdiv_", "_foreach_addcmul", "_foreach_addcdiv"])
def test_factors_of_lists_are_read_from_a_tensor_of_the_host(fake: FakeDevice, name: str) -> None:
    rows = [torch.zeros(64, 32, device="cuda"), torch.zeros(8, device="cuda")]
    made = getattr(torch, name)(rows, rows, rows, torch.tensor([0.5, 0.7]))
    assert [each.shape for each in made or rows] == [(64, 32), (8,)]


def test_a_mask_of_bytes_chooses_as_one_of_truths_does(fake: FakeDevice) -> None:
    rows = _rows()
    assert rows[_every_other().to(torch.uint8).cuda()].shape == rows[_every_other().cuda()].shape == (32, 32)


def test_values_that_lie_elsewhere_are_refused_as_on_a_device(fake: FakeDevice) -> None:
    with pytest.raises(RuntimeError, match="device"):
        _put(_rows(), torch.arange(8), torch.rand(8, 32))
