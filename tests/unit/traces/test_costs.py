"""Every device event has its work, or a reason why not."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from public_data import public_trace
from torchledger.traces.collective_messages import collective_notes
from torchledger.traces.costs import BEFORE_TRACE, GRAPH_REPLAY, NO_OPERATOR, device_events, triton_cost
from torchledger.traces.reading import trace_from_events
from torchledger.traces.recorded_calls import call_from_arguments
from torchledger.work.kernel_names import category_of_kernel, dtype_of_kernel, elementwise_work, kernel_label
from trace_factories import kernel_event, memcpy_event, op_event, runtime_event

MM = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
VECTORIZED = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"


def launch(number: int, *kernels: dict, op: dict | None = None, **op_changes) -> list[dict]:
    """An operator at time 1000 * number that launches kernels one after the other."""
    base = 1000.0 * number
    events = []
    if op is not None:
        events.append(op_event(ts=base, dur=500, **op, **op_changes))
    for index, kernel in enumerate(kernels):
        correlation = 100 * number + index
        events.append(runtime_event(ts=base + 10 * index + 1, dur=2, correlation=correlation))
        changes = {"ts": base + 20 * index + 15, "correlation": correlation} | kernel
        events.append(kernel_event(**changes))
    return events


def test_one_kernel_of_an_operator_gets_all_of_its_work() -> None:
    (event,) = device_events(trace_from_events(launch(1, {}, op=MM)))
    assert (event.cost.flops, event.cost.flops_quality) == (2 * 4 * 8 * 16, "exact")
    assert event.cost.bytes_moved == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    assert event.category == "gemm"
    assert event.op == "aten::mm"


def test_helpers_of_a_product_get_none_of_its_flops_and_the_sum_is_the_operators() -> None:
    kernels = [{"name": "ampere_sgemm_splitK"}, {"name": "void splitKreduce_kernel<32>"}]
    main, helper = device_events(trace_from_events(launch(1, *kernels, op=MM)))
    assert main.cost.flops == 1024
    assert helper.cost.flops == 0
    assert "helper kernel of aten::mm" in (helper.cost.reason or "")


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6))
def test_shared_work_adds_up_to_the_operators(durations: list[int]) -> None:
    op = {"name": "aten::native_layer_norm_backward"}
    shapes = {"Input Dims": [[32, 7], [32, 7], [], [32, 1], [32, 1], [7], [7]], "Input type": ["float", "float", ""]}
    shapes["Input type"] = ["float", "float", "ScalarList", "float", "float", "float", "float"]
    shapes["Concrete Inputs"] = ["", "", "[7]", "", "", "", ""]
    kernels = [{"name": f"norm_{i}", "dur": dur} for i, dur in enumerate(durations)]
    alone = device_events(trace_from_events(launch(1, {}, op=op | shapes)))
    shared = device_events(trace_from_events(launch(1, *kernels, op=op | shapes)))
    assert sum(event.cost.bytes_moved for event in shared) == alone[0].cost.bytes_moved


def test_gradients_of_a_convolution_share_its_flops_evenly() -> None:
    op = {
        "name": "aten::convolution_backward",
        "Input Dims": [[2, 8, 6, 6], [2, 4, 8, 8], [8, 4, 3, 3], [], [], [], [], [], [], [], []],
        "Input type": ["float"] * 3 + ["ScalarList"] * 4 + ["Scalar", "ScalarList", "Scalar", "ScalarList"],
        "Concrete Inputs": [
            *("", "", "", "[0]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]")
        ],
    }
    kernels = [{"name": "xmma_dgrad_implicit_gemm", "dur": 9}, {"name": "xmma_wgrad_implicit_gemm", "dur": 1}]
    data, weight = device_events(trace_from_events(launch(1, *kernels, op=op)))
    assert data.cost.flops == weight.cost.flops == 2 * 2 * 36 * 8 * 4 * 9


def test_a_copy_has_the_bytes_that_the_profiler_recorded() -> None:
    (event,) = device_events(trace_from_events([memcpy_event()]))
    assert event.cost.bytes_moved == 4096
    assert event.category == "memory"


def test_a_copy_on_the_device_reads_and_writes() -> None:
    (event,) = device_events(trace_from_events([memcpy_event(name="Memcpy DtoD (Device -> Device)")]))
    assert event.cost.bytes_moved == 8192


def test_unknown_work_is_none_with_a_reason() -> None:
    events = [
        kernel_event(ts=1, correlation=1, name="mystery"),
        *launch(1, {"name": "mystery"}),
        runtime_event(name="cudaGraphLaunch", ts=3000, correlation=7),
        kernel_event(ts=3010, correlation=7, name="mystery"),
        *launch(4, {"name": "mystery"}, op={"name": "aten::add"}),
    ]
    costs = [event.cost for event in device_events(trace_from_events(events))]
    assert all(not cost.flops and cost.bytes_moved is None for cost in costs)
    assert [cost.reason for cost in costs[:3]] == [BEFORE_TRACE, NO_OPERATOR, GRAPH_REPLAY]
    assert "record_shapes" in (costs[3].reason or "")


def test_what_computes_no_product_has_0_flops_even_without_shapes() -> None:
    events = launch(1, {"name": "max_pool_forward_nchw"}, op={"name": "aten::max_pool2d_with_indices"})
    events += launch(2, {"name": "ampere_sgemm_32x32"}, op={"name": "aten::addmm"})
    pool, product = (event.cost for event in device_events(trace_from_events(events)))
    assert (pool.flops, pool.bytes_moved) == (0, None)
    assert product.flops is None
    assert pool.reason and product.reason


def test_a_kernel_without_launch_takes_the_work_of_its_twin() -> None:
    events = [
        kernel_event(ts=1, correlation=1, name="gemm_a"),
        *launch(1, {"name": "gemm_a"}, op=MM),
        *launch(2, {"name": "gemm_b"}, op=MM),
    ]
    orphan = device_events(trace_from_events(events))[0]
    assert orphan.cost.flops == 1024
    assert orphan.cost.flops_quality == "estimated"
    assert "same kernel" in (orphan.cost.basis or "")


def test_twins_with_different_work_are_told_apart_by_their_neighbours() -> None:
    large = MM | {"Input Dims": [[4, 8], [8, 32]]}
    order = [("gemm", MM), ("after_small", MM), ("gemm", large), ("after_large", large)]
    known = [event for i, (name, op) in enumerate(order) for event in launch(i + 10, {"name": name}, op=op)]
    orphans = [kernel_event(ts=i, correlation=i + 1, dur=0.5, name=name) for i, (name, _) in enumerate(order)]
    events = device_events(trace_from_events(orphans + known))
    assert [event.cost.flops for event in events[:4]] == [1024, 1024, 2048, 2048]


def test_twins_that_cannot_be_told_apart_stay_unknown() -> None:
    large = MM | {"Input Dims": [[4, 8], [8, 32]]}
    events = [
        kernel_event(ts=1, correlation=1, name="gemm"),
        *launch(1, {"name": "gemm"}, op=MM),
        *launch(2, {"name": "gemm"}, op=large),
    ]
    assert device_events(trace_from_events(events))[0].cost.flops is None


def test_an_elementwise_kernel_without_shapes_is_estimated_from_its_grid() -> None:
    kernel = {"name": VECTORIZED, "grid": [10, 1, 1], "block": [128, 1, 1]}
    (event,) = device_events(trace_from_events(launch(1, kernel, op={"name": "aten::add"})))
    assert event.cost.bytes_moved == 10 * 128 * 4 * 3 * 4
    assert event.cost.bytes_quality == "estimated"


def test_a_strided_elementwise_kernel_covers_its_template_arguments() -> None:
    name = "void at::native::elementwise_kernel<128, 2, BinaryFunctor<float, float> >(int)"
    work = elementwise_work(name, (10, 1, 1), (128, 1, 1))
    assert work is not None
    assert (work.elements, work.tensors, work.element_size) == (2560, 3, 4)


@pytest.mark.parametrize(
    "prefix", ["elementwise_kernel", "index_elementwise_kernel", "elementwise_kernel_manual_unroll"]
)
def test_kernels_of_the_elementwise_family_are_recognised(prefix: str) -> None:
    name = f"void at::native::{prefix}<128, 4, gpu_index_kernel<OpaqueType<4u> > >(int)"
    work = elementwise_work(name, (10, 1, 1), (128, 1, 1))
    assert work is not None
    assert (work.elements, work.bytes) == (5120, 5120 * 2 * 4)


def test_a_triton_pointwise_kernel_touches_each_pointer_once() -> None:
    arguments = {
        "Input Dims": [[8, 64], [64], [8, 64], []],
        "Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar"],
        "Concrete Inputs": ["", "", "", "512"],
    }
    cost = triton_cost("triton_poi_fused_add_0", arguments)
    assert cost.bytes_moved == 2 * (512 + 64 + 512)
    assert cost.bytes_quality == "estimated"
    assert cost.flops == 0


def test_a_table_counts_at_most_one_element_per_iteration() -> None:
    arguments = {
        "Input Dims": [[16], [50000, 64], [16, 64], []],
        "Input type": ["long int", "float", "float", "Scalar"],
        "Concrete Inputs": ["", "", "", "1024"],
    }
    assert triton_cost("triton_poi_fused_embedding_0", arguments).bytes_moved == 16 * 8 + 2 * 1024 * 4


def test_inductors_own_numbers_are_used_where_present() -> None:
    cost = triton_cost("triton_tem_fused_mm_0", {"kernel_flop": 2e9, "kernel_num_gb": 0.5})
    assert (cost.flops, cost.bytes_moved) == (2_000_000_000, 500_000_000)
    assert cost.flops_quality == cost.bytes_quality == "estimated"


def test_a_template_of_a_matrix_product_is_recognised_by_its_shapes() -> None:
    arguments = {"Input Dims": [[4, 8], [8, 16], [4, 16]], "Input type": ["float"] * 3, "Concrete Inputs": [""] * 3}
    assert triton_cost("triton_tem_fused_mm_0", arguments).flops == 1024


def test_a_collective_has_the_message_sizes_that_nccl_reports() -> None:
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    sizes = {"In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16", "Group size": 8}
    (event,) = device_events(trace_from_events([kernel_event(name=name, **sizes)]))
    assert event.category == "collective"
    assert event.cost.bytes_moved == 4000


def _collective(range_name: str, **recorded: object) -> list[dict]:
    """A collective as the profiler records it: its own operator, and in it the range with the message's shape."""
    shapes = {"Input Dims": [[], []], "Input type": ["TensorList", "Scalar"]}
    events = launch(1, {"name": NCCL}, op={"name": "record_param_comms", **shapes, **recorded})
    message = {"Input Dims": [[250]], "Input type": ["float"]}
    return [*events, op_event(ts=1000.5, dur=400, cat="user_annotation", name=range_name, **message)]


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_a_collective_takes_its_message_from_the_host_where_its_kernel_does_not_hold_it() -> None:
    (event,) = device_events(trace_from_events(_collective("nccl:all_reduce")))
    assert (event.cost.bytes_moved, event.cost.bytes_quality) == (2 * 250 * 4, "exact")
    counts = {"In msg nelems": 10, "Out msg nelems": 80, "dtype": "Float", "Collective name": "_allgather_base"}
    (event,) = device_events(trace_from_events(_collective("nccl:_all_gather_base", **counts)))
    assert event.cost.bytes_moved == (10 + 80) * 4


