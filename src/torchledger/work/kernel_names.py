"""What a kernel's symbol tells: its category, a readable label, dtypes and, for elementwise kernels, its elements."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from torchledger.nouns import TimeCategory
from torchledger.work.element_sizes import element_size
from torchledger.work.op_shapes import dtype_name

_TRITON_PREFIXES: dict[str, TimeCategory] = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "persistent_reduction",
    "tem": "template",
    "for": "foreach",
    "spl": "split_scan",
    "mix": "reduction",
}
"""Inductor's abbreviations, from ``triton_<abbreviation>_fused_...``."""

_RULES: tuple[tuple[TimeCategory, str], ...] = (
    (
        "collective",
        r"nccl|rccl|msccl|nvshmem|AllReduce|all_reduce|AllGather|ReduceScatter|cross_device_reduce|multimem_|one_shot|"
        r"two_shot",
    ),
    ("attention", r"flash|fmha|attn|attention|mha_|_sdpa|native_sdpa|fused_qkv|paged_"),
    (
        "normalization",
        r"layer_?norm|batch_?norm|group_?norm|rms_?norm|bn_fw|bn_bw|BatchNorm|LayerNorm|GroupNorm|GammaBeta|"
        r"cuCompute|RowwiseMoments|instance_norm|norm_fwd|norm_bwd|MIOpenBatchNorm",
    ),
    (
        "convolution",
        r"conv(?!ert)|fprop|dgrad|wgrad|winograd|scudnn|hcudnn|implicit_gemm|igemm|im2col|col2im|nchwToNhwc|nhwcToNchw|"
        r"gcgemm|fft2d|cudnn.*(gemm|fft)|MIOpen|miopen|ConvBin|ConvAsm|naive_conv|computeOffsetsKernel|"
        r"computeBOffsetsKernel|SubTensorOp|batched_transpose",
    ),
    (
        "gemm",
        r"gemm|gemv|Cijk_|cublas|nvjet|wmma|splitK|split_k|tensorop|xmma|cutlass|dot_kernel|reduce_1Block_kernel|"
        r"epilogue::impl|triton_mm|_matmul|_mm_|Kernel2",
    ),
    ("foreach", r"multi_tensor_apply|FusedAdam|FusedSgd|foreach"),
    (
        "reduction",
        r"reduce_kernel|softmax|SoftMax|cunn_|Reduce|reduction|DeviceScan|tensor_kernel_scan|nll_loss|argmax|topk|TopK",
    ),
    (
        "memory",
        r"CatArray|direct_copy|copy_kernel|_copy_|FillFunctor|fill_kernel|indexSelect|index_elementwise|index_kernel|"
        r"indexing_backward|gather|scatter|embedding|transpose|Transpose|index_put|memcpy|Memcpy|memset|Memset|"
        r"copyBuffer|fillBuffer|arange|triu_tril|pad_|roll_",
    ),
    (
        "pointwise",
        r"elementwise|dropout|distribution_|pointwise|Functor|_kernel_cuda|silu|gelu|rotary|rope|act_and_mul",
    ),
)
_COMPILED_RULES = tuple((category, re.compile(pattern)) for category, pattern in _RULES)
_HELPER = re.compile(
    r"splitK_?reduce|splitKreduce|epilogue|nchwToNhwc|nhwcToNchw|computeOffsets|computeBOffsets|transpose|fft2d|"
    r"convert_dq|dot_do_o|reduce_kernel|elementwise|im2col|col2im|copy|SubTensorOp|scale_k|flash_bwd_dot|compute_delta|"
    r"bwd_preprocess|_kernel_seqk_reduce|combine",
    re.IGNORECASE,
)
_FINISHES = re.compile(
    r"splitk_?reduce|splitKreduce|epilogue|reduce_kernel_?splitk|convert_dq|postprocess", re.IGNORECASE
)


@lru_cache(maxsize=100_000)
def category_of_kernel(name: str) -> TimeCategory:
    """What a kernel does, by its symbol.

    >>> category_of_kernel("triton_red_fused_add_mean_0")
    'reduction'
    """
    match = re.match(r"triton_([a-z]{3})_", name)
    if match and match.group(1) in _TRITON_PREFIXES:
        return _TRITON_PREFIXES[match.group(1)]
    if name.startswith("triton_"):
        return "template" if re.match(r"triton_(mm|bmm|flex|tem)", name) else "pointwise"
    if re.match(r"(Memcpy|Memset) ", name):
        return "memory"
    for category, pattern in _COMPILED_RULES:
        if pattern.search(name):
            return category
    return "other"


@lru_cache(maxsize=100_000)
def is_helper_kernel(name: str) -> bool:
    """True for kernels that prepare or finish another one's product: layout changes, split sums, epilogues."""
    return bool(_HELPER.search(name))


