"""Values that go through compiled graphs: Triton writes these, so that ``make test-slow`` installs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo.config

from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device

pytestmark = pytest.mark.slow

MADE_UP = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)
WIDTH, ROWS = 64, 32


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with FakeDevice(MADE_UP) as fake, torch.no_grad():
        yield fake


def lengths() -> torch.Tensor:
    return torch.tensor([3, 5, 8], device="cuda")


def test_a_graph_tells_what_follows_of_values_that_are_known(device: FakeDevice) -> None:
    @torch.compile
    def ends(lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return lengths.cumsum(0), torch.where(lengths > 4, lengths, 0).max()

    made, longest = ends(lengths())
    assert (made.tolist(), longest.item()) == ([3, 8, 16], 8)
    assert not device.tensors.stand_ins


def test_constants_that_a_graph_reads_are_known(device: FakeDevice) -> None:
    @torch.compile
    def parts(x: torch.Tensor) -> list[int]:
        sizes = torch.tensor([8, 24], device="cuda").tolist()
        return [each.shape[0] for each in torch.split(x, sizes)]

    assert parts(torch.randn(ROWS, WIDTH, device="cuda")) == [8, 24]


def test_a_graph_that_breaks_at_a_mask_goes_on_with_what_that_leaves(device: FakeDevice) -> None:
    @torch.compile
    def chosen(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(ROWS, device="cuda") < lengths.sum() - 4
        return x[mask] * 2

    assert chosen(torch.randn(ROWS, WIDTH, device="cuda"), lengths()).shape == (12, WIDTH)
    assert not device.tensors.stand_ins


@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)  # type: ignore[untyped-decorator]
def test_what_a_graph_asks_of_its_own_tensors_is_known_where_it_follows_of_its_inputs(device: FakeDevice) -> None:
    @torch.compile(fullgraph=True)
    def chosen(x: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = labels != -100
        parts = torch.split(x, lengths.tolist())
        return x[mask].exp(), labels[mask], parts[1].sin()

    labels = torch.full((ROWS,), -100)
    labels[:10] = 3
    sizes = torch.tensor([8, 24], device="cuda")
    rows, left, part = chosen(torch.randn(ROWS, WIDTH, device="cuda"), labels.cuda(), sizes)
    assert (rows.shape, left.shape, part.shape) == ((10, WIDTH), (10,), (24, WIDTH))
    assert not device.tensors.stand_ins


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)  # type: ignore[untyped-decorator]
def test_places_of_a_graphs_mask_lie_dimension_by_dimension(device: FakeDevice) -> None:
    @torch.compile(fullgraph=True)
    def places(x: torch.Tensor) -> torch.Tensor:
        return (x > 0).nonzero()

    assert places(torch.randn(ROWS, WIDTH, device="cuda")).stride() == (1, ROWS * WIDTH)


def test_what_a_graph_takes_for_a_value_is_said_with_the_programs_line(device: FakeDevice) -> None:
    @torch.compile
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x[x.sum(1) > 0]

    chosen(torch.randn(ROWS, WIDTH, device="cuda"))
    (told,) = device.tensors.stand_ins
    assert told.source.rpartition(":")[0].endswith("test_fake_graph_values.py")
    assert told.value == str(ROWS)


def test_a_counter_that_a_graph_writes_to_stays_known(device: FakeDevice) -> None:
    @torch.compile
    def count(counter: torch.Tensor) -> None:
        counter.add_(2)

    counter = torch.zeros(1, dtype=torch.int64, device="cuda")
    for _ in range(3):
        count(counter)
    assert counter.item() == 6


def test_what_a_graph_writes_without_being_known_is_known_no_longer(device: FakeDevice) -> None:
    @torch.compile
    def write(places: torch.Tensor, x: torch.Tensor) -> None:
        places.copy_(x.argmax(1))

    places = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
    write(places, torch.randn(ROWS, WIDTH, device="cuda"))
    places.sum().item()
    assert device.tensors.stand_ins


def test_experts_that_a_graph_chooses_get_equal_shares(device: FakeDevice) -> None:
    @torch.compile
    def route(x: torch.Tensor) -> torch.Tensor:
        return x.argmax(1)

    chosen = route(torch.randn(ROWS, 4, device="cuda"))
    assert (chosen == 1).nonzero().shape[0] == ROWS // 4
