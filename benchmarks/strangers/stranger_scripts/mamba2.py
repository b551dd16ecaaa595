"""Mamba-2 language model in plain torch: state-space duality in chunks, selective checkpointing, blocks compiled one by one."""

import functools, math
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from tick import steps

B, T, D, LAYERS, VOCAB, HEAD, STATE, CHUNK = 8, 2048, 1024, 10, 50280, 64, 64, 128
saved = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]


def segsum(a):
    t = a.size(-1)
    below = torch.ones(t, t, dtype=torch.bool, device=a.device)
    a = a[..., None].expand(*a.shape, t).masked_fill(~below.tril(-1), 0).cumsum(-2)
    return a.masked_fill(~below.tril(), -torch.inf)


def ssd(x, a, b, c):
    """x: (B, T, H, P), a: (B, T, H), b and c: (B, T, N)."""
    n, t, h, p = x.shape
    x, b, c = (z.unflatten(1, (-1, CHUNK)) for z in (x, b, c))
    a = a.unflatten(1, (-1, CHUNK)).permute(0, 3, 1, 2)
    total = a.cumsum(-1)
    decay = segsum(a).exp()
    scores = torch.einsum("bcln,bcsn->bcls", c, b)[:, None] * decay
    inside = torch.einsum("bhcls,bcshp->bclhp", scores.to(x.dtype), x)
    to_end = (total[..., -1:] - total).exp()
    states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, to_end.to(x.dtype), x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    between = segsum(F.pad(total[..., -1], (1, 0))).exp()
    states = torch.einsum("bhzc,bchpn->bzhpn", between.to(x.dtype), states)[:, :-1]
    before = torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, total.exp().to(x.dtype))
    return (inside + before).reshape(n, t, h, p)


class Mixer(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.inner, s.heads = 2 * d, 2 * d // HEAD
        s.norm = nn.RMSNorm(d)
        s.into = nn.Linear(d, 2 * s.inner + 2 * STATE + s.heads, bias=False)
        s.conv = nn.Conv1d(s.inner + 2 * STATE, s.inner + 2 * STATE, 4, groups=s.inner + 2 * STATE, padding=3)
        s.a_log = nn.Parameter(torch.empty(s.heads).uniform_(1, 16).log())
        s.skip, s.dt_bias = nn.Parameter(torch.ones(s.heads)), nn.Parameter(torch.full((s.heads,), -4.0))
        s.gated, s.out = nn.RMSNorm(s.inner), nn.Linear(s.inner, d, bias=False)

    def mix(s, u):
        z, xbc, dt = s.into(s.norm(u)).split([s.inner, s.inner + 2 * STATE, s.heads], -1)
        xbc = F.silu(s.conv(xbc.transpose(1, 2))[..., : u.size(1)].transpose(1, 2))
        x, b, c = xbc.split([s.inner, STATE, STATE], -1)
        dt = F.softplus(dt.float() + s.dt_bias)
        x = x.unflatten(-1, (s.heads, HEAD))
        y = ssd(x * dt[..., None].to(x.dtype), -s.a_log.exp() * dt, b, c) + x * s.skip.to(x.dtype)[:, None]
        return u + s.out(s.gated(y.flatten(2) * F.silu(z)))

    def forward(s, u):
        contexts = functools.partial(create_selective_checkpoint_contexts, saved)
        return checkpoint(s.mix, u, use_reentrant=False, context_fn=contexts)


class Mamba2(nn.Module):
    def __init__(s):
        super().__init__()
        s.embed = nn.Embedding(VOCAB, D)
        s.blocks = nn.ModuleList(Mixer(D) for _ in range(LAYERS))
        s.norm, s.head = nn.RMSNorm(D), nn.Linear(D, VOCAB, bias=False)
        s.head.weight = s.embed.weight
        nn.init.normal_(s.embed.weight, std=0.02)

    def forward(s, ids):
        x = s.embed(ids)
        for block in s.blocks:
            x = block(x)
        return s.head(s.norm(x))


model = Mamba2().cuda()
for block in model.blocks:
    block.compile(fullgraph=True)
decays = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
opt = torch.optim.AdamW(
    [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], 6e-4, (0.9, 0.95), fused=True
)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1, i / 100) * 0.5 * (1 + math.cos(math.pi * i / 10000)))
for i in steps(count=6):
    ids = torch.randint(0, VOCAB, (B, T + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    opt.zero_grad(set_to_none=True)
