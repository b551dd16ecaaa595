"""The sizes of a call are read from its inputs."""

from __future__ import annotations

import torch

from torchledger._torch.call_sizes import symbol_values


def test_symbols_are_read_from_numbers_sizes_and_strides() -> None:
    inputs = [7, torch.empty(3, 5).t()]
    places = {"s0": "inputs[0]", "s1": "inputs[1].size(0)", "s2": "inputs[1].stride(1)"}
    assert symbol_values(inputs, places) == {"s0": 7, "s1": 5, "s2": 5}


def test_what_is_no_place_or_is_not_there_is_left_out() -> None:
    places = {"a": "inputs[9]", "b": "inputs[0].size(4)", "c": "inputs[0].data_ptr()", "d": "exit()", "e": "inputs[0]"}
    assert symbol_values([torch.empty(3)], places) == {}
