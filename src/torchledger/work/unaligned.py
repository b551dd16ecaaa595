"""A product of sizes that are not aligned, and what it would be between padded copies: Inductor's ``pad_mm``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torchledger.nouns import Launch, TensorArgument
from torchledger.work.element_sizes import element_size
from torchledger.work.flops import matmul_flops
from torchledger.work.library_launches import library_launch

_COPY_KERNELS = 2
"""A padded copy is filled with zeros, and then written."""


@dataclass(frozen=True)
class UnalignedProduct:
    """[batch, rows, inner] times [batch, inner, columns], without a batch for ``mm`` and ``addmm``.

    ``strides`` are in elements, as long as the factors' shapes; ``added`` is by how much rows, inner length and columns
    would grow. ``is_planned`` says of each factor that what makes it would write it padded; ``is_rounded`` that
    products of float32 are (TF32).
    """

    operator: Literal["mm", "addmm", "bmm"]
    batch: int
    rows: int
    inner: int
    columns: int
    dtype: str
    strides: tuple[tuple[int, ...], tuple[int, ...]]
    added: tuple[int, int, int]
    is_planned: tuple[bool, bool] = (False, False)
    is_rounded: bool = False

    def launch(self, *, is_padded: bool) -> Launch:
        """The library's call for it, or for its padded copies, which are dense."""
        rows, inner, columns = self._sizes(is_padded=is_padded)
        grows = self.grows if is_padded else (False, False)
        factors = [
            TensorArgument(self._front + sides, self.dtype, None if grown else strides)
            for sides, grown, strides in zip(((rows, inner), (inner, columns)), grows, self.strides, strict=True)
        ]
        bias = [TensorArgument((columns,), self.dtype)] if self.operator == "addmm" else []
        launch = library_launch(
            self.operator,
            [*bias, *factors],
            [TensorArgument((*self._front, rows, columns), self.dtype)],
            flops=matmul_flops(rows, inner, columns, self.batch),
            device="cuda:0",
            order=int(is_padded),
        )
        assert launch is not None, f"Inductor pads no products of {self.dtype}"
        return launch

    @property
    def filled_bytes(self) -> int:
        """What is written of zeros, where nothing writes its factors padded."""
        return sum(after for _, after, _ in self._copies())

    @property
    def copied_bytes(self) -> int:
        """What copying reads and writes behind that."""
        return sum(before + after for before, after, _ in self._copies())

    @property
    def copied_across_bytes(self) -> int:
        """Of these, what is read by columns and written by rows."""
        return sum(before + after for before, after, is_across in self._copies() if is_across)

    def _copies(self) -> Iterator[tuple[int, int, bool]]:
        """Bytes of each factor that is copied, before and after, and whether it is stored by columns."""
        rows, inner, columns = self._sizes(is_padded=True)
        size = self.batch * (element_size(self.dtype) or 0)
        own, padded = (self.rows * self.inner, self.inner * self.columns), (rows * inner, inner * columns)
        for before, after, grows, is_planned, strides in zip(
            own, padded, self.grows, self.is_planned, self.strides, strict=True
        ):
            if grows and not is_planned:
                yield size * before, size * after, strides[-1] != 1

    @property
    def further_kernels(self) -> int:
        """Kernels beside the product: of copies, of what is left to fill where a factor is written padded, and of a
        bias that grows."""
        copies = [
            (1 if is_planned else _COPY_KERNELS) if grows else 0
            for grows, is_planned in zip(self.grows, self.is_planned, strict=True)
        ]
        return sum(copies) + (_COPY_KERNELS if self.operator == "addmm" and self.added[2] else 0)

    @property
    def _front(self) -> tuple[int, ...]:
        return (self.batch,) if self.operator == "bmm" else ()

    @property
    def grows(self) -> tuple[bool, bool]:
        """Whether each factor would be larger."""
        rows, inner, columns = map(bool, self.added)
        return rows or inner, inner or columns

    def _sizes(self, *, is_padded: bool) -> tuple[int, int, int]:
        rows, inner, columns = self.added if is_padded else (0, 0, 0)
        return self.rows + rows, self.inner + inner, self.columns + columns


Pays = Callable[[UnalignedProduct], bool]
"""Says whether a product is quicker between padded copies."""


def stays_as_it_is(product: UnalignedProduct) -> bool:
    """Where nothing is known of a device: no product is padded."""
    return False
