"""What a direction takes in the replay of a CUDA graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from torchledger.errors import PredictError
from torchledger.fitting.replays import Replay, copies_slowly, fit_replays, kernels_of, replayed_over_warm
from torchledger.fitting.state_entries import PREFIX
from torchledger.operators import find_operator
from torchledger.predicting import find_model, predict, predict_table

MODEL = find_model("H200")
OF_FAMILIES = replace(
    MODEL, entries={key: entry for key, entry in MODEL.entries.items() if not key.startswith(PREFIX)}
)  # fmt: skip
"""Of a state it knows what families take, and nothing of single directions."""


def test_a_kernel_that_moves_nothing_is_not_counted() -> None:
    linear = {"m": np.array([64, 64]), "k": 64, "n": 64}
    assert kernels_of(find_operator("linear"), linear, "forward", 2.0, 2).tolist() == [1, 1]
    assert kernels_of(find_operator("linear"), linear, "backward", 2.0, 2).tolist() == [2, 2]
    assert kernels_of(find_operator("swiglu"), {"rows": 8, "dim": 64}, "backward", 2.0).tolist() == [3]


def test_what_later_kernels_cost_comes_back() -> None:
    later = {1: 0.0, 2: 0.1, 3: 0.4}
    rows = [
        Replay(f"op{number % 9} backward", "memory", number % 3 + 1, warm_us, warm_us + later[number % 3 + 1])
        for number, warm_us in enumerate(np.random.default_rng(0).uniform(2, 40, 300))
    ]
    learned = fit_replays(rows)
    model = replace(MODEL, extras=learned)
    shift, width = replayed_over_warm(model, "memory", np.array([1, 2, 3]), np.array([4.0, 4.0, 4.0]))
    assert np.exp(shift) * 4 == pytest.approx([4.0, 4.1, 4.4], abs=0.011)
    assert width.max() < 0.01


def test_a_large_copy_of_no_whole_pages_takes_longer_as_a_node_of_a_graph() -> None:
    mask, shape = find_operator("guide.fillmask"), {"mp": 1, "b": 4, "h": 16, "dim": 2048}
    lengths = np.array([2048, 2047, 151])
    asked = shape | {"l": lengths}
    assert copies_slowly(mask, asked, "backward", 2.0, 3).tolist() == [False, True, False]
    assert not copies_slowly(mask, asked, "forward", 2.0, 3).any()
    warm, graph = (
        predict_table(OF_FAMILIES, "guide.fillmask", asked, direction="backward", state=state).duration_us
        for state in ("warm", "graph")
    )
    assert graph[1] / warm[1] > 1.1
    assert graph[[0, 2]] / warm[[0, 2]] == pytest.approx(1.0, abs=0.05)


def test_what_a_slow_copy_costs_comes_back() -> None:
    rows = [
        Replay(
            f"op{number % 4} backward", "memory", 2, warm_us, warm_us * (1.12 if number % 2 else 1.0), number % 2 == 1
        )
        for number, warm_us in enumerate(np.random.default_rng(0).uniform(100, 900, 80))
    ]
    assert fit_replays(rows)["graph copy share"] == pytest.approx(0.12, abs=0.003)


def test_a_model_that_does_not_know_says_so() -> None:
    with pytest.raises(PredictError, match="in a CUDA graph's replay"):
        predict(replace(MODEL, extras={}), "gelu", {"numel": 1 << 20}, state="graph")


def test_several_kernels_take_longer_and_one_as_long() -> None:
    shape = {"rows": 1024, "dim": 1024}
    for direction, longer in (("forward", 0.0), ("backward", 0.1)):
        warm, graph = (
            predict(OF_FAMILIES, "swiglu" if longer else "softmax", shape, direction=direction, state=state)
            for state in ("warm", "graph")
        )
        assert graph.duration_us - warm.duration_us == pytest.approx(longer, abs=0.5 * longer + 0.4 * bool(longer))
        assert graph.high_us / graph.low_us > warm.high_us / warm.low_us
    table = predict_table(MODEL, "swiglu", shape, direction="backward", state="graph")
    assert table.duration_us[0] == pytest.approx(
        predict(MODEL, "swiglu", shape, direction="backward", state="graph").duration_us
    )
