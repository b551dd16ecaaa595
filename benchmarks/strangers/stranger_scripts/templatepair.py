from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tick import steps

N_RES, N_TEMPL, C_T, C_Z, C_IN = 256, 4, 64, 128, 88
TEMPLATE_BLOCKS, PAIR_BLOCKS, BINS = 2, 4, 64


class TriangleMultiplication(nn.Module):
    def __init__(self, c, hidden, outgoing):
        super().__init__()
        self.equation = "...ikc,...jkc->...ijc" if outgoing else "...kic,...kjc->...ijc"
        self.norm_in, self.norm_out = nn.LayerNorm(c), nn.LayerNorm(hidden)
        self.ab, self.ab_gate = nn.Linear(c, 2 * hidden), nn.Linear(c, 2 * hidden)
        self.gate, self.out = nn.Linear(c, c), nn.Linear(hidden, c)

    def forward(self, z, mask):
        z = self.norm_in(z)
        a, b = (mask[..., None] * torch.sigmoid(self.ab_gate(z)) * self.ab(z)).chunk(2, -1)
        x = torch.einsum(self.equation, a, b)
        return torch.sigmoid(self.gate(z)) * self.out(self.norm_out(x))


class TriangleAttention(nn.Module):
    def __init__(self, c, hidden, heads, starting):
        super().__init__()
        self.starting, self.heads, self.hidden = starting, heads, hidden
        self.norm, self.bias = nn.LayerNorm(c), nn.Linear(c, heads, bias=False)
        self.q, self.k, self.v = (nn.Linear(c, heads * hidden, bias=False) for _ in range(3))
        self.gate, self.out = nn.Linear(c, heads * hidden), nn.Linear(heads * hidden, c)

    def forward(self, z, mask):
        if not self.starting:
            z, mask = z.transpose(-2, -3), mask.transpose(-1, -2)
        z = self.norm(z)
        split = lambda t: t.unflatten(-1, (self.heads, self.hidden))
        q, k, v = split(self.q(z)), split(self.k(z)), split(self.v(z))
        logits = torch.einsum("...iqhd,...ikhd->...ihqk", q * self.hidden**-0.5, k)
        logits = logits + torch.einsum("...qkh->...hqk", self.bias(z)).unsqueeze(-4)
        logits = logits + (1e4 * (mask - 1))[..., :, None, None, :].to(logits.dtype)
        weights = torch.softmax(logits, -1).to(v.dtype)
        o = torch.einsum("...ihqk,...ikhd->...iqhd", weights, v).flatten(-2)
        o = self.out(o * torch.sigmoid(self.gate(z)))
        return o if self.starting else o.transpose(-2, -3)


class Transition(nn.Module):
    def __init__(self, c, n):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(c), nn.Linear(c, n * c), nn.Linear(n * c, c)

    def forward(self, z, mask):
        return self.down(F.relu(self.up(self.norm(z)))) * mask[..., None]


def shared_dropout(x, rate, dim, training):
    if not training:
        return x
    shape = list(x.shape)
    shape[dim] = 1
    return x * F.dropout(x.new_ones(shape), rate)


class PairBlock(nn.Module):
    def __init__(self, c, hidden_mul, hidden_att, heads, n, drop=0.25):
        super().__init__()
        self.att_start = TriangleAttention(c, hidden_att, heads, True)
        self.att_end = TriangleAttention(c, hidden_att, heads, False)
        self.mul_out = TriangleMultiplication(c, hidden_mul, True)
        self.mul_in = TriangleMultiplication(c, hidden_mul, False)
        self.transition, self.drop = Transition(c, n), drop

    def forward(self, z, mask):
        row = partial(shared_dropout, rate=self.drop, dim=-3, training=self.training)
        col = partial(shared_dropout, rate=self.drop, dim=-2, training=self.training)
        z = z + row(self.att_start(z, mask))
        z = z + col(self.att_end(z, mask))
        z = z + row(self.mul_out(z, mask))
        z = z + row(self.mul_in(z, mask))
        return z + self.transition(z, mask)


