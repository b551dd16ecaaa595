"""A language model of state-space layers (the chunked, quadratic-within-a-chunk form of Mamba-2, in plain torch).

FSDP2 keeps the layers gathered between forward and backward; micro-batches accumulate without a reduction until the last.
"""

from __future__ import annotations

import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tock import steps
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


def get_args() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--vocab", type=int, default=32768)
    p.add_argument("--d-model", type=int, default=2048)
    p.add_argument("--n-layer", type=int, default=16)
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--d-state", type=int, default=128)
    p.add_argument("--chunk", type=int, default=128)
    p.add_argument("--seq-len", type=int, default=2048)
    p.add_argument("--micro-batch", type=int, default=4)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--lr", type=float, default=6e-4)
    return p.parse_args()


def segsum(x: Tensor) -> Tensor:
    """(..., T) -> (..., T, T): sums of x over (j, i], minus infinity above the diagonal."""
    c = x.cumsum(-1)
    diff = c[..., :, None] - c[..., None, :]
    keep = torch.ones(x.size(-1), x.size(-1), dtype=torch.bool, device=x.device).tril()
    return diff.masked_fill(~keep, float("-inf"))


def ssd(x: Tensor, log_a: Tensor, B: Tensor, C: Tensor, chunk: int) -> Tensor:
    """x: (b, l, h, p), log_a: (b, l, h), B and C: (b, l, n), one group for all heads."""
    b, l, h, p = x.shape
    x, B, C = (t.unflatten(1, (l // chunk, chunk)) for t in (x, B, C))
    log_a = log_a.unflatten(1, (l // chunk, chunk)).permute(0, 3, 1, 2)  # b h c t
    cum = log_a.cumsum(-1)

    # within a chunk
    decay = segsum(log_a).exp().to(x.dtype)
    scores = torch.einsum("bctn,bcsn->bcts", C, B)
    y_diag = torch.einsum("bhcts,bcshp->bcthp", decay * scores[:, None], x)

    # the state at the end of each chunk, and what it becomes over the chunks
    to_end = (cum[..., -1:] - cum).exp().to(x.dtype)
    states = torch.einsum("bcsn,bcshp->bchpn", B, x * to_end.permute(0, 2, 3, 1)[..., None])
    states = F.pad(states, (0, 0, 0, 0, 0, 0, 1, 0))
    across = segsum(F.pad(cum[..., -1], (1, 0))).exp().to(x.dtype)
    states = torch.einsum("bhzc,bchpn->bzhpn", across, states)[:, :-1]

    y_off = torch.einsum("bctn,bchpn->bcthp", C, states) * cum.exp().to(x.dtype).permute(0, 2, 3, 1)[..., None]
    return (y_diag + y_off).flatten(1, 2)


class Mixer(nn.Module):
    def __init__(self, d_model: int, head_dim: int, d_state: int, chunk: int, expand: int = 2, taps: int = 4) -> None:
        super().__init__()
        self.d_inner, self.d_state, self.chunk, self.taps = expand * d_model, d_state, chunk, taps
        self.heads, self.head_dim = self.d_inner // head_dim, head_dim
        self.d_conv = self.d_inner + 2 * d_state
        self.in_proj = nn.Linear(d_model, self.d_inner + self.d_conv + self.heads, bias=False)
        self.conv_weight = nn.Parameter(torch.randn(taps, self.d_conv) / math.sqrt(taps))
        self.conv_bias = nn.Parameter(torch.zeros(self.d_conv))
        dt = torch.exp(torch.rand(self.heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.log(torch.empty(self.heads).uniform_(1, 16)))
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = nn.RMSNorm(self.d_inner, eps=1e-5)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        z, xbc, dt = self.in_proj(u).split((self.d_inner, self.d_conv, self.heads), dim=-1)
        padded = F.pad(xbc, (0, 0, self.taps - 1, 0))
        conv = sum(self.conv_weight[i] * padded[:, i : i + u.size(1)] for i in range(self.taps))
        x, B, C = F.silu(conv + self.conv_bias).split((self.d_inner, self.d_state, self.d_state), dim=-1)
        x = x.unflatten(-1, (self.heads, self.head_dim))
        dt = F.softplus(dt.float() + self.dt_bias.float())
        log_a = -dt * self.A_log.float().exp()
        y = ssd(x * dt.to(x.dtype)[..., None], log_a, B, C, self.chunk) + self.D[:, None] * x
        return self.out_proj(self.norm(y.flatten(2) * F.silu(z)))


class Layer(nn.Module):
    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(a.d_model, eps=1e-5)
        self.mixer = Mixer(a.d_model, a.head_dim, a.d_state, a.chunk)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(self.norm(x))


class SSMLanguageModel(nn.Module):
    def __init__(self, a: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(a.vocab, a.d_model)
        self.layers = nn.ModuleList([Layer(a) for _ in range(a.n_layer)])
        self.norm_f = nn.RMSNorm(a.d_model, eps=1e-5)
        self.lm_head = nn.Linear(a.d_model, a.vocab, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        for layer in self.layers:
            nn.init.normal_(layer.mixer.out_proj.weight, std=0.02 / math.sqrt(a.n_layer))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm_f(x))


def shard(model: SSMLanguageModel, mesh) -> FSDPModule:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        layer.compile()
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    return fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def main() -> None:
    a = get_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))

    torch.manual_seed(2024)
    with device:
        model = SSMLanguageModel(a)
    model = shard(model, mesh)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    plain = [p for p in model.parameters() if p.ndim != 2]
    optim = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=a.lr, betas=(0.9, 0.95)
    )
    warm = torch.optim.lr_scheduler.LambdaLR(optim, lambda s: min(1.0, (s + 1) / 500))

    torch.manual_seed(dist.get_rank())
    for _ in steps():
        loss_sum = torch.zeros((), device=device)
        for micro in range(a.accumulate):
            last = micro == a.accumulate - 1
            model.set_requires_gradient_sync(last)
            ids = torch.randint(a.vocab, (a.micro_batch, a.seq_len + 1), device=device)
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()) / a.accumulate
            loss.backward()
            loss_sum += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        warm.step()
        optim.zero_grad()


if __name__ == "__main__":
    main()
