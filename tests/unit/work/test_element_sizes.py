"""The one table of element sizes, held to torch's own."""

from __future__ import annotations

import torch

from torchledger.work.element_sizes import ELEMENT_SIZES, element_size
from torchledger.work.op_shapes import Tensor


def test_every_dtype_of_torch_has_torchs_own_size() -> None:
    dtypes = {value for name in dir(torch) if isinstance(value := getattr(torch, name), torch.dtype)}
    assert {str(dtype).removeprefix("torch."): dtype.itemsize for dtype in dtypes} == ELEMENT_SIZES


def test_an_unknown_dtype_has_no_size() -> None:
    assert element_size("float7") is None
    assert element_size(None) is None
    assert Tensor((4,), "float7").bytes is None
