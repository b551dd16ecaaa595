from tests.factories import make_buffer, make_launch, make_step_call

from torchledger._torch.fakes.streams import Placed
from torchledger.nouns import Launch, StepCall
from torchledger.planning.communication import collectives_of_step, waits_of_calls

WORLD = {"0": (0, 1, 2, 3)}


def functional(name: str, order: int, *buffers: tuple[str, str, int], **kwargs: str) -> Launch:
    return make_launch(
        order=order,
        kernel_name=f"torch.ops._c10d_functional.{name}.default",
        category="extern",
        buffers=tuple(make_buffer(name=each, role=role, shape=(size,)) for each, role, size in buffers),
        kwargs=kwargs,
    )


def collective(order: int, **changes: object) -> StepCall:
    given = {"kind": "collective", "name": "c10d::allreduce_", "group": "0", "group_size": 4, "message_bytes": 64}
    return make_step_call(order=order, **(given | changes))


def test_waits_are_told_by_the_order_of_calls() -> None:
    placed = [(Placed(0, "compute"), 0), (Placed(1, "side", (0,)), 1), (Placed(2, "compute", (1,)), 2)]
    assert waits_of_calls(placed) == {1: (0,), 2: (1,)}


def test_a_wait_of_what_is_no_call_passes_on_to_the_next_call_of_its_stream() -> None:
    placed = [(Placed(0, "compute"), 0), (Placed(1, "side", (0,)), None), (Placed(2, "side"), 1)]
    assert waits_of_calls(placed) == {1: (0,)}


def test_waiting_for_what_is_no_call_is_waiting_for_the_call_before_it() -> None:
    placed = [(Placed(0, "side"), 0), (Placed(1, "side"), None), (Placed(2, "compute", (1,)), 1)]
    assert waits_of_calls(placed) == {1: (0,)}


def test_no_call_waits_for_one_of_its_own_stream() -> None:
    placed = [(Placed(0, "compute"), 0), (Placed(1, "side", (0,)), None), (Placed(2, "compute", (1,)), 1)]
    assert waits_of_calls(placed) == {}


def test_collectives_of_a_graph_are_those_of_each_of_its_calls_with_message_and_ranks() -> None:
    launches = [
        functional("all_gather_into_tensor", 0, ("a", "input", 8), ("b", "output", 32), group_name="0", group_size="4"),
        functional("wait_tensor", 1, ("b", "input", 32)),
        functional("all_reduce_", 2, ("c", "input", 8), group_name="0"),
    ]
    calls = [make_step_call(order=order, kind="graph", name="forward_0") for order in (0, 3)]
    found = collectives_of_step(calls, {"forward_0": launches}, WORLD)
    assert [(each.operation, each.message_bytes, each.launch, each.waited_by) for each in found] == [
        ("all_gather", 128, 0, 0),
        ("all_reduce", 32, 2, None),
        ("all_gather", 128, 0, 3),
        ("all_reduce", 32, 2, None),
    ]
    assert [each.order for each in found] == [0, 1, 2, 3]
    assert all(each.ranks == (0, 1, 2, 3) and each.issued_ns is None for each in found)


def test_an_eager_collective_is_waited_for_by_the_first_call_that_does() -> None:
    calls = [collective(0), make_step_call(order=1), *(make_step_call(order=each, waits_for=(0,)) for each in (2, 3))]
    (found,) = collectives_of_step(calls, {}, WORLD)
    assert (found.call, found.waited_by, found.message_bytes, found.group_size) == (0, 2, 64, 4)
