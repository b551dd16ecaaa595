# Text-to-audio latent diffusion: the 1B DiT of Stable Audio Open (v-objective) on cached autoencoder latents.
import copy, math
import torch
from torch import nn
import torch.nn.functional as F
from tick import steps

DIM, DEPTH, HEADS, HEAD, LATENT, LENGTH, TEXT, COND = 1536, 24, 24, 64, 64, 1024, 128, 768
BATCH, LR, WARMUP, CFG_DROP, DECAY = 4, 5e-5, 0.99, 0.1, 0.9999
device = torch.device("cuda")


def rotate(x, cos, sin):
    # only the first half of the head's width turns
    r, keep = x.chunk(2, -1)
    a, b = r.chunk(2, -1)
    return torch.cat([r * cos + torch.cat([-b, a], -1) * sin, keep], -1).to(x.dtype)


class Attend(nn.Module):
    def __init__(self, cross=False):
        super().__init__()
        self.cross = cross
        self.q = nn.Linear(DIM, DIM, bias=False)
        self.kv = nn.Linear(COND if cross else DIM, 2 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.qn, self.kn = nn.LayerNorm(HEAD, eps=1e-6), nn.LayerNorm(HEAD, eps=1e-6)
        nn.init.zeros_(self.out.weight)

    def forward(self, x, rope=None, context=None):
        b, n, _ = x.shape
        source = context if self.cross else x
        q = self.q(x).view(b, n, HEADS, HEAD).transpose(1, 2)
        k, v = self.kv(source).view(b, source.shape[1], 2, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        q, k = self.qn(q).to(v.dtype), self.kn(k).to(v.dtype)
        if rope is not None:
            q, k = rotate(q, *rope), rotate(k, *rope)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, DIM))


class GLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 8 * DIM), nn.Linear(4 * DIM, DIM)
        nn.init.zeros_(self.down.weight)

    def forward(self, x):
        x, gate = self.up(x).chunk(2, -1)
        return self.down(x * F.silu(gate))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.n3 = (nn.LayerNorm(DIM, bias=False) for _ in range(3))
        self.attn, self.cross, self.ff = Attend(), Attend(cross=True), GLU()

    def forward(self, x, cos, sin, context):
        x = x + self.attn(self.n1(x), rope=(cos, sin))
        x = x + self.cross(self.n2(x), context=context)
        return x + self.ff(self.n3(x))


class DiT(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("freq", torch.randn(128))
        self.time = nn.Sequential(nn.Linear(256, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.seconds = nn.Sequential(nn.Linear(256, COND), nn.SiLU(), nn.Linear(COND, COND))
        self.to_global = nn.Sequential(nn.Linear(2 * COND, DIM, bias=False), nn.SiLU(), nn.Linear(DIM, DIM, bias=False))
        self.to_context = nn.Sequential(nn.Linear(COND, COND, bias=False), nn.SiLU(), nn.Linear(COND, COND, bias=False))
        self.pre, self.post = nn.Conv1d(LATENT, LATENT, 1, bias=False), nn.Conv1d(LATENT, LATENT, 1, bias=False)
        self.inp, self.outp = nn.Linear(LATENT, DIM, bias=False), nn.Linear(DIM, LATENT, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        inv = 10000 ** -(torch.arange(0, HEAD // 2, 2) / (HEAD // 2))
        angle = torch.outer(torch.arange(LENGTH + 1).float(), inv).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def fourier(self, t):
        f = 2 * math.pi * t[..., None] * self.freq
        return torch.cat([f.cos(), f.sin()], -1)

    def forward(self, x, t, text, span):
        span = self.seconds(self.fourier(span))
        context = torch.cat([text, span], 1)
        context = context * (torch.rand(len(x), 1, 1, device=x.device) > CFG_DROP)
        g = self.to_global(span.flatten(1)) + self.time(self.fourier(t))
        context = self.to_context(context)
        h = self.inp((self.pre(x) + x).transpose(1, 2))
        h = torch.cat([g[:, None], h], 1)
        for block in self.blocks:
            h = block(h, self.cos, self.sin, context)
        y = self.outp(h)[:, 1:].transpose(1, 2)
        return self.post(y) + y


class Prefetcher:
    """Copies the next batch on a stream of its own while the present one is trained on."""

    def __init__(self):
        self.latents = torch.randn(48, LATENT, LENGTH).pin_memory()
        self.texts = torch.randn(48, TEXT, COND).pin_memory()
        self.stream = torch.cuda.Stream()
        self.at = 0
        self.load()

    def load(self):
        rows = slice(self.at, self.at + BATCH)
        self.at = (self.at + BATCH) % 48
        with torch.cuda.stream(self.stream):
            self.next = [
                self.latents[rows].to(device, non_blocking=True),
                self.texts[rows].to(device, non_blocking=True),
                torch.rand(BATCH, 2, device=device),
            ]

    def __call__(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.next
        for t in batch:
            t.record_stream(torch.cuda.current_stream())
        self.load()
        return batch


model = DiT().to(device)
ema = copy.deepcopy(model).requires_grad_(False)
for block in model.blocks:
    block.compile()
weights, averages = list(model.parameters()), list(ema.parameters())
opt = torch.optim.AdamW(weights, lr=LR, betas=(0.9, 0.999), weight_decay=1e-3, fused=True)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: (1 - WARMUP ** (n + 1)) * (1 + n / 1e6) ** -0.5)
fetch = Prefetcher()
sobol = torch.quasirandom.SobolEngine(1, scramble=True, seed=3)

for i in steps():
    latents, text, span = fetch()
    t = sobol.draw(BATCH)[:, 0].to(device)
    alpha, sigma = torch.cos(t * math.pi / 2)[:, None, None], torch.sin(t * math.pi / 2)[:, None, None]
    noise = torch.randn_like(latents)
    noised, target = latents * alpha + noise * sigma, noise * alpha - latents * sigma
    with torch.autocast("cuda", dtype=torch.bfloat16):
        v = model(noised, t, text, span)
    loss = F.mse_loss(v.float(), target)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    decay = min(DECAY, (1 + i) / (10 + i))
    torch._foreach_lerp_(averages, weights, 1 - decay)
    if i % 20 == 0:
        print(f"{i} loss {loss.item():.4f} std {latents.std().item():.3f}")
