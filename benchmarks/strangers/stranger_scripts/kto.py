"""KTO on a 1.1B Llama with DoRA adapters. The reference model is the policy with its adapters switched off."""

import contextlib
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from tick import steps

BETA, DESIRABLE, UNDESIRABLE = 0.1, 1.0, 1.33
BATCH, PROMPT, ANSWER = 6, (20, 200), (40, 300)
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


class DoRALinear(nn.Module):
    enabled = True

    def __init__(self, base, r=16, alpha=32, dropout=0.05):
        super().__init__()
        self.base = base.requires_grad_(False)
        device = base.weight.device
        self.a = nn.Parameter(torch.empty(r, base.in_features, device=device))
        self.b = nn.Parameter(torch.zeros(base.out_features, r, device=device))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.magnitude = nn.Parameter(base.weight.float().norm(dim=1))
        self.scale = alpha / r
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        y = self.base(x)
        if not DoRALinear.enabled:
            return y
        low = F.linear(F.linear(self.dropout(x), self.a.to(x.dtype)), self.b.to(x.dtype)) * self.scale
        with torch.no_grad():
            norm = (self.base.weight + self.scale * (self.b @ self.a)).norm(dim=1)
        ratio = (self.magnitude / norm).to(x.dtype)
        return ratio * (y + low)


@contextlib.contextmanager
def reference():
    DoRALinear.enabled = False
    try:
        with torch.no_grad():
            yield
    finally:
        DoRALinear.enabled = True


def add_adapters(model):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in TARGETS:
                setattr(module, name, DoRALinear(child))
    return [p for p in model.parameters() if p.requires_grad]


def example(vocab):
    prompt = torch.randint(3, vocab, (int(torch.randint(*PROMPT, ())),))
    answer = torch.randint(3, vocab, (int(torch.randint(*ANSWER, ())),))
    return prompt, answer


def collate(pairs, device):
    ids, labels = [], []
    for prompt, answer in pairs:
        ids.append(torch.cat([prompt, answer]))
        labels.append(torch.cat([torch.full_like(prompt, -100), answer]))
    ids = nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=0)
    labels = nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    return {"input_ids": ids.to(device), "attention_mask": (ids != 0).long().to(device), "labels": labels.to(device)}


def sequence_logps(model, batch):
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    mask = labels != -100
    logps = logits.float().log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (logps * mask).sum(-1)


def kto_loss(policy, ref, kl, desirable):
    ratio = policy - ref
    good = 1 - torch.sigmoid(BETA * (ratio[desirable] - kl))
    bad = 1 - torch.sigmoid(BETA * (kl - ratio[~desirable]))
    loss = torch.cat([DESIRABLE * good, UNDESIRABLE * bad]).mean()
    return loss, BETA * ratio.detach()


def main(device="cuda"):
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        attn_implementation="sdpa",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.requires_grad_(False)
    params = add_adapters(model)
    model.train()
    optimizer = torch.optim.AdamW(params, lr=5e-6, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=20)
    history = []
    for i in steps():
        pairs = [example(config.vocab_size) for _ in range(BATCH)]
        mismatched = [(p, pairs[(j + 1) % BATCH][1]) for j, (p, _) in enumerate(pairs)]
        batch, kl_batch = collate(pairs, device), collate(mismatched, device)
        desirable = torch.rand(BATCH, device=device) < 0.5
        with reference():
            ref = sequence_logps(model, batch)
            kl_ref = sequence_logps(model, kl_batch)
        with torch.no_grad():
            kl_policy = sequence_logps(model, kl_batch)
        kl = (kl_policy - kl_ref).mean().clamp(min=0)
        loss, rewards = kto_loss(sequence_logps(model, batch), ref, kl, desirable)
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        history.append({"loss": loss.item(), "kl": kl.item(), "reward": rewards.mean().item(), "gn": float(grad_norm)})
    print(history[-1])


main()
