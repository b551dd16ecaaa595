"""Generated C++ kernels that no compiler sees: for tests that ask what a ledger says and not what a kernel computes.

A kernel takes a second or two of g++ and the tests compile hundreds. Everything up to the call of the compiler is what
it always is, and so is everything around the kernels: the wrapper runs, with library calls, on tensors of zeros.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache


@contextlib.contextmanager
def unbuilt_kernels() -> Iterator[None]:
    """Inside, what a C++ kernel would write is zero: it is no fault as an index, as a size or as a divided number."""
    former = AsyncCompile.cpp_pybinding
    AsyncCompile.cpp_pybinding = _writes_zeros
    try:
        with config.patch({"cpp.simdlen": 1}):  # how a loop would be made of vectors takes longest to find out
            yield
    finally:
        AsyncCompile.cpp_pybinding = former
        # A loaded wrapper keeps its kernels: who compiles the same model later shall not get these.
        torch._dynamo.reset()
        PyCodeCache.cache_clear()


def _writes_zeros(self: AsyncCompile, argument_types: Sequence[str], source: str) -> Callable[..., None]:
    """What stands for a kernel whose arguments are of these C++ types."""
    del self, source
    written = [place for place, kind in enumerate(argument_types) if kind.endswith("*") and "const" not in kind]

    def kernel(*arguments: Any) -> None:
        with torch.no_grad():
            for place in written:
                arguments[place].zero_()

    return kernel
