# Class-conditional images by next-scale prediction (VAR, depth 16), with classifier-free guidance and a key-value cache.
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

torch.backends.cudnn.benchmark = True
SCALES = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16)
DEPTH, WIDTH, HEADS, CLASSES, CODES, CODE_DIM = 16, 1024, 16, 1000, 4096, 32
DECODER = 160
BATCH, GUIDE, TOP_K, TOP_P = 8, 4.0, 900, 0.96
dev = "cuda"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("zero_k_bias", torch.zeros(WIDTH))
        self.scale = nn.Parameter(torch.full((1, HEADS, 1, 1), 4.0).log())
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.cache = None

    def attend(self, x):
        b, n, _ = x.shape
        qkv = F.linear(x, self.qkv.weight, torch.cat([self.q_bias, self.zero_k_bias, self.v_bias]))
        q, k, v = qkv.view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scale = self.scale.clamp(max=4.605).exp()
        q, k = F.normalize(q, dim=-1) * scale, F.normalize(k, dim=-1)
        if self.cache is not None:
            k, v = torch.cat([self.cache[0], k], 2), torch.cat([self.cache[1], v], 2)
        self.cache = (k, v)
        y = F.scaled_dot_product_attention(q, k, v, scale=1.0)
        return self.proj(y.transpose(1, 2).reshape(b, n, WIDTH))

    def forward(self, x, cond):
        g1, g2, s1, s2, b1, b2 = self.ada(cond).view(-1, 1, 6, WIDTH).unbind(2)
        x = x + self.attend(self.norm(x) * (s1 + 1) + b1) * g1
        h = F.gelu(self.fc1(self.norm(x) * (s2 + 1) + b2), approximate="tanh")
        return x + self.fc2(h) * g2


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        total = sum(s * s for s in SCALES)
        self.classes = nn.Embedding(CLASSES + 1, WIDTH)
        self.start = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.word = nn.Linear(CODE_DIM, WIDTH)
        self.level, self.pos = nn.Embedding(len(SCALES), WIDTH), nn.Parameter(torch.randn(1, total, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.ada = nn.LayerNorm(WIDTH, elementwise_affine=False), nn.Linear(WIDTH, 2 * WIDTH)
        self.head = nn.Linear(WIDTH, CODES)

    def forward(self, x, cond):
        for block in self.blocks:
            x = block(x, cond)
        scale, shift = self.ada(F.silu(cond)).unsqueeze(1).chunk(2, -1)
        return self.head(self.norm(x) * (scale + 1) + shift).float()


class ResBlock(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, a, eps=1e-6), nn.Conv2d(a, b, 3, 1, 1)
        self.norm2, self.conv2 = nn.GroupNorm(32, b, eps=1e-6), nn.Conv2d(b, b, 3, 1, 1)
        self.skip = nn.Identity() if a == b else nn.Conv2d(a, b, 1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class AttnBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.qkv, self.proj = nn.GroupNorm(32, c, eps=1e-6), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, c, h * w).unbind(1)
        p = (torch.einsum("bci,bcj->bij", q, k) * c**-0.5).softmax(-1)
        return x + self.proj(torch.einsum("bij,bcj->bci", p, v).reshape(b, c, h, w))


class Upsample(nn.Conv2d):
    def forward(self, x):
        return super().forward(F.interpolate(x, scale_factor=2, mode="nearest"))


class Tokenizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.Embedding(CODES, CODE_DIM)
        self.phi = nn.ModuleList(nn.Conv2d(CODE_DIM, CODE_DIM, 3, 1, 1) for _ in range(4))
        self.post = nn.Conv2d(CODE_DIM, CODE_DIM, 3, 1, 1)
        c = DECODER * 4
        layers = [nn.Conv2d(CODE_DIM, c, 3, 1, 1), ResBlock(c, c), AttnBlock(c), ResBlock(c, c)]
        for level, mult in enumerate((4, 2, 2, 1, 1)):
            for _ in range(3):
                layers.append(ResBlock(c, DECODER * mult))
                c = DECODER * mult
                if level == 0:
                    layers.append(AttnBlock(c))
            if level < 4:
                layers.append(Upsample(c, c, 3, 1, 1))
        self.decoder = nn.Sequential(*layers, nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 3, 3, 1, 1))

    def refine(self, level, canvas, ids):
        side, full = SCALES[level], SCALES[-1]
        h = self.codes(ids).transpose(1, 2).reshape(len(ids), CODE_DIM, side, side)
        if side != full:
            h = F.interpolate(h, size=(full, full), mode="bicubic")
        phi = self.phi[round(level / (len(SCALES) - 1) * 3)]
        canvas = canvas + 0.5 * h + 0.5 * phi(h)
        if level + 1 == len(SCALES):
            return canvas, None
        following = SCALES[level + 1]
        return canvas, F.interpolate(canvas, size=(following, following), mode="area")

    def decode(self, canvas):
        x = self.post(canvas).to(memory_format=torch.channels_last)
        return self.decoder(x).clamp(-1, 1)


def pick(logits):
    b, n, v = logits.shape
    floor = logits.topk(TOP_K, dim=-1).values[..., -1:]
    logits = logits.masked_fill(logits < floor, -torch.inf)
    ordered, order = logits.sort(-1)
    out = ordered.softmax(-1).cumsum(-1) <= 1 - TOP_P
    out[..., -1:] = False
    logits = logits.masked_fill(out.scatter(-1, order, out), -torch.inf)
    return torch.multinomial(logits.softmax(-1).view(-1, v), 1).view(b, n)


@torch.inference_mode()
def generate(net, vq, labels):
    both = torch.cat([labels, torch.full_like(labels, CLASSES)])
    cond = net.classes(both)
    marks = net.level.weight.repeat_interleave(torch.tensor([s * s for s in SCALES], device=dev), 0) + net.pos
    x = cond[:, None] + net.start + marks[:, :1]
    canvas = torch.zeros(len(labels), CODE_DIM, SCALES[-1], SCALES[-1], device=dev)
    at = 0
    for level, side in enumerate(SCALES):
        at += side * side
        with torch.autocast(dev, dtype=torch.bfloat16):
            logits = net(x, cond)
        t = GUIDE * level / (len(SCALES) - 1)
        guided, free = logits.chunk(2)
        ids = pick((1 + t) * guided - t * free)
        canvas, following = vq.refine(level, canvas, ids)
        if following is not None:
            x = net.word(following.flatten(2).transpose(1, 2)) + marks[:, at : at + SCALES[level + 1] ** 2]
            x = x.repeat(2, 1, 1)
    for block in net.blocks:
        block.cache = None
    with torch.autocast(dev, dtype=torch.bfloat16):
        image = vq.decode(canvas)
    return image.float().add(1).mul(127.5).to(torch.uint8).cpu()


net, vq = Transformer().to(dev).eval(), Tokenizer().to(dev).eval()
vq.decoder.to(memory_format=torch.channels_last)
made = 0
for i in steps():
    images = generate(net, vq, torch.randint(0, CLASSES, (BATCH,), device=dev))
    made += len(images)
print(made, "images of", tuple(images.shape[1:]))
