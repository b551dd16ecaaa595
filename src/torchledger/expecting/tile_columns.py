"""How a product divides into its library's tiles: what the descriptions of library calls share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from torchledger.expecting.operator_features import gemm_columns

EXPECTED = "log expected"
"""The column that holds the logarithm of the time by the library's tiles, where they are known."""


@lru_cache(maxsize=20_000)
def tiles_of_product(
    name: str, batch: float, m: float, n: float, k: float, multiprocessors: int
) -> Mapping[str, float]:
    """``gemm_columns`` of one product: the layers of a model have alike ones."""
    rows = np.array([[float(max(side, 1))] for side in (batch, m, n, k)])
    columns = gemm_columns(name, rows[0], rows[1], rows[2], rows[3], multiprocessors)
    return {column: float(values[0]) for column, values in columns.items()}
