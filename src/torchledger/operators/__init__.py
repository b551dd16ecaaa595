"""The catalogue of operators that can be sampled and predicted.

Enters: an operator's name and its parameters (plain numbers, or numpy arrays of them). Leaves: the tensors it works on,
what its forward and backward run, and the FLOPs and bytes of each kernel in them. Counting needs no torch; running
imports it late.
"""

from torchledger.operators.catalogue import (
    find_operator,
    load_operators,
    loaded_operator_files,
    operator_names,
    register_operator,
)
from torchledger.operators.declaration import Input, Operator, Parameters, Work

__all__ = [
    "Input",
    "Operator",
    "Parameters",
    "Work",
    "find_operator",
    "load_operators",
    "loaded_operator_files",
    "operator_names",
    "register_operator",
]
