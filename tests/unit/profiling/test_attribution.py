"""Device time goes to the entry that launched it, by graph, operator and order; what finds none is said."""

from __future__ import annotations

from typing import Any

import pytest

from factories import make_launch
from torchledger.nouns import Launch, Measurement
from torchledger.profiling.attribution import attribute_events, cpu_events, learn_sequence
from torchledger.profiling.records import profile_records
from torchledger.profiling.steps import Steps
from torchledger.stepping.marks import PACKAGE_MARK
from torchledger.traces.costs import device_events
from torchledger.traces.reading import trace_from_events
from torchledger.traces.trace import Trace

POINTWISE = {"category": "pointwise", "device": "cuda:0", "graph": "forward_0"}
LIBRARY = {"category": "extern", "device": "cuda:0", "graph": "forward_0"}
LAUNCHES = [
    make_launch(order=0, kernel_name="triton_poi_fused_add_0", call="triton_poi_fused_add_0.run", **POINTWISE),
    make_launch(order=1, kernel_name="extern_kernels.mm", call="extern_kernels.mm", flops=1000, **LIBRARY),
    make_launch(order=2, kernel_name="triton_poi_fused_add_0", call="triton_poi_fused_add_0.run", **POINTWISE),
    make_launch(order=3, kernel_name="extern_kernels.mm", call="extern_kernels.mm", flops=1000, **LIBRARY),
]
OPERATORS = ("triton_poi_fused_add_0", "aten::mm", "triton_poi_fused_add_0", "aten::mm")
KERNELS = (("triton_poi_fused_add_0",), ("gemm", "splitk_reduce"), ("triton_poi_fused_add_0",), ("gemm",))


def host(name: str, start: float, duration: float, category: str = "cpu_op", **arguments: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration, "args": arguments,
    }  # fmt: skip


def device(name: str, start: float, duration: float, correlation: int, **arguments: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": duration,
        "args": {"correlation": correlation, "device": 0, "stream": 7, **arguments},
    }  # fmt: skip


def un_graphed_trace(
    calls: int = 1,
    extra_kernel: bool = False,
    launched: tuple[tuple[str, ...], ...] = KERNELS,
    last: tuple[tuple[str, ...], ...] | None = None,
) -> Trace:
    """Calls of the graph, each operator launching its kernels (in the last call ``last``), then an eager kernel outside
    any graph."""
    events: list[dict[str, Any]] = []
    correlation, clock, busy = 0, 0.0, 1000.0
    for call in range(calls):
        start = clock
        for name, kernels in zip(OPERATORS, last if last and call == calls - 1 else launched, strict=True):
            events.append(host(name, clock + 1, 20))
            if name.startswith("aten"):
                events.append(host("aten::inner", clock + 2, 18))
            for kernel in kernels:
                correlation += 1
                events.append(host("cudaLaunchKernel", clock + 5, 1, "cuda_runtime", correlation=correlation))
                events.append(device(kernel, busy, 4 if kernel == "splitk_reduce" else 10, correlation))
                busy += 12
            clock += 30
        if extra_kernel:
            correlation += 1
            events.append(host("aten::mystery", clock + 1, 20))
            events.append(host("cudaLaunchKernel", clock + 5, 1, "cuda_runtime", correlation=correlation))
            events.append(device("mystery", busy, 7, correlation))
            busy += 12
            clock += 30
        events.append(host("torchledger::forward_0", start, clock - start, "user_annotation"))
        clock += 50
    correlation += 1
    events += [
        host("aten::add_", clock, 20),
        host("cudaLaunchKernel", clock + 1, 1, "cuda_runtime", correlation=correlation),
        device("eager_add", busy, 5, correlation),
    ]
    return trace_from_events(events)


def replayed_trace(names: list[str]) -> Trace:
    events = [
        host("torchledger::forward_0", 0, 100, "user_annotation"),
        host("cudaGraphLaunch", 10, 5, "cuda_runtime", correlation=1),
    ]
    events += [device(name, 200 + 12 * at, 10, 1, **{"graph node id": at}) for at, name in enumerate(names)]
    return trace_from_events(events)


def found(trace: Trace, launches: list[Launch] = LAUNCHES, **options: Any) -> list[tuple[str, str | None]]:
    attribution = attribute_events(trace, device_events(trace), launches, **options)
    return [(event.name, event.launch_id) for event in attribution.events]


EXPECTED = [
    ("triton_poi_fused_add_0", "forward_0#0"),
    ("gemm", "forward_0#1"),
    ("splitk_reduce", "forward_0#1"),
    ("triton_poi_fused_add_0", "forward_0#2"),
    ("gemm", "forward_0#3"),
]


def test_each_kernel_finds_its_entry_in_every_call() -> None:
    assert found(un_graphed_trace(calls=3)) == [*EXPECTED * 3, ("eager_add", None)]


def test_time_inside_graphs_is_matched_or_named() -> None:
    trace = un_graphed_trace(calls=2, extra_kernel=True)
    attribution = attribute_events(trace, device_events(trace), LAUNCHES)
    assert attribution.inside_ns == attribution.matched_ns + sum(attribution.unmatched.values())
    assert sum(attribution.unmatched.values()) == 2 * 7_000
    assert "aten::mystery" in next(iter(attribution.unmatched))
    assert attribution.calls == {"forward_0": 2}


