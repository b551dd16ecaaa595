"""Text to music: a decoder over four delayed codebooks (300M), Lion by hand."""

import torch
from torch import nn
from torch.nn import functional as F
from tick import steps

CARD, BOOKS, FRAMES, TEXT, TEXT_DIM = 2048, 4, 1500, 64, 768
DIM, HEADS, LAYERS, BATCH = 1024, 16, 24, 6
DEVICE = "cuda"


class Attention(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.q = nn.Linear(DIM, DIM, bias=False)
        self.kv = nn.Linear(DIM, 2 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x, source, mask=None):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, HEADS, -1).transpose(1, 2)
        k, v = self.kv(source).view(b, source.shape[1], 2, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, n, DIM))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(3)])
        self.self_attn, self.cross_attn = Attention(True), Attention(False)
        self.linear1 = nn.Linear(DIM, 4 * DIM, bias=False)
        self.linear2 = nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x, text, mask):
        y = self.norms[0](x)
        x = x + self.self_attn(y, y)
        x = x + self.cross_attn(self.norms[1](x), text, mask)
        y = F.gelu(self.linear1(self.norms[2](x)))
        return x + F.dropout(self.linear2(F.dropout(y, 0.1, self.training)), 0.1, self.training)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.ModuleList([nn.Embedding(CARD + 1, DIM) for _ in range(BOOKS)])
        self.condition = nn.Linear(TEXT_DIM, DIM)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.out_norm = nn.LayerNorm(DIM)
        self.heads = nn.ModuleList([nn.Linear(DIM, CARD, bias=False) for _ in range(BOOKS)])
        half = DIM // 2
        phase = torch.arange(FRAMES + BOOKS)[:, None] / 10000 ** (torch.arange(half) / (half - 1))
        self.register_buffer("pos", torch.cat([phase.cos(), phase.sin()], -1))
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.trunc_normal_(p, std=DIM**-0.5 / 2)

    def forward(self, codes, text, text_mask):
        x = sum(emb(codes[:, k]) for k, emb in enumerate(self.emb))
        x = x + self.pos[: x.shape[1]]
        text = self.condition(text) * text_mask[..., None]
        mask = text_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, text, mask)
        x = self.out_norm(x)
        return torch.stack([head(x) for head in self.heads], 1)


def delay(codes):
    """Shifts codebook k by k frames, and puts the special token where nothing is."""
    b, k, t = codes.shape
    out = codes.new_full((b, k, t + k), CARD)
    for q in range(k):
        out[:, q, q + 1 : q + 1 + t] = codes[:, q, : t + k - q - 1]
    return out


def undelay(logits, t):
    return torch.stack([logits[:, q, q : q + t] for q in range(logits.shape[1])], 1)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p]["m"] = torch.zeros_like(p)
            moments = [self.state[p]["m"] for p in params]
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            update = torch._foreach_lerp(moments, grads, 1 - beta1)
            torch._foreach_sign_(update)
            torch._foreach_add_(params, update, alpha=-group["lr"])
            torch._foreach_lerp_(moments, grads, 1 - beta2)


def per_codebook_loss(logits, codes, valid):
    losses = []
    for k in range(BOOKS):
        keep = valid[:, k].reshape(-1)
        ce = F.cross_entropy(logits[:, k].reshape(-1, CARD)[keep].float(), codes[:, k].reshape(-1)[keep])
        losses.append(ce)
    return sum(losses) / BOOKS, [ce.detach() for ce in losses]


def main():
    torch.manual_seed(2036)
    torch.backends.cuda.matmul.allow_tf32 = True
    lm = LM().to(DEVICE)
    for layer in lm.layers:
        layer.compile()
    opt = Lion(lm.parameters(), lr=3e-5)
    for step in steps():
        codes = torch.randint(CARD, (BATCH, BOOKS, FRAMES), device=DEVICE)
        seconds = torch.randint(FRAMES // 2, FRAMES + 1, (BATCH,), device=DEVICE)
        valid = (torch.arange(FRAMES, device=DEVICE) < seconds[:, None])[:, None].expand(-1, BOOKS, -1)
        text = torch.randn(BATCH, TEXT, TEXT_DIM, device=DEVICE)
        words = torch.randint(5, TEXT + 1, (BATCH,), device=DEVICE)
        text_mask = (torch.arange(TEXT, device=DEVICE) < words[:, None]).float()
        dropped = torch.rand(BATCH, 1, device=DEVICE) < 0.1
        text = text.masked_fill(dropped[..., None], 0.0)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            logits = undelay(lm(delay(codes), text, text_mask), FRAMES)
            loss, each = per_codebook_loss(logits, codes, valid)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(lm.parameters(), 1.0, foreach=True)
        opt.step()
        opt.zero_grad()
        if step % 30 == 0:
            print("ppl", [round(ce.exp().item(), 1) for ce in each])


main()
