"""Cutting a device's timeline by markers, and what becomes of lost records and faults."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

import torchledger._torch.device_trace as device_trace
from torchledger._torch.device_trace import DeviceTrace, Piece, device_trace_available
from torchledger.sampling import timing
from torchledger.sampling.cases import InputPool
from torchledger.sampling.points import Point
from torchledger.sampling.timing import CuptiTimer, DeviceFault, HostTimer, make_timer


@dataclass
class FakeEvent:
    kernel: str
    start: int
    length: int
    kind: object = torch.autograd.DeviceType.CUDA

    def name(self):
        return self.kernel

    def start_ns(self):
        return self.start

    def duration_ns(self):
        return self.length

    def device_type(self):
        return self.kind


class FakeResults:
    def __init__(self, events):
        self._events = events

    def events(self):
        return self._events


class FakeTrace(DeviceTrace):
    """A device that runs one kernel of 30 us an operator call, on a clock of its own."""

    lost = 0
    sessions = 0

    def __init__(self):
        self.marks = 0
        self.recorded = []
        self.now = 0
        self._profile = self
        self.kineto_results = FakeResults(self.recorded)
        FakeTrace.sessions += 1

    def __enter__(self):
        FakeTrace.current = self
        return self

    def __exit__(self, *_):
        if FakeTrace.lost:
            FakeTrace.lost -= 1
            self.recorded.pop(0)

    def _sleep(self, cycles):
        self.launch("at::cuda::(anonymous namespace)::spin_kernel(long)", 1_000)

    def launch(self, name, length):
        self.recorded.append(FakeEvent("cudaLaunchKernel", self.now, 500, torch.autograd.DeviceType.CPU))
        self.recorded.append(FakeEvent(name, self.now, length))
        self.now += length + 2_000


@pytest.fixture
def fake_device(monkeypatch):
    FakeTrace.sessions = FakeTrace.lost = 0
    monkeypatch.setattr(device_trace, "DeviceTrace", FakeTrace)
    gelu = torch.nn.functional.gelu

    def launching(x):
        FakeTrace.current.launch("gelu_kernel", 30_000)
        return gelu(x)

    monkeypatch.setattr(torch.nn.functional, "gelu", launching)
    return CuptiTimer(InputPool("cpu"), group_size=4)


def forward_only(monkeypatch):
    from torchledger.operators import find_operator

    monkeypatch.setattr(type(find_operator("gelu")), "directions", ("forward",))


def points(count):
    return [Point("gelu", {"numel": n + 1}, "float32") for n in range(count)]


def test_overlapping_kernels_count_once():
    piece = Piece(("a", "b", "c"), ((0, 10_000), (5_000, 12_000), (20_000, 30_000)))
    assert piece.busy_us == pytest.approx(22.0)
    assert piece.span_us == pytest.approx(30.0)
    assert Piece((), ()).span_us == 0.0


def test_a_group_is_one_session_and_each_iteration_its_own_piece(fake_device, monkeypatch):
    forward_only(monkeypatch)
    results = list(fake_device.measure(points(4), warmup=2, active=3))
    assert FakeTrace.sessions == 1
    assert [r.directions["forward"].times_us for r in results] == [(30.0, 30.0, 30.0)] * 4
    assert results[0].directions["forward"].kernels == ("gelu_kernel",)
    assert results[0].directions["forward"].spans_us == (30.0, 30.0, 30.0)


def test_lost_records_send_each_point_into_a_session_of_its_own(fake_device, monkeypatch):
    forward_only(monkeypatch)
    monkeypatch.setattr(FakeTrace, "pieces", lambda self: None if FakeTrace.sessions == 1 else DeviceTrace.pieces(self))
    results = list(fake_device.measure(points(3), warmup=1, active=2))
    assert FakeTrace.sessions == 4
    assert [r.status for r in results] == ["ok"] * 3


def test_a_direction_without_kernels_is_a_failure_not_a_zero(fake_device):
    (result,) = fake_device.measure(points(1), warmup=1, active=2)
    assert result.status == "failed"
    assert "backward ran no kernel" in result.reason


def test_a_timeline_that_misses_a_marker_is_not_trusted():
    trace = FakeTrace()
    with trace:
        trace.mark()
        trace.launch("kernel", 5_000)
        trace.mark()
    assert [piece.names for piece in trace.pieces()] == [(), ("kernel",), ()]
    trace.marks += 1
    assert trace.pieces() is None


def test_without_cupti_there_is_no_device_trace():
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    assert not device_trace_available()


@pytest.mark.parametrize("message", ["CUDA error: an illegal memory access", "CUBLAS_STATUS_EXECUTION_FAILED"])
def test_a_device_fault_ends_the_worker_and_not_the_point_alone(monkeypatch, message):
    def fault(x):
        raise RuntimeError(message)

    monkeypatch.setattr(torch.nn.functional, "gelu", fault)
    with pytest.raises(DeviceFault, match=message):
        list(HostTimer(InputPool("cpu")).measure(points(1), warmup=0, active=1))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("expected only one stream, found 2"), "failed"),
        (RuntimeError("this is not supported"), "failed"),
        (AttributeError("'Tensor' object has no attribute 'torch_only'"), "failed"),
        (NotImplementedError("\"gelu_kernel\" not implemented for 'Float8_e4m3fn'"), "unsupported"),
        (RuntimeError("\"gelu_kernel\" not implemented for 'Float8_e4m3fn'"), "unsupported"),
        (AttributeError("module 'torch' has no attribute 'gelu_2'", obj=torch, name="gelu_2"), "unsupported"),
        (ImportError("no flash_attn here"), "unsupported"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "out_of_memory"),
    ],
)
def test_only_what_torch_says_it_cannot_do_is_unsupported(monkeypatch, error, status):
    def refuse(x):
        raise error

    monkeypatch.setattr(torch.nn.functional, "gelu", refuse)
    (result,) = HostTimer(InputPool("cpu")).measure(points(1), warmup=0, active=1)
    assert result.status == status
    assert str(error) in result.reason


def test_inputs_come_from_one_pool_without_sharing_places():
    from torchledger.operators import Input

    pool = InputPool("cpu", pool_bytes=4096)
    spec = Input((10, 10), gradient=True)
    made = pool.tensors({"a": spec, "b": spec, "own": Input((10,), own=True)}, "float32")
    assert made["a"].is_leaf and made["a"].requires_grad
    assert made["a"].untyped_storage().data_ptr() == made["b"].untyped_storage().data_ptr()
    assert made["a"].data_ptr() + 400 <= made["b"].data_ptr()
    assert made["own"].untyped_storage().data_ptr() != made["a"].untyped_storage().data_ptr()
    assert not torch.equal(made["a"], made["b"])
    assert abs(statistics.fmean(made["a"].flatten().tolist())) < 1


def test_an_input_larger_than_the_pool_gets_its_own_memory():
    from torchledger.operators import Input

    assert InputPool("cpu", pool_bytes=64).tensor(Input((100,)), "float32").numel() == 100


def test_an_input_that_the_rest_of_the_pool_cannot_hold_shares_no_bytes_with_another():
    from torchledger.operators import Input

    pool = InputPool("cpu", pool_bytes=4096)
    made = pool.tensors({name: Input((600,)) for name in "abc"}, "float32")
    starts = sorted(tensor.data_ptr() for tensor in made.values())
    assert all(second - first >= 2400 for first, second in itertools.pairwise(starts))


def test_a_cuda_device_without_a_number_is_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []
    monkeypatch.setattr(
        timing, "InputPool", lambda device, pool_bytes=None: SimpleNamespace(device=torch.device(device))
    )
    monkeypatch.setattr(timing, "_reserve_memory", lambda share: None)
    monkeypatch.setattr(device_trace, "device_trace_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    make_timer("cuda")
    make_timer("cuda:1")
    assert chosen == [3, 1]
