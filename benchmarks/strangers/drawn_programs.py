"""Programs drawn by chance, that nobody chose.

    python -m benchmarks.strangers.drawn_programs SET-INDEX [STEPS] [--tiny] [--device cpu]

A set's name and an index decide everything: the architecture (model types of transformers and torchvision, and random
mixtures of our own), its sizes, precision, where the loss is, the optimizer, the mode of compilation, dropout, memory
layout. Weights are random; nothing is downloaded. ``SETS`` are three: one to develop on, one to look at between
attempts, one sealed, whose figures are reported whatever they are.

Run as a script, a program knows nothing of torchledger and prints its own times as a line of JSON: steps that each wait
for the device (``synced_ms``), and the mean of steps that do not (``step_ms``), in pieces (``pieces_ms``) with how fast
the host was around each: a piece of plain Python (``plain_us``) and a small eager training step (``small_us``). With
``DRAWN_GATE``, a folder, it says there that it has compiled (``NAME.ready``), and waits for ``NAME.go`` before it goes
on; programs with the same ``DRAWN_TURNS``, a file, take turns when Inductor measures what it chooses among.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SETS = ("develop", "look", "sealed", "devices")
WARM_STEPS = 3
_PIECE_STEPS = 10
"""Pieces of steps are of so many at least."""
_GENERATION = "2026-11"
"""Part of every seed: another generation of programs is another word here."""


@dataclass(frozen=True)
class Recipe:
    """A program: what kind of model at which sizes, and how it is trained or asked."""

    name: str
    family: str
    sizes: Mapping[str, int]
    precision: str
    loss: str
    optimizer: str
    mode: str
    dropout: float
    channels_last: bool


@dataclass
class Parts:
    """A module, what it is called with, and the loss of what it returns."""

    module: Any
    inputs: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], Any] = lambda out: out.float().square().mean()


DECODERS = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "olmo",
    "granite",
    "gpt_neox",
    "phi",
    "stablelm",
    "starcoder2",
)
ENCODERS = ("bert", "roberta", "electra", "mpnet", "xlm-roberta", "ernie")
OTHER_TEXT = ("gpt2", "distilbert", "opt", "bart", "t5", "albert")
VISION_TRANSFORMERS = ("vit", "dinov2", "swin")
CONVOLUTIONAL = ("convnext", "convnextv2", "resnet", "regnet", "mobilenet_v2", "poolformer")
TORCHVISION = (
    "resnet",
    "resnext",
    "densenet",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "shufflenet_v2_x1_0",
    "vgg11_bn",
)
OWN = ("decoder", "unet", "mixer", "recommender", "graph_net", "ranker", "experts", "audio")
_GROUPS = (
    ("hf_decoder", DECODERS, 5), ("hf_encoder", ENCODERS, 3), ("hf_text", OTHER_TEXT, 4),
    ("hf_vision", VISION_TRANSFORMERS, 3), ("hf_conv", CONVOLUTIONAL, 3), ("torchvision", TORCHVISION, 2),
    ("own", OWN, 8),
)  # fmt: skip


def draw(name: str, *, tiny: bool = False) -> Recipe:
    """The program of a name such as ``"sealed-7"``; ``tiny`` makes its sizes small, for a machine without a GPU.

    Raises ``ValueError`` for a set that is none of ``SETS``.
    """
    chosen, _, index = name.rpartition("-")
    if chosen not in SETS or not index.isdigit():
        raise ValueError(f"{name!r} is no program: write SET-INDEX, where SET is one of {', '.join(SETS)}.")
    pick = random.Random(f"{_GENERATION}/{name}")
    group, members, _ = pick.choices(_GROUPS, [weight for *_, weight in _GROUPS])[0]
    family = f"{group}.{pick.choice(members)}"
    is_image = group in ("hf_vision", "hf_conv", "torchvision") or family == "own.unet"
    sizes = _image_sizes(pick) if is_image else _token_sizes(pick)
    training = pick.random() < 0.85
    mode = pick.choices(
        ("default", "reduce-overhead", "max-autotune-no-cudagraphs"), (0.68, 0.25, 0.07)
    )[0] if training else "inference"  # fmt: skip
    if mode.startswith("max"):
        sizes["layers"] = 1
    if tiny:
        sizes = _tiny(sizes)
    return Recipe(
        name=name,
        family=family,
        sizes=sizes,
        precision=pick.choices(("autocast", "bf16", "fp16", "tf32", "fp32"), (0.4, 0.25, 0.13, 0.15, 0.07))[0],
        loss=pick.choice(("inside", "outside")),
        optimizer=pick.choice(("adamw fused", "adamw fused", "adamw foreach", "sgd foreach", "none"))
        if training
        else "none",
        mode=mode,
        dropout=0.1 if pick.random() < 0.3 else 0.0,
        channels_last=is_image and pick.random() < 0.5,
    )


def _token_sizes(pick: random.Random) -> dict[str, int]:
    head_dim = pick.choice((32, 64, 64, 64, 80, 96, 128, 128))
    heads = pick.choice([count for count in (4, 6, 8, 12, 16, 20, 24) if 192 <= count * head_dim <= 2048])
    length = pick.choice((64, 128, 197, 256, 384, 512, 512, 1024, 2048))
    tokens = round(2 ** pick.uniform(11, 14))
    vocabulary = pick.choice((1000, 8192, 16000, 30522, 32000, 50257, 50304))
    width = heads * head_dim
    tokens = min(tokens, 2**27 // vocabulary, 2**24 // width)
    return {
        "layers": pick.choice((1, 2, 2, 3, 4)),
        "heads": heads,
        "groups": pick.choice([each for each in (1, 1, 2, 4) if heads % each == 0]),
        "head_dim": head_dim,
        "hidden": round(width * pick.choice((2, 8 / 3, 3.5, 4)) / 64) * 64,
        "length": min(length, tokens),
        "batch": max(1, tokens // length),
        "vocabulary": vocabulary,
    }


def _image_sizes(pick: random.Random) -> dict[str, int]:
    side = pick.choice((64, 96, 128, 160, 192, 224))
    return {
        "layers": pick.choice((1, 2, 2, 3)),
        "heads": pick.choice((3, 4, 6, 8, 12)),
        "head_dim": pick.choice((32, 64, 64)),
        "patch": pick.choice((8, 16, 16)) if side <= 128 else 16,
        "width": pick.choice((32, 48, 64, 96, 128)),
        "side": side,
        "batch": max(4, round(2 ** pick.uniform(3, 6) * (224 / side) / 2)),
        "classes": pick.choice((10, 100, 1000)),
    }


def _tiny(sizes: Mapping[str, int]) -> dict[str, int]:
    limits = {
        "layers": 1, "heads": 4, "groups": 2, "head_dim": 8, "hidden": 64, "length": 16, "batch": 2, "vocabulary": 128,
        "patch": 16, "width": 16, "side": 64, "classes": 10,
    }  # fmt: skip
    small = {key: min(value, limits[key]) for key, value in sizes.items()}
    if "heads" in small:
        small["heads"] = 4
    return small


# --- models of transformers and torchvision ---------------------------------------------------------------------------


def _hf(recipe: Recipe, model_type: str, task: str, **settings: Any) -> Any:
    import transformers

    config = transformers.AutoConfig.for_model(model_type, **settings)
    for name in (
        "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "activation_dropout",
        "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout_rate", "hidden_dropout", "resid_dropout", "drop_path_rate",
        "classifier_dropout_prob", "residual_dropout", "embedding_dropout",
    ):  # fmt: skip
        if isinstance(getattr(config, name, None), float | int):
            # Stochastic depth draws whole branches: it is left out.
            setattr(config, name, 0.0 if name == "drop_path_rate" else recipe.dropout)
    config.use_cache = False
    return getattr(transformers, task).from_config(config)


def _hf_text(recipe: Recipe, model_type: str, place: Any) -> Parts:
    import torch

    s = recipe.sizes
    width = s["heads"] * s["head_dim"]
    common = {"vocab_size": s["vocabulary"], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    positions = s["length"] + 8
    ids = torch.randint(3, s["vocabulary"], (s["batch"], s["length"]), device=place)
    task = "AutoModelForCausalLM"
    named = {"input_ids": ids}
    if model_type == "gpt2":
        settings = {"n_embd": width, "n_layer": s["layers"], "n_head": s["heads"], "n_positions": positions}
    elif model_type == "distilbert":
        task = "AutoModelForMaskedLM"
        settings = {
            "dim": width, "n_layers": s["layers"], "n_heads": s["heads"], "hidden_dim": s["hidden"],
            "max_position_embeddings": positions,
        }  # fmt: skip
    elif model_type in ("t5", "bart"):
        task = "AutoModelForSeq2SeqLM"
        named["decoder_input_ids"] = ids.flip(1).contiguous()
        settings = {"d_model": width, "decoder_start_token_id": 0}
        if model_type == "t5":
            settings |= {"d_kv": s["head_dim"], "d_ff": s["hidden"], "num_layers": s["layers"], "num_heads": s["heads"]}
        else:
            settings |= {
                "encoder_layers": s["layers"], "decoder_layers": s["layers"], "encoder_attention_heads": s["heads"],
                "decoder_attention_heads": s["heads"], "encoder_ffn_dim": s["hidden"], "decoder_ffn_dim": s["hidden"],
                "max_position_embeddings": positions,
            }  # fmt: skip
    else:
        settings = {
            "hidden_size": width, "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"],
            "intermediate_size": s["hidden"], "max_position_embeddings": positions,
        }  # fmt: skip
        if model_type in DECODERS:
            settings |= {"num_key_value_heads": s["heads"] // s["groups"], "head_dim": s["head_dim"]}
            if model_type in ("gpt_neox", "phi", "stablelm", "olmo"):
                settings.pop("head_dim")
        elif model_type == "opt":
            settings |= {"ffn_dim": s["hidden"], "word_embed_proj_dim": width}
        else:
            task = "AutoModelForMaskedLM"
            settings |= {"embedding_size": min(width, 128)} if model_type in ("albert", "electra") else {}
    module = _hf(recipe, model_type, task, **common, **settings)
    labels = torch.randint(0, s["vocabulary"], (s["batch"], s["length"]), device=place)
    return Parts(module, named=named, loss=lambda out: _cross_entropy(out.logits, labels))


def _cross_entropy(logits: Any, labels: Any) -> Any:
    from torch.nn import functional as F

    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


def _images(recipe: Recipe, place: Any) -> tuple[Any, Any]:
    import torch

    s = recipe.sizes
    images = torch.randn(s["batch"], 3, s["side"], s["side"], device=place)
    if recipe.channels_last:
        images = images.to(memory_format=torch.channels_last)
    return images, torch.randint(0, s["classes"], (s["batch"],), device=place)


def _hf_image(recipe: Recipe, model_type: str, place: Any) -> Parts:
    s = recipe.sizes
    images, labels = _images(recipe, place)
    depths = [s["layers"], s["layers"] + 1, s["layers"], 1]
    widths = [s["width"] * 2**stage for stage in range(4)]
    if model_type == "swin":
        base = 32 * (3 if s["width"] > 48 else 2)
        settings: dict[str, Any] = {
            "image_size": 224 if s["side"] > 64 else 64, "embed_dim": base, "depths": [2, 2, s["layers"], 1],
            "num_heads": [base // 32 * 2**stage for stage in range(4)], "patch_size": 4,
        }  # fmt: skip
        settings["window_size"] = 7 if settings["image_size"] == 224 else 2
        import torch

        images = torch.randn(s["batch"], 3, settings["image_size"], settings["image_size"], device=place)
    elif model_type in VISION_TRANSFORMERS:
        width = s["heads"] * s["head_dim"]
        settings = {
            "hidden_size": width, "num_hidden_layers": s["layers"] + 1, "num_attention_heads": s["heads"],
            "intermediate_size": 4 * width, "image_size": s["side"], "patch_size": s["patch"], "mlp_ratio": 4,
        }  # fmt: skip
    elif model_type == "mobilenet_v2":
        settings = {"depth_multiplier": s["width"] / 64, "image_size": s["side"]}
    elif model_type in ("resnet", "regnet"):
        settings = {"embedding_size": s["width"], "hidden_sizes": widths, "depths": depths}
        if model_type == "regnet":
            settings["groups_width"] = 16
    else:
        settings = {"hidden_sizes": widths, "depths": depths, "image_size": s["side"]}
    module = _hf(recipe, model_type, "AutoModelForImageClassification", num_labels=s["classes"], **settings)
    return Parts(module, named={"pixel_values": images}, loss=lambda out: _cross_entropy(out.logits, labels))


def _torchvision(recipe: Recipe, kind: str, place: Any) -> Parts:
    from torchvision import models
    from torchvision.models import resnet

    s = recipe.sizes
    images, labels = _images(recipe, place)
    depths = [s["layers"], s["layers"] + 1, s["layers"], 1]
    if kind in ("resnet", "resnext"):
        settings = {"groups": 16, "width_per_group": 4} if kind == "resnext" else {"width_per_group": s["width"]}
        module: Any = resnet.ResNet(resnet.Bottleneck, depths, num_classes=s["classes"], **settings)
    elif kind == "densenet":
        module = models.DenseNet(growth_rate=s["width"] // 2, block_config=(2, 3, 3, 2), num_classes=s["classes"])
    else:
        module = getattr(models, kind)(num_classes=s["classes"])
    return Parts(module, (images,), loss=lambda out: _cross_entropy(out, labels))


# --- our own mixtures -------------------------------------------------------------------------------------------------


def _own(recipe: Recipe, kind: str, place: Any) -> Parts:
    """Mixtures that no library holds: layers of many kinds at random sizes."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    s = recipe.sizes
    pick = random.Random(f"{_GENERATION}/{recipe.name}/own")
    if kind == "unet":
        images, _ = _images(recipe, place)
        target = torch.randn_like(images)
        return Parts(_unet(s, pick), (images,), loss=lambda out: F.mse_loss(out.float(), target))
    width, batch, length, vocabulary = s["heads"] * s["head_dim"], s["batch"], s["length"], s["vocabulary"]
    ids = torch.randint(0, vocabulary, (batch, length), device=place)
    labels = torch.randint(0, vocabulary, (batch, length), device=place)
    if kind == "decoder":
        module: Any = _decoder(s, pick, recipe.dropout)
        return Parts(module, (ids,), loss=lambda out: _cross_entropy(out, labels))
    if kind == "recommender":
        rows, tables = batch * max(length // 4, 1), pick.choice((4, 8, 12))
        dim, many = pick.choice((32, 64, 128)), min(100_000, vocabulary * 4)
        dense = torch.randn(rows, 13, device=place)
        sparse = torch.randint(0, many, (tables, rows, pick.choice((1, 4, 8))), device=place)
        clicked = torch.rand(rows, 1, device=place).round()
        return Parts(
            _recommender(tables, many, dim, s["hidden"]),
            (dense, sparse),
            loss=lambda out: F.binary_cross_entropy_with_logits(out.float(), clicked),
        )
    if kind == "graph_net":
        nodes = batch * length
        edges = torch.randint(0, nodes, (2, nodes * pick.choice((4, 8))), device=place)
        x = torch.randn(nodes, min(width, 256), device=place)
        return Parts(_graph_net(min(width, 256), s["layers"]), (x, edges))
    x = torch.randn(batch, length, width, device=place)
    if kind == "mixer":
        module = nn.Sequential(*(_mixer(width, length, s["hidden"], pick) for _ in range(s["layers"])))
    elif kind == "ranker":
        module = _ranker(width, pick)
    elif kind == "experts":
        module = _experts(width, s["hidden"] // 2, pick.choice((4, 8)))
    else:
        module = _audio(width, pick)
    return Parts(module, (x,))


def _decoder(s: Mapping[str, int], pick: random.Random, dropout: float) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F

    width, d, heads = s["heads"] * s["head_dim"], s["head_dim"], s["heads"]
    kv_heads = heads // s["groups"]
    make_norm = pick.choice((nn.LayerNorm, nn.RMSNorm))
    act = pick.choice((F.gelu, F.silu, F.relu))
    is_causal, is_gated, bias, rotary = (
        pick.random() < 0.7,
        pick.random() < 0.5,
        pick.random() < 0.5,
        pick.random() < 0.5,
    )

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = make_norm(width), make_norm(width)
            self.q, self.kv = nn.Linear(width, width, bias), nn.Linear(width, 2 * kv_heads * d, bias)
            self.out, self.up = nn.Linear(width, width, bias), nn.Linear(width, s["hidden"], bias)
            self.gate = nn.Linear(width, s["hidden"], bias) if is_gated else None
            self.down = nn.Linear(s["hidden"], width, bias)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            batch, length, _ = x.shape
            h = self.first(x)
            q = self.q(h).view(batch, length, heads, d).transpose(1, 2)
            k, v = self.kv(h).view(batch, length, 2, kv_heads, d).permute(2, 0, 3, 1, 4)
            if rotary:
                q, k = (t * cos + torch.cat([-t[..., d // 2 :], t[..., : d // 2]], -1) * sin for t in (q, k))
                q, k = q.to(v.dtype), k.to(v.dtype)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=kv_heads != heads)
            x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)), dropout, self.training)
            h = self.second(x)
            up = act(self.up(h)) if self.gate is None else act(self.gate(h)) * self.up(h)
            return x + F.dropout(self.down(up), dropout, self.training)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(s["vocabulary"], width)
            self.layers = nn.ModuleList(Layer() for _ in range(s["layers"]))
            self.norm, self.head = make_norm(width), nn.Linear(width, s["vocabulary"], bias=False)
            angles = torch.outer(torch.arange(s["length"]), 1e4 ** (-torch.arange(0, d, 2) / d)).repeat(1, 2)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

        def forward(self, ids: Any) -> Any:
            x = self.embedding(ids)
            for layer in self.layers:
                x = layer(x, self.cos, self.sin)
            return self.head(self.norm(x))

    return Decoder()


def _unet(s: Mapping[str, int], pick: random.Random) -> Any:
    import torch
    from torch import nn
    from torch.nn import functional as F

    width = s["width"]
    norm = pick.choice((lambda c: nn.GroupNorm(8, c), nn.BatchNorm2d))
    way = pick.choice(("nearest", "bilinear", "transposed"))
    pool = pick.choice(("max", "average", "stride"))

    def block(inward: int, outward: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(inward, outward, 3, padding=1), norm(outward), nn.SiLU(),
            nn.Conv2d(outward, outward, 3, padding=1), norm(outward), nn.SiLU(),
        )  # fmt: skip

    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            c = [width * 2**stage for stage in range(3)]
            self.inward, self.down = block(3, c[0]), nn.ModuleList([block(c[0], c[1]), block(c[1], c[2])])
            self.strided = nn.ModuleList(nn.Conv2d(each, each, 3, 2, 1) for each in c[:2])
            self.widened = nn.ModuleList(nn.ConvTranspose2d(each, each, 2, 2) for each in (c[2], c[1]))
            self.up = nn.ModuleList([block(c[2] + c[1], c[1]), block(c[1] + c[0], c[0])])
            self.out = nn.Conv2d(c[0], 3, 1)

        def forward(self, x: Any) -> Any:
            kept = [self.inward(x)]
            for down, strided in zip(self.down, self.strided, strict=True):
                h = kept[-1]
                small = F.max_pool2d(h, 2) if pool == "max" else F.avg_pool2d(h, 2) if pool == "average" else strided(h)
                kept.append(down(small))
            h = kept.pop()
            for up, widened in zip(self.up, self.widened, strict=True):
                wide = widened(h) if way == "transposed" else F.interpolate(h, scale_factor=2, mode=way)
                h = up(torch.cat([wide, kept.pop()], 1))
            return self.out(h)

    return Unet()


def _recommender(tables: int, rows: int, dim: int, hidden: int) -> Any:
    import torch
    from torch import nn

    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables))
            self.bottom = nn.Sequential(nn.Linear(13, hidden), nn.ReLU(), nn.Linear(hidden, dim))
            self.top = nn.Sequential(nn.Linear((tables + 1) * dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))

        def forward(self, dense: Any, sparse: Any) -> Any:
            bags = [table(sparse[index]) for index, table in enumerate(self.tables)]
            return self.top(torch.cat([self.bottom(dense), *bags], 1))

    return Recommender()