def test_a_gather_whose_result_is_not_recorded_stays_unknown() -> None:
    (event,) = device_events(trace_from_events(_collective("nccl:_all_gather_base")))
    assert event.cost.bytes_moved is None
    assert event.cost.reason


def test_bandwidths_of_collectives_are_said_with_the_size_of_their_group() -> None:
    sizes = {"In msg nelems": 250, "Out msg nelems": 250, "dtype": "Float", "Group size": 4}
    events = _collective("nccl:all_reduce", **sizes, **{"Collective name": "allreduce"})
    (note,) = collective_notes(trace_from_events(events))
    assert note.startswith("all_reduce in 4 ranks: 1 call, 0.0 MB")
    assert "(bus bandwidth)" in note
    (note,) = collective_notes(trace_from_events(_collective("nccl:all_reduce")))
    assert "bus bandwidth" not in note


def test_lists_of_tensors_take_their_dtype_from_the_kernel() -> None:
    arguments = {"Input Dims": [[[3, 5], [3, 2]], []], "Input type": ["TensorList", "Scalar"]}
    call = call_from_arguments("aten::cat", arguments, list_dtype="bfloat16")
    assert call is not None
    assert [tensor.dtype for tensor in call.tensor_list(0)] == ["bfloat16", "bfloat16"]


