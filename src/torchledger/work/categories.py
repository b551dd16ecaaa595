"""What a piece of work computes, by the name of its operator: the one table, and what follows from it for a launch.

Names count whole, or by a prefix or suffix that belongs to a family alone, never by a word inside them:
``upsample_trilinear3d_backward`` is no linear layer, ``polygamma`` no product. A device kernel's symbol says what it
does in another language: ``kernel_names.category_of_kernel``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast, get_args

from torchledger.nouns import Category, Launch, TimeCategory

OPERATORS: Mapping[TimeCategory, str] = {
    "gemm": """mm bmm addmm baddbmm addbmm mv addmv dot vdot matmul inner linear bilinear _trilinear tensordot einsum
        chain_matmul linalg_matmul linalg_multi_dot linalg_vecdot _addmm_activation _scaled_mm _scaled_mm_v2 _int_mm
        _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 _mm_plus_mm bias_addmm int_mm linear_backward
        _linear_pointwise _mkl_linear mkldnn_linear mkldnn_linear_backward mkldnn_linear_backward_input
        mkldnn_linear_backward_weights qlinear_pointwise qlinear_dynamic _weight_int8pack_mm
        _weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros _mixed_dtypes_linear
        _sparse_mm _sparse_addmm sspaddmm hspmm _sparse_semi_structured_mm _sparse_semi_structured_addmm
        _sparse_semi_structured_linear _cslt_sparse_mm _dyn_quant_matmul_4bit grouped_mm_fallback
        grouped_mm_fallback_backward""",
    "convolution": """convolution _convolution convolution_overrideable conv1d conv2d conv3d conv_transpose1d
        conv_transpose2d conv_transpose3d conv_tbc conv_tbc_backward _convolution_mode _convolution_double_backward
        cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu cudnn_convolution_transpose
        miopen_convolution miopen_convolution_relu miopen_convolution_add_relu miopen_convolution_transpose
        miopen_depthwise_convolution mkldnn_convolution mps_convolution_backward _mps_convolution
        _mps_convolution_transpose mps_convolution_transpose_backward _convolution_pointwise
        _convolution_transpose_pointwise qconv_pointwise qconv1d_pointwise qconv2d_pointwise qconv3d_pointwise
        _slow_conv2d_forward _slow_conv2d_backward thnn_conv2d slow_conv3d slow_conv3d_forward slow_conv_dilated2d
        slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d _conv_depthwise2d conv_depthwise3d
        _nnpack_spatial_convolution convolution_backward convolution_backward_overrideable
        cudnn_convolution_backward_input cudnn_convolution_backward_weight miopen_convolution_backward_input
        miopen_convolution_backward_weight deform_conv2d _deform_conv2d_backward""",
    "attention": """scaled_dot_product_attention flex_attention flex_attention_backward multi_head_attention_forward
        _native_multi_head_attention _triton_multi_head_attention _triton_scaled_dot_attention varlen_attn""",
    "normalization": """layer_norm native_layer_norm native_layer_norm_backward rms_norm _fused_rms_norm
        _fused_rms_norm_backward batch_norm native_batch_norm native_batch_norm_backward _native_batch_norm_legit
        _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _batch_norm_with_update
        _batch_norm_with_update_functional _batch_norm_no_update batch_norm_backward _batch_norm_impl_index
        _batch_norm_impl_index_backward cudnn_batch_norm cudnn_batch_norm_backward miopen_batch_norm
        miopen_batch_norm_backward batch_norm_elemt batch_norm_backward_elemt batch_norm_backward_reduce
        batch_norm_stats batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats
        group_norm native_group_norm native_group_norm_backward instance_norm local_response_norm
        mkldnn_layer_norm _weight_norm_interface _weight_norm_interface_backward""",
    "collective": """all_reduce all_gather_into_tensor all_gather_into_tensor_out all_gather_into_tensor_coalesced
        all_reduce_coalesced reduce_scatter_tensor reduce_scatter_tensor_coalesced all_to_all_single allreduce allgather
        _allgather_base reduce_scatter _reduce_scatter_base alltoall alltoall_base wait_tensor record_param_comms
        shard_dim_alltoall isend_recv""",
    "reduction": """sum nansum mean nanmean prod amax amin aminmax _aminmax max min argmax argmin any all std var
        std_mean var_mean logsumexp norm linalg_vector_norm count_nonzero median nanmedian mode kthvalue _is_all_true
        _is_any_true equal trace sum_to_size cumsum cumprod logcumsumexp cummax cummin _cummax_helper _cummin_helper
        softmax _softmax log_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax
        softmin _masked_softmax _masked_softmax_backward cross_entropy_loss nll_loss nll_loss_nd nll_loss_forward
        nll_loss2d nll_loss2d_forward mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy
        binary_cross_entropy_with_logits soft_margin_loss multi_margin_loss multilabel_margin_loss ctc_loss _ctc_loss
        _ctc_loss_backward _cudnn_ctc_loss cosine_similarity dist cdist _euclidean_dist _cdist_forward _cdist_backward
        sort argsort msort topk unique _unique2 unique_consecutive unique_dim histc bincount max_pool1d
        max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices avg_pool1d
        avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d
        _adaptive_avg_pool3d
        adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d mkldnn_max_pool2d mkldnn_adaptive_avg_pool2d
        embedding_bag _embedding_bag _embedding_bag_forward_only segment_reduce _segment_reduce_backward xsum""",
    "memory": """copy _to_copy to type_as clone contiguous cat concat concatenate stack _cat hstack vstack dstack fill
        zero zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full arange linspace eye
        scalar_tensor embedding embedding_dense_backward embedding_renorm index_select index_select_backward gather
        gather_backward take take_along_dim index _unsafe_index _unsafe_masked_index
        _unsafe_masked_index_put_accumulate index_put _index_put_impl _unsafe_index_put index_fill scatter scatter_add
        scatter_reduce index_add index_copy index_reduce put masked_scatter masked_select nonzero select_backward
        slice_backward select_scatter slice_scatter diagonal_scatter diagonal_backward as_strided_scatter flip roll
        rot90 constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
        replication_pad2d replication_pad3d repeat repeat_interleave tile pixel_shuffle pixel_unshuffle channel_shuffle
        native_channel_shuffle im2col col2im unfold_backward _local_scalar_dense item split_with_sizes_copy _chunk_cat
        _pin_memory pin_memory _reshape_copy _reshape_alias_copy resize set meshgrid one_hot tril triu
        tril_indices triu_indices _pack_padded_sequence _pad_packed_sequence _nested_tensor_from_mask""",
    "pointwise": """abs absolute acos acosh asin asinh atan atanh atan2 bitwise_not ceil celu cos cosh deg2rad digamma
        elu erf erfc erfinv exp exp2 expm1 floor frac gelu glu hardshrink hardsigmoid hardswish hardtanh i0 i0e i1
        isfinite isinf isnan isposinf isneginf leaky_relu lgamma log log10 log1p log2 log_sigmoid log_sigmoid_forward
        logical_not logit mish nan_to_num neg negative positive polygamma mvlgamma rad2deg reciprocal relu relu6
        round rrelu rrelu_with_noise rsqrt selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt
        square tan tanh threshold trunc fix clamp clamp_min clamp_max clip special_expit special_erf special_entr
        special_ndtr special_log_ndtr special_xlog1py conj_physical real imag view_as_real_copy angle dequantize
        quantize_per_tensor fake_quantize_per_tensor_affine add sub subtract rsub mul multiply div divide true_divide
        floor_divide remainder fmod pow float_power maximum minimum fmax fmin hypot copysign nextafter logaddexp
        logaddexp2 bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__
        __lshift__ __rshift__ xlogy ldexp heaviside prelu _prelu_kernel _prelu_kernel_backward gcd lcm lerp
        lerp_scalar clamp_tensor polar complex outer ger addr cross linalg_cross kron eq ne lt le gt ge not_equal
        less less_equal greater greater_equal logical_and logical_or logical_xor isclose isin where addcmul addcdiv
        masked_fill bernoulli dropout native_dropout native_dropout_backward _fused_dropout feature_dropout
        alpha_dropout masked_scale _masked_scale uniform normal random exponential geometric log_normal cauchy
        multinomial rand randn randint randperm rand_like randn_like randint_like poisson bucketize searchsorted
        convert_element_type grid_sampler grid_sampler_2d grid_sampler_3d affine_grid_generator
        _amp_update_scale rope apply_rotary_emb
        _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _thnn_fused_gru_cell_backward""",
    "foreach": "_amp_foreach_non_finite_check_and_unscale",
}
"""The operators of each category, by their bare names."""

_CATEGORY_OF: Mapping[str, TimeCategory] = {
    name: category for category, names in OPERATORS.items() for name in names.split()
}

_COLLECTIVE_NAMESPACES = frozenset(
    {"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "nccl", "_dtensor"}
)

_FAMILIES: tuple[tuple[re.Pattern[str], TimeCategory], ...] = (
    (re.compile(r"_scaled_dot_product_\w+"), "attention"),
    (re.compile(r"_(flash|efficient|cudnn|flex)_attention_(forward|backward)"), "attention"),
    (re.compile(r"_flash_attn_(varlen_)?(forward|backward)"), "attention"),
    (re.compile(r"_foreach_\w+|_fused_(adam|adamw|sgd|adagrad)"), "foreach"),
    (re.compile(r"_?upsample_\w+"), "pointwise"),
    (re.compile(r"(_?adaptive_)?(max|avg)_pool[123]d(_with_indices)?_backward"), "pointwise"),
    (re.compile(r"_adaptive_avg_pool[123]d_backward"), "pointwise"),
    (re.compile(r"(reflection|replication)_pad[123]d_backward|_?embedding\w*_backward"), "memory"),
    (re.compile(r"nll_loss(2d)?_backward"), "memory"),
    (re.compile(r"\w+_loss_backward|binary_cross_entropy\w*_backward|kl_div_backward"), "pointwise"),
    (re.compile(r"(grid_sampler_[23]d|fake_quantize_\w+|rrelu_with_noise)_backward"), "pointwise"),
    (
        re.compile(
            r"(gelu|silu|threshold|sigmoid|log_sigmoid|tanh|elu|celu|leaky_relu|softplus|hardtanh|hardswish|"
            r"hardsigmoid|hardshrink|softshrink|mish|logit|glu|relu)_backward"
        ),
        "pointwise",
    ),
)
"""Families whose names are made alike; a pattern covers the whole name."""

LOOPS: frozenset[Category] = frozenset(
    {"pointwise", "reduction", "persistent_reduction", "split_scan", "foreach", "combo", "multi_kernel", "cpp"}
)
"""Kernels that Inductor generated of loops."""

GENERATED: frozenset[Category] = LOOPS | {"template"}
"""All kernels that Inductor generated."""

SAY_THEMSELVES: frozenset[Category] = frozenset(get_args(Category)) & frozenset(get_args(TimeCategory))
"""Categories that say what a launch computes; for the others its operator does."""


@lru_cache(maxsize=100_000)
def operator_name(text: str) -> tuple[str, str]:
    """Namespace and bare name of an operator as traces, graphs and wrappers spell it; ``""`` for no namespace.

    >>> operator_name("torch.ops.aten.convolution_backward.default"), operator_name("aten::add_.Tensor")
    (('aten', 'convolution_backward'), ('aten', 'add'))
    >>> operator_name("extern_kernels.mm"), operator_name("aoti_torch_cuda_addmm_out")
    (('', 'mm'), ('', 'addmm'))
    """
    parts = [part for part in re.split(r"::|[.:]", text) if part]
    while parts and parts[0] in ("torch", "ops", "extern_kernels", "inline"):
        parts = parts[1:]
    if not parts:
        return "", ""
    namespace, name = (parts[0], parts[1]) if len(parts) > 1 else ("", parts[0])
    if match := _ENTRY_POINT.match(name):
        name = name[match.end() :]
        name = name.removeprefix("mkldnn_") if name.startswith("mkldnn__") else name
        name = name.removesuffix("_out")
    return namespace, name if name.endswith("__") else name.removesuffix("_")


def is_of_program(name: str) -> bool:
    """True for an operator that is none of torch's or of a library known here: the program brings it along.

    >>> is_of_program("torch.ops.mine.scan.default"), is_of_program("extern_kernels.mm"), is_of_program("aten::mm")
    (True, False, False)
    """
    return operator_name(name)[0] not in _NAMESPACES_OF_TORCH


_NAMESPACES_OF_TORCH = frozenset(
    {"", "aten", "prims", "inductor", "quantized", "c10d", "_c10d_functional", "c10d_functional", "symm_mem"}
    | {"_dtensor", "fsdp", "torchvision", "torchaudio", "transformers", "extern_kernels", "inline", "streams", "record"}
    | {"mkldnn", "mkl"}
)

_ENTRY_POINT = re.compile(r"aoti_torch_(?:(?:cpu|cuda|xpu|mps)_)?")


@lru_cache(maxsize=100_000)
def category_of_operator(name: str) -> TimeCategory | None:
    """What an operator computes, by its name; ``None`` when the table does not know it.

    >>> category_of_operator("aten::addmm"), category_of_operator("aten::polygamma")
    ('gemm', 'pointwise')
    """
    namespace, bare = operator_name(name)
    if namespace in _COLLECTIVE_NAMESPACES:
        return "collective"
    if bare in _CATEGORY_OF:
        return _CATEGORY_OF[bare]
    return next((category for pattern, category in _FAMILIES if pattern.fullmatch(bare)), None)


def naming_operator(names: Sequence[str]) -> str | None:
    """The operator that a kernel of several is shown by: the last, unless that only makes a mask or a constant, which
    autograd keeps for the backward pass; ``None`` without operators.

    >>> naming_operator(("aten.relu", "prims._low_memory_max_pool_with_offsets", "aten.le"))
    'prims._low_memory_max_pool_with_offsets'
    """
    computing = (name for name in reversed(names) if operator_name(name)[1] not in _MASKS_AND_CONSTANTS)
    return next(computing, names[-1] if names else None)


_MASKS = """eq ne lt le gt ge not_equal less less_equal greater greater_equal logical_and logical_or logical_xor
    logical_not isfinite isinf isnan isposinf isneginf isclose"""
_CONSTANTS = "full full_like new_full scalar_tensor zeros zeros_like new_zeros ones ones_like new_ones"
_MASKS_AND_CONSTANTS = frozenset(f"{_MASKS} {_CONSTANTS}".split())


def operation_of(launch: Launch) -> str:
    """The bare name of the operator that a library call or template runs: ``"mm"``, ``"convolution_backward"``.

    A template's name is Inductor's, so its operator is the product, convolution or attention among those fused into it;
    ``"template"`` where there is none.
    """
    if launch.category == "template":
        names = (name for name in launch.aten_ops if category_of_operator(name) in ("gemm", "convolution", "attention"))
        return operator_name(next(names, "template"))[1]
    name = operator_name(launch.kernel_name or launch.call or "")[1]
    # An operator that is run with a saved random state is called by what keeps the state.
    return operator_name(launch.aten_ops[-1])[1] if name.endswith("rng_state") and launch.aten_ops else name


def category_of_launch(launch: Launch) -> TimeCategory | None:
    """What an entry computes: Inductor's category if it generated the kernel, else that of the operator it calls.

    ``None`` for a call of an operator that the table does not know.
    """
    if launch.category in SAY_THEMSELVES:
        return cast(TimeCategory, launch.category)
    if launch.category == "multi_kernel":
        return "persistent_reduction" if "_per_" in launch.kernel_name else "reduction"
    names = (launch.kernel_name, launch.call or "", *launch.aten_ops[-1:])
    return next((category for name in names if (category := category_of_operator(name)) is not None), None)


def category_of_work(launch: Launch) -> TimeCategory | None:
    """``category_of_launch``, and of a template what it computes."""
    category = category_of_launch(launch)
    return category_of_operator(operation_of(launch)) if category == "template" else category
