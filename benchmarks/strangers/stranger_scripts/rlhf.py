# PPO with a value head on GPT-2, after the recipe of "fine-tuning language models from human preferences"
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from tick import steps

QUERY, RESPONSE, BATCH, MINI, EPOCHS = 64, 128, 16, 8, 1
GAMMA, LAM, CLIP, CLIP_V, VF = 1.0, 0.95, 0.2, 0.2, 0.1
CONFIG = dict(n_embd=768, n_layer=12, n_head=12, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)


class PolicyWithValue(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.lm = GPT2LMHeadModel(config)
        self.v_head = nn.Sequential(nn.Dropout(0.1), nn.Linear(config.n_embd, 1))

    def forward(self, tokens):
        h = self.lm.transformer(input_ids=tokens).last_hidden_state[:, QUERY - 1 : -1]
        return self.lm.lm_head(h), self.v_head(h).squeeze(-1)


class RewardModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.body = GPT2Model(config)
        self.score = nn.Linear(config.n_embd, 1, bias=False)

    def forward(self, tokens):
        return self.score(self.body(input_ids=tokens).last_hidden_state[:, -1]).squeeze(-1)


class AdaptiveKL:
    def __init__(self, start=0.2, target=6.0, horizon=10000):
        self.value, self.target, self.horizon = start, target, horizon

    def update(self, current, n):
        error = max(-0.2, min(0.2, current / self.target - 1))
        self.value *= 1 + error * n / self.horizon


def logprobs_of(logits, labels):
    return -F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")


def entropy_of(logits):
    logits = logits.float()
    p = logits.softmax(-1)
    return torch.logsumexp(logits, -1) - (p * logits).sum(-1)


def whiten(x, shift_mean=True):
    y = (x - x.mean()) * torch.rsqrt(x.var() + 1e-8)
    return y if shift_mean else y + x.mean()


def gae(rewards, values):
    last, out = torch.zeros_like(rewards[:, 0]), []
    for i in reversed(range(rewards.shape[1])):
        following = values[:, i + 1] if i + 1 < rewards.shape[1] else 0.0
        delta = rewards[:, i] + GAMMA * following - values[:, i]
        last = delta + GAMMA * LAM * last
        out.append(last)
    adv = torch.stack(out[::-1], 1)
    return whiten(adv), adv + values


def amp():
    return torch.autocast("cuda", dtype=torch.bfloat16)


config = GPT2Config(**CONFIG)
policy = PolicyWithValue(config).cuda()
reference = copy.deepcopy(policy.lm).eval().requires_grad_(False)
judge = RewardModel(config).cuda().eval().requires_grad_(False)
optimizer = torch.optim.Adam(policy.parameters(), lr=1.41e-5)
kl_ctl = AdaptiveKL()


@torch.no_grad()
def score(tokens):
    labels = tokens[:, QUERY:]
    with amp():
        logits, values = policy(tokens)
        ref_logits = reference(input_ids=tokens).logits[:, QUERY - 1 : -1]
        reward = judge(tokens).float()
    old, ref = logprobs_of(logits, labels), logprobs_of(ref_logits, labels)
    kl = old - ref
    rewards = -kl_ctl.value * kl
    rewards[:, -1] += reward
    return old, values.float(), rewards, kl.sum(1).mean()


for step in steps():
    tokens = torch.randint(config.vocab_size, (BATCH, QUERY + RESPONSE), device="cuda")
    policy.eval()
    old_lp, old_v, rewards, kl = score(tokens)
    adv, returns = gae(rewards, old_v)
    policy.train()
    for _ in range(EPOCHS):
        for idx in torch.randperm(BATCH, device="cuda").split(MINI):
            with amp():
                logits, v = policy(tokens[idx])
            lp = logprobs_of(logits, tokens[idx, QUERY:])
            ratio = torch.exp(lp - old_lp[idx])
            pg = torch.max(-adv[idx] * ratio, -adv[idx] * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            v = v.float()
            v_clipped = torch.clamp(v, old_v[idx] - CLIP_V, old_v[idx] + CLIP_V)
            vf = 0.5 * torch.max((v - returns[idx]) ** 2, (v_clipped - returns[idx]) ** 2).mean()
            optimizer.zero_grad()
            (pg + VF * vf).backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            with torch.no_grad():
                ent, frac = entropy_of(logits.detach()).mean(), (ratio - 1).abs().gt(CLIP).float().mean()
    kl_ctl.update(kl.item(), BATCH)
print({"kl": kl.item(), "kl_coef": kl_ctl.value, "entropy": ent.item(), "clipfrac": frac.item()})