def test_lists_too_long_for_the_profiler_are_unknown_with_that_reason() -> None:
    op = {"name": "aten::_foreach_add_", "Input Dims": [[], []], "Input type": ["TensorList", "Scalar"]}
    (event,) = device_events(trace_from_events(launch(1, {"name": "multi_tensor_apply_kernel"}, op=op)))
    assert event.category == "foreach"
    assert "long lists" in (event.cost.reason or "")


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("triton_poi_fused_add_0", "pointwise"),
        ("triton_red_fused_mean_1", "reduction"),
        ("triton_per_fused_mean_1", "persistent_reduction"),
        ("triton_tem_fused_mm_1", "template"),
        ("triton_for_fused_1", "foreach"),
        ("triton_poi_fused_convolution_convert_element_type_1", "pointwise"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "gemm"),
        ("nvjet_hsh_128x256", "gemm"),
        ("Cijk_Alik_Bljk_BBS", "gemm"),
        ("sm80_xmma_fprop_implicit_gemm_indexed", "convolution"),
        ("pytorch_flash::flash_fwd_kernel<>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "collective"),
        ("vectorized_layer_norm_kernel<float>", "normalization"),
        ("at::native::reduce_kernel<512, 1>", "reduction"),
        ("at::native::CatArrayBatchedCopy<>", "memory"),
        (VECTORIZED, "pointwise"),
        ("multi_tensor_apply_kernel<>", "foreach"),
        ("something_else", "other"),
    ],
)
def test_categories_are_read_from_symbols(name: str, category: str) -> None:
    assert category_of_kernel(name) == category


