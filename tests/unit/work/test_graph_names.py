"""Names of graphs."""

from __future__ import annotations

from typing import get_args

from torchledger.nouns import Direction
from torchledger.work.graph_names import direction_of, graph_name


def test_a_graphs_name_tells_its_direction() -> None:
    for direction in get_args(Direction):
        assert direction_of(graph_name(direction, 12)) == direction
    assert direction_of("train_step") == direction_of("") == "inference"
