"""One table says what a launch computes, and everybody asks it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import torch

import torchledger
from factories import make_launch
from torchledger.expecting.launch_families import family_of
from torchledger.nouns import Category
from torchledger.profiling.time_categories import time_category
from torchledger.work.categories import (
    GENERATED,
    LOOPS,
    OPERATORS,
    SAY_THEMSELVES,
    category_of_launch,
    category_of_operator,
    category_of_work,
    naming_operator,
    operation_of,
    operator_name,
)
from torchledger.work.collective_costs import COLLECTIVE_COSTS
from torchledger.work.op_costs import FORMULAS, op_cost
from torchledger.work.op_shapes import OpCall, Tensor


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("aten::upsample_trilinear3d_backward", "pointwise"),
        ("aten::polygamma", "pointwise"),
        ("symm_mem::one_shot_all_reduce", "collective"),
        ("prims::convert_element_type", "pointwise"),
        ("aten::_convert_weight_to_int4pack", None),
        ("aten::frac", "pointwise"),
        ("aten::_adaptive_avg_pool2d_backward", "pointwise"),
        ("aten::add_.Tensor", "pointwise"),
        ("aten::linear", "gemm"),
        ("mkldnn::_linear_pointwise", "gemm"),
        ("mkl::_mkl_linear", "gemm"),
        ("aten::_grouped_mm", "gemm"),
        ("mkldnn::_convolution_transpose_pointwise", "convolution"),
        ("aten::convolution_backward", "convolution"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("flash_attn::_flash_attn_varlen_forward", "attention"),
        ("aten::_scaled_dot_product_attention_math", "attention"),
        ("aten::native_layer_norm", "normalization"),
        ("aten::norm", "reduction"),
        ("aten::_foreach_norm", "foreach"),
        ("aten::_fused_adamw_", "foreach"),
        ("_c10d_functional::all_gather_into_tensor", "collective"),
        ("record_param_comms", "collective"),
        ("aten::cat", "memory"),
        ("aten::catalogue", None),
        ("mylib::x", None),
        ("ProfilerStep#3", None),
        ("", None),
    ],
)
def test_an_operator_is_known_by_its_whole_name(name: str, category: str | None) -> None:
    assert category_of_operator(name) == category


def test_each_name_stands_in_the_table_once() -> None:
    counts = Counter(name for names in OPERATORS.values() for name in names.split())
    assert [name for name, count in counts.items() if count > 1] == []


def test_products_convolutions_and_attention_of_the_table_are_operators_of_torch_or_of_a_known_package() -> None:
    known = {name.split("::")[1].split(".")[0].removesuffix("_") for name in torch._C._dispatch_get_all_op_names()}
    elsewhere = {
        "_mm_plus_mm", "bias_addmm", "int_mm", "grouped_mm_fallback", "grouped_mm_fallback_backward", "flex_attention",
        "flex_attention_backward", "deform_conv2d", "_deform_conv2d_backward", "_mkl_linear", "_scaled_mm_v2",
        "_scaled_grouped_mm_v2", "varlen_attn", "multi_head_attention_forward", "_mps_convolution",
        "_mps_convolution_transpose", "mps_convolution_backward", "mps_convolution_transpose_backward",
        "cudnn_convolution_backward_input", "cudnn_convolution_backward_weight", "miopen_convolution_backward_input",
        "miopen_convolution_backward_weight",
    }  # fmt: skip
    names = {name for category in ("gemm", "convolution", "attention") for name in OPERATORS[category].split()}
    assert names - known - elsewhere == set()


@pytest.mark.parametrize(
    ("kernel_name", "aten_ops", "category", "family"),
    [
        ("extern_kernels.addmm", ("aten.addmm",), "gemm", "launch:gemm/any"),
        ("torch.ops.aten.convolution_backward.default", (), "convolution", "launch:convolution/backward"),
        ("torch.ops.aten.upsample_trilinear3d_backward.default", (), "pointwise", "launch:library/other"),
        ("torch.ops.aten.polygamma.default", ("aten.polygamma",), "pointwise", "launch:library/other"),
        ("torch.ops.symm_mem.one_shot_all_reduce.default", (), "collective", "launch:library/other"),
        ("inline.sum", ("prims.convert_element_type", "aten.sum"), "reduction", "launch:library/other"),
        ("torch.ops.aten.max.dim", (), "reduction", "launch:library/other"),
        ("aoti_torch_cuda_addmm_out", (), "gemm", "launch:gemm/any"),
        ("aoti_torch_cpu_mkldnn__linear_pointwise", (), "gemm", "launch:gemm/any"),
        ("torch.ops.mylib.foo.default", ("mylib.foo",), None, "launch:library/other"),
    ],
)
def test_page_breakdown_and_fit_say_the_same_of_a_library_call(
    kernel_name: str, aten_ops: tuple[str, ...], category: str | None, family: str
) -> None:
    launch = make_launch(category="extern", kernel_name=kernel_name, aten_ops=aten_ops)
    assert category_of_launch(launch) == category
    assert time_category(launch, None) == (category or "other")
    assert family_of(launch) == family


def test_a_generated_kernel_has_inductors_category_and_a_template_computes_what_was_fused_into_it() -> None:
    ops = ("aten.polygamma", "aten.addmm", "aten.relu")
    template = make_launch(category="template", kernel_name="triton_tem_fused_addmm_polygamma_relu_0", aten_ops=ops)
    assert category_of_launch(template) == "template"
    assert (category_of_work(template), operation_of(template)) == ("gemm", "addmm")
    assert family_of(template) == "launch:gemm/any"
    assert category_of_launch(make_launch(category="cpp", kernel_name="cpp_fused_convert_0")) == "cpp"


def test_what_has_a_formula_has_a_category_but_for_views_transforms_and_whole_recurrent_layers() -> None:
    names = (name for name in FORMULAS if name not in COLLECTIVE_COSTS and "rnn" not in name)
    without = {name for name in names if category_of_operator(name) is None}
    moves = {name for name in without if op_cost(OpCall(f"aten::{name}", (Tensor((2, 2), "float32"),))).bytes_moved}
    assert moves == {"_fft_r2c", "_fft_c2c", "_fft_c2r"}


def test_an_operators_name_is_read_out_of_every_spelling() -> None:
    spellings = ("aten::index_put_", "torch.ops.aten.index_put_.default", "aten.index_put", "aten::index_put.out")
    assert {operator_name(text) for text in spellings} == {("aten", "index_put")}
    assert operator_name("aten::__and__.Scalar") == ("aten", "__and__")


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (
            ("aten.relu", "prims._low_memory_max_pool_with_offsets", "aten.le"),
            "prims._low_memory_max_pool_with_offsets",
        ),
        (("aten.add", "aten.relu"), "aten.relu"),
        (("aten.full", "aten.le"), "aten.le"),
        ((), None),
    ],
)
def test_a_kernel_is_named_by_what_it_computes_and_not_by_a_mask_that_it_keeps(
    names: tuple[str, ...], shown: str | None
) -> None:
    assert naming_operator(names) == shown


HOUSE = Path(torchledger.__file__).parent
MAY_LIST_THEM = {
    "work/categories.py",
    "work/kernel_names.py",
    "nouns/launch.py",
    "nouns/breakdown.py",
    "capturing/recorder.py",  # Inductor's decorators, by what it calls them
    "expecting/launch_features.py",  # columns of a table
    "traces/verdict.py",  # words for them
}


def test_which_categories_belong_together_is_told_in_one_place() -> None:
    found = set()
    for path in HOUSE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Set | ast.Tuple | ast.List | ast.Dict):
                each = node.keys if isinstance(node, ast.Dict) else node.elts
                texts = {one.value for one in each if isinstance(one, ast.Constant)}
                if len(texts & (GENERATED - {"template", "cpp"})) > 2:
                    found.add(str(path.relative_to(HOUSE)))
    assert found <= MAY_LIST_THEM


def test_generated_kernels_are_loops_or_templates() -> None:
    assert LOOPS < GENERATED < set(get_args(Category))
    assert (GENERATED - {"multi_kernel"}) | {"user_triton"} == SAY_THEMSELVES
