"""What the features know of how ATen's kernels divide their work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from factories import make_h200
from torchledger.expecting.operator_features import FeatureTable, operator_features
from torchledger.operators import find_operator

H200 = make_h200()


def table_of(name: str, direction: str, *, dtype: str = "bfloat16", **parameters: Any) -> FeatureTable:
    columns = {key: np.atleast_1d(np.asarray(value)) for key, value in parameters.items()}
    count = max(len(column) for column in columns.values())
    columns = {key: np.broadcast_to(column, (count,)) for key, column in columns.items()}
    return operator_features(find_operator(name), columns, direction, np.full(count, dtype), H200)


def column(table: FeatureTable, name: str) -> np.ndarray:
    return table.values[:, table.names.index(name)]


def test_the_loss_has_a_block_of_the_power_of_two_nearest_to_a_sixteenth_of_the_tokens() -> None:
    table = table_of("cross_entropy", "forward", tokens=[8, 720, 736, 1440, 100_000], vocab=1000)
    assert (2 ** column(table, "log loss threads")).tolist() == [32, 32, 64, 64, 1024]
    assert column(table, "log loss steps")[-1] == pytest.approx(np.log(np.ceil(100_000 / 1024)))


def test_tensors_of_an_optimizer_take_vectors_one_by_one() -> None:
    # 4 tensors of 100 elements and a rest of 2 that the first one has too: three of four take vectors.
    table = table_of("adamw", "step", dtype="float32", numel=[402, 404, 401], tensors=[4, 4, 1])
    assert column(table, "share in vectors") == pytest.approx([300 / 402, 0.0, 0.0])


def test_few_rows_or_columns_of_a_grouped_product_take_the_small_tile() -> None:
    table = table_of("grouped_gemm", "forward", groups=4, m=[16, 64, 64], k=512, n=[512, 512, 96])
    assert column(table, "grouped 0 small").tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("name", ["sdpa", "sdpa_varlen"])
def test_half_of_the_blocks_of_keys_are_visible_to_causal_attention(name: str) -> None:
    own = {"b": 2} if name == "sdpa" else {"sequences": 2}
    table = table_of(name, "forward", **own, h=8, l=4096, d=64, causal=[0, 1])
    full, causal = (
        np.exp(column(table, "attention 128x128 blocks") + table.log_baseline)[row] / (32 * 16) for row in range(2)
    )
    assert (full, causal) == (pytest.approx(32), pytest.approx(16.5))


def test_a_softmax_row_that_begins_at_vectors_has_no_unaligned_rest() -> None:
    table = table_of("softmax", "backward", rows=64, dim=[2304, 2085, 500])
    assert column(table, "unaligned rest")[[0, 2]].tolist() == [0.0, 0.0]
    assert column(table, "short unaligned rest")[1] > 0.5


@pytest.mark.parametrize(("name", "direction"), [("rms_norm", "backward"), ("embedding", "backward")])
def test_columns_of_smallest_shapes_are_finite(name: str, direction: str) -> None:
    own = {"rows": [1, 70_000]} if name == "rms_norm" else {"tokens": [1, 70_000], "vocab": [1, 50_000]}
    assert np.isfinite(table_of(name, direction, **own, dim=32).values).all()
