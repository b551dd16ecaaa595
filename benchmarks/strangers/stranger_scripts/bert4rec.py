import torch
from torch import nn
from torch.nn import functional as F
from tick import steps

ITEMS, LENGTH, DIM, HEADS, LAYERS, BATCH = 26744, 200, 256, 8, 2, 128
MASK, PAD, EVERY, CHUNK = ITEMS + 1, 0, 6, 2048
VOCAB = ITEMS + 2


class ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy over all items without ever holding all logits; the gradient is made in the forward pass."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.bfloat16)
    def forward(ctx, hidden, table, bias, targets):
        grad_h, grad_w, grad_b = torch.empty_like(hidden), torch.zeros_like(table), torch.zeros_like(bias)
        total = hidden.new_zeros((), dtype=torch.float32)
        n = len(hidden)
        for begin in range(0, n, CHUNK):
            h, t = hidden[begin : begin + CHUNK], targets[begin : begin + CHUNK]
            logits = torch.addmm(bias, h, table.t()).float()
            log_z = logits.logsumexp(-1)
            total += (log_z - logits.gather(1, t[:, None])[:, 0]).sum()
            p = torch.exp(logits - log_z[:, None])
            p[torch.arange(len(t), device=t.device), t] -= 1
            p = (p / n).to(h.dtype)
            torch.mm(p, table, out=grad_h[begin : begin + CHUNK])
            grad_w.addmm_(p.t(), h)
            grad_b += p.sum(0)
        ctx.save_for_backward(grad_h, grad_w, grad_b)
        return total / n

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        return (*(g.float() * grad for g in ctx.saved_tensors), None)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x, mask):
        b, n, _ = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(b, n, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2) / (DIM // HEADS) ** 0.5).masked_fill(~mask, -1e4)
        p = F.dropout(scores.softmax(-1), 0.1, self.training).to(v.dtype)
        x = x + F.dropout(self.o((p @ v).transpose(1, 2).reshape(b, n, DIM)), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1, self.training)


class BERT4Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.positions = nn.Embedding(VOCAB, DIM, padding_idx=PAD), nn.Embedding(LENGTH, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, DIM)
        self.bias = nn.Parameter(torch.zeros(VOCAB))
        nn.init.trunc_normal_(self.items.weight, std=0.02)

    def forward(self, ids):
        mask = (ids != PAD)[:, None, None, :]
        x = F.dropout(self.items(ids) + self.positions.weight, 0.1, self.training)
        for layer in self.layers:
            x = layer(x, mask)
        return F.gelu(self.head(self.norm(x)))


class Shampoo(torch.optim.Optimizer):
    """Two-sided preconditioning of matrices; the step's length is that of Adam's second moment."""

    def __init__(self, params, lr, beta=0.9, beta2=0.99, eps=1e-8):
        super().__init__(params, dict(lr=lr, beta=beta, beta2=beta2, eps=eps))

    @staticmethod
    def inverse_root(m):
        damp = 1e-6 * m.diagonal().mean() + 1e-12
        values, vectors = torch.linalg.eigh(m + damp * torch.eye(len(m), device=m.device))
        return (vectors * values.clamp(min=damp).pow(-0.25)) @ vectors.t()

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                g, s = p.grad, self.state[p]
                if not s:
                    s["n"], s["m"], s["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                    s["left"] = torch.zeros(p.shape[0], p.shape[0], device=p.device)
                    s["right"] = torch.zeros(p.shape[1], p.shape[1], device=p.device)
                s["left"].lerp_(g @ g.t(), 1 - group["beta2"])
                s["right"].lerp_(g.t() @ g, 1 - group["beta2"])
                s["v"].lerp_(g * g, 1 - group["beta2"])
                if s["n"] % EVERY == 0:
                    s["pl"], s["pr"] = self.inverse_root(s["left"]), self.inverse_root(s["right"])
                s["n"] += 1
                update = s["pl"] @ g @ s["pr"]
                graft = g / ((s["v"] / (1 - group["beta2"] ** s["n"])).sqrt() + group["eps"])
                update *= graft.norm() / (update.norm() + 1e-12)
                s["m"].lerp_(update, 1 - group["beta"])
                p.add_(s["m"], alpha=-group["lr"])


torch.set_float32_matmul_precision("high")
model = BERT4Rec().to("cuda")
matrices = [p for layer in model.layers for p in layer.parameters() if p.ndim == 2]
chosen = set(map(id, matrices))
shampoo = Shampoo(matrices, lr=1e-3)
adam = torch.optim.Adam([p for p in model.parameters() if id(p) not in chosen], lr=1e-3, foreach=True)


def cloze(ids):
    chance = torch.rand(ids.shape, device=ids.device)
    where = (chance < 0.2) & (ids != PAD)
    return ids.masked_fill(where, MASK), where


for i in steps():
    ids = torch.randint(1, ITEMS + 1, (BATCH, LENGTH), device="cuda")
    lengths = torch.randint(20, LENGTH + 1, (BATCH, 1), device="cuda")
    ids = ids.masked_fill(torch.arange(LENGTH, device="cuda") < LENGTH - lengths, PAD)
    twice = torch.cat([ids, ids])
    masked, where = cloze(twice)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = model(masked)
        mlm = ChunkedCrossEntropy.apply(hidden[where], model.items.weight, model.bias, twice[where])
        real = (twice != PAD).unsqueeze(-1)
        pooled = F.normalize((hidden * real).sum(1).float() / real.sum(1), dim=-1)
        similar = pooled[:BATCH] @ pooled[BATCH:].t() / 0.1
    contrast = F.cross_entropy(similar.float(), torch.arange(BATCH, device="cuda"))
    adam.zero_grad()
    shampoo.zero_grad()
    mlm.backward(retain_graph=True)
    first = torch.stack([p.grad.norm() for p in matrices]).norm()
    (0.1 * contrast).backward()
    both = torch.stack([p.grad.norm() for p in matrices]).norm()
    shampoo.step()
    adam.step()
    if i % 10 == 0:
        print(f"{i}: mlm {mlm.item():.3f} contrast {contrast.item():.3f} norms {first.item():.3f} {both.item():.3f}")
