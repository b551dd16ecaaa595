import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2Model
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True
torch.manual_seed(0)

cfg = {
    "device": "cuda",
    "layer": 8,
    "lm_batch": 32,
    "lm_length": 128,
    "lm": dict(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12),
    "buffer": 1 << 18,
    "batch": 4096,
    "latents": 24576,
    "k": 32,
    "k_aux": 512,
    "aux_coefficient": 1 / 32,
    "dead_after": 4,
    "lr": 3e-4,
}


class ActivationBuffer:
    """Residual-stream activations of a frozen language model, mixed in a large pool."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.lm = GPT2Model(GPT2Config(**cfg["lm"])).to(cfg["device"], torch.bfloat16).eval()
        self.lm.h[cfg["layer"]].register_forward_hook(self.hook)
        self.pool = torch.empty(cfg["buffer"], cfg["lm"]["n_embd"], device=cfg["device"])
        self.seen = None
        n = cfg["lm_batch"] * cfg["lm_length"]
        for start in range(0, cfg["buffer"], n):
            self.pool[start : start + n] = self.harvest()[: cfg["buffer"] - start]
        self.mean = self.pool.mean(0)
        self.scale = cfg["lm"]["n_embd"] ** 0.5 / (self.pool - self.mean).norm(dim=1).mean()

    def hook(self, module, args, output):
        self.seen = output[0] if isinstance(output, tuple) else output

    @torch.no_grad()
    def harvest(self):
        c = self.cfg
        ids = torch.randint(0, c["lm"]["vocab_size"], (c["lm_batch"], c["lm_length"]), device=c["device"])
        self.lm(ids, use_cache=False)
        return self.seen.flatten(0, 1).float()

    @torch.no_grad()
    def next(self):
        fresh = self.harvest()
        self.pool[torch.randint(0, self.cfg["buffer"], (fresh.shape[0],), device=fresh.device)] = fresh
        pick = torch.randint(0, self.cfg["buffer"], (self.cfg["batch"],), device=fresh.device)
        return (self.pool[pick] - self.mean) * self.scale


class BatchTopKSAE(nn.Module):
    def __init__(self, d, latents, k):
        super().__init__()
        self.k = k
        w = F.normalize(torch.randn(latents, d), dim=1)
        self.dec = nn.Parameter(w.clone())
        self.enc = nn.Parameter(w.t().contiguous() * 0.5)
        self.b_enc, self.b_dec = nn.Parameter(torch.zeros(latents)), nn.Parameter(torch.zeros(d))
        self.register_buffer("threshold", torch.tensor(0.0))

    def encode(self, x):
        return F.relu((x - self.b_dec) @ self.enc + self.b_enc)

    def forward(self, x):
        pre = self.encode(x)
        cut = pre.detach().flatten().topk(self.k * x.shape[0], sorted=False).values.min()
        self.threshold.lerp_(cut, 0.01)
        rows, cols = (pre.detach() > cut).nonzero(as_tuple=True)
        values = pre[rows, cols]
        recon = self.b_dec.expand_as(x).index_add(0, rows, values.unsqueeze(1) * self.dec[cols])
        return recon, pre, cols

    def auxiliary(self, pre, residual, dead, k):
        pre = pre.index_select(1, dead)
        k = min(k, dead.numel())
        values, where = pre.topk(k, dim=1)
        acts = torch.zeros_like(pre).scatter(1, where, values)
        guess = acts @ self.dec.index_select(0, dead)
        return (guess - residual).square().mean() / residual.square().mean()

    @torch.no_grad()
    def project_gradient(self):
        along = (self.dec.grad * self.dec).sum(1, keepdim=True)
        self.dec.grad.sub_(along * self.dec)

    @torch.no_grad()
    def normalise(self):
        self.dec.div_(self.dec.norm(dim=1, keepdim=True))


buffer = ActivationBuffer(cfg)
sae = BatchTopKSAE(cfg["lm"]["n_embd"], cfg["latents"], cfg["k"]).to(cfg["device"])
optimizer = torch.optim.Adam(sae.parameters(), lr=cfg["lr"], betas=(0.0, 0.999), eps=6.25e-10, fused=True)
idle = torch.zeros(cfg["latents"], dtype=torch.long, device=cfg["device"])

for step in steps():
    x = buffer.next()
    recon, pre, fired = sae(x)
    residual = x - recon
    loss = residual.square().mean()
    dead = (idle > cfg["dead_after"]).nonzero().squeeze(1)
    if dead.numel():
        loss = loss + cfg["aux_coefficient"] * sae.auxiliary(pre, residual.detach(), dead, cfg["k_aux"])
    optimizer.zero_grad()
    loss.backward()
    sae.project_gradient()
    nn.utils.clip_grad_norm_(sae.parameters(), 1.0)
    optimizer.step()
    sae.normalise()
    idle += 1
    idle[fired.unique()] = 0
    if step % 10 == 0:
        explained = 1 - residual.square().sum() / (x - x.mean(0)).square().sum()
        print(f"{step:4d} loss {loss.item():.4f} explained {explained.item():.3f} dead {dead.numel()}")
