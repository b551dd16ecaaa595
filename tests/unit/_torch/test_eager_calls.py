"""The mode that hears eager operators, beside what is no ordinary operator."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch._prims import rng_prims
from torch.nn.attention.bias import CausalBias, causal_lower_right
from torch.utils.flop_counter import flop_registry, register_flop_formula

from torchledger._torch import eager_calls
from torchledger._torch.alignments import read_lengths_first
from torchledger._torch.composites import is_composite
from torchledger._torch.devices import has_cuda
from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.patching import Patches


def test_a_higher_order_operator_runs_as_it_does_when_nobody_listens() -> None:
    heard = EagerCalls(lambda: None)
    state = torch.get_rng_state()
    assert heard.start()
    try:
        found = rng_prims.run_with_rng_state(state, torch.ops.aten.rand_like.default, torch.empty(3))
        doubled = found * 2
    finally:
        assert heard.stop()
    torch.set_rng_state(state)
    assert torch.equal(found, torch.rand_like(torch.empty(3)))
    assert torch.equal(doubled, found * 2)
    assert not heard.faults
    assert any(call.call.name == "aten::mul" for call in heard.calls)


def test_a_call_of_which_nothing_is_told_is_a_fault_and_no_call_that_nobody_hears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eager_calls, "operator_call", lambda func, args, kwargs: None)
    heard = EagerCalls(lambda: None)
    assert heard.start()
    try:
        found = torch.ones(2) * 2
    finally:
        assert heard.stop()
    assert found.tolist() == [2, 2]
    assert any("aten.mul" in fault for fault in heard.faults)


def test_nested_tensors_are_multiplied_as_they_are_when_nobody_listens() -> None:
    heard = EagerCalls(lambda: None)
    rows = [torch.randn(2, length, 4) for length in (3, 5)]
    ragged = torch.nested.nested_tensor(rows, layout=torch.strided)
    alone = torch.matmul(ragged, ragged.transpose(-1, -2))
    assert heard.start()
    try:
        found = torch.matmul(ragged, ragged.transpose(-1, -2))
    finally:
        assert heard.stop()
    assert all(torch.equal(one, other) for one, other in zip(found.unbind(), alone.unbind(), strict=True))
    assert not heard.faults
    assert any(call.call.name == "aten::matmul" for call in heard.calls)


class Asked(torch.Tensor):
    """A subclass that keeps a list of what is asked of it."""

    functions: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.functions.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_subclass_is_asked_for_no_more_while_operators_are_heard() -> None:
    def step() -> list[str]:
        Asked.functions.clear()
        x = torch.randn(4, 4, requires_grad=True).as_subclass(Asked)
        (x @ x).relu().sum().backward()
        return list(Asked.functions)

    alone = step()
    heard = EagerCalls(lambda: None)
    assert heard.start()
    try:
        heard.graph_begins("forward_0", [torch.ones(3).as_subclass(Asked)])
        found = step()
    finally:
        assert heard.stop()
    assert found == alone and Asked.functions == alone
    assert not heard.faults and any(call.call.name == "aten::mm" for call in heard.calls)


def test_an_operator_whose_parts_fail_is_asked_itself() -> None:
    heard = EagerCalls(lambda: None)
    with torch.inference_mode():
        assert heard.start()
        try:
            with pytest.raises(RuntimeError, match="mat1"):
                torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 5))
            total = torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3)).sum()
        finally:
            assert heard.stop()
    assert total == 24


def test_what_a_storage_holds_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recurrent layers put their weights into one storage: to print it takes an hour on a GPU."""

    def read(storage: Any) -> str:
        raise AssertionError("the storage was printed")

    for kind in (torch.UntypedStorage, torch.TypedStorage):
        monkeypatch.setattr(kind, "__repr__", read)
        monkeypatch.setattr(kind, "__str__", read)
    tensor, other = torch.zeros(4), torch.ones(4)
    heard = EagerCalls(lambda: None)
    assert heard.start()
    try:
        with torch.no_grad():
            tensor.set_(other.untyped_storage(), 1, (2,), (1,))
    finally:
        assert heard.stop()
    assert not heard.faults and tensor.tolist() == [1, 1]
    (call,) = (each.call for each in heard.calls if each.call.name == "aten::set_")
    assert "UntypedStorage" in call.constants and call.ints(3) == (2,)