def _graph_net(width: int, layers: int) -> Any:
    import torch
    from torch import nn

    class GraphNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
            self.other = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

        def forward(self, x: Any, edges: Any) -> Any:
            source, target = edges[0], edges[1]
            for own, other in zip(self.own, self.other, strict=True):
                message = other(x)[source]
                summed = torch.zeros_like(x, dtype=message.dtype).index_add(0, target, message)
                x = (own(x) + summed).relu()
            return x

    return GraphNet()


def _mixer(width: int, length: int, hidden: int, pick: random.Random) -> Any:
    from torch import nn

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.along = nn.Sequential(nn.Linear(length, 2 * length), nn.GELU(), nn.Linear(2 * length, length))
            self.across = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

        def forward(self, x: Any) -> Any:
            x = x + self.along(self.first(x).transpose(1, 2)).transpose(1, 2)
            return x + self.across(self.second(x))

    return Mixer()


def _ranker(width: int, pick: random.Random) -> Any:
    import torch
    from torch import nn

    count = pick.choice((4, 16, 64))
    how = pick.choice(("sort", "topk", "cumsum", "argmax"))

    class Ranker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.last = nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            scores = self.score(x)
            if how == "sort":
                return self.last(scores.sort(-1).values)
            if how == "topk":
                best, where = scores.topk(min(count, width), -1)
                return self.last(torch.zeros_like(scores).scatter(-1, where, best.softmax(-1).to(scores.dtype)))
            if how == "cumsum":
                return self.last(scores.cumsum(1))
            return self.last(scores * (scores.argmax(-1, keepdim=True) % 2))

    return Ranker()


