"""Eager operators that need far more of the host than others do: what they take beside a usual one.

Element-wise operators, reductions, copies and lookups need about the same. Some others ask a library for its plan,
launch a dozen kernels, or wait for a number to know how much they return. Measured on the hosts of two machines, whose
ratios to ``aten::mul`` differ by 2 % in the median (``benchmarks/machines/host_of_operators.py``; torch 2.11).
"""

from __future__ import annotations

from collections.abc import Mapping

from torchledger.nouns import StepCall
from torchledger.work.categories import operator_name
from torchledger.work.kernel_counts import MASKS
from torchledger.work.settings import setting

_DEAR_US: Mapping[str, float] = {
    "linalg_matrix_exp": 521.0,
    "_linalg_svd": 161.0,
    "_linalg_eigh": 114.0,
    "_coalesce": 110.0,
    "_linalg_slogdet": 99.0,
    "multinomial": 80.0,
    "_linalg_solve_ex": 76.0,
    "linalg_qr": 67.0,
    "_ctc_loss": 60.0,
    "_cudnn_rnn": 60.0,
    "linalg_inv_ex": 60.0,
    "_sparse_addmm": 45.0,
    "repeat_interleave": 40.0,
    "masked_select": 37.0,
    "bincount": 35.0,
    "_unique2": 26.0,
    "cholesky_solve": 25.0,
    "randperm": 24.0,
    "sort": 24.0,
    "linalg_lu_factor_ex": 21.0,
    "linalg_solve_triangular": 18.0,
    "linalg_cholesky_ex": 16.0,
    "nonzero": 16.0,
    "native_group_norm": 15.0,
    "im2col": 12.0,
}
"""Microseconds of a host of slowness 1 beside what any call that launches something takes; those that three and a half
times ``aten::mul`` take at least."""

_AT_PLACES = ("index", "index_put", "_index_put_impl")
_BY_TRUTH_VALUES_US, _ADDED_UP_US = 24.0, 64.0


def dear_us(call: StepCall) -> float:
    """What an eager operator takes of a host of slowness 1 beside a usual one, in microseconds; 0 of most."""
    name = operator_name(call.name)[1]
    if name not in _AT_PLACES:
        return _DEAR_US.get(name, 0.0)
    if name != "index" and setting(call.settings, "accumulate") == (1,):
        return _ADDED_UP_US
    return _BY_TRUTH_VALUES_US * any(each.dtype in MASKS for each in call.arguments[1:])