def test_an_operator_that_changes_its_tensors_shape_is_heard_with_the_one_that_it_was_given() -> None:
    heard = EagerCalls(lambda: None)
    tensor = torch.ones(4, 1)
    assert heard.start()
    try:
        tensor.squeeze_(1)
    finally:
        assert heard.stop()
    assert [each.call.tensors[0].shape for each in heard.calls if each.call.name == "aten::squeeze_"] == [(4, 1)]


def test_an_operator_with_a_kernel_of_the_device_is_not_known_by_its_parts() -> None:
    assert is_composite("aten::linear") is True
    assert is_composite("aten::mm") is False
    assert is_composite("aten::where") is None
    assert is_composite("aten::mish_backward") is False  # made of others where no kernel is


def test_a_program_that_took_no_memory_of_a_gpu_does_not_use_one() -> None:
    assert has_cuda() is False


def test_the_parts_of_distributed_tensors_are_heard_with_how_many_they_are_of() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    heard = EagerCalls(lambda: None)
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (4,))
        whole = [DTensor.from_local(torch.ones(11), mesh, [Shard(0)], run_check=False) for _ in range(3)]
        plain = [torch.ones(11) for _ in range(3)]
        torch._foreach_add_(whole, 1.0)
        assert heard.start()
        try:
            torch._foreach_mul_(whole, 2.0)
            torch._foreach_mul_(plain, 2.0)
        finally:
            assert heard.stop()
    finally:
        torch.distributed.destroy_process_group()
    assert not heard.faults
    assert [call.distributed for call in heard.calls if call.call.name == "aten::_foreach_mul_"] == [3, 0]
    assert torch.equal(whole[0].to_local(), torch.full((11,), 4.0))


def test_what_distributed_tensors_try_without_data_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    class Propagator:
        def _propagate_tensor_meta_non_cached(self, schema: str) -> torch.Size:
            return torch.empty_strided((4, 4), (4, 1)).mul_(2).shape

    module = SimpleNamespace(ShardingPropagator=Propagator)
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor._sharding_prop", module)
    heard = EagerCalls(lambda: None)
    assert heard.start()
    try:
        found = Propagator()._propagate_tensor_meta_non_cached("mul")
        torch.ones(4).mul_(2)
    finally:
        assert heard.stop()
    assert found == (4, 4)
    assert [call.call.name for call in heard.calls] == ["aten::ones", "aten::mul_"]
    assert not hasattr(Propagator._propagate_tensor_meta_non_cached, "_torchledger"), "it is as it was"


def test_where_a_checkpoint_ends_what_it_runs_again_is_heard() -> None:
    from torch.utils.checkpoint import _StopRecomputationError, checkpoint

    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    result = checkpoint(lambda x: second(first(x).tanh()), torch.ones(2, 4), use_reentrant=False)
    heard = EagerCalls(lambda: None)
    assert heard.start()
    try:
        result.sum().backward()
    finally:
        assert heard.stop()
    (stop,) = (place for place, call in enumerate(heard.calls) if call.stops)
    names = [call.call.name for call in heard.calls]
    assert names[:stop].count("aten::addmm") == 1, "the second product is not run again"
    assert "aten::mm" in names[stop:], "its backward comes next"
    assert not heard.faults and "__init__" not in vars(_StopRecomputationError)


def test_an_operator_of_the_programs_own_is_heard_with_the_flops_of_its_formula() -> None:
    library = torch.library.Library("torchledger_heard", "FRAGMENT")
    own = torch.ops.torchledger_heard
    for name in ("known", "unknown", "failing"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x + 1, "CPU")
    register_flop_formula(own.known)(lambda shape, *args, **kwargs: 10 * shape[0])
    register_flop_formula(own.failing)(lambda shape, *args, **kwargs: shape[7])
    heard = EagerCalls(lambda: None)
    try:
        assert heard.start()
        own.failing(own.unknown(own.known(torch.ones(3))))
        assert heard.stop()
    finally:
        for packet in (own.known, own.failing):
            flop_registry.pop(packet)
        library._destroy()
    found = {call.call.name: call.flops for call in heard.calls if call.call.name.startswith("torchledger")}
    assert found == {
        f"torchledger_heard::{name}": flops for name, flops in (("known", 30), ("unknown", None), ("failing", None))
    }
    assert not heard.faults