def test_a_label_keeps_the_name_and_drops_the_rest() -> None:
    assert kernel_label(VECTORIZED).startswith("at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<...>")
    assert kernel_label("plain_name") == "plain_name"


def test_a_dtype_is_found_in_a_symbol() -> None:
    assert dtype_of_kernel("f<4, CUDAFunctor_add<c10::BFloat16> >") == "bfloat16"
    assert dtype_of_kernel("CatArrayBatchedCopy<OpaqueType<2u>, unsigned int>") == "bfloat16"
    assert dtype_of_kernel("no_template") is None


def test_inferred_work_is_the_work_that_was_hidden() -> None:
    path = public_trace("tl_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")
    document = json.loads(gzip.decompress(path.read_bytes()))
    whole = {(event.start_ns, event.name): event for event in device_events(trace_from_events(document["traceEvents"]))}
    launches = sorted(event["ts"] for event in document["traceEvents"] if event.get("cat") == "cuda_runtime")
    cut = launches[len(launches) // 3]
    left = [
        event
        for event in document["traceEvents"]
        if event.get("cat") not in ("cuda_runtime", "cuda_driver", "cpu_op") or event["ts"] >= cut
    ]
    for event in left:
        if event.get("cat") == "kernel":
            event["args"].pop("External id", None)
    # The origin of time is the earliest event, and it is still there.
    hidden = [event for event in device_events(trace_from_events(left)) if event.op_is_inferred]
    truth = [(event, whole[event.start_ns, event.name]) for event in hidden]
    truth = [(event, true) for event, true in truth if not true.op_is_inferred and true.op is not None]
    assert len(truth) > 200
    agreeing = [event for event, true in truth if (event.cost.flops, event.op) == (true.cost.flops, true.op)]
    assert len(agreeing) == len(truth)
    close = [event for event, true in truth if event.cost.bytes_moved == true.cost.bytes_moved]
    assert len(close) >= 0.99 * len(truth)
