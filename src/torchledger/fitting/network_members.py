"""Learning the networks of a blend, by torch: small ones, each from another start, whose mean is asked."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.fitting.regressors import FARTHEST_OF_NETWORKS, NetworkEnsemble, as_networks_see

Array = NDArray[np.float64]

WIDTH = 160
_BATCH = 256
_RATE, _DECAY, _DROPPED, _JITTER = 2e-3, 2e-2, 0.05, 0.02
_NEVER_ZERO = 1e-6


def fit_networks(rows: Array, target: Array, *, count: int, passes: int, seed: int = 0) -> NetworkEnsemble:
    """``count`` networks that learned ``target`` [rows] from ``rows`` [rows, features], in so many passes over them.

    The error that is made small is absolute, and what a network hears of a feature is blurred a little each time. The
    state of torch's random numbers stays as it is.
    """
    import torch

    center = rows.mean(axis=0).astype(np.float32)
    scale = (rows.std(axis=0) + _NEVER_ZERO).astype(np.float32)
    given = torch.from_numpy(as_networks_see(rows, center, scale))
    goal = torch.from_numpy(target.astype(np.float32))
    with torch.random.fork_rng(devices=[]):
        learned = [_fit_one(given, goal, passes, seed + number) for number in range(count)]
    weights = [np.stack([layers[place][0] for layers in learned]).astype(np.float16) for place in range(4)]
    biases = [np.stack([layers[place][1] for layers in learned]).astype(np.float32) for place in range(4)]
    return NetworkEnsemble(
        center=center,
        scale=scale,
        first=weights[0],
        first_bias=biases[0],
        second=weights[1],
        second_bias=biases[1],
        third=weights[2],
        third_bias=biases[2],
        last=weights[3][:, :, 0],
        last_bias=biases[3][:, 0],
    )


def _fit_one(given: Any, goal: Any, passes: int, seed: int) -> list[tuple[Array, Array]]:
    """Weights [in, out] and biases of each layer."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    count, features = given.shape
    sizes = [features, WIDTH, WIDTH, WIDTH]
    hidden = [
        part
        for inward, outward in pairwise(sizes)
        for part in (nn.Linear(inward, outward), nn.ReLU(), nn.Dropout(_DROPPED))
    ]
    network = nn.Sequential(*hidden, nn.Linear(WIDTH, 1))
    batch = min(_BATCH, count)
    steps = passes * math.ceil(count / batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps + 1)
    network.train()
    for _ in range(passes):
        for pick in torch.split(torch.randperm(count), batch):
            heard = given[pick]
            heard = (heard + _JITTER * torch.randn_like(heard)).clamp(-FARTHEST_OF_NETWORKS, FARTHEST_OF_NETWORKS)
            loss = (network(heard)[:, 0] - goal[pick]).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    layers = [part for part in network if isinstance(part, nn.Linear)]
    return [(layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy()) for layer in layers]