def test_an_alignment_is_scored_as_it_is_when_nobody_listens() -> None:
    scores = torch.randn(10, 4, 6, requires_grad=True)
    targets, lengths = torch.randint(1, 6, (4, 3)), (torch.full((4,), 10), torch.full((4,), 3))

    def scored() -> torch.Tensor:
        scores.grad = None
        loss = torch.nn.functional.ctc_loss(scores.log_softmax(-1), targets, *lengths)
        loss.backward()
        assert scores.grad is not None
        return scores.grad

    alone = scored()
    heard = EagerCalls(lambda: None)
    assert heard.start()
    try:
        found = scored()
    finally:
        assert heard.stop()
    assert torch.equal(found, alone)
    assert {"aten::_ctc_loss", "aten::_ctc_loss_backward"} <= {call.call.name for call in heard.calls}


class _Named(torch.Tensor):
    """A class that a program calls to make a tensor of it."""


def test_a_class_of_tensors_is_called_as_it_is_when_nobody_listens() -> None:
    heard = EagerCalls(lambda: None)
    assert heard.start()
    try:
        made = [_Named(3), _Named([1.0, 2.0]), _Named(torch.ones(2)), causal_lower_right(4, 8), torch.Tensor(3)]
        query, key = torch.ones(1, 1, 4, 8), torch.ones(1, 1, 8, 8)
        found = torch.nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=made[3])
        (made[1] * 2).sum()
    finally:
        assert heard.stop()
    assert [type(each) for each in made] == [_Named, _Named, _Named, CausalBias, torch.Tensor]
    assert found.shape == query.shape and made[1].tolist() == [1.0, 2.0]
    assert {"aten::mul", "aten::sum"} <= {call.call.name for call in heard.calls}
    assert "__new__" not in vars(torch.Tensor) and type(_Named(2)) is _Named


def test_lengths_on_the_host_are_read_as_torch_reads_them_when_nobody_listens() -> None:
    given: list[type] = []
    patches = Patches()
    patches.set(torch, "ctc_loss", lambda *args, **kwargs: given.extend(type(each) for each in args[2:4]))
    read_lengths_first(patches)
    lengths = torch.full((4,), 3)
    torch.ctc_loss(torch.randn(10, 4, 6), torch.ones(4, 3), lengths, target_lengths=lengths)
    torch.ctc_loss(torch.randn(10, 4, 6), torch.ones(4, 3), [10] * 4, lengths.to("meta"))
    patches.undo()
    assert given == [list, list, list, torch.Tensor]


def test_a_sparse_matrix_counts_for_what_it_holds() -> None:
    dense = torch.eye(64)
    heard = EagerCalls(lambda: None)
    for matrix, held in ((dense.to_sparse(), 64 * (4 + 16)), (dense.to_sparse_csr(), 64 * (4 + 8) + 65 * 8)):
        assert heard.start()
        try:
            torch.sparse.mm(matrix, dense)
        finally:
            assert heard.stop()
        found = [each for call in heard.calls for each in call.call.tensors if each.held_bytes is not None]
        assert found and {(each.bytes, each.values) for each in found} == {(held, 64)}
        assert not heard.faults


def test_torchs_functions_behind_the_programs_innermost_line_are_told_apart() -> None:
    class Wrapped(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.silu(x)

    heard = EagerCalls(lambda: None)
    assert heard.start()
    try:
        torch.nn.Sequential(Wrapped())(torch.ones(2))
    finally:
        assert heard.stop()
    (call,) = [call for call in heard.calls if call.call.name == "aten::silu"]
    assert call.library[call.behind_line :] == ("torch/nn/functional.py:silu",)
    assert "torch/nn/modules/container.py:forward" in call.library[: call.behind_line]