@lru_cache(maxsize=100_000)
def is_finishing_kernel(name: str) -> bool:
    """True for helpers that a library runs behind its main kernel: split sums, epilogues, conversions of gradients."""
    return bool(_FINISHES.search(name))


_LAMBDA = re.compile(
    r"(::\{lambda\([^)]*\)#\d+\}(::operator\(\)\([^)]*\) const)?|\(at::TensorIteratorBase&[^)]*\)(?=::|>|,))"
)


@lru_cache(maxsize=100_000)
def kernel_label(name: str) -> str:
    """A symbol without return type, parameters and the depths of its template arguments, for people.

    >>> kernel_label("void at::native::reduce_kernel<512, 1, Op<float> >(Op<float>)")
    'at::native::reduce_kernel<512, 1, Op<...>>'
    """
    if name.startswith(("Memcpy ", "Memset ")):
        return name
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    text = _LAMBDA.sub("", text).strip()
    depth = 0
    label = []
    for character in text:
        if character == "<":
            depth += 1
            label.append("<" if depth == 1 else "<...>" if depth == 2 else "")
        elif character == ">":
            label.append(">" if depth == 1 else "")
            depth -= 1
        elif character == "(" and depth == 0:
            break
        elif depth <= 1:
            label.append(character)
    return re.sub(r"\s+>", ">", "".join(label)).strip() or name


_DTYPE = re.compile(
    r"c10::BFloat16|c10::Half|c10::complex<\w+>|c10::Float8_\w+|__nv_bfloat16|__half|OpaqueType<(\d+)u?>|"
    r"\b(?:double|float|long|int|short|bool|unsigned char|signed char)\b"
)
_ARRAY = re.compile(r"(?:std::array|at::detail::Array)<char\s*\*,\s*(\d+)(?:ul)?\s*>")
_VECTORIZED = re.compile(r"vectorized_elementwise_kernel<(\d+),")
_STRIDED = re.compile(r"(?<![a-z_])(?:index_|legacy_)?elementwise_kernel(?:_manual_unroll)?<(\d+), (\d+),")
_UNROLLED = re.compile(r"unrolled_elementwise_kernel|unrolled_templated_elementwise_kernel")
_THREAD_WORK = 4  # elements per thread of ATen's elementwise kernels, unless their vectors are longer


@lru_cache(maxsize=100_000)
def dtype_of_kernel(name: str) -> str | None:
    """The first element type in a symbol's template arguments: the dtype it computes with, if it says so.

    An ``OpaqueType<2u>`` gives ``"opaque2"``: only the size is known.
    """
    start = name.find("<")
    for match in _DTYPE.finditer(name, max(start, 0)):
        if match.group(1):
            return {"1": "uint8", "2": "bfloat16", "4": "float32", "8": "float64", "16": "complex128"}.get(
                match.group(1)
            )
        if match.group() in ("int", "long", "bool") and "elementwise" in name:
            continue  # index types and flags come first in many symbols
        return dtype_name(match.group())
    return None


@dataclass(frozen=True)
class ElementwiseWork:
    """What a launch of an ATen elementwise kernel covers: elements, and tensors (inputs and output) of one size."""

    elements: int
    tensors: int
    element_size: int

    @property
    def bytes(self) -> int:
        """Every tensor touched once."""
        return self.elements * self.tensors * self.element_size


def elementwise_work(name: str, grid: Sequence[int] | None, block: Sequence[int] | None) -> ElementwiseWork | None:
    """Elements that a launch covers, from grid, block and symbol; up to one block too many.

    >>> name = "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    >>> elementwise_work(name, (10, 1, 1), (128, 1, 1)).elements
    5120
    """
    if not grid or not block or min(*grid, *block, 1) < 1:
        return None
    blocks, threads = math.prod(grid), math.prod(block)
    if match := _STRIDED.search(name):
        elements = blocks * int(match.group(1)) * int(match.group(2))
    elif match := _VECTORIZED.search(name):
        elements = blocks * threads * max(_THREAD_WORK, int(match.group(1)))
    elif _UNROLLED.search(name):
        elements = blocks * threads * _THREAD_WORK
    else:
        return None
    dtype = dtype_of_kernel(name)
    size = element_size(dtype)
    if size is None:
        return None
    if match := _ARRAY.search(name):
        tensors = int(match.group(1))
    elif re.search(r"BinaryFunctor|CUDAFunctor_|CompareFunctor", name):
        tensors = 3
    elif "Fill" in name:
        tensors = 1
    else:
        tensors = 2
    return ElementwiseWork(elements, tensors, size)
