import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from tick import steps

# Titans, memory as a gate over sliding attention: a two-layer network is trained at every chunk, by momentum and decay.
DIM, HEADS, LAYERS, MEMORY_LAYERS = 768, 12, 8, (1, 4, 6)
LENGTH, CHUNK, WINDOW, BATCH, VOCAB = 1024, 64, 256, 8, 32000
MEM_HEADS, MEM_DIM = 4, 64


class Memory(nn.Module):
    def __init__(self, dim, expand=2):
        super().__init__()
        self.w0 = nn.Parameter(torch.randn(dim, dim * expand) * dim**-0.5)
        self.w1 = nn.Parameter(torch.randn(dim * expand, dim) * (dim * expand) ** -0.5)

    def forward(self, x):
        return x + F.gelu(x @ self.w0) @ self.w1


class NeuralMemory(nn.Module):
    def __init__(self):
        super().__init__()
        inner = MEM_HEADS * MEM_DIM
        self.norm = nn.RMSNorm(DIM)
        self.q, self.k, self.v = (nn.Linear(DIM, inner, bias=False) for _ in range(3))
        self.rate = nn.Linear(DIM, MEM_HEADS)
        self.decay, self.momentum = nn.Linear(DIM, MEM_HEADS), nn.Linear(DIM, MEM_HEADS)
        self.out, self.gate = nn.Linear(inner, DIM, bias=False), nn.Linear(DIM, DIM)
        self.memory = Memory(MEM_DIM)
        nn.init.constant_(self.decay.bias, -4.0)

        def surprise(weights, k, v, rate):
            error = functional_call(self.memory, weights, (k,)) - v
            return (rate * error.square().mean(-1)).sum()

        self.write = vmap(grad(surprise))
        self.read = vmap(lambda weights, q: functional_call(self.memory, weights, (q,)))

    def split(self, x):
        b, n, _ = x.shape
        x = x.view(b, n // CHUNK, CHUNK, MEM_HEADS, -1)
        return x.permute(1, 0, 3, 2, 4).flatten(1, 2)

    def forward(self, x):
        b, n, _ = x.shape
        x = self.norm(x)
        q, k = (self.split(F.normalize(F.silu(f(x)).float(), dim=-1)) for f in (self.q, self.k))
        v = self.split(F.silu(self.v(x)).float())
        rate = self.split(self.rate(x).float().sigmoid() * 0.1).squeeze(-1)
        keep = 1 - self.split(self.decay(x).float().sigmoid()).mean((2, 3))
        eta = self.split(self.momentum(x).float().sigmoid()).mean((2, 3))
        weights = {name: p.expand(b * MEM_HEADS, *p.shape) for name, p in self.memory.named_parameters()}
        speed = {name: torch.zeros_like(w) for name, w in weights.items()}
        read = []
        with torch.autocast("cuda", enabled=False):
            for c in range(n // CHUNK):
                read.append(self.read(weights, q[c]))
                g = self.write(weights, k[c], v[c], rate[c])
                e, a = eta[c].view(-1, 1, 1), keep[c].view(-1, 1, 1)
                speed = {name: e * speed[name] - g[name] for name in speed}
                weights = {name: a * weights[name] + speed[name] for name in weights}
        y = torch.stack(read, 1).view(b, MEM_HEADS, n, MEM_DIM).transpose(1, 2).reshape(b, n, -1)
        return self.out(y) * self.gate(x).sigmoid()


class Layer(nn.Module):
    def __init__(self, memory):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(2 * DIM, DIM, bias=False)
        self.memory = NeuralMemory() if memory else None

    def mix(self, x, mask):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        a, b = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)

    def forward(self, x, mask):
        if self.memory is not None:
            x = x + self.memory(x)
        return self.mix(x, mask)


class Titan(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.layers = nn.ModuleList(Layer(i in MEMORY_LAYERS) for i in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        self.embed.weight.data.normal_(0, 0.02)
        self.head.weight = self.embed.weight
        i = torch.arange(LENGTH)
        self.register_buffer("mask", (i[:, None] >= i) & (i[:, None] - i < WINDOW))

    def forward(self, tokens, targets):
        x = self.embed(tokens) + self.pos.weight
        for layer in self.layers:
            x = layer(x, self.mask)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, VOCAB), targets.reshape(-1))


torch.set_float32_matmul_precision("high")
model = Titan().to("cuda")
opt = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=0.1, betas=(0.9, 0.95))
warmup = torch.optim.lr_scheduler.LinearLR(opt, 0.01, total_iters=1000)
text = torch.randint(0, VOCAB, (1_000_000,), device="cuda")
for _ in steps():
    at = torch.randint(0, len(text) - LENGTH - 1, (BATCH, 1), device="cuda")
    chunk = text[at + torch.arange(LENGTH + 1, device="cuda")]
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(chunk[:, :-1], chunk[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    warmup.step()
