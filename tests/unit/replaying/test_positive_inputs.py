"""Which arguments a kernel takes the root of."""

from __future__ import annotations

import torch

from torchledger.nouns import Buffer, Launch
from torchledger.replaying.bench_worker import restorer
from torchledger.replaying.positive_inputs import positive_inputs, positive_pointers
from torchledger.replaying.standalone import MAKE_TENSOR

NORMALIZATION = """
    tmp0 = tl.load(in_out_ptr0 + (x2), None).to(tl.float32)
    tmp2 = tl.load(in_ptr0 + (x0), None, eviction_policy='evict_last')
    tmp4 = tl.load(in_ptr1 + (x0), None, eviction_policy='evict_last')
    tmp3 = tmp0 - tmp2
    tmp5 = tl.full([1], 1e-05, tl.float32)
    tmp6 = tmp4 + tmp5
    tmp7 = tl.sqrt_rn(tmp6)
    tmp9 = (tmp5 / tmp7)
    tmp12 = tmp3 * tmp9
"""


def test_the_variance_of_a_normalization_is_positive() -> None:
    assert positive_pointers(NORMALIZATION) == {"in_ptr1"}
    buffers = tuple(
        Buffer(name, "input", "float32", (8,), (1,), "cuda:0", argument=argument)
        for name, argument in (("mean", "in_ptr0"), ("variance", "in_ptr1"))
    )
    launch = Launch("inference_0", 3, "key", "triton_poi_fused", "pointwise", "cuda:0", buffers)
    assert positive_inputs(launch, [NORMALIZATION]) == {"variance"}


def test_a_root_of_what_several_inputs_make_binds_none_of_them() -> None:
    source = "tmp0 = tl.load(in_ptr0)\ntmp1 = tl.load(in_ptr1)\ntmp2 = tmp0 * tmp1\ntmp3 = libdevice.sqrt(tmp2)"
    assert positive_pointers(source) == frozenset()


def test_kernels_in_cpp_are_read_too() -> None:
    assert positive_pointers("auto tmp0 = in_ptr2[x0];\nauto tmp1 = tmp0.rsqrt();") == {"in_ptr2"}
    assert positive_pointers("auto tmp0 = in_ptr2[x0];\nauto tmp1 = std::log(tmp0);") == {"in_ptr2"}


def test_made_up_values_are_positive_where_they_must_be() -> None:
    namespace = {"torch": torch}
    exec(MAKE_TENSOR, namespace)
    made: torch.Tensor = namespace["make_tensor"]((9, 7), (7, 1), torch.float32, "cpu", positive=True)  # type: ignore[operator]
    assert bool((made > 0).all())


def test_inputs_get_their_values_back() -> None:
    base = torch.arange(10.0)
    inputs = {"base": base, "view": base[2:5], "small": torch.tensor([3], dtype=torch.uint8), "count": 5}
    restore = restorer(inputs)
    assert restore is not None
    base.zero_()
    inputs["small"].zero_()  # type: ignore[attr-defined]
    restore()
    assert torch.equal(base, torch.arange(10.0)) and inputs["small"].item() == 3  # type: ignore[attr-defined]
    assert restorer({"count": 5}) is None
    assert restorer(inputs, most_bytes=8) is None
