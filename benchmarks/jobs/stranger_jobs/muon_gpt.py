import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from tock import steps

SEQ, DIM, HEADS, LAYERS, VOCAB, BATCH = 1024, 2048, 16, 8, 50304, 8


@torch.compile
def newton_schulz(G, iterations=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G.bfloat16()
    if G.size(0) > G.size(1):
        X = X.T
    X = X / (X.norm() + 1e-7)
    for _ in range(iterations):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X.T if G.size(0) > G.size(1) else X


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.01):
        params = list(params)
        shapes = dict.fromkeys(p.shape for p in params)
        groups = [{"params": [p for p in params if p.shape == shape]} for shape in shapes]
        super().__init__(groups, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = group["params"]
            padded = params + [torch.empty_like(params[-1])] * (-len(params) % self.world)
            for start in range(0, len(params), self.world):
                if start + self.rank < len(params):
                    p = params[start + self.rank]
                    state = self.state[p]
                    if not state:
                        state["momentum"] = torch.zeros_like(p)
                    buffer = state["momentum"]
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    update = newton_schulz(p.grad.lerp(buffer, group["momentum"]))
                    scale = max(1, p.size(0) / p.size(1)) ** 0.5
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update.to(p.dtype), alpha=-group["lr"] * scale)
                dist.all_gather(padded[start : start + self.world], padded[start + self.rank])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.fc, self.proj = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        h = F.rms_norm(x, (DIM,))
        q, k, v = (w(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        q, k = F.rms_norm(q, (DIM // HEADS,)), F.rms_norm(k, (DIM // HEADS,))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.proj(F.relu(self.fc(F.rms_norm(x, (DIM,)))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, targets):
        x = F.rms_norm(self.wte(ids) + self.wpe.weight, (DIM,))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(F.rms_norm(x, (DIM,)))
        logits = 15 * torch.tanh(logits.float() / 15)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.flatten())


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
model = GPT().cuda()
for p in model.parameters():
    dist.broadcast(p.data, src=0)
matrices = list(model.blocks.parameters())
others = [*model.wte.parameters(), *model.wpe.parameters(), *model.lm_head.parameters()]
muon = Muon(matrices)
adam = torch.optim.AdamW(others, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
compiled = torch.compile(model)
torch.manual_seed(1 + dist.get_rank())
for _ in steps():
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = compiled(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    works = [dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, async_op=True) for p in model.parameters()]
    for work in works:
        work.wait()
    muon.step()
    adam.step()
    model.zero_grad(set_to_none=True)
