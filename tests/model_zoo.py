"""Small models of many kinds, each with inputs and a scalar loss: what the capture tests and benchmarks run.

``make(name)`` returns ``(module, inputs, loss)`` where ``loss(module_or_compiled, *inputs)`` is a scalar tensor.
Everything is random-weight and deterministic per name; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A model, its inputs and how a scalar loss is made of them."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    loss: Callable[..., Tensor]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x)))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.grouped = nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=4)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = self.pool(F.relu(self.grouped(x)))
        return self.head(x.mean((2, 3)))


class GptBlock(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class LstmLoop(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.gates_x = nn.Linear(width, 4 * width)
        self.gates_h = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(x.shape[0], self.width)
        outputs = []
        for step in range(x.shape[1]):
            gates = self.gates_x(x[:, step]) + self.gates_h(hidden)
            enter, forget, candidate, leave = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, 1)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, 16)
        self.kinds = nn.Embedding(10, 16)
        self.core = nn.Parameter(torch.randn(32, 8, 16) * 0.1)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: Tensor, kinds: Tensor) -> Tensor:
        x = torch.cat([self.tokens(tokens), self.kinds(kinds)], dim=-1)
        x = torch.einsum("bld,dhe->blhe", x, self.core)
        scores = torch.einsum("blhe,bmhe->bhlm", x, x).softmax(-1)
        return self.head(torch.einsum("bhlm,bmhe->ble", scores, x))


class MiniUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 4, stride=2, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1)
        self.out = nn.Conv2d(11, 3, 1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.silu(self.norm(self.middle(F.silu(self.down(x)))))
        return self.out(torch.cat([self.up(inner), x], dim=1))


class Experts(nn.Module):
    """Top-1 routing by sorting and scattering: the library calls that are no matrix products."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        groups = x[order].view(self.up.shape[0], -1, x.shape[-1])
        mixed = torch.bmm(F.silu(torch.bmm(groups, self.up)), self.down).view_as(x)
        back = torch.zeros_like(x).scatter(0, order[:, None].expand_as(x), mixed)
        return back * weights[:, None]


class Bilinear(nn.Module):
    """Outer products, matrix-vector products and a batched product with a broadcast operand."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(24))
        self.table = nn.Parameter(torch.randn(24, 12) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        outer = self.left[:, None] @ x[:1, :12]
        vector = self.table.mv(x[0, :12])
        batched = x.view(2, -1, 12) @ self.table.t()
        return outer.sum() + vector.sum() + batched.tanh().sum()


def _classify(model: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(model(x), target)


def _summed(model: Any, *inputs: Tensor) -> Tensor:
    return model(*inputs).float().square().mean()


def _labelled(model: Any, ids: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def _pictured(model: Any, pixels: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = model(pixel_values=pixels, labels=labels).loss
    return loss


def _gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=211, n_positions=64, use_cache=False)
    return Case(GPT2LMHeadModel(config), (torch.randint(0, 211, (2, 32)),), _labelled)


def _llama(layers: int = 2) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=200, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return Case(LlamaForCausalLM(config), (torch.randint(0, 200, (2, 32)),), _labelled)


def _bert(layers: int = 2) -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4, vocab_size=200,
        max_position_embeddings=64,
    )  # fmt: skip
    return Case(BertForMaskedLM(config), (torch.randint(0, 200, (2, 32)),), _labelled)


def _vit(layers: int = 2) -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4, image_size=32,
        patch_size=8, num_labels=10,
    )  # fmt: skip
    return Case(ViTForImageClassification(config), (torch.randn(2, 3, 32, 32), torch.tensor([1, 2])), _pictured)


def _resnet() -> Case:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], layer_type="basic", num_labels=10)
    return Case(ResNetForImageClassification(config), (torch.randn(2, 3, 32, 32), torch.tensor([1, 2])), _pictured)


def _t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=64, d_ff=128, d_kv=16, num_layers=1, num_heads=4, vocab_size=200, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    return Case(T5ForConditionalGeneration(config), (torch.randint(0, 200, (2, 16)),), _labelled)


_MAKERS: dict[str, Callable[..., Case]] = {
    "mlp": lambda: Case(Mlp(), (torch.randn(32, 64), torch.randint(0, 10, (32,))), _classify),
    "conv_net": lambda: Case(ConvNet(), (torch.randn(2, 3, 16, 16), torch.tensor([1, 2])), _classify),
    "gpt_block": lambda: Case(GptBlock(), (torch.randn(2, 16, 64),), _summed),
    "lstm_loop": lambda: Case(LstmLoop(), (torch.randn(4, 6, 32),), _summed),
    "mixer": lambda: Case(Mixer(), (torch.randint(0, 100, (2, 12)), torch.randint(0, 10, (2, 12))), _summed),
    "gpt2": _gpt2,
    "llama_gqa": _llama,
    "bert": _bert,
    "vit": _vit,
    "resnet": _resnet,
    "mini_unet": lambda: Case(MiniUNet(), (torch.randn(2, 3, 16, 16),), _summed),
    "experts": lambda: Case(Experts(), (torch.randn(16, 16),), _summed),
    "bilinear": lambda: Case(Bilinear(), (torch.randn(4, 24),), _summed),
    "t5": _t5,
}

REQUIRED = ("mlp", "conv_net", "gpt_block", "lstm_loop", "mixer", "gpt2", "llama_gqa", "bert", "vit", "resnet")
BEYOND = tuple(name for name in _MAKERS if name not in REQUIRED)


def make(name: str, *, layers: int | None = None) -> Case:
    """The named case, the same at every call. Dropout is off, so that eager and compiled do the same work.

    ``layers`` is for `llama_gqa`, `bert` and `vit`, which have two layers if it is not said.
    """
    torch.manual_seed(0)
    case = _MAKERS[name](**({} if layers is None else {"layers": layers}))
    for module in case.module.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for part in case.module.modules():
        if isinstance(getattr(part, "attention_dropout", None), float):
            part.attention_dropout = 0.0
        if isinstance(getattr(part, "dropout_prob", None), float):
            part.dropout_prob = 0.0
    return case