def _experts(width: int, hidden: int, count: int) -> Any:
    import torch
    from torch import nn

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(width, count)
            self.up = nn.Parameter(torch.randn(count, width, hidden) / math.sqrt(width))
            self.down = nn.Parameter(torch.randn(count, hidden, width) / math.sqrt(hidden))

        def forward(self, x: Any) -> Any:
            flat = x.flatten(0, 1)
            share = self.gate(flat).softmax(-1)
            room = max(2 * flat.shape[0] // count, 1)
            weight, taken = share.t().topk(room, -1)
            chosen = flat[taken.flatten()].view(count, room, -1)
            made = torch.bmm(torch.bmm(chosen, self.up.to(chosen.dtype)).relu(), self.down.to(chosen.dtype))
            made = (made * weight.unsqueeze(-1)).flatten(0, 1).to(flat.dtype)
            return torch.zeros_like(flat).index_add(0, taken.flatten(), made).view_as(x) + x

    return Experts()


def _audio(width: int, pick: random.Random) -> Any:
    from torch import nn

    kernel = pick.choice((3, 5, 7))

    class Audio(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow = nn.Conv1d(width, width // 2, kernel, padding=kernel // 2)
            self.norm = nn.BatchNorm1d(width // 2)
            self.wide = nn.Conv1d(width // 2, width, kernel, padding=kernel // 2)
            self.out = nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            h = self.wide(self.norm(self.narrow(x.transpose(1, 2))).relu())
            return self.out(h.transpose(1, 2)).log_softmax(-1)

    return Audio()


# --- a program --------------------------------------------------------------------------------------------------------

_BUILDERS: Mapping[str, Callable[[Recipe, str, Any], Parts]] = {
    "hf_decoder": _hf_text, "hf_encoder": _hf_text, "hf_text": _hf_text, "hf_vision": _hf_image, "hf_conv": _hf_image,
    "torchvision": _torchvision, "own": _own,
}  # fmt: skip


def build(recipe: Recipe, device: str = "cuda") -> Callable[[], None]:
    """The program's step, not compiled yet: what it compiles, it does when first called."""
    import torch

    place = torch.device(device)
    group, _, kind = recipe.family.partition(".")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = recipe.precision != "fp32"
    parts = _BUILDERS[group](recipe, kind, place)
    module = parts.module.to(place)
    if recipe.channels_last:
        module = module.to(memory_format=torch.channels_last)
    inputs, named = parts.inputs, parts.named
    if recipe.precision == "bf16":
        module = module.bfloat16()
        inputs = tuple(_as_bfloat16(value) for value in inputs)
        named = {name: _as_bfloat16(value) for name, value in named.items()}
    low = {"autocast": torch.bfloat16, "fp16": torch.float16}.get(recipe.precision)

    def precision() -> Any:
        return contextlib.nullcontext() if low is None else torch.autocast(place.type, dtype=low)

    mode = None if recipe.mode in ("default", "inference") else recipe.mode
    if recipe.mode == "inference":
        asked = torch.compile(module.eval())

        @torch.no_grad()
        def ask() -> None:
            with precision():
                asked(*inputs, **named)

        return ask

    module.train()
    if recipe.loss == "inside":
        loss_of: Any = torch.compile(lambda: parts.loss(module(*inputs, **named)), mode=mode)
    else:
        called = torch.compile(module, mode=mode)

        def loss_of() -> Any:
            return parts.loss(called(*inputs, **named))

    parameters = [each for each in module.parameters() if each.requires_grad]
    optimizer = _optimizer(recipe.optimizer, parameters)
    scaler = torch.amp.GradScaler(place.type, init_scale=256.0) if recipe.precision == "fp16" and optimizer else None

    def train() -> None:
        with precision():
            loss = loss_of()
        for_backward = loss if scaler is None else scaler.scale(loss)
        for_backward.backward()
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        elif optimizer is not None:
            optimizer.step()
        for each in parameters:
            each.grad = None

    return train


def _as_bfloat16(value: Any) -> Any:
    import torch

    return value.bfloat16() if value.dtype == torch.float32 else value


def _optimizer(name: str, parameters: list[Any]) -> Any:
    import torch

    if name == "none":
        return None
    kind, _, how = name.partition(" ")
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, foreach=True)
    return torch.optim.AdamW(parameters, lr=1e-5, **{how: True})


def plain_us() -> float:
    """Microseconds of the piece of plain Python that ``doctor`` times too, the best of three: how fast this host is.

    Programs that know nothing of torchledger have a copy of it.
    """
    best = math.inf
    for _ in range(3):
        begin, kept = time.perf_counter(), {}
        for number in range(2000):
            kept[number & 63] = [number, str(number)]
        best = min(best, (time.perf_counter() - begin) * 1e6)
    return best


class SmallStep:
    """A training step of a small network, eager: how long this host needs for what training asks of it."""

    def __init__(self, device: str) -> None:
        import torch
        from torch import nn

        self._given = torch.ones(8, 64, device=device)
        self._model = nn.Sequential(
            *(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU()) for _ in range(4))
        ).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-4, momentum=0.9, foreach=True)

    def run(self) -> None:
        """One step."""
        self._model(self._given).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def us(self, wait: Callable[[], None]) -> float:
        """Microseconds until a step is issued, of three that follow one that warms what the host has forgotten."""
        self.run()
        wait()
        begin = time.perf_counter()
        for _ in range(3):
            self.run()
        taken = (time.perf_counter() - begin) * 1e6 / 3
        wait()
        return taken


def take_turns() -> None:
    """Let one process at a time measure what Inductor chooses among: those that share ``DRAWN_TURNS``."""
    turns = os.environ.get("DRAWN_TURNS")
    if turns is None:
        return
    from torch._inductor.runtime.benchmarking import benchmarker

    measure: Callable[..., Any] = benchmarker.benchmark_gpu
    file = os.open(turns, os.O_RDWR | os.O_CREAT)

    def in_turn(*arguments: Any, **named: Any) -> Any:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            return measure(*arguments, **named)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    setattr(benchmarker, "benchmark_gpu", in_turn)  # noqa: B010 - a method is replaced on purpose


_LONGEST_STAY_S = 120.0


def wait_at_gate(name: str) -> None:
    """Say in the folder ``DRAWN_GATE`` that all is compiled, and wait there to be let through."""
    folder = os.environ.get("DRAWN_GATE")
    if folder is None:
        return
    (Path(folder) / f"{name}.ready").touch()
    while not (Path(folder) / f"{name}.go").exists():
        time.sleep(0.01)


def leave_gate(name: str, answer: Mapping[str, Any]) -> None:
    """Say in the folder ``DRAWN_GATE`` what was measured: the next program may go on.

    With ``DRAWN_STAYS`` wait until all have: what this process does at its end would keep the host of others busy.
    """
    folder = os.environ.get("DRAWN_GATE")
    if folder is not None:
        unfinished = Path(folder) / f".{name}.done"
        unfinished.write_text(json.dumps(answer))
        unfinished.rename(Path(folder) / f"{name}.done")
        until = time.monotonic() + (_LONGEST_STAY_S if "DRAWN_STAYS" in os.environ else 0.0)
        while time.monotonic() < until and not (Path(folder) / "all.done").exists():
            time.sleep(0.05)


def main() -> None:
    """Run one program and print its own times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("steps", nargs="?", type=int, default=30)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=2.0, help="of steps that do not wait, at least STEPS of them")
    parser.add_argument(
        "--pieces", type=int, default=48, help="of these steps at most; 0: one, and no small steps beside"
    )
    arguments = parser.parse_args()
    import torch

    recipe = draw(arguments.name, tiny=arguments.tiny)
    wait = torch.cuda.synchronize if arguments.device == "cuda" else (lambda: None)
    take_turns()
    step = build(recipe, arguments.device)
    for _ in range(WARM_STEPS):
        step()
    wait()
    small = SmallStep(arguments.device) if arguments.pieces else None
    if small is not None:
        small.us(wait)
    wait_at_gate(recipe.name)
    if arguments.device == "cuda":
        torch.cuda.reset_peak_memory_stats()  # what compiling needed, and what it timed, is no step's
    synced = []
    for _ in range(max(arguments.steps // 2, 6)):
        begin = time.perf_counter()
        step()
        wait()
        synced.append((time.perf_counter() - begin) * 1e3)
    count = max(arguments.steps, min(4000, round(arguments.seconds * 1e3 / min(synced))))
    pieces = max(1, min(arguments.pieces, count // _PIECE_STEPS))
    each = math.ceil(count / pieces)
    speeds, smalls, issued_ms, pieces_ms = [plain_us()], [], [], []
    for _ in range(pieces):
        if small is not None:
            smalls.append(small.us(wait))
        begin = time.perf_counter()
        for _ in range(each):
            step()
        issued_ms.append((time.perf_counter() - begin) * 1e3 / each)
        wait()
        pieces_ms.append((time.perf_counter() - begin) * 1e3 / each)
        speeds.append(plain_us())
    if small is not None:
        smalls.append(small.us(wait))
    answer = {
        "recipe": asdict(recipe),
        "step_ms": statistics.mean(pieces_ms),
        "pieces_ms": [round(one, 4) for one in pieces_ms],
        "plain_us": [round(one, 1) for one in speeds],
        "small_us": [round(one, 1) for one in smalls],
        "issued_ms": statistics.mean(issued_ms),
        "synced_ms": [round(one, 4) for one in synced],
        "steps": each * pieces,
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9 if arguments.device == "cuda" else None,
    }
    leave_gate(recipe.name, answer)
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main())
