"""GRPO: generate a group with a KV cache, rewards, then train with a clipped objective; reference model frozen."""

import argparse, time, copy
import torch, torch.nn as nn, torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--prompts", type=int, default=2)
p.add_argument("--group", type=int, default=4)
p.add_argument("--prompt-len", type=int, default=16)
p.add_argument("--new", type=int, default=16)
p.add_argument("--dim", type=int, default=128)
p.add_argument("--layers", type=int, default=2)
p.add_argument("--vocab", type=int, default=512)
p.add_argument("--steps", type=int, default=11)
a = p.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, d, h=4):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)
        self.f = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.n1 = nn.LayerNorm(d)
        self.n2 = nn.LayerNorm(d)

    def forward(self, x, cache=None, pos=None):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            K, V = cache
            K.index_copy_(2, pos, k)
            V.index_copy_(2, pos, v)
            mask = torch.arange(K.shape[2], device=x.device)[None] <= pos[:, None]
            y = F.scaled_dot_product_attention(q, K, V, attn_mask=mask)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, D))
        return x + self.f(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(a.vocab, a.dim)
        self.p = nn.Embedding(a.prompt_len + a.new, a.dim)
        self.b = nn.ModuleList(Block(a.dim) for _ in range(a.layers))
        self.h = nn.Linear(a.dim, a.vocab)

    def forward(self, ids, caches=None, pos=None):
        if pos is None:
            pos = torch.arange(ids.shape[1], device=ids.device)
        x = self.e(ids) + self.p(pos)
        for i, b in enumerate(self.b):
            x = b(x, caches[i] if caches else None, pos)
        return self.h(x)


policy = LM().to(dev)
ref = copy.deepcopy(policy).requires_grad_(False)
opt = torch.optim.AdamW(policy.parameters(), 1e-5)
decode = torch.compile(policy)
fwd = torch.compile(policy)
fref = torch.compile(ref)
B = a.prompts * a.group


@torch.no_grad()
def generate(prompt):
    caches = [
        (
            torch.zeros(B, 4, a.prompt_len + a.new, a.dim // 4, device=dev),
            torch.zeros(B, 4, a.prompt_len + a.new, a.dim // 4, device=dev),
        )
        for _ in range(a.layers)
    ]
    out = prompt
    logits = decode(prompt, caches, torch.arange(a.prompt_len, device=dev))[:, -1]
    for t in range(a.new):
        nxt = torch.multinomial(logits.softmax(-1), 1)
        out = torch.cat([out, nxt], 1)
        if t + 1 < a.new:
            logits = decode(nxt, caches, torch.tensor([a.prompt_len + t], device=dev))[:, -1]
    return out


def logp(model, ids):
    l = model(ids[:, :-1]).log_softmax(-1)
    return l.gather(-1, ids[:, 1:, None]).squeeze(-1)[:, a.prompt_len - 1 :]


for i in range(a.steps):
    t0 = time.perf_counter()
    prompt = torch.randint(a.vocab, (a.prompts, a.prompt_len), device=dev).repeat_interleave(a.group, 0)
    ids = generate(prompt)
    t1 = time.perf_counter()
    reward = (ids[:, a.prompt_len :] % 2 == 0).float().mean(1)
    r = reward.view(a.prompts, a.group)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    with torch.no_grad():
        old = logp(fwd, ids)
        lr_ = logp(fref, ids)
    new = logp(fwd, ids)
    ratio = (new - old).exp()
    kl = (lr_ - new).exp() - (lr_ - new) - 1
    loss = -(torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv) - 0.04 * kl).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(
        f"step {i} reward {reward.mean().item():.3f} gen {1e3 * (t1 - t0):.1f} {1e3 * (time.perf_counter() - t0):.2f} ms",
        flush=True,
    )