class PointwiseAttention(nn.Module):
    """Every pair of residues looks at the same pair in each template."""

    def __init__(self, heads=4, hidden=16):
        super().__init__()
        self.heads, self.hidden = heads, hidden
        self.q = nn.Linear(C_Z, heads * hidden, bias=False)
        self.kv = nn.Linear(C_T, 2 * heads * hidden, bias=False)
        self.out = nn.Linear(heads * hidden, C_Z)

    def forward(self, t, z, template_mask):
        q = self.q(z).unflatten(-1, (self.heads, self.hidden)) * self.hidden**-0.5
        k, v = self.kv(t).unflatten(-1, (2, self.heads, self.hidden)).unbind(-3)
        logits = torch.einsum("bijhd,btijhd->bijht", q, k) + 1e4 * (template_mask - 1)[:, None, None, None]
        return self.out(torch.einsum("bijht,btijhd->bijhd", logits.softmax(-1).to(v.dtype), v).flatten(-2))


class TemplateNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_t, self.norm_t = nn.Linear(C_IN, C_T), nn.LayerNorm(C_T)
        self.left, self.right = nn.Embedding(21, C_Z), nn.Embedding(21, C_Z)
        self.relpos = nn.Embedding(65, C_Z)
        self.template_blocks = nn.ModuleList(PairBlock(C_T, 64, 16, 4, 2) for _ in range(TEMPLATE_BLOCKS))
        self.pointwise = PointwiseAttention()
        self.pair_blocks = nn.ModuleList(PairBlock(C_Z, 128, 32, 4, 4) for _ in range(PAIR_BLOCKS))
        self.distogram = nn.Linear(C_Z, BINS)

    def forward(self, aatype, index, templates, template_mask, mask):
        z = self.left(aatype)[:, :, None] + self.right(aatype)[:, None]
        z = z + self.relpos((index[:, :, None] - index[:, None]).clamp(-32, 32) + 32)
        t, t_mask = self.embed_t(templates), mask[:, None].expand(-1, N_TEMPL, -1, -1)
        for block in self.template_blocks:
            t = checkpoint(block, t, t_mask, use_reentrant=False)
        z = z + self.pointwise(self.norm_t(t), z, template_mask)
        for block in self.pair_blocks:
            z = checkpoint(block, z, mask, use_reentrant=False)
        logits = self.distogram(z)
        return logits + logits.transpose(1, 2)


def distogram_loss(logits, coords, mask):
    edges = torch.linspace(2.3125, 21.6875, BINS - 1, device=coords.device) ** 2
    square = (coords[:, :, None] - coords[:, None]).pow(2).sum(-1, keepdim=True)
    true = (square > edges).sum(-1)
    errors = F.cross_entropy(logits.float().permute(0, 3, 1, 2), true, reduction="none")
    return (errors * mask).sum() / (mask.sum() + 1e-6)


def lr_factor(step, warmup=1000):
    return min(1.0, (step + 1) / warmup)


def main():
    torch.manual_seed(0)
    model = TemplateNet().cuda().train()
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-6)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    for step in steps(count=8):
        aatype = torch.randint(0, 21, (1, N_RES), device="cuda")
        index = torch.arange(N_RES, device="cuda")[None]
        templates = torch.randn(1, N_TEMPL, N_RES, N_RES, C_IN, device="cuda")
        template_mask = torch.tensor([[1.0] * (N_TEMPL - 1) + [float(step % 2)]], device="cuda")
        valid = (index < N_RES - 16).float()
        mask = valid[:, :, None] * valid[:, None]
        coords = torch.randn(1, N_RES, 3, device="cuda").cumsum(1) * 2
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(aatype, index, templates, template_mask, mask)
        loss = distogram_loss(logits, coords, mask)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        if step % 20 == 0:
            assert torch.isfinite(norm).item()


main()
