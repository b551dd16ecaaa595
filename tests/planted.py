"""Ten small models with places where a fault can be switched on by data, so that one compile serves many faults.

Every model is called as ``model(x, dial)``; row ``i`` of ``dial`` belongs to place ``i``. ``neutral(model)`` breaks
nothing. What each column does to the values at its place stands in ``Plant``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DIVISION, LOG, SCALE, ROOT = range(4)


class Plant(nn.Module):
    """A place where values can be spoilt."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def forward(self, x: Tensor, dial: Tensor) -> Tensor:
        division, log, scale, root = dial[self.place].to(x.dtype).unbind()
        x = x / division
        x = x + torch.log(log)
        x = x * scale
        return x + torch.sqrt(root * (x.float() * x.float() + 1.0)).to(x.dtype)


class Planted(nn.Module):
    """Blocks with a place after each; products between them keep the places in launches of their own."""

    def __init__(self, *blocks: nn.Module, last: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.plants = nn.ModuleList(Plant(place) for place in range(len(blocks)))
        self.last = last if last is not None else nn.Identity()

    def forward(self, x: Tensor, dial: Tensor) -> Tensor:
        for block, plant in zip(self.blocks, self.plants, strict=True):
            x = plant(block(x), dial)
        return self.last(x)


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Mixed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(4, width, width) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x.view(4, -1, x.shape[-1]), self.experts).view_as(x)


class Attend(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return (query @ key.t()).softmax(-1) @ value


class Recur(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.tanh(self.cell(x))
        return x


def _hide_bad(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0.0)


def _order(x: Tensor) -> Tensor:
    return x.argsort(-1)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "mlp": lambda: (Planted(nn.Linear(16, 32), nn.Linear(32, 16), last=nn.Linear(16, 4)), torch.randn(8, 16)),
    "conv": lambda: (
        Planted(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), last=nn.Conv2d(8, 2, 1)),
        torch.randn(2, 3, 10, 10),
    ),
    "norm": lambda: (
        Planted(nn.LayerNorm(16), nn.Sequential(nn.Linear(16, 16), nn.GELU()), last=nn.Linear(16, 16)),
        torch.randn(8, 16),
    ),
    "attention": lambda: (Planted(Attend(16), nn.Linear(16, 16), last=nn.Linear(16, 4)), torch.randn(8, 16)),
    "experts": lambda: (Planted(Mixed(16), Mixed(16), last=nn.Linear(16, 4)), torch.randn(16, 16)),
    "recurrent": lambda: (Planted(Recur(16), nn.Linear(16, 16), last=nn.Linear(16, 4)), torch.randn(4, 16)),
    "lookup": lambda: (
        Planted(nn.Sequential(Call(_order), nn.Embedding(16, 8)), nn.Linear(8, 8), last=nn.Linear(8, 8)),
        torch.randn(4, 16),
    ),
    "bfloat16": lambda: (
        Planted(nn.Linear(16, 16), nn.Linear(16, 16), last=nn.Linear(16, 4)).bfloat16(),
        torch.randn(8, 16).bfloat16(),
    ),
    "float16": lambda: (
        Planted(nn.Linear(16, 16), nn.Linear(16, 16), last=nn.Linear(16, 4)).half(),
        torch.randn(8, 16).half(),
    ),
    "masked": lambda: (
        Planted(nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 16), Call(_hide_bad)), last=nn.Linear(16, 4)),
        torch.randn(8, 16),
    ),
}  # fmt: skip


def make_planted(name: str, device: str = "cpu") -> tuple[nn.Module, Tensor]:
    """The named model and its input, the same at every call."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    return model.to(device), x.to(device)


def neutral(model: nn.Module, device: str = "cpu") -> Tensor:
    """A dial that breaks nothing."""
    return torch.ones(len(model.plants), 4, device=device)  # type: ignore[arg-type]


def faulty(model: nn.Module, place: int, column: int, value: float, device: str = "cpu") -> Tensor:
    """A dial that breaks one thing at one place."""
    dial = neutral(model, device)
    dial[place, column] = value
    return dial


def loss_of(output: Tensor) -> Tensor:
    return F.mse_loss(output.float(), torch.zeros_like(output, dtype=torch.float32))
