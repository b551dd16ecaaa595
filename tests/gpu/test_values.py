"""Watching values on a real CUDA device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torchledger  # noqa: E402
from planted import LOG, faulty, loss_of, make_planted, neutral  # noqa: E402
from torchledger.nouns import WatchedGraph  # noqa: E402
from torchledger.store import open_ledger  # noqa: E402
from torchledger.watching.device_reductions import _checked_kernel  # noqa: E402
from torchledger.watching.reductions import Reducer, summarize  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def test_the_triton_reduction_agrees_with_plain_operators():
    assert _checked_kernel(torch.device("cuda", 0)) is not None


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool", "float8_e4m3fn"]
)
def test_summaries_on_the_device_are_those_of_the_cpu(dtype):
    values = torch.linspace(-3, 7, 3 * 1000 * 64).view(3, 1000, 64)
    host = values.to(getattr(torch, dtype))
    views = [host, host[0], host.transpose(0, 2), host[:, ::2], host[:1].expand(4, -1, -1), host[0, 0, 0]]
    reducer = Reducer()
    tickets = [reducer.add(view.cuda() if index < 2 else _same_view(host, index)) for index, view in enumerate(views)]
    found = reducer.fetch()
    for ticket, view in zip(tickets, views, strict=True):
        expected = summarize(view)
        summary = found[ticket]
        for name in ("numel", "n_nan", "n_inf", "n_zero", "n_subnormal"):
            assert getattr(summary, name) == getattr(expected, name), (name, view.shape)
        for name in ("minimum", "maximum", "mean", "std"):
            assert getattr(summary, name) == pytest.approx(getattr(expected, name), rel=1e-5, abs=1e-6), name


def _same_view(host, index):
    device = host.cuda()
    return {
        2: lambda: device.transpose(0, 2),
        3: lambda: device[:, ::2],
        4: lambda: device[:1].expand(4, -1, -1),
        5: lambda: device[0, 0, 0],
    }[index]()


def test_bad_elements_are_counted_and_located():
    x = torch.zeros(513, 300, device="cuda")
    x[2, 7], x[512, 299] = float("nan"), float("inf")
    reducer = Reducer()
    ticket = reducer.add(x)
    x.zero_()
    summary = reducer.fetch()[ticket]
    assert (summary.n_nan, summary.n_inf) == (1, 1)
    assert summary.not_finite == ((2, 7), (512, 299))


def test_one_call_waits_once(monkeypatch):
    model, x = make_planted("mlp", "cuda")
    torch._dynamo.reset()
    with torch.no_grad(), torchledger.values(find="nan", level="off") as watch:
        compiled = torch.compile(model)
        dial = neutral(model, "cuda")
        compiled(x, dial)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with pytest.warns(UserWarning) as warned:
                compiled(x, dial)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in warned if "called a synchronizing CUDA operation" in str(warning.message)]
    assert len(waits) == 1
    assert watch.findings == []


@pytest.fixture
def deterministic(monkeypatch):
    # Without it atomic additions come in any order, and two plain runs differ now and then.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_training_is_the_same_bits_and_every_launch_is_watched(deterministic):
    def run():
        torch._dynamo.reset()
        model, x = make_planted("attention", "cuda")
        loss_of(torch.compile(model)(x, neutral(model, "cuda"))).backward()
        return [parameter.grad for parameter in model.parameters()]

    with torchledger.values(level="stats") as watch:
        watched = run()
    assert all(map(torch.equal, watched, run()))
    with open_ledger(watch.path) as reader:
        graphs = reader.read(WatchedGraph)
    assert graphs
    for graph in graphs:
        assert graph.launches == graph.watched == graph.seen > 0


def test_cuda_graphs_are_switched_off_and_said():
    model, x = make_planted("mlp", "cuda")
    torch._dynamo.reset()
    with torch.no_grad(), torchledger.values(find="nan", level="off") as watch:
        compiled = torch.compile(model, mode="reduce-overhead")
        for _ in range(3):
            compiled(x, neutral(model, "cuda"))
        compiled(x, faulty(model, 1, LOG, -1.0, "cuda"))
    assert watch.first_bad is not None
    assert watch.first_bad.call_index == 3
    with open_ledger(watch.path) as reader:
        assert any("CUDA graphs" in note for note in reader.run().notes)


def test_every_launch_is_within_tolerance_of_eager():
    model, x = make_planted("attention", "cuda")
    torch._dynamo.reset()
    with torchledger.values(level="off", against_eager=True) as watch:
        loss_of(torch.compile(model)(x, neutral(model, "cuda"))).backward()
    judged = [item for item in watch.comparisons if item.compiled_error is not None]
    assert judged
    assert all(item.is_within for item in judged), [item for item in judged if not item.is_within]
