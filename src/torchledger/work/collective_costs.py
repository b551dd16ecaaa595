"""Collectives: the messages that one rank reads and writes in its own memory, whatever a network makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchledger.nouns import Cost
from torchledger.work.cost_parts import Formula, dense, memory_cost, named
from torchledger.work.op_shapes import OpCall, Tensor


def _in_place(call: OpCall) -> Cost | None:
    """Every tensor is sent and overwritten with the result."""
    return memory_cost(call.tensors, [dense(tensor) for tensor in call.tensors]) if call.tensors else None


def _into_output(call: OpCall) -> Cost | None:
    """``c10d``'s own operators are given the result's tensors first and the message after them."""
    return memory_cost([], call.tensors) if call.tensors else None


def _gathered(call: OpCall) -> Cost | None:
    return _scaled(call, grows=True)


def _scattered(call: OpCall) -> Cost | None:
    return _scaled(call, grows=False)


def _scaled(call: OpCall, *, grows: bool) -> Cost | None:
    """The functional forms hold the group's size after the message; a reduction's name may stand between."""
    size = next((values[0] for place in (1, 2) if (values := call.ints(place)) and len(values) == 1), None)
    messages = call.tensor_list(0) or call.tensors[:1]
    if not size or size < 1 or not messages or any(not message.shape for message in messages):
        return None
    results = []
    for message in messages:
        rows = message.shape[0] * size if grows else math.ceil(message.shape[0] / size)
        results.append(Tensor((rows, *message.shape[1:]), message.dtype))
    return memory_cost(messages, results)


def _wait(call: OpCall) -> Cost | None:
    return Cost(0, 0, "exact", "exact")


COLLECTIVE_COSTS: Mapping[str, Formula] = {
    **named("allreduce allreduce_coalesced all_reduce all_reduce_coalesced all_to_all_single broadcast", _in_place),
    **named("_allgather_base allgather _reduce_scatter_base reduce_scatter alltoall alltoall_base", _into_output),
    **named("allgather_into_tensor_coalesced send recv", _into_output),
    **named("all_gather_into_tensor all_gather_into_tensor_coalesced", _gathered),
    **named("reduce_scatter_tensor reduce_scatter_tensor_coalesced", _scattered),
    **named("wait_tensor barrier record_param_comms _wrap_tensor_autograd", _wait),
}
"""Operator name (without namespace and in-place mark) to its formula."""
