"""Packages that would write a graph for export if they saw that a plan's tensors are fake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses import FakeTensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import create_causal_mask
from transformers.utils import import_utils

from torchledger._torch.fakes.device import FakeDevice
from torchledger._torch.fakes.guises import take_tensors_for_real
from torchledger._torch.patching import Patches
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)
CONFIG = LlamaConfig(
    hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=32, use_cache=False, attn_implementation="sdpa",
)  # fmt: skip
BATCH, LENGTH = 3, 16


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


def masked(mask: torch.Tensor | None, positions: torch.Tensor | None = None) -> torch.Tensor | None:
    embedded = torch.zeros(BATCH, LENGTH, 64, device="cuda")
    made: torch.Tensor | None = create_causal_mask(
        config=CONFIG, inputs_embeds=embedded, attention_mask=mask, past_key_values=None, position_ids=positions
    )
    return made


def test_transformers_takes_no_tensor_of_a_plan_for_a_fake_one_until_the_plan_ends() -> None:
    with FakeDevice(HOPPER):
        tensor = torch.zeros(2, device="cuda")
        assert isinstance(tensor, FakeTensor)
        assert not import_utils.is_fake_tensor(tensor)
        assert not import_utils.is_tracing(tensor)
    assert import_utils.is_fake_tensor(tensor)


def test_what_is_not_there_to_be_asked_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(import_utils, "is_fake_tensor")
    patches = Patches()
    take_tensors_for_real(patches)
    assert not hasattr(import_utils, "is_fake_tensor")
    patches.undo()


def test_a_mask_that_hides_nothing_is_left_out_as_on_a_device(fake: FakeDevice) -> None:
    words = torch.randint(0, 32, (BATCH, LENGTH), device="cuda")
    assert masked(torch.ones_like(words)) is None
    assert masked(None, torch.arange(LENGTH, device="cuda")[None]) is None


def test_a_mask_that_hides_something_is_made(fake: FakeDevice) -> None:
    padded = torch.ones(BATCH, LENGTH, dtype=torch.int64, device="cuda")
    padded[0, LENGTH // 2 :] = 0
    made = masked(padded)
    assert made is not None and made.shape == (BATCH, 1, LENGTH, LENGTH)


def test_keys_are_not_repeated_where_attention_is_causal_by_itself(fake: FakeDevice) -> None:
    from torchledger._torch.eager_calls import EagerCalls

    model = LlamaForCausalLM(CONFIG).to("cuda", torch.bfloat16)
    words = torch.randint(0, 32, (BATCH, LENGTH), device="cuda")
    heard = EagerCalls(lambda: None)
    assert heard.start()
    try:
        model(input_ids=words, attention_mask=torch.ones_like(words))
    finally:
        assert heard.stop()
    (attention,) = (each.call for each in heard.calls if "attention" in each.call.name)
    assert [each.shape[1] for each in attention.tensors[:3]] == [4, 2, 2]
