import functools
import logging

import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("gla")

# GLA-340M
hidden, n_layers, n_heads, vocab = 1024, 24, 4, 32000
seq_len, batch_size, chunk, low_rank = 2048, 6, 128, 16
key_dim, value_dim, inner = hidden // 2, hidden, 2816
base_lr, warm = 3e-4, 1024


def gated_linear_attention(q, k, v, log_gate):
    """Chunkwise form. q, k, log_gate: (b, h, t, d); v: (b, h, t, e)."""
    q, k, v, g = (x.unflatten(2, (-1, chunk)) for x in (q, k, v, log_gate))
    total = g.cumsum(3)
    last = total[:, :, :, -1:]
    up, down = (q * total.exp()).to(v.dtype), (k * (-total).exp()).to(v.dtype)
    update = torch.einsum("bhncd,bhnce->bhnde", (k * (last - total).exp()).to(v.dtype), v).float()
    decay = last.exp().transpose(-1, -2)
    state, states = torch.zeros_like(update[:, :, 0]), []
    for n in range(update.shape[2]):
        states.append(state)
        state = state * decay[:, :, n] + update[:, :, n]
    states = torch.stack(states, 2).to(v.dtype)
    across = torch.einsum("bhncd,bhnde->bhnce", up, states)
    inside = torch.einsum("bhncd,bhnsd->bhncs", up, down).tril()
    return (across + torch.einsum("bhncs,bhnse->bhnce", inside, v)).flatten(2, 3)


class GLABlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-6), nn.RMSNorm(hidden, eps=1e-6)
        self.q, self.k = nn.Linear(hidden, key_dim, bias=False), nn.Linear(hidden, key_dim, bias=False)
        self.v, self.g = nn.Linear(hidden, value_dim, bias=False), nn.Linear(hidden, value_dim, bias=False)
        self.gate_down, self.gate_up = nn.Linear(hidden, low_rank, bias=False), nn.Linear(low_rank, key_dim)
        self.head_norm = nn.RMSNorm(value_dim // n_heads, eps=1e-5)
        self.o = nn.Linear(value_dim, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 2 * inner, bias=False), nn.Linear(inner, hidden, bias=False)

    def mix(self, x):
        q, k, v = (f(x).unflatten(-1, (n_heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        gate = F.logsigmoid(self.gate_up(self.gate_down(x)).float()) / 16
        gate = gate.unflatten(-1, (n_heads, -1)).transpose(1, 2)
        y = gated_linear_attention(q * (key_dim // n_heads) ** -0.5, k, v, gate)
        y = self.head_norm(y.transpose(1, 2)).flatten(2)
        return self.o(y * F.silu(self.g(x)))

    def forward(self, x):
        x = x + self.mix(self.norm1(x))
        gate, up = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def keep_matmuls(ctx, op, *args, **kwargs):
    if op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


selective = functools.partial(create_selective_checkpoint_contexts, keep_matmuls)


@torch.compile(fullgraph=True)
def run_block(block, x):
    return checkpoint(block, x, use_reentrant=False, context_fn=selective)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(GLABlock() for _ in range(n_layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-6)
        self.apply(self.init)

    @staticmethod
    def init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = run_block(block, x)
        return self.norm(x)


def step_in_backward(model):
    """Every parameter has its own AdamW, stepped as soon as its gradient is whole, which is then dropped."""
    optimizers = {}
    for p in model.parameters():
        decay = 0.1 if p.ndim > 1 else 0.0
        optimizers[p] = torch.optim.AdamW([p], lr=base_lr, betas=(0.9, 0.95), weight_decay=decay, fused=True)

    def hook(p):
        optimizers[p].step()
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    return optimizers


def main():
    device = torch.device("cuda")
    model = Model().to(device=device, dtype=torch.bfloat16)
    optimizers = step_in_backward(model)
    log.info("%.1fM parameters", sum(p.numel() for p in model.parameters()) / 1e6)
    for i in steps():
        for opt in optimizers.values():
            opt.param_groups[0]["lr"] = base_lr * min(1.0, (i + 1) / warm)
        ids = torch.randint(0, vocab, (batch_size, seq_len + 1), device=device)
        h = model(ids[:, :-1])
        logits = F.linear(h, model.embed.weight)
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        if i % 16 == 0:
            log.info("step %d loss %.4f", i, loss.item())


main()
