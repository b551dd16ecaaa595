"""Ordinary eager training steps: every operator that does work has its FLOPs or bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import profile

from torchledger.traces.breakdown import import_trace
from torchledger.traces.cpu import COUNTED_INSIDE, NO_WORK_OF_ITS_OWN

Step = Callable[[], None]


def image_step() -> Step:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=4), nn.GroupNorm(4, 8), nn.Hardswish(), nn.Dropout(0.1)),
        *(nn.AvgPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.ConvTranspose2d(8, 8, 2, 2)),
        *(nn.InstanceNorm2d(8, affine=True), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True)
    images, labels = torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def language_step() -> Step:
    table, norm, last = nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 50)
    heads, rms = nn.Linear(16, 48), nn.RMSNorm(16)
    parameters = [p for module in (table, norm, last, heads, rms) for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, fused=True)
    ids = torch.randint(0, 50, (2, 9))

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        x = table(ids[:, :-1])
        query, key, value = (part.view(2, 8, 2, 8).transpose(1, 2) for part in heads(norm(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + functional.dropout(functional.gelu(rms(seen.transpose(1, 2).reshape(2, 8, 16))), 0.1)
        functional.cross_entropy(last(x).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def mixed_step() -> Step:
    layer, recurrent = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16), nn.Softmax(-1)), nn.LSTM(16, 16)
    optimizer = torch.optim.Adam([*layer.parameters(), *recurrent.parameters()], foreach=True)
    x, bags = torch.randn(4, 6, 16), nn.EmbeddingBag(20, 16)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x).float()
        y = recurrent(y)[0] + bags(torch.randint(0, 20, (4, 6)))[:, None]
        best, places = y.topk(3)
        again = torch.zeros(4, 6, 16).scatter_add(2, places, best).masked_fill(y > 1, 0.0)
        parts = torch.cat([again.cumsum(0), y.sort(-1).values, torch.where(y > 0, y, -y)], 1).split([6, 12], 1)
        loss = functional.mse_loss(y, x) + functional.smooth_l1_loss(y, x) + functional.l1_loss(y, x)
        loss = loss + functional.binary_cross_entropy(y.sigmoid(), x.sigmoid()) + parts[0].std() + parts[1].norm()
        loss = loss + functional.binary_cross_entropy_with_logits(y, x.sigmoid()) + y[y > 0].sum() + y[:, 0].amax()
        loss = (
            loss
            + functional.kl_div(y.log_softmax(-1), x.softmax(-1), reduction="batchmean")
            + torch.einsum("abc,abd->cd", y, y).sum()
        )
        (loss + functional.pad(y, (1, 1)).roll(1, 0).mean() + y.repeat(2, 1, 1).logsumexp(-1).sum()).backward()
        optimizer.step()
        loss.item()

    return step


@pytest.mark.parametrize("make", [image_step, language_step, mixed_step])
def test_no_operator_of_an_ordinary_eager_step_is_without_its_work(make: Callable[[], Step], tmp_path: Path) -> None:
    step = make()
    step()
    with profile(record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(str(tmp_path / "step.json"))
    _, events = import_trace(tmp_path / "step.json")
    assert len(events) > 100
    unknown = {event.op: event.cost.reason for event in events if not event.cost.is_known}
    assert {op for op, reason in unknown.items() if reason not in (COUNTED_INSIDE, NO_WORK_OF_ITS_OWN)} == set()
