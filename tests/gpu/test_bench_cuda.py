"""Bench and extraction on a real CUDA device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torchledger  # noqa: E402
from captured import Captured, capture_call  # noqa: E402
from torchledger.device.ceilings import measure_ceilings  # noqa: E402
from torchledger.replaying.bench import bench  # noqa: E402
from torchledger.replaying.bench_timing import Budget  # noqa: E402
from torchledger.replaying.extract import kernel_module  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

QUICK = Budget(seconds=0.05, min_repeats=10, max_repeats=20)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(1000, 256), torch.nn.LayerNorm(256), torch.nn.Linear(256, 512), torch.nn.GELU()
    ).cuda()
    tokens = torch.randint(0, 1000, (64, 128), device="cuda")
    path = tmp_path_factory.mktemp("bench") / "small.ledger"
    return capture_call(path, lambda: torch.compile(model)(tokens).sum().backward(), builds=True)


def test_every_launch_is_timed_with_its_configuration(captured: Captured) -> None:
    report = torchledger.bench(captured.path, all_kernels=True, budget=QUICK)
    assert [(entry.launch.launch_id, entry.reason) for entry in report.entries if entry.status != "ok"] == []
    fused = [entry for entry in report.entries if entry.launch.category not in ("extern", "inline")]
    assert all(entry.warm is not None and entry.warm.configuration and entry.warm.n_regs for entry in fused)
    for entry in report.entries:
        assert entry.placed is not None, entry.unplaced
        assert {found.clock for found in (entry.warm, entry.cold, entry.placed) if found} == {"cupti"}


def test_every_configuration_is_timed(captured: Captured) -> None:
    (name,) = {launch.launch_id for launch in captured.fused[:1]}
    report = bench(captured.path, [name], budget=QUICK, mode="configurations", save=False)
    (entry,) = report.entries
    assert entry.status == "ok" and entry.as_run is not None
    assert len({found.configuration for found in entry.configurations}) == len(entry.configurations) >= 2
    report = bench(captured.path, [name], budget=QUICK, mode="max_autotune", save=False)
    assert report.entries[0].status == "ok"


def test_an_illegal_address_is_marked_and_the_others_go_on(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from torchledger.replaying import bench as module

    first, second = captured.calls[:2]
    original = module._tasks
    wild = "    torch.zeros(4, device='cuda')[torch.full((1000,), 2**40, device='cuda')]"

    def wrong(site, *rest):
        for task in original(site, *rest):
            body = task.body.replace('returns what it wrote."""', f'returns what it wrote."""\n{wild}')
            is_first = site.launch_id == first.launch_id
            yield dataclasses.replace(task, body=body) if is_first else task

    monkeypatch.setattr(module, "_tasks", wrong)
    report = bench(captured.path, [first.launch_id, second.launch_id], budget=QUICK, save=False)
    assert report.entries[0].status in ("crashed", "failed")
    assert report.entries[1].status == "ok"


def test_every_extracted_kernel_agrees_with_eager_ops(captured: Captured) -> None:
    results = {}
    for launch in captured.calls:
        graph = next(graph for graph in captured.graphs if graph.name == launch.graph)
        others = [other for other in captured.launches if other.graph == launch.graph]
        namespace = {"__name__": "extracted"}
        with torch.no_grad():
            exec(kernel_module(graph, launch, others, captured.kernels, title=launch.launch_id)[0], namespace)
            results[launch.launch_id] = namespace["check"]()
    assert set(results.values()) <= {True, None}
    assert True in results.values()


def test_the_device_has_every_ceiling() -> None:
    ceilings = measure_ceilings("cuda", dtypes=("bfloat16", "float32", "tf32"))
    assert ceilings.copy_gb_per_s is not None and ceilings.copy_gb_per_s > 100
    assert ceilings.tflops_per_s["bfloat16"] > ceilings.tflops_per_s["float32"] > 1
    assert ceilings.launch_overhead_us is not None and ceilings.graph_launch_overhead_us is not None
