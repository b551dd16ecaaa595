"""Tensors that generated wrappers make at once are those that come out of the dispatcher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes import wrappers as fake_wrappers
from torchledger._torch.fakes.device import FakeDevice
from torchledger._torch.fakes.tensors import is_pinned_there
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


def _facts(tensor: Any) -> tuple[Any, ...]:
    assert isinstance(tensor, FakeTensor)
    storage = tensor.untyped_storage()
    return (
        *(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, tensor.requires_grad),
        *(storage.nbytes(), storage.device),
    )


def _made() -> list[Any]:
    """An allocation, and two views of it and of a parameter, as generated code asks for them."""
    guards: Any = torch._C._dynamo.guards
    buffer = guards._empty_strided_cuda((4, 6), (6, 1), torch.bfloat16)
    on_host = guards._empty_strided_cpu((4, 6), (6, 1), torch.float32)
    weight = torch.nn.Parameter(torch.empty(4, 6, device="cuda"))
    views = [guards._reinterpret_tensor(each, (2, 3), (1, 2), 5) for each in (buffer, on_host, weight, buffer[1:])]
    for view, of in zip(views, (buffer, on_host, weight, buffer), strict=True):
        assert view.untyped_storage()._cdata == of.untyped_storage()._cdata
    return [buffer, on_host, *views]


def test_they_have_the_facts_that_the_dispatcher_finds_out(fake: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        quick = _made()
        monkeypatch.setattr(fake_wrappers, "_who_is_told", lambda mode: None)
        slow = _made()
    assert [_facts(each) for each in quick] == [_facts(each) for each in slow]


def test_numbers_of_the_host_that_wait_for_their_copy_are_known_to_be_pinned(fake: FakeDevice) -> None:
    guards: Any = torch._C._dynamo.guards
    buffer = guards._empty_strided_cpu_pinned((4,), (1,), torch.int64)
    assert (buffer.shape, buffer.dtype, buffer.device.type) == ((4,), torch.int64, "cpu")
    assert is_pinned_there(buffer) and not is_pinned_there(guards._empty_strided_cpu((4,), (1,), torch.int64))


def test_autograd_takes_them_for_no_views_as_it_does_on_the_device(fake: FakeDevice) -> None:
    """Views among what is saved for the backward would be detached: operators that the device never sees."""
    assert not any(each._is_view() for each in _made())


def test_nor_does_it_where_some_mode_sees_their_calls(fake: FakeDevice) -> None:
    """As AOTAutograd's own does in a graph's first call: what the graph returns could not be written into then."""

    class Sees(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Sees():
        assert not any(each._is_view() for each in _made())


def test_a_library_that_is_given_its_result_does_nothing_more(fake: FakeDevice) -> None:
    from torch._inductor import select_algorithm

    rows, out = torch.empty(4, 6, device="cuda"), torch.empty(4, 4, device="cuda")
    libraries = select_algorithm.extern_kernels
    assert libraries.mm(rows, rows.t(), out=out) is out
    assert libraries.mm(rows, rows.t()).shape == (4, 4)
    assert not hasattr(libraries, "no_such_library")


def test_who_listens_hears_of_storages_made_and_used_in_a_graph(fake: FakeDevice) -> None:
    graph: list[str | None] = [None]
    listener = EagerCalls(lambda: graph[0])
    before = torch.empty(12)
    assert listener.start()
    graph[0] = "forward_0"
    listener.graph_begins("forward_0", [])
    made = _made()[0]
    listener.graph_ends([made])
    assert before.nbytes == 48
    graph[0] = None
    assert listener.stop() and listener.memory is not None and not listener.faults
    # What other tests left alive was born before.
    (life,) = [each for each in listener.memory.lives if each.nbytes == 48 and each.born_in is not None]
    assert (life.dtype, life.device, life.born_in) == ("bfloat16", "cuda:0", 0)
    assert not listener.calls or {each.graph for each in listener.calls} == {None}


def test_what_a_wrapper_is_given_is_copied_where_it_is_not_aligned_alone(fake: FakeDevice) -> None:
    guards: Any = torch._C._dynamo.guards
    if not hasattr(guards, "copy_if_misaligned"):
        pytest.skip("this torch copies elsewhere")
    rows = torch.empty(4, 8, device="cuda")
    assert guards.copy_if_misaligned(rows) is rows and guards.copy_if_misaligned(rows[1]).storage_offset() == 8
    assert guards.copy_if_misaligned(rows.flatten()[1:]).storage_offset() == 0
