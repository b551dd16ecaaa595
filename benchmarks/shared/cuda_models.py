"""Models at working sizes for the GPU benchmarks: ``make(name)`` gives a module on the GPU and a step function.

Needs ``timm`` and ``transformers``; weights are random, nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class GpuCase:
    """A module and ``step(model)``, which runs one training (or inference) step on the given (compiled) module."""

    module: nn.Module
    step: Callable[[Any], Any]
    is_training: bool = True


def _autocast() -> Any:
    return torch.autocast("cuda", torch.bfloat16)


def _image_training(module: nn.Module, batch: int, size: int = 224) -> GpuCase:
    module = module.cuda().train()
    images = torch.randn(batch, 3, size, size, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")

    def step(model: Any) -> None:
        with _autocast():
            output = model(images)
            loss = F.cross_entropy(getattr(output, "logits", output), labels)
        loss.backward()

    return GpuCase(module, step)


def _token_training(module: nn.Module, vocabulary: int, batch: int, length: int) -> GpuCase:
    module = module.cuda().train()
    ids = torch.randint(0, vocabulary, (batch, length), device="cuda")

    def step(model: Any) -> None:
        with _autocast():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()

    return GpuCase(module, step)


def _mixnet(batch: int) -> GpuCase:
    import timm

    return _image_training(timm.create_model("mixnet_l"), batch)


def _gpt2(batch: int) -> GpuCase:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return _token_training(GPT2LMHeadModel(config), 50257, batch, 512)


def _llama(batch: int) -> GpuCase:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4,
        vocab_size=32000, use_cache=False,
    )  # fmt: skip
    return _token_training(LlamaForCausalLM(config), 32000, batch, 1024)


def _bert(batch: int) -> GpuCase:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return _token_training(BertForMaskedLM(config), 30522, batch, 512)


def _t5(batch: int) -> GpuCase:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(use_cache=False, dropout_rate=0.0, decoder_start_token_id=0)
    return _token_training(T5ForConditionalGeneration(config), 32128, batch, 256)


def _vit(batch: int) -> GpuCase:
    import timm

    return _image_training(timm.create_model("vit_base_patch16_224"), batch)


def _resnet50(batch: int) -> GpuCase:
    import timm

    return _image_training(timm.create_model("resnet50"), batch)


def _convnext(batch: int) -> GpuCase:
    import timm

    return _image_training(timm.create_model("convnext_tiny"), batch)


def _resnet50_inference(batch: int) -> GpuCase:
    import timm

    module = timm.create_model("resnet50").cuda().eval()
    images = torch.randn(batch, 3, 224, 224, device="cuda")

    def step(model: Any) -> None:
        with torch.no_grad(), _autocast():
            model(images)

    return GpuCase(module, step, is_training=False)


_MAKERS: dict[str, tuple[Callable[[int], GpuCase], tuple[int, ...]]] = {
    "mixnet_l": (_mixnet, (32, 64)),
    "gpt2": (_gpt2, (8, 16)),
    "llama": (_llama, (4, 8)),
    "bert": (_bert, (16, 32)),
    "t5": (_t5, (16, 32)),
    "vit": (_vit, (32, 64)),
    "resnet50": (_resnet50, (32, 64)),
    "convnext": (_convnext, (32, 64)),
    "resnet50_inference": (_resnet50_inference, (32, 64)),
}
NAMES = tuple(_MAKERS)
STEP_TIME_NAMES = ("gpt2", "llama", "bert", "t5", "vit", "resnet50", "convnext", "mixnet_l")


def batches(name: str) -> tuple[int, ...]:
    """The batch sizes that a model is run with."""
    return _MAKERS[name][1]


def make(name: str, batch: int | None = None) -> GpuCase:
    """The named model on the GPU, the same weights at every call."""
    torch.manual_seed(0)
    maker, sizes = _MAKERS[name]
    return maker(batch if batch is not None else sizes[0])
