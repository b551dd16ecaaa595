# Masked-diffusion language model: semi-autoregressive sampling, low-confidence remasking, classifier-free guidance.
import torch, torch.nn as nn, torch.nn.functional as F
import numpy as np
from tick import steps

DEVICE, DTYPE = "cuda", torch.bfloat16
VOCAB, MASK_ID = 32000, 31999
DIM, LAYERS, HEADS, KV_HEADS, FFN = 2048, 22, 32, 4, 5632
BATCH, PROMPT, GEN, BLOCK, ITERATIONS = 8, 128, 256, 32, 4
TEMPERATURE, CFG_SCALE = 0.7, 1.5


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.head_dim = DIM // HEADS
        self.ln1, self.ln2 = nn.RMSNorm(DIM, eps=1e-5), nn.RMSNorm(DIM, eps=1e-5)
        self.wq = nn.Linear(DIM, DIM, bias=False)
        self.wkv = nn.Linear(DIM, 2 * KV_HEADS * self.head_dim, bias=False)
        self.wo = nn.Linear(DIM, DIM, bias=False)
        self.w13 = nn.Linear(DIM, 2 * FFN, bias=False)
        self.w2 = nn.Linear(FFN, DIM, bias=False)

    def rope(self, x, cos, sin):
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        h = self.ln1(x)
        q = self.wq(h).view(B, T, HEADS, -1).transpose(1, 2)
        k, v = self.wkv(h).view(B, T, 2 * KV_HEADS, -1).transpose(1, 2).chunk(2, dim=1)
        q, k = self.rope(q, cos, sin), self.rope(k, cos, sin)
        k = k.repeat_interleave(HEADS // KV_HEADS, dim=1)
        v = v.repeat_interleave(HEADS // KV_HEADS, dim=1)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.wo(y.transpose(1, 2).reshape(B, T, DIM))
        a, b = self.w13(self.ln2(x)).chunk(2, -1)
        return x + self.w2(F.silu(a) * b)


class MaskPredictor(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.ln_f = nn.RMSNorm(DIM, eps=1e-5)
        self.out = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, cos, sin):
        x = self.wte(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.out(self.ln_f(x))


def add_gumbel_noise(logits, temperature):
    if temperature == 0:
        return logits
    logits = logits.to(torch.float64)
    noise = torch.rand_like(logits, dtype=torch.float64)
    return logits.exp() / (-torch.log(noise)) ** temperature


def get_num_transfer_tokens(mask_index, iterations):
    mask_num = mask_index.sum(dim=1, keepdim=True)
    base, remainder = mask_num // iterations, mask_num % iterations
    num = torch.zeros(mask_num.size(0), iterations, device=mask_index.device, dtype=torch.int64) + base
    for i in range(mask_num.size(0)):
        num[i, : remainder[i]] += 1
    return num


@torch.no_grad()
def denoise_block(model, x, prompt_index, block, cos, sin):
    end = PROMPT + (block + 1) * BLOCK
    transfers = get_num_transfer_tokens(x[:, end - BLOCK : end] == MASK_ID, ITERATIONS)
    for i in range(ITERATIONS):
        mask_index = x == MASK_ID
        un_x = x.clone()
        un_x[prompt_index] = MASK_ID
        logits, un_logits = model(torch.cat([x, un_x], dim=0), cos, sin).chunk(2, dim=0)
        logits = un_logits + (CFG_SCALE + 1) * (logits - un_logits)
        x0 = torch.argmax(add_gumbel_noise(logits, TEMPERATURE), dim=-1)
        p = F.softmax(logits, dim=-1)
        x0_p = torch.gather(p, dim=-1, index=x0.unsqueeze(-1)).squeeze(-1)
        x0_p[:, end:] = -np.inf
        x0 = torch.where(mask_index, x0, x)
        confidence = torch.where(mask_index, x0_p, -np.inf)
        chosen = torch.zeros_like(x0, dtype=torch.bool)
        for j in range(confidence.shape[0]):
            _, select = torch.topk(confidence[j], k=transfers[j, i])
            chosen[j, select] = True
        x[chosen] = x0[chosen]
    return x


torch.manual_seed(0)
with torch.device(DEVICE):
    net = MaskPredictor().to(DTYPE).eval()
for p in net.parameters():
    if p.dim() == 2:
        p.data.normal_(0, 0.02)
net = torch.compile(net, mode="max-autotune-no-cudagraphs")

freq = 1.0 / 10000 ** (torch.arange(0, DIM // HEADS, 2, device=DEVICE).float() / (DIM // HEADS))
angles = torch.arange(PROMPT + GEN, device=DEVICE).float()[:, None] * freq
cos, sin = angles.cos(), angles.sin()

for step in steps():
    block = step % (GEN // BLOCK)
    if block == 0:
        x = torch.full((BATCH, PROMPT + GEN), MASK_ID, dtype=torch.long, device=DEVICE)
        x[:, :PROMPT] = torch.randint(0, VOCAB - 1, (BATCH, PROMPT), device=DEVICE)
        prompt_index = x != MASK_ID
    x = denoise_block(net, x, prompt_index, block, cos, sin)
