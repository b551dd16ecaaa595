"""GRPO on a small decoder: every rank samples groups of completions with its cache of keys and values, scores them by
a rule, and takes one clipped policy step against a frozen reference. DDP for the update only."""

import copy
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps


@dataclass
class Config:
    vocab: int = 32000
    dim: int = 1024
    layers: int = 10
    heads: int = 16
    prompts: int = 16
    group: int = 12
    prompt_len: int = 128
    max_new: int = 40
    temperature: float = 1.0
    clip: float = 0.2
    beta: float = 0.04


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False)
        self.proj = nn.Linear(cfg.dim, cfg.dim, bias=False)

    def forward(self, x, cache=None, at=0):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        if cache is not None:
            keys, values = cache
            keys[:, :, at : at + t] = k
            values[:, :, at : at + t] = v
            k, v = keys[:, :, : at + t], values[:, :, : at + t]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.attn = Attention(cfg)
        self.up, self.down = nn.Linear(cfg.dim, 4 * cfg.dim), nn.Linear(4 * cfg.dim, cfg.dim)

    def forward(self, x, cache=None, at=0):
        x = x + self.attn(self.ln1(x), cache, at)
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Policy(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.prompt_len + cfg.max_new, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def hidden(self, ids, caches=None, at=0):
        x = self.tok(ids) + self.pos.weight[at : at + ids.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[i], at)
        return self.norm(x)

    def forward(self, ids):
        """Log-probabilities of the tokens behind the prompt."""
        start = self.cfg.prompt_len
        h = self.hidden(ids[:, :-1])[:, start - 1 :]
        logits = self.head(h).float() / self.cfg.temperature
        picked = logits.gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)
        return picked - torch.logsumexp(logits, dim=-1)


@torch.no_grad()
def generate(policy, prompts, cfg):
    n, device = prompts.shape[0], prompts.device
    shape = (n, cfg.heads, cfg.prompt_len + cfg.max_new, cfg.dim // cfg.heads)
    caches = [
        tuple(torch.zeros(shape, device=device, dtype=torch.bfloat16) for _ in range(2)) for _ in range(cfg.layers)
    ]
    ids, piece, at = [prompts], prompts, 0
    for _ in range(cfg.max_new):
        logits = policy.head(policy.hidden(piece, caches, at)[:, -1]).float()
        probs = torch.softmax(logits / cfg.temperature, dim=-1)
        at += piece.shape[1]
        piece = torch.multinomial(probs, num_samples=1)
        ids.append(piece)
    return torch.cat(ids, dim=1)


def reward_fn(ids, cfg):
    completion = ids[:, cfg.prompt_len :]
    even = (completion % 2 == 0).float().mean(dim=1)
    repeats = (completion[:, 1:] == completion[:, :-1]).float().mean(dim=1)
    return even - repeats


def main():
    cfg = Config()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)

    policy = Policy(cfg).to(device)
    reference = copy.deepcopy(policy).to(torch.bfloat16).requires_grad_(False).eval()
    ddp = DDP(policy, device_ids=[local_rank], gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    torch.manual_seed(100 + dist.get_rank())
    for it in steps():
        questions = torch.randint(0, cfg.vocab, (cfg.prompts, cfg.prompt_len), device=device)
        questions = questions.repeat_interleave(cfg.group, dim=0)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            ids = generate(policy, questions, cfg)

        rewards = reward_fn(ids, cfg).view(cfg.prompts, cfg.group)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        advantages = advantages.view(-1, 1)

        with torch.no_grad():
            ref_logp = reference(ids)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logp = ddp(ids)
        ratio = torch.exp(logp - logp.detach())
        surrogate = torch.min(ratio * advantages, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * advantages)
        gap = ref_logp - logp
        kl = torch.exp(gap) - gap - 1
        loss = (cfg.beta * kl - surrogate).mean()

        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()

        metrics = torch.stack([rewards.mean(), kl.detach().mean()])
        dist.all_reduce(metrics, op=dist.ReduceOp.SUM)
        metrics /= dist.get_world_size()
        if it % 10 == 0 and dist.get_rank() == 0:
            print(f"iter {it}: reward {metrics[0].item():.3f} kl {metrics[1].item():.5f}")


if __name__ == "__main__":
    main()
