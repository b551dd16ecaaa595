"""Operators of a program's own on a device that is not there."""

from __future__ import annotations

import torch

from torchledger._torch.fakes.device import FakeDevice
from torchledger._torch.library_operators import body_without_rule
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


def test_a_custom_operator_without_a_rule_for_its_result_is_run_for_it() -> None:
    def halves(rows: torch.Tensor, out: torch.Tensor) -> list[torch.Tensor]:
        out.add_(1)
        return [each.clone() for each in rows.chunk(2)]

    operator = torch.library.custom_op("torchledger_unit::halves", halves, mutates_args={"out"})
    with FakeDevice(HOPPER) as fake:
        first, second = operator(torch.zeros(5, 4, device="cuda"), torch.zeros(2, device="cuda"))
        assert first.shape == (3, 4) and second.shape == (2, 4)
        assert fake.tensors.is_our_fake(first) and first.device.type == "cuda"


def test_a_custom_operators_own_rule_comes_before_its_body() -> None:
    def doubled(rows: torch.Tensor) -> torch.Tensor:
        raise AssertionError("it is not run")

    operator = torch.library.custom_op("torchledger_unit::doubled", doubled, mutates_args=())
    assert body_without_rule(torch.ops.torchledger_unit.doubled.default) is not None
    operator.register_fake(lambda rows: rows.new_empty(2 * rows.shape[0]))
    with FakeDevice(HOPPER):
        assert operator(torch.zeros(5, device="cuda")).shape == (10,)
    assert body_without_rule(torch.ops.torchledger_unit.doubled.default) is None
    assert body_without_rule(torch.ops.aten.add.Tensor) is None
