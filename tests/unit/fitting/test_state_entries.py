"""What single directions take in a state of timing, beyond their family."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from torchledger.errors import PredictError
from torchledger.fitting.replays import bytes_of_direction
from torchledger.fitting.state_entries import (
    COLUMNS,
    LEAST_SHAPES,
    PREFIX,
    Rest,
    fit_rests,
    replay_columns,
    rest_of_state,
    turn_columns,
)
from torchledger.fitting.turns import between_turns
from torchledger.operators import find_operator
from torchledger.predicting import find_model, predict, predict_table

MODEL = find_model("H200")


def rests(count: int, *, key: str = "gelu") -> list[Rest]:
    """A direction that takes a tenth longer where it reads more than 20 MB."""
    rng = np.random.default_rng(0)
    read, written, warm_us = (rng.uniform(*bounds, count) for bounds in ((1e6, 60e6), (1e6, 60e6), (2, 40)))
    columns = replay_columns(read, written, np.ones(count, np.int64), warm_us)
    return [
        Rest(key, "forward", row, 0.1 if each > 20e6 else 0.0) for row, each in zip(columns, read, strict=True)
    ]  # fmt: skip


def test_what_is_left_of_a_direction_comes_back_at_other_sizes() -> None:
    model = replace(MODEL, entries=fit_rests("graph", rests(200)))
    asked = replay_columns(np.array([4e6, 50e6]), np.array([9e6, 9e6]), np.ones(2, np.int64), np.array([8.0, 8.0]))
    found = rest_of_state(model, "graph", "gelu", "forward", asked)
    assert found is not None
    assert found[0] == pytest.approx([0.0, 0.1], abs=0.01)
    assert (found[1] < 0.1).all()


def test_a_direction_of_few_shapes_is_left_to_its_family() -> None:
    entries = fit_rests("graph", [*rests(LEAST_SHAPES - 1, key="mul"), *rests(2 * LEAST_SHAPES)])
    assert list(entries) == [f"{PREFIX}graph/gelu/forward"]
    model = replace(MODEL, entries=entries)
    assert rest_of_state(model, "graph", "mul", "forward", np.zeros((1, 4))) is None
    assert rest_of_state(model, "turns", "gelu", "forward", np.zeros((1, 7))) is None


def test_columns_are_those_that_an_entry_names() -> None:
    operator, shape = find_operator("softmax"), {"rows": np.array([512, 4096]), "dim": 1024}
    between = between_turns(operator, shape, "backward", 2.0, "memory", 2)
    assert between is not None
    assert turn_columns(between, np.array([3.0, 9.0])).shape == (2, len(COLUMNS["turns"]))
    read, written = bytes_of_direction(operator, shape, "backward", 2.0, 2)
    assert (read / written).tolist() == [2.0, 2.0]
    assert replay_columns(read, written, np.array([1, 1]), np.array([3.0, 9.0])).shape == (2, len(COLUMNS["graph"]))


@pytest.mark.parametrize("state", ["turns", "graph"])
def test_a_state_is_told_by_the_direction_itself_where_the_model_knows_it(state: str) -> None:
    assert f"{PREFIX}{state}/softmax/forward" in MODEL.entries
    alone = replace(
        MODEL, entries={key: entry for key, entry in MODEL.entries.items() if not key.startswith(PREFIX)}
    )  # fmt: skip
    shapes = {"rows": np.array([256, 4096, 16384]), "dim": np.array([1024, 1024, 2048])}
    own, family, warm = (
        predict_table(model, "softmax", shapes, direction="forward", state=each).duration_us
        for model, each in ((MODEL, state), (alone, state), (MODEL, "warm"))
    )
    assert (own != family).any()
    assert own / family == pytest.approx(1.0, abs=0.25)
    assert own / warm == pytest.approx(1.0, abs=0.6)


def test_what_another_device_taught_is_not_taken_over() -> None:
    carried, columns = find_model("A100"), np.zeros((1, len(COLUMNS["turns"])))
    assert f"{PREFIX}turns/softmax/forward" in carried.entries
    assert rest_of_state(carried, "turns", "softmax", "forward", columns) is None


def test_entries_of_states_are_no_operators() -> None:
    with pytest.raises(PredictError) as caught:
        predict(MODEL, "no_such_thing_at_all", {"numel": 4})
    assert "state:" not in str(caught.value) and "launch:" not in str(caught.value)