def test_a_sample_is_one_call_however_many_kernels_the_library_takes_for_it() -> None:
    one = (*KERNELS[:1], ("gemm",), *KERNELS[2:])
    trace = un_graphed_trace(calls=3, last=one)
    records, _ = profile_records(trace, LAUNCHES, steps=Steps(), learned={}, devices=(), n_steps=1)
    (measured,) = (each for each in records if isinstance(each, Measurement) and each.subject == "forward_0#1")
    assert measured.samples_us == (14.0, 14.0, 10.0)


def test_an_entrys_work_counts_once_however_many_kernels_do_it() -> None:
    trace = un_graphed_trace()
    events = attribute_events(trace, device_events(trace), LAUNCHES).events
    assert sum(event.cost.flops or 0 for event in events if event.launch_id == "forward_0#1") == 1000
    assert next(event for event in events if event.name == "splitk_reduce").cost.flops == 0


def test_replayed_kernels_follow_the_sequence_that_an_un_graphed_run_showed() -> None:
    trace = un_graphed_trace()
    learned = learn_sequence(trace, device_events(trace), LAUNCHES)
    names = [name for kernels in KERNELS for name in kernels]
    assert found(replayed_trace(names), learned=learned) == EXPECTED


def test_a_first_call_that_tried_configurations_teaches_what_a_later_one_launches() -> None:
    tried = ("triton_poi_fused_add_0", "fill", "triton_poi_fused_add_0", "fill", "triton_poi_fused_add_0")
    trace = un_graphed_trace(launched=(tried, *KERNELS[1:]))
    learned = learn_sequence(trace, device_events(trace), LAUNCHES)
    assert learned["forward_0"] == [(name, int(str(launch)[-1])) for name, launch in EXPECTED]


def test_a_replay_that_picked_another_library_kernel_is_matched_by_its_neighbours() -> None:
    trace = un_graphed_trace()
    learned = learn_sequence(trace, device_events(trace), LAUNCHES)
    names = ["triton_poi_fused_add_0", "other_gemm", "triton_poi_fused_add_0", "gemm"]
    assert [launch for _, launch in found(replayed_trace(names), learned=learned)] == [
        f"forward_0#{order}" for order in range(4)
    ]


def test_a_replay_without_a_learned_sequence_is_matched_by_the_entries_names() -> None:
    names = ["triton_poi_fused_add_0", "gemm", "splitk_reduce", "triton_poi_fused_add_0", "gemm"]
    assert found(replayed_trace(names)) == EXPECTED


def test_a_trace_of_other_graphs_matches_nothing() -> None:
    other = [make_launch(**{**POINTWISE, "graph": "backward_9"})]
    trace = un_graphed_trace()
    attribution = attribute_events(trace, device_events(trace), other)
    assert attribution.inside_ns == 0
    assert attribution.calls == {}


def test_inductors_own_mark_names_the_graph_by_its_cache_key() -> None:
    events = [
        host("## Call CompiledFxGraph fabc ##", 0, 100, "user_annotation"),
        host("triton_poi_fused_add_0", 5, 20),
        host("cuLaunchKernel", 8, 1, "cuda_driver", correlation=1),
        device("triton_poi_fused_add_0", 200, 10, 1),
    ]
    trace = trace_from_events(events)
    assert found(trace, graph_keys={"fabc": "forward_0"}) == [("triton_poi_fused_add_0", "forward_0#0")]
    assert found(trace, graph_keys={"other": "forward_0"}) == [("triton_poi_fused_add_0", None)]


def library(graph: str, kernel: str) -> list[Launch]:
    """The entries of a graph that AOTInductor made a library of: a product and a C++ kernel."""
    product = {"kernel_name": "extern_kernels.addmm", "call": "aoti_torch_cpu_addmm_out", "category": "extern"}
    return [
        make_launch(graph=graph, order=0, device="cpu", **product),
        make_launch(graph=graph, order=1, device="cpu", kernel_name=kernel, call=kernel, category="pointwise"),
    ]


@pytest.mark.parametrize(
    ("ledger", "times"),
    [
        (library("inference_0", "cpp_fused_relu_0"), {"inference_0#0": 30_000, "inference_0#1": 20_000}),
        ([*library("inference_0", "cpp_fused_relu_0"), *library("inference_1", "cpp_fused_relu_0")], {}),
        (library("inference_0", "cpp_fused_tanh_0"), {}),
    ],
)
def test_a_librarys_kernels_are_the_entries_of_the_only_graph_that_they_all_fit(
    ledger: list[Launch], times: dict[str, int]
) -> None:
    trace = trace_from_events(
        [
            host(PACKAGE_MARK, 0, 100, "user_annotation"),
            host("aoti_torch_cpu_addmm_out", 10, 30),
            host("aten::copy_", 12, 8),
            host("graph_0_cpp_fused_relu_0", 50, 20),
        ]
    )
    found = cpu_events(trace, ledger)
    assert {event.launch_id: event.duration_ns for event in found.events} == times
    assert found.unmatched == {}
